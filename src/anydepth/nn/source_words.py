"""What reading a source of few words takes besides the products of nn/few_words.py: Triton kernels like those."""

# mypy: disallow-untyped-defs=False
# (kernels are written in Triton's language, in which an annotation means something else)

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from anydepth.nn import overlap
from anydepth.nn.few_words import Vectors, embed_word
from anydepth.nn.multiplying import choose_tile, load_row, moments, multiply, rows_of
from anydepth.nn.overlap import wait
from anydepth.nn.packed_attention import jit, tl, triton
from anydepth.nn.word_attention import SOURCE, keys_at_a_time, load_source, look_through

TOGETHER = 8
"""Matrices that a kernel takes: always so many, or each number of layers would have to be compiled by itself."""


def embed(source: Tensor, vectors: Vectors, pad: int) -> tuple[Tensor, Tensor]:
    """(B, S) tokens, each in its place → (B · S, D); and what attention adds for them, (B, 1, 1, S): 0, or -∞ for
    padding."""
    (batch, length), width = source.shape, vectors.words.shape[1]
    out, seen = vectors.words.new_empty(source.numel(), width), vectors.words.new_empty(batch, 1, 1, length)
    overlap.launch(
        source_words_kernel, len(out),
        source, *vectors, out, seen, len(vectors.positions), pad, length, *source.stride(),
        width, triton.next_power_of_2(width), num_warps=4,
    )  # fmt: skip
    return out, seen


@jit
def source_words_kernel(
    source, words, positions, scale, out, seen, longest, pad, length, source_row, source_column,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One word."""
    wait(OVERLAP)
    number = tl.program_id(0)
    row, place = number // length, number % length
    token = tl.load(source + row * source_row + place * source_column)
    embed_word(token, place, words, positions, scale, out + number * WIDTH, longest, WIDTH, PADDED)
    tl.store(seen + number, tl.where(token == pad, float("-inf"), 0.0))


def attend(qkv: Tensor, seen: Tensor) -> Tensor:
    """The words of each source to those of them that are seen: (B, S, 3, H, d) → (B · S, D). `seen`, (B, 1, 1, S), is
    added to their scores: 0 or -∞."""
    batch, length, _, heads, size = qkv.shape
    out = qkv.new_empty(batch * length, heads * size)
    keys, warps = keys_at_a_time(length, size, SOURCE)
    overlap.launch(
        each_other_kernel, len(out) * heads,
        qkv, seen, out, length, math.log2(math.e) / math.sqrt(size), heads, size, keys, num_warps=warps,
    )  # fmt: skip
    return out


@jit
def each_other_kernel(
    qkv, seen, out, length, scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, KEYS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One head of one word. All that it reads comes from the kernel before."""
    wait(OVERLAP)
    word, head, states = (tl.program_id(0) // HEADS).to(tl.int64), tl.program_id(0) % HEADS, HEADS * WIDTH
    first, mine = word // length * length, head * WIDTH + tl.arange(0, WIDTH)
    keys, seen = qkv + first * 3 * states + states + head * WIDTH, seen + first
    k, v, allowed = load_source(keys, keys + states, seen, 0, length, 3 * states, KEYS, WIDTH)
    q = tl.load(qkv + word * 3 * states + mine).to(tl.float32) * scale
    found = look_through(q, k, v, allowed, keys, keys + states, seen, length, 3 * states, KEYS, WIDTH)
    tl.store(out + word * states + mine, found.to(out.dtype.element_ty))


def normalise(x: Tensor, norm: nn.Module) -> Tensor:
    """norm(x), (R, D): layer normalisation, or nothing. Only x may come from the kernel before."""
    if not isinstance(norm, nn.LayerNorm):
        return x
    (rows, width), out = x.shape, torch.empty_like(x)
    overlap.launch(
        norm_kernel, rows,
        x, norm.weight, norm.bias, out, norm.eps, width, triton.next_power_of_2(width), num_warps=4,
    )  # fmt: skip
    return out


@jit
def norm_kernel(
    x, norm_scale, norm_shift, out, epsilon, WIDTH: tl.constexpr, PADDED: tl.constexpr, OVERLAP: tl.constexpr
):
    """One row."""
    scale, shift = load_row(norm_scale, 0, WIDTH, PADDED), load_row(norm_shift, 0, WIDTH, PADDED)
    wait(OVERLAP)
    at, columns = tl.program_id(0).to(tl.int64) * WIDTH, tl.arange(0, PADDED)
    states = load_row(x + at, 0, WIDTH, PADDED)
    mean, spread = moments(states, states * states, epsilon, WIDTH)
    normed = (states - mean) * spread * scale + shift
    tl.store(out + at + columns, normed.to(out.dtype.element_ty), mask=columns < WIDTH)


def project_each(x: Tensor, products: Sequence[nn.Linear]) -> list[Tensor]:
    """x by several matrices of one shape, (R, D) → (R, N) each, and a kernel for every few of them. Only x may come
    from the kernel before."""
    several = (products[first : first + TOGETHER] for first in range(0, len(products), TOGETHER))
    return [found for some in several for found in project_together(x, some)]


def project_together(x: Tensor, products: Sequence[nn.Linear]) -> tuple[Tensor, ...]:
    """As above, TOGETHER at most."""
    (rows, width), (columns, _), full = x.shape, products[0].weight.shape, products[0].bias is not None
    out, tile = x.new_empty(len(products), rows, columns), choose_tile(rows, columns, width)
    weights, biases = [each.weight for each in products], [each.bias if full else x for each in products]
    blocks = tile.blocks(rows)
    programs = blocks * triton.cdiv(columns, tile.columns)
    overlap.launch(
        project_each_kernel, len(products) * programs,
        x, padded_tuple(weights), padded_tuple(biases), out, rows, columns, blocks, programs, x.stride(0),
        TOGETHER, width, *tile.shape, full, num_warps=tile.warps, num_stages=2,
    )  # fmt: skip
    return out.unbind()


def padded_tuple(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """TOGETHER of them, for a kernel."""
    return (*tensors, *[tensors[0]] * (TOGETHER - len(tensors)))


@jit
def project_each_kernel(
    x, weights, biases, out, rows, columns, blocks, programs, x_row,
    TOGETHER: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr,
    SINGLY: tl.constexpr, PARTS: tl.constexpr, BIAS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """As `project_kernel`, of the matrix whose turn it is."""
    number = tl.program_id(0) // programs
    weight, bias = weights[0], biases[0]
    for other in tl.static_range(1, TOGETHER):
        weight = tl.where(number == other, weights[other], weight)
        bias = tl.where(number == other, biases[other], bias)
    first, row = rows_of(blocks, rows, ROWS, SINGLY)
    column = tl.program_id(0) % programs // blocks * COLUMNS + tl.arange(0, COLUMNS)
    if BIAS:
        shift = tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)[None, :]
    total = multiply(
        x, weight, x, x, x_row, first, row, rows, column, columns, 0.0,
        WIDTH, INNER, False, 0, SINGLY, ROWS, COLUMNS, PARTS, OVERLAP,
    )  # fmt: skip
    if BIAS:
        total += shift
    at = (number.to(tl.int64) * rows + row[:, None]) * columns + column[None, :]
    real = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=real)
