"""The accounts of speculation's rounds on a GPU, kept by one Triton kernel: single ones would be dozens of small
launches a round, and ten more a sentence to set them back."""

# mypy: disallow-untyped-defs=False
# (kernels are written in Triton's language, in which an annotation means something else)

from typing import NamedTuple

import torch
from torch import Tensor

from anydepth.decoding.picking import Next, for_kernel, tile_of
from anydepth.nn import overlap
from anydepth.nn.few_words import embed_word
from anydepth.nn.overlap import wait
from anydepth.nn.packed_attention import jit, tl, triton


class Heard(NamedTuple):
    """What the host hears of R rows, in its own memory."""

    tokens: Tensor
    """(R, T) the words found."""
    asked: Tensor
    """(2, R) the length of rows that go on, else -1; in turns, since the next round writes while the host reads."""
    lengths: Tensor
    """(R,) how many were found."""
    log_probabilities: Tensor
    """(R,) of them all."""


class Round(NamedTuple):
    """A round of speculation in R rows: q words read in each, the last one found and q - 1 drafted."""

    words: Tensor
    """(R, q); the first is set for the next round."""
    places: Tensor
    """(R, q) where they stand; those of the next round when it ends."""
    lengths: Tensor
    """(R,) how many words were found, as are all that follow."""
    limits: Tensor
    last: Tensor
    log_probabilities: Tensor
    running: Tensor
    rounds: Tensor
    turns: Tensor
    """Rounds of this search, also those of rows that are done."""


def settle(played: Round, heard: Heard, chosen: Tensor, gains: Tensor, eos: int, coming: Next | None = None) -> None:
    """Lengthens the rows as `judge` in decoding/speculative.py does, given the (R, q) words that the full depth would
    choose after those read, and their log-probabilities."""
    rows, count = played.words.shape
    overlap.launch(
        settle_kernel, rows, chosen, gains, *played._replace(running=played.running.view(torch.uint8)), *heard,
        *for_kernel(coming, gains), count, heard.tokens.stride(0), eos, triton.next_power_of_2(count), *tile_of(coming),
        num_warps=1,
    )  # fmt: skip


@jit
def settle_kernel(
    chosen, gains, words, places, lengths, limits, last, totals, running, rounds, turns,
    tokens, asked, told_lengths, told_totals, vectors, positions, scale, states, longest, count, token_row, eos,
    COUNT: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    wait(OVERLAP)
    row, number = tl.program_id(0).to(tl.int64), tl.arange(0, COUNT)
    real = number < count
    runs, length, limit = tl.load(running + row).to(tl.int64), tl.load(lengths + row), tl.load(limits + row)
    word = tl.load(chosen + row * count + number, mask=real, other=0)
    drafted = tl.load(words + row * count + number + 1, mask=number + 1 < count, other=-1)
    goes_on = (number + 1 < count) & (drafted == word) & (word != eos)
    kept = tl.min(tl.where(goes_on, COUNT, number), 0) + 1  # up to the first that is another, which is kept as well
    kept = tl.minimum(kept, limit - length) * runs
    tl.store(tokens + row * token_row + length + number, word, mask=number < count * runs)
    gained = tl.load(gains + row * count + number, mask=number < kept, other=0.0)
    gained_so_far = tl.load(totals + row) + tl.sum(gained, 0)
    tl.store(totals + row, gained_so_far)
    tl.store(told_totals + row, gained_so_far)
    final = tl.where(runs > 0, tl.sum(tl.where(number == kept - 1, word, 0), 0), tl.load(last + row))
    length += kept
    runs = runs * ((final != eos) & (length < limit)).to(tl.int64)
    tl.store(rounds + row, tl.load(rounds + row) + tl.load(running + row).to(tl.int64))
    tl.store(lengths + row, length)
    tl.store(told_lengths + row, length)
    tl.store(last + row, final)
    tl.store(running + row, runs.to(tl.uint8))
    turn = tl.load(turns + row)
    tl.store(turns + row, turn + 1)
    tl.store(asked + turn % 2 * tl.num_programs(0) + row, tl.where(runs > 0, length, -1))
    tl.store(places + row * count + number, length + number, mask=real)
    tl.store(words + row * count, final)
    if WIDTH:
        embed_word(final, length, vectors, positions, scale, states + row * WIDTH, longest, WIDTH, PADDED)


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
