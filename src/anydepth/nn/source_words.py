"""What reading a source of few words takes besides the products of nn/few_words.py: Triton kernels like those."""

# mypy: disallow-untyped-defs=False
# (kernels are written in Triton's language, in which an annotation means something else)

import math

import torch
from torch import Tensor, nn

from anydepth.nn import overlap
from anydepth.nn.few_words import FEWEST, load_row, moments
from anydepth.nn.overlap import wait
from anydepth.nn.packed_attention import jit, tl, triton
from anydepth.nn.word_attention import SOURCE, load_source, look_through


def embed(source: Tensor, words: Tensor, positions: Tensor, scale: float, pad: int) -> tuple[Tensor, Tensor]:
    """scale · words[token] + positions[its place]: (B, S) tokens → (B · S, D); and what attention adds for them,
    (B, 1, 1, S): 0, or -∞ for padding."""
    (batch, length), width = source.shape, words.shape[1]
    out, seen = words.new_empty(source.numel(), width), words.new_empty(batch, 1, 1, length)
    overlap.launch(
        source_words_kernel, len(out),
        source, words, positions, out, seen, scale, pad, length, *source.stride(),
        width, triton.next_power_of_2(width), num_warps=4,
    )  # fmt: skip
    return out, seen


@jit
def source_words_kernel(
    source, words, positions, out, seen, scale, pad, length, source_row, source_column,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One word."""
    wait(OVERLAP)
    number = tl.program_id(0).to(tl.int64)
    row, place = number // length, number % length
    token = tl.load(source + row * source_row + place * source_column).to(tl.int64)
    columns = tl.arange(0, PADDED)
    real = columns < WIDTH
    word = (tl.load(words + token * WIDTH + columns, mask=real).to(tl.float32) * scale).to(out.dtype.element_ty)
    position = tl.load(positions + place * WIDTH + columns, mask=real).to(tl.float32)
    tl.store(out + number * WIDTH + columns, word.to(tl.float32) + position, mask=real)
    tl.store(seen + number, tl.where(token == pad, float("-inf"), 0.0))


def attend(qkv: Tensor, seen: Tensor) -> Tensor:
    """The words of each source to those of them that are seen: (B, S, 3, H, d) → (B · S, D). `seen`, (B, 1, 1, S), is
    added to their scores: 0 or -∞."""
    batch, length, _, heads, size = qkv.shape
    out = qkv.new_empty(batch * length, heads * size)
    keys = min(SOURCE // size, max(FEWEST, triton.next_power_of_2(length)))
    overlap.launch(
        each_other_kernel, len(out) * heads,
        qkv, seen, out, length, math.log2(math.e) / math.sqrt(size), heads, size, keys, num_warps=1,
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
    scale = load_row(norm_scale, 0, WIDTH, PADDED)[None, :]
    shift = load_row(norm_shift, 0, WIDTH, PADDED)[None, :]
    wait(OVERLAP)
    at, columns = tl.program_id(0).to(tl.int64) * WIDTH, tl.arange(0, PADDED)[None, :]
    states = load_row(x + at, 0, WIDTH, PADDED)[None, :]
    mean, spread = moments(states, epsilon, WIDTH, PADDED)
    normed = (states - mean[:, None]) * spread[:, None] * scale + shift
    tl.store(out + at + columns, normed.to(out.dtype.element_ty), mask=columns < WIDTH)
