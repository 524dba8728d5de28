"""The accounts of speculation set back by one Triton kernel: by single ones, ten small launches a sentence."""

# mypy: disallow-untyped-defs=False
# (kernels are written in Triton's language, in which an annotation means something else)

import torch
from torch import Tensor

from anydepth.decoding.picking import Round
from anydepth.nn import overlap
from anydepth.nn.overlap import wait
from anydepth.nn.packed_attention import jit, tl, triton


def restart(before: Round, limits: Tensor, bos: int) -> None:
    """For other sentences in the same places, with (R,) words allowed: as `Rows.restart`, and for the first round."""
    rows, count = before.words.shape
    overlap.launch(
        restart_kernel, rows, limits, *before._replace(running=before.running.view(torch.uint8)),
        count, bos, triton.next_power_of_2(count), num_warps=1,
    )  # fmt: skip


@jit
def restart_kernel(
    given, words, places, lengths, limits, last, totals, running, rounds, turns, count, bos,
    COUNT: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    wait(OVERLAP)
    row, number = tl.program_id(0).to(tl.int64), tl.arange(0, COUNT)
    limit = tl.load(given + row)
    tl.store(words + row * count + number, bos, mask=number < count)
    tl.store(places + row * count + number, number, mask=number < count)
    tl.store(lengths + row, 0)
    tl.store(limits + row, limit)
    tl.store(last + row, bos)
    tl.store(totals + row, 0.0)
    tl.store(running + row, (limit > 0).to(tl.uint8))
    tl.store(rounds + row, 0)
    tl.store(turns + row, 0)
