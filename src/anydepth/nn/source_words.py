"""The beginning and the end of reading a source of few words: Triton kernels (see nn/few_words.py).

Between them, layers are products of nn/few_words.py and attention of nn/word_attention.py.
"""

# mypy: disallow-untyped-defs=False
# (kernels are written in Triton's language, in which an annotation means something else)

import torch
from torch import Tensor, nn

from anydepth.nn import overlap
from anydepth.nn.few_words import load_row, moments
from anydepth.nn.overlap import wait
from anydepth.nn.packed_attention import jit, tl, triton


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
