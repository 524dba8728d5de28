"""A decoder step of a few words on a GPU, in as few kernels as it takes: Triton kernels.

With few words, a step reads every weight once and waits for one kernel after the other. Norms, activations and residual
additions are therefore parts of the products beside them, and attention writes its own cache: a decoder layer takes
eight kernels instead of eighteen, and seven where there is one short source (nn/folded_source.py). Where no source is
folded, what they compute is rounded where single kernels would round it. Up to four or five words are multiplied one by
one, by warps that have a few columns each: tensor cores take sixteen words, and operands that go through shared memory.

Kernels overlap (nn/overlap.py): a product reads all but the states before it waits for these. Attention is in
nn/word_attention.py.

States are (R, D), as many rows as words: R = 1 for greedy search of one sentence, beams and drafts have more.
"""

# mypy: disallow-untyped-defs=False
# (kernels are written in Triton's language, in which an annotation means something else)

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anydepth.nn import overlap
from anydepth.nn.overlap import FRESH, wait
from anydepth.nn.packed_attention import KERNEL_HEADS, jit, tl, triton

MOST = 64
"""Rows that the products here take: with more, the products by themselves are what takes time."""
MANY, FEW = 8192, 32
"""Columns, such as the words of a vocabulary, from which on this holds of more rows than so few."""
FEWEST = 16
"""Rows and columns of the smallest product that tensor cores have."""
ACTIVATIONS: dict[object, int] = {None: 0, F.relu: 1, F.gelu: 2}


class Tile(NamedTuple):
    """How one program multiplies."""

    columns: int
    """Of the result."""
    inner: int
    """Of what is summed over, at a time."""
    warps: int
    rows: int = FEWEST
    """Of the result."""
    singly: int = 0
    """Rows that are multiplied one by one, if they are."""
    parts: int = 1
    """Of a sum, each by warps of their own: where it is long, has no norm before it and fits in one go."""

    def blocks(self, rows: int) -> int:
        """Programs for so many rows of the same columns."""
        return triton.cdiv(rows, self.singly or self.rows)

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """For a kernel."""
        return self.rows, self.columns, self.inner, self.singly, self.parts


@cache
def choose_tile(rows: int, columns: int, inner: int) -> Tile:
    """For a product of this shape, the fastest or nearly on an H200: narrow, so that all multiprocessors have something
    to read, and where it fits in one go, so that a program reads all its weights before it waits."""
    padded, width = triton.next_power_of_2(rows), max(FEWEST, triton.next_power_of_2(inner))
    wide, all_words = columns >= 1024, columns > MANY
    if rows <= (1 if all_words else 4 if wide else 5) and width <= (1024 if all_words else 8192):
        if all_words:
            narrow = 64 if columns > 8 * MANY else 16
        else:
            narrow = 4 if wide or (rows == 1 and width >= 2048) else 2
            narrow *= 2 if rows == 1 and columns >= 2048 else 1
        warps = max(1, narrow * width // (8192 if all_words else 4096))
        return Tile(narrow, width, warps, rows=padded, singly=rows)
    if all_words:
        return Tile(128, min(512, width), 8, rows=2 * FEWEST) if rows > FEWEST else Tile(64, min(512, width), 8)
    return Tile(32, width, 4) if inner <= 512 else Tile(16, min(2048, width), 4, parts=4 if width == 2048 else 1)


def tile_of_shares(rows: int, width: int) -> Tile:
    """For shares of attention: a few rows at a time, without tensor cores, which would round them."""
    singly = min(rows, 5)
    return Tile(4, width, max(1, width // 1024), rows=triton.next_power_of_2(singly), singly=singly)


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
def load_states(x, x_row, row, rows, first, WIDTH: tl.constexpr, INNER: tl.constexpr):
    inner = first + tl.arange(0, INNER)
    real = (row < rows)[:, None]
    if WIDTH % INNER:
        real = real & (inner < WIDTH)[None, :]
    return tl.load(x + row[:, None] * x_row + inner[None, :], mask=real, other=0.0)


@jit
def load_weights(weight, column, columns, first, WIDTH: tl.constexpr, INNER: tl.constexpr):
    inner = first + tl.arange(0, INNER)
    real = (column < columns)[None, :]
    if WIDTH % INNER:
        real = real & (inner < WIDTH)[:, None]
    at = weight + column[None, :].to(tl.int64) * WIDTH + inner[:, None]
    return tl.load(at, mask=real, other=0.0, cache_modifier=FRESH)


@jit
def rows_of(blocks, rows, ROWS: tl.constexpr, SINGLY: tl.constexpr):
    """The first row of a program's, and all of them, padded with such as there are none. Programs that read the same
    weights stand side by side."""
    first = tl.program_id(0) % blocks * (SINGLY if SINGLY else ROWS)
    row = first + tl.arange(0, ROWS)
    if SINGLY:
        row = tl.where(tl.arange(0, ROWS) < SINGLY, row, rows)
    return first, row


@jit
def load_row(row, first, WIDTH: tl.constexpr, INNER: tl.constexpr):
    inner = first + tl.arange(0, INNER)
    return tl.load(row + inner, mask=inner < WIDTH, other=0.0).to(tl.float32)


@jit
def moments(sums, squares, epsilon, WIDTH: tl.constexpr):
    """The mean of each row, and what its deviations are multiplied by, from parts of the sums of states and of their
    squares: what states in 16 bits leave of deviations much smaller than the mean is no better."""
    last: tl.constexpr = len(sums.shape) - 1
    mean = tl.sum(sums, last) / WIDTH
    return mean, tl.rsqrt(tl.maximum(tl.sum(squares, last) / WIDTH - mean * mean, 0.0) + epsilon)


@jit
def shares(scores, HEADS: tl.constexpr, INNER: tl.constexpr):
    """Of each head's attention, given logarithms to base 2: none where nothing is seen."""
    each = tl.reshape(scores, (HEADS, INNER // HEADS))
    p = tl.exp2(each - tl.maximum(tl.max(each, 1), -1e30)[:, None])
    total = tl.sum(p, 1)
    return tl.reshape(p / tl.where(total > 0, total, 1.0)[:, None], (INNER,))


@jit
def multiply_singly(
    x, weight, norm_scale, norm_shift, x_row, first, row, rows, column, columns, epsilon,
    WIDTH: tl.constexpr, INNER: tl.constexpr, NORM: tl.constexpr, HEADS: tl.constexpr, SINGLY: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """norm(x) weightᵀ, a row at a time."""
    weights = load_weights(weight, column, columns, 0, WIDTH, INNER)
    if NORM:
        scale = load_row(norm_scale, 0, WIDTH, INNER)
        shift = load_row(norm_shift, 0, WIDTH, INNER)
    wait(OVERLAP)
    states: tl.tuple = ()
    for number in tl.static_range(SINGLY):  # where there is none, the last one again
        states += (load_row(x + tl.minimum(first + number, rows - 1) * x_row, 0, WIDTH, INNER),)
    if NORM:  # of all rows first: one after the other they would wait for their sums
        normed: tl.tuple = ()
        for number in tl.static_range(SINGLY):
            mean, spread = moments(states[number], states[number] * states[number], epsilon, WIDTH)
            each = (states[number] - mean) * spread * scale + shift
            normed += (each.to(x.dtype.element_ty).to(tl.float32),)
        states = normed
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for number in tl.static_range(SINGLY):
        one = shares(states[number], HEADS, INNER) if HEADS else states[number]
        found = tl.sum(one[:, None] * weights.to(tl.float32), 0)
        total = tl.where((row == first + number)[:, None], found[None, :], total)
    return total


@jit
def multiply_at_once(
    x, weight, norm_scale, norm_shift, x_row, row, rows, column, columns, epsilon,
    WIDTH: tl.constexpr, INNER: tl.constexpr, NORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """norm(x) weightᵀ by tensor cores, all that is summed over at the same time: in chains that do not wait for each
    other, each of 256 numbers at most, which a warp reads at a time, so that it has whole rows of the states."""
    PART: tl.constexpr = INNER if INNER < 256 else 256
    CHAINS: tl.constexpr = (WIDTH + PART - 1) // PART  # no more: a chain of padding alone would not be masked
    weights: tl.tuple = ()
    scales: tl.tuple = ()
    shifts: tl.tuple = ()
    states: tl.tuple = ()
    for part in tl.static_range(CHAINS):
        weights += (load_weights(weight, column, columns, part * PART, WIDTH, PART),)
        if NORM:  # as often as there are rows, so that threads have them where they have states
            scales += (load_states(norm_scale, 0, row, rows, part * PART, WIDTH, PART),)
            shifts += (load_states(norm_shift, 0, row, rows, part * PART, WIDTH, PART),)
    wait(OVERLAP)
    for part in tl.static_range(CHAINS):
        states += (load_states(x, x_row, row, rows, part * PART, WIDTH, PART),)
    if NORM:
        sums = states[0].to(tl.float32)
        squares = sums * sums
        for part in tl.static_range(1, CHAINS):
            sums += states[part].to(tl.float32)
            squares += states[part].to(tl.float32) * states[part].to(tl.float32)
        mean, spread = moments(sums, squares, epsilon, WIDTH)
        normed: tl.tuple = ()
        for part in tl.static_range(CHAINS):
            deviation = (states[part].to(tl.float32) - mean[:, None]) * spread[:, None]
            normed += ((deviation * scales[part] + shifts[part]).to(x.dtype.element_ty),)
        states = normed
    total = tl.dot(states[0], weights[0])
    for part in tl.static_range(1, CHAINS):
        total = tl.fma(tl.dot(states[part], weights[part]), 1.0, total)  # a mere sum would become a chain again
    return total


@jit
def multiply_divided(
    x, weight, x_row, row, rows, column, columns,
    WIDTH: tl.constexpr, INNER: tl.constexpr, PARTS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """x weightᵀ by tensor cores, a part of the sum by each warp: if each had all of it for a part of the columns, all
    would read all states from shared memory."""
    PART: tl.constexpr = INNER // PARTS
    part, inner = tl.arange(0, PARTS)[:, None, None] * PART, tl.arange(0, PART)
    real = (column < columns)[None, None, :]
    if WIDTH % INNER:
        real = real & (part + inner[None, :, None] < WIDTH)
    at = weight + column[None, None, :].to(tl.int64) * WIDTH + part + inner[None, :, None]
    weights = tl.load(at, mask=real, other=0.0, cache_modifier=FRESH)
    wait(OVERLAP)
    real = (row < rows)[None, :, None]
    if WIDTH % INNER:
        real = real & (part + inner[None, None, :] < WIDTH)
    states = tl.load(x + row[None, :, None] * x_row + part + inner[None, None, :], mask=real, other=0.0)
    return tl.sum(tl.dot(states, weights), 0)


@jit
def multiply_in_parts(
    x, weight, norm_scale, norm_shift, x_row, row, rows, column, columns, epsilon,
    WIDTH: tl.constexpr, INNER: tl.constexpr, NORM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    sums = tl.zeros((ROWS, INNER), tl.float32)
    squares = tl.zeros((ROWS, INNER), tl.float32)
    if NORM:
        for first in range(0, WIDTH, INNER):
            some = load_states(x, x_row, row, rows, first, WIDTH, INNER).to(tl.float32)
            sums += some
            squares += some * some
        mean, spread = moments(sums, squares, epsilon, WIDTH)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, WIDTH, INNER):
        states = load_states(x, x_row, row, rows, first, WIDTH, INNER)
        if NORM:
            normed = (states.to(tl.float32) - mean[:, None]) * spread[:, None]
            normed = normed * load_row(norm_scale, first, WIDTH, INNER)[None, :]
            states = (normed + load_row(norm_shift, first, WIDTH, INNER)[None, :]).to(states.dtype)
        total = tl.dot(states, load_weights(weight, column, columns, first, WIDTH, INNER), total)
    return total


@jit
def multiply(
    x, weight, norm_scale, norm_shift, x_row, first, row, rows, column, columns, epsilon,
    WIDTH: tl.constexpr, INNER: tl.constexpr, NORM: tl.constexpr, HEADS: tl.constexpr, SINGLY: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """norm(x) weightᵀ of some columns, once earlier kernels are done."""
    if SINGLY:
        found = multiply_singly(
            x, weight, norm_scale, norm_shift, x_row, first, row, rows, column, columns, epsilon,
            WIDTH, INNER, NORM, HEADS, SINGLY, ROWS, COLUMNS, OVERLAP,
        )  # fmt: skip
    elif PARTS > 1 and not NORM:
        found = multiply_divided(
            x, weight, x_row, row, rows, column, columns, WIDTH, INNER, PARTS, OVERLAP,
        )  # fmt: skip
    elif INNER >= WIDTH:
        found = multiply_at_once(
            x, weight, norm_scale, norm_shift, x_row, row, rows, column, columns, epsilon,
            WIDTH, INNER, NORM, OVERLAP,
        )  # fmt: skip
    else:
        wait(OVERLAP)
        found = multiply_in_parts(
            x, weight, norm_scale, norm_shift, x_row, row, rows, column, columns, epsilon,
            WIDTH, INNER, NORM, ROWS, COLUMNS,
        )  # fmt: skip
    return found


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
