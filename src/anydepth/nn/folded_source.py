"""Attention of a few words to one short source as two products instead of two and an attention: Triton kernels.

For a state y, head h scores word s of the source by (W_q,h y)ᵀ k_s,h, which is yᵀ (W_q,hᵀ k_s,h); and adds W_o,h by the
sum of its shares times v_s,h, which is the sum of shares times (W_o,h v_s,h). What stands in the latter brackets is the
same for all words of a translation: it is computed once. For one sentence it is no larger than the projections
themselves, as long as the source has no more words than a head has numbers; for a batch it would be read for each.
"""

# mypy: disallow-untyped-defs=False
# (kernels are written in Triton's language, in which an annotation means something else)

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from anydepth.nn import few_words, overlap
from anydepth.nn.attention import CrossAttention
from anydepth.nn.cache import Folded
from anydepth.nn.multiplying import FEWEST
from anydepth.nn.overlap import wait
from anydepth.nn.packed_attention import jit, product, tl, triton
from anydepth.nn.source_words import TOGETHER, padded_tuple

COLUMNS = 64
"""Of the projections, that a program reads."""


def places(length: int) -> int:
    """For the words of a source."""
    return max(FEWEST, triton.next_power_of_2(length))


def takes(heads: int, size: int, length: int) -> bool:
    """Whether heads of this size fold sources of this length."""
    return places(length) <= size and heads == triton.next_power_of_2(heads)


def fold(crosses: Sequence[CrossAttention], pairs: Sequence[Tensor], seen: Tensor) -> list[Folded]:
    """For each layer, given the keys and values that it has of one source, (S, 2D). `seen`, (1, 1, 1, S), is added to
    scores: 0 or -∞."""
    several = (slice(first, first + TOGETHER) for first in range(0, len(crosses), TOGETHER))
    return [found for some in several for found in fold_together(crosses[some], pairs[some], seen)]


def fold_together(crosses: Sequence[CrossAttention], pairs: Sequence[Tensor], seen: Tensor) -> list[Folded]:
    """As above, TOGETHER at most."""
    (length, twice), heads, count = pairs[0].shape, crosses[0].heads, len(crosses)
    width, room, biased = twice // 2, places(length), crosses[0].query.bias is not None
    keys, values = pairs[0].new_empty(2, count, heads * room * width).unbind()
    shift = pairs[0].new_empty(count, heads * room, dtype=torch.float32)
    weights = ([cross.query.weight for cross in crosses], [cross.out.weight for cross in crosses])
    biases = [cross.query.bias if biased else seen for cross in crosses]
    parts = triton.cdiv(width, COLUMNS)
    overlap.launch(
        fold_kernel, count * heads * parts,
        seen, *map(padded_tuple, (pairs, *weights, biases)), keys, shift, values, length, parts,
        math.log2(math.e) / math.sqrt(width // heads), TOGETHER, heads, width // heads, room, COLUMNS, biased,
        num_warps=4,
    )  # fmt: skip
    return list(map(Folded, keys.view(count, -1, width), shift, values.view(count, width, -1)))


@jit
def fold_kernel(
    seen, pairs, queries, outs, biases, keys, shifts, values, length, parts, scale,
    TOGETHER: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, PLACES: tl.constexpr, COLUMNS: tl.constexpr,
    BIAS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Some columns of a head of a layer."""
    number, head, states = tl.program_id(0) // (HEADS * parts), tl.program_id(0) // parts % HEADS, HEADS * WIDTH
    part = tl.program_id(0) % parts
    pair, query, bias, out = pairs[0], queries[0], biases[0], outs[0]
    for other in tl.static_range(1, TOGETHER):
        pair = tl.where(number == other, pairs[other], pair)
        query = tl.where(number == other, queries[other], query)
        bias = tl.where(number == other, biases[other], bias)
        out = tl.where(number == other, outs[other], out)
    column, place = part * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, PLACES)
    inner, row = head * WIDTH + tl.arange(0, WIDTH), (number * HEADS + head) * PLACES + place
    some, real = column < states, place < length
    query_weights = tl.load(query + inner[:, None] * states + column[None, :], mask=some[None, :], other=0.0)
    out_weights = tl.load(out + column[:, None] * states + inner[None, :], mask=some[:, None], other=0.0)
    wait(OVERLAP)
    at = place[:, None] * 2 * states + inner[None, :]
    k = tl.load(pair + at, mask=real[:, None], other=0.0)
    v = tl.load(pair + states + at, mask=real[:, None], other=0.0)
    folded = product(k, query_weights) * scale
    tl.store(keys + row[:, None] * states + column[None, :], folded.to(k.dtype), mask=some[None, :])
    folded = product(out_weights, tl.trans(v))
    at = (number * states + column[:, None]) * HEADS * PLACES + head * PLACES + place[None, :]
    tl.store(values + at, folded.to(v.dtype), mask=some[:, None])
    if part == 0:
        shift = tl.load(seen + place, mask=real, other=float("-inf")).to(tl.float32)
        if BIAS:
            shift += tl.sum(k.to(tl.float32) * tl.load(bias + inner).to(tl.float32)[None, :], 1) * scale
        tl.store(shifts + row, shift)


def look(x: Tensor, cross: CrossAttention, folded: Folded, norm: nn.Module | None, gate: Tensor | None) -> Tensor:
    """x + gate · what (R, D) words find in the source."""
    scores = x.new_empty(len(x), len(folded.keys), dtype=torch.float32)
    few_words.project(x, folded.keys, folded.shift, norm, out=scores)
    return few_words.project(scores, folded.values, cross.out.bias, residual=x, gate=gate, heads=cross.heads)
