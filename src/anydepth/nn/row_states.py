"""Embeddings, residual additions and pooling where words stand in rows of a batch and the first so many still run:
Triton kernels, and the same in plain PyTorch.

How many run is read on the device, so that work recorded for more of them leaves the others' states alone.
"""

# mypy: disallow-untyped-defs=False
# (kernels are written in Triton's language, in which an annotation means something else)

import itertools
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anydepth.nn.embeddings import Embedding
from anydepth.nn.packed_attention import jit, tl, triton
from anydepth.nn.row_attention import Texts

ROWS = 4
"""That a program embeds or adds to, with as many warps."""
WIDE = 1024
"""Wider rows have programs of their own."""
POOLED = 128, 32
"""Rows and columns that a program pools at a time: most texts in four steps, as each waits for memory twice."""


def a_norm(module: nn.Module) -> nn.LayerNorm | None:
    return module if isinstance(module, nn.LayerNorm) else None


def rows_at_a_time(width: int) -> int:
    return ROWS if width <= WIDE else 1


class Listed(NamedTuple):
    """The words of a batch, text by text, and which of them stands in each row: (N,) int32 all."""

    tokens: Tensor
    positions: Tensor
    order: Tensor


def embed_rows(x: Tensor, embedding: Embedding, words: Listed, numbers: Tensor) -> None:
    """The rows of x that run, the first numbers[0], become the embeddings of their words."""
    if x.is_cuda:
        return launch_embed(x, embedding, words, numbers)
    order = words.order[: int(numbers[0])]
    x[: len(order)] = embedding(words.tokens[order][None], words.positions[order][None])[0]


def launch_embed(x: Tensor, embedding: Embedding, listed: Listed, numbers: Tensor) -> None:
    width, norm, words = x.shape[1], a_norm(embedding.norm), embedding.words.weight
    places = embedding.waves if embedding.learned is None else embedding.learned.weight
    if not (x.is_contiguous() and words.is_contiguous() and places.is_contiguous()):
        raise ValueError("embed_rows needs contiguous rows")
    rows = rows_at_a_time(width)
    weight, bias, epsilon = (x, x, 0.0) if norm is None else (norm.weight, norm.bias, norm.eps)
    embed_kernel[(-(-len(x) // rows),)](
        x, *listed, words, places, weight, bias, numbers, width, embedding.scale, epsilon,
        triton.next_power_of_2(width), rows, norm is not None, num_warps=4,
    )  # fmt: skip


@jit
def embed_kernel(
    x, tokens, positions, order, words, places, weight, bias, numbers, width, scale, epsilon,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    running = tl.load(numbers)
    first = tl.program_id(0) * ROWS
    if first >= running:
        return
    rows, columns = first + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    real = (rows < running)[:, None] & (columns < width)[None, :]
    mine = tl.load(order + rows, mask=rows < running, other=0)
    token, position = tl.load(tokens + mine).to(tl.int64), tl.load(positions + mine)
    word = tl.load(words + token[:, None] * width + columns[None, :], mask=real, other=0.0).to(tl.float32)
    place = tl.load(places + position[:, None] * width + columns[None, :], mask=real, other=0.0).to(tl.float32)
    kind = x.dtype.element_ty
    total = ((word * scale).to(kind).to(tl.float32) + place).to(kind)  # as rounded as single kernels leave it
    if NORM:
        total = normalised(total, real, columns, width, weight, bias, epsilon).to(kind)
    tl.store(x + rows.to(tl.int64)[:, None] * width + columns[None, :], total, mask=real)


@jit
def normalised(rows, real, columns, width, weight, bias, epsilon):
    rows = rows.to(tl.float32)
    centred = tl.where(real, rows - (tl.sum(rows, 1) / width)[:, None], 0.0)
    spread = tl.sqrt(tl.sum(centred * centred, 1) / width + epsilon)
    scale = tl.load(weight + columns, mask=columns < width, other=0.0).to(tl.float32)
    shift = tl.load(bias + columns, mask=columns < width, other=0.0).to(tl.float32)
    return centred / spread[:, None] * scale[None, :] + shift[None, :]


def add_branch(x: Tensor, branch: Tensor, numbers: Tensor, norm: nn.LayerNorm | None, normed: Tensor) -> None:
    """x += branch in the rows that run, the first numbers[0]. With a norm, `normed` becomes norm(x); it may be x."""
    if x.is_cuda:
        return launch_add(x, branch, numbers, norm, normed)
    running = int(numbers[0])
    x[:running] += branch[:running]
    if norm is not None:
        normed[:running] = norm(x[:running])


def launch_add(x: Tensor, branch: Tensor, numbers: Tensor, norm: nn.LayerNorm | None, normed: Tensor) -> None:
    width = x.shape[1]
    if not (x.is_contiguous() and branch.is_contiguous() and normed.is_contiguous()):
        raise ValueError("add_branch needs contiguous rows")
    rows = rows_at_a_time(width)
    weight, bias, epsilon = (x, x, 0.0) if norm is None else (norm.weight, norm.bias, norm.eps)
    add_kernel[(-(-len(branch) // rows),)](
        x, branch, normed, weight, bias, numbers, width, epsilon,
        triton.next_power_of_2(width), rows, norm is not None, normed is not x, num_warps=4,
    )  # fmt: skip


@jit
def add_kernel(
    x, branch, normed, weight, bias, numbers, width, epsilon,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, NORM: tl.constexpr, APART: tl.constexpr,
):  # fmt: skip
    running = tl.load(numbers)
    first = tl.program_id(0) * ROWS
    if first >= running:
        return
    rows, columns = first + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    real = (rows < running)[:, None] & (columns < width)[None, :]
    at = rows.to(tl.int64)[:, None] * width + columns[None, :]
    added = tl.load(x + at, mask=real, other=0.0).to(tl.float32) + tl.load(branch + at, mask=real, other=0.0)
    total = added.to(x.dtype.element_ty)
    if not NORM or APART:
        tl.store(x + at, total, mask=real)
    if NORM:
        found = normalised(total, real, columns, width, weight, bias, epsilon)  # as rounded as single kernels leave it
        tl.store(normed + at, found.to(x.dtype.element_ty), mask=real)


def pool_texts(states: Tensor, texts: Texts) -> Tensor:
    """ReLU of the maximum and of the mean over each text's words: (N, D) states → (B, 2D)."""
    pooled = states.new_empty(len(texts.starts) - 1, 2 * states.shape[1])
    if states.is_cuda:
        launch_pool(states, texts, pooled)
        return pooled
    kind = torch.float32 if states.dtype.itemsize < 4 else states.dtype  # sums over hundreds of words
    for found, (first, end) in zip(pooled.zero_(), itertools.pairwise(texts.starts.tolist())):
        if first < end:
            mine = states[texts.rows[first:end].long()].to(kind)
            found.copy_(F.relu(torch.cat([mine.amax(0), mine.mean(0)])))
    return pooled


def launch_pool(states: Tensor, texts: Texts, pooled: Tensor) -> None:
    width, (rows, columns) = states.shape[1], POOLED
    if not states.is_contiguous():
        raise ValueError("pool_texts needs contiguous rows")
    pool_kernel[(len(pooled), -(-width // columns))](
        states, pooled, texts.rows, texts.starts, width, rows, columns, num_warps=4
    )


@jit
def pool_kernel(states, pooled, rows, starts, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    text = tl.program_id(0)
    start, end = tl.load(starts + text), tl.load(starts + text + 1)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    highest = tl.zeros((COLUMNS,), tl.float32)  # of what a ReLU leaves
    total = tl.zeros((COLUMNS,), tl.float32)
    for first in range(start, end, ROWS):
        places = first + tl.arange(0, ROWS)
        row = tl.load(rows + places, mask=places < end, other=0).to(tl.int64)
        real = (places < end)[:, None] & (columns < width)[None, :]
        values = tl.load(states + row[:, None] * width + columns[None, :], mask=real, other=0.0).to(tl.float32)
        highest = tl.maximum(highest, tl.max(values, 0))
        total += tl.sum(values, 0)
    mean = total / tl.maximum(end - start, 1)
    at = pooled + text.to(tl.int64) * 2 * width + columns
    tl.store(at, highest, mask=columns < width)
    tl.store(at + width, tl.maximum(mean, 0.0), mask=columns < width)
