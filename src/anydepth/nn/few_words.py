"""A decoder step of a few words on a GPU, in as few kernels as it takes: Triton kernels.

With few words, a step reads every weight once and waits for one kernel after the other. Norms, activations and residual
additions are therefore parts of the products beside them, and attention writes its own cache: a decoder layer takes
eight kernels instead of eighteen, and seven where there is one short source (nn/folded_source.py). Where no source is
folded, what they compute is rounded where single kernels would round it.

Kernels overlap (nn/overlap.py): a product reads all but the states before it waits for these. How it multiplies is in
nn/multiplying.py, attention in nn/word_attention.py.

States are (R, D), as many rows as words: R = 1 for greedy search of one sentence, beams and drafts have more.
"""

# mypy: disallow-untyped-defs=False
# (kernels are written in Triton's language, in which an annotation means something else)

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anydepth.nn import overlap
from anydepth.nn.multiplying import MANY, Tile, choose_tile, multiply, rows_of, tile_of_shares
from anydepth.nn.overlap import FRESH, wait
from anydepth.nn.packed_attention import KERNEL_HEADS, jit, tl, triton

MOST, FEW = 64, 32
"""Rows that the products here take, and where there are MANY columns: with more, the products by themselves are what
takes time."""
ACTIVATIONS: dict[object, int] = {None: 0, F.relu: 1, F.gelu: 2}


def takes(width: int, heads: int, weight: Tensor) -> bool:
    """Whether there are kernels for layers with such weights, where they are."""
    known = width // heads in KERNEL_HEADS and weight.dtype in (torch.bfloat16, torch.float16)
    return known and overlap.is_hopper(weight.device)


class Vectors(NamedTuple):
    """What words are embedded with."""

    words: Tensor
    """(V, D)"""
    positions: Tensor
    """(T, D)"""
    scale: float
    """Of words."""


def embed(tokens: Tensor, places: Tensor, vectors: Vectors, out: Tensor | None = None) -> Tensor:
    """scale · words[token] + positions[place]: (B, q) tokens, places that broadcast to them → (B · q, D)."""
    places, width = places.expand_as(tokens), vectors.words.shape[1]
    out = vectors.words.new_empty(tokens.numel(), width) if out is None else out
    overlap.launch(
        embed_kernel, tokens.numel(),
        tokens, places, *vectors, out, len(vectors.positions), tokens.shape[1], *tokens.stride(), *places.stride(),
        width, triton.next_power_of_2(width), num_warps=4,
    )  # fmt: skip
    return out


@jit
def embed_kernel(
    tokens, places, words, positions, scale, out, longest, count, token_row, token_column, place_row, place_column,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    wait(OVERLAP)
    row, column = tl.program_id(0) // count, tl.program_id(0) % count
    token = tl.load(tokens + row * token_row + column * token_column)
    place = tl.load(places + row * place_row + column * place_column)
    embed_word(token, place, words, positions, scale, out + tl.program_id(0) * WIDTH, longest, WIDTH, PADDED)


@jit
def embed_word(token, place, words, positions, scale, out, longest, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """Beyond the last position, where words are drafted and never kept, as at the last."""
    columns = tl.arange(0, PADDED)
    kind = out.dtype.element_ty
    real = columns < WIDTH
    word = (tl.load(words + token.to(tl.int64) * WIDTH + columns, mask=real).to(tl.float32) * scale).to(kind)
    place = tl.minimum(place, longest - 1).to(tl.int64)
    position = tl.load(positions + place * WIDTH + columns, mask=real).to(tl.float32)
    tl.store(out + columns, word.to(tl.float32) + position, mask=real)


def project(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm: nn.Module | None = None,
    activation: Callable[[Tensor], Tensor] | None = None,
    residual: Tensor | None = None,
    gate: Tensor | None = None,
    tile: Tile | None = None,
    out: Tensor | None = None,
    heads: int = 0,
) -> Tensor:
    """residual + gate · activation(norm(x) weightᵀ + bias): (R, D) → (R, N), perhaps into `out`, whose rows may be
    apart. Without a residual there is no gate. Where so many heads are given, x are their scores, D a power of two,
    and what is multiplied are the shares of each head's attention.

    All but x is read before the kernel waits, and must not come from the one before it.
    """
    (rows, width), columns = x.shape, len(weight)
    assert residual is None or residual.is_contiguous()
    if rows > (MOST if columns <= MANY else FEW):
        assert not heads
        found = by_single_kernels(x, weight, bias, norm, activation, residual, gate)
        return found if out is None else out.copy_(found)
    out = (x if residual is None else residual).new_empty(rows, columns) if out is None else out
    scale, shift, epsilon, normed = parts_of(norm, x)
    chosen = tile or (tile_of_shares(rows, width) if heads else choose_tile(rows, columns, width))
    blocks = chosen.blocks(rows)
    overlap.launch(
        project_kernel, blocks * triton.cdiv(columns, chosen.columns),
        x, weight, x if bias is None else bias, scale, shift, x if residual is None else residual,
        x if gate is None else gate, out, rows, columns, blocks, x.stride(0), out.stride(0), epsilon,
        width, *chosen.shape,
        normed, heads, bias is not None, ACTIVATIONS[activation], residual is not None, gate is not None,
        num_warps=chosen.warps, num_stages=2,
    )  # fmt: skip
    return out


def parts_of(norm: nn.Module | None, x: Tensor) -> tuple[Tensor, Tensor, float, bool]:
    """Scale, shift and epsilon of a norm, for a kernel, and whether it is one; others do nothing to the states `x`."""
    return (norm.weight, norm.bias, norm.eps, True) if isinstance(norm, nn.LayerNorm) else (x, x, 0.0, False)


def by_single_kernels(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm: nn.Module | None,
    activation: Callable[[Tensor], Tensor] | None,
    residual: Tensor | None,
    gate: Tensor | None,
) -> Tensor:
    """What `project` computes, of any number of rows."""
    found = F.linear(x if norm is None else norm(x), weight, bias)
    found = found if activation is None else activation(found)
    found = found if gate is None else gate.to(found.dtype) * found
    return found if residual is None else residual + found


@jit
def project_kernel(
    x, weight, bias, norm_scale, norm_shift, residual, gate, out, rows, columns, blocks, x_row, out_row, epsilon,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, SINGLY: tl.constexpr,
    PARTS: tl.constexpr, NORM: tl.constexpr, HEADS: tl.constexpr, BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
    ADD: tl.constexpr, GATE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    kind = out.dtype.element_ty
    first, row = rows_of(blocks, rows, ROWS, SINGLY)
    column = tl.program_id(0) // blocks * COLUMNS + tl.arange(0, COLUMNS)
    real = (row < rows)[:, None] & (column < columns)[None, :]
    if BIAS:
        shift = tl.load(bias + column, mask=column < columns, other=0.0, cache_modifier=FRESH).to(tl.float32)[None, :]
    if GATE:
        factor = tl.load(gate, cache_modifier=FRESH).to(kind).to(tl.float32)
    if ADD:
        at = row[:, None] * columns + column[None, :]
        before = tl.load(residual + at, mask=real, other=0.0, cache_modifier=FRESH).to(tl.float32)
    total = multiply(
        x, weight, norm_scale, norm_shift, x_row, first, row, rows, column, columns, epsilon,
        WIDTH, INNER, NORM, HEADS, SINGLY, ROWS, COLUMNS, PARTS, OVERLAP,
    )  # fmt: skip
    if BIAS:
        total += shift
    total = total.to(kind)
    if ACTIVATION == 1:
        total = tl.maximum(total, 0.0)
    if ACTIVATION == 2:
        exact = total.to(tl.float32)
        total = (0.5 * exact * (1 + tl.math.erf(exact * 0.7071067811865476))).to(kind)
    if GATE:
        total = (total.to(tl.float32) * factor).to(kind)
    if ADD:
        total = (before + total.to(tl.float32)).to(kind)
    tl.store(out + row[:, None] * out_row + column[None, :], total, mask=real)
