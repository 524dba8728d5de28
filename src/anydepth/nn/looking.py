"""What words look for in their source, and what they find there, in one Triton kernel (see nn/few_words.py).

Of a few words, the product that makes queries takes no longer than its launch. Here the program that attends makes its
own: one head of one word reads that head's part of the matrix before it waits, and the keys and values as well.
"""

# mypy: disallow-untyped-defs=False
# (kernels are written in Triton's language, in which an annotation means something else)

import math

import torch
from torch import Tensor, nn

from anydepth.nn import overlap
from anydepth.nn.few_words import load_row, load_weights, parts_of, project
from anydepth.nn.overlap import wait
from anydepth.nn.packed_attention import jit, tl, triton
from anydepth.nn.word_attention import SOURCE, attend_source, load_source, look_through

PROGRAMS = 160
"""At most, heads times words: with more, they read the same matrices too often."""
WEIGHTS = 4096
"""A warp's."""
WARPS = 16
"""A program's at most."""


def look(x: Tensor, query: nn.Linear, norm: nn.Module | None, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """attend_source(norm(x) queryᵀ, keys, values, seen), (B · q, D) → (B · q, D). Only x may come from the kernel
    before."""
    batch, length, heads, size = keys.shape
    rows, inner = len(x), triton.next_power_of_2(heads * size)
    warps = inner * size // WEIGHTS
    if rows * heads > PROGRAMS or warps > WARPS:
        return attend_source(project(x, query.weight, query.bias, norm), keys, values, seen)
    out, (scale, shift, epsilon, normed) = torch.empty_like(x), parts_of(norm, x)
    overlap.launch(
        look_kernel, rows * heads,
        x, query.weight, x if query.bias is None else query.bias, scale, shift, keys, values, out, seen,
        rows // batch, length, x.stride(0), keys.stride(0), keys.stride(1), seen.stride(0), epsilon,
        math.log2(math.e) / math.sqrt(size), heads, size, inner, SOURCE // size, normed, query.bias is not None,
        num_warps=max(1, warps),
    )  # fmt: skip
    return out


@jit
def look_kernel(
    x, weight, bias, norm_scale, norm_shift, keys, values, out, seen,
    count, length, x_row, key_row, key_word, seen_row, epsilon, scale,
    HEADS: tl.constexpr, SIZE: tl.constexpr, INNER: tl.constexpr, KEYS: tl.constexpr,
    NORM: tl.constexpr, BIAS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One head of one word."""
    word, head = (tl.program_id(0) // HEADS).to(tl.int64), tl.program_id(0) % HEADS
    row, mine, width = word // count, head * SIZE + tl.arange(0, SIZE), HEADS * SIZE
    weights = load_weights(weight, mine, width, 0, HEADS * SIZE, INNER)
    keys, values, seen = keys + row * key_row + head * SIZE, values + row * key_row + head * SIZE, seen + row * seen_row
    k, v, allowed = load_source(keys, values, seen, 0, length, key_word, KEYS, SIZE)
    if BIAS:
        added = tl.load(bias + mine).to(tl.float32)
    if NORM:
        stretch = load_row(norm_scale, 0, HEADS * SIZE, INNER)
        shift = load_row(norm_shift, 0, HEADS * SIZE, INNER)
    wait(OVERLAP)
    state = load_row(x + word * x_row, 0, HEADS * SIZE, INNER)
    if NORM:
        state -= tl.sum(state, 0) / width
        deviation = tl.where(tl.arange(0, INNER) < width, state, 0.0)
        state *= 1 / tl.sqrt(tl.sum(deviation * deviation, 0) / width + epsilon)
        state = (state * stretch + shift).to(x.dtype.element_ty).to(tl.float32)
    q = tl.sum(state[:, None] * weights.to(tl.float32), 0)
    if BIAS:
        q += added
    q = q.to(x.dtype.element_ty).to(tl.float32) * scale
    found = look_through(q, k, v, allowed, keys, values, seen, length, key_word, KEYS, SIZE)
    tl.store(out + word * width + mine, found.to(out.dtype.element_ty))
