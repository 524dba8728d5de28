"""Attention of the words that still run, in texts whose words stand in rows anywhere: a Triton kernel, and the same in
plain PyTorch.

A text's words are found through a list of their rows, those that run longest first. A program takes one head and a tile
of running words of one text, and loops over all words of the text (the online softmax of FlashAttention, Dao et al.
2022, algorithm 1). Tiles are as small as running words are few, and there are no programs for words that have stopped.
Those of the longest texts take longest and start first, so that no multiprocessor is left with them at the end.

Where keys and values of stopped words are kept, there are two planes of them: one that the layer at hand has just
written, for running words, and one for those that have stopped. A word goes from one to the other in its last layer.
"""

# mypy: disallow-untyped-defs=False
# (kernels are written in Triton's language, in which an annotation means something else)

import math
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anydepth.nn.packed_attention import jit, product, tl

Array = np.ndarray


class Tile(NamedTuple):
    """How one program computes."""

    queries: int
    keys: int
    """At a time."""
    warps: int
    stages: int


TILES = (
    (64, 8, Tile(64, 32, 4, 3)),
    (64, 2, Tile(64, 64, 4, 2)),
    (12, 8, Tile(32, 32, 2, 3)),
    (12, 2, Tile(32, 64, 2, 3)),
    (0, 0, Tile(16, 64, 1, 2)),
)
"""The first whose number of running words a text has on average, and that gives each multiprocessor so many programs.
The fastest of twenty, or within 4 %, on an H200 with 32 and 128 texts of 270 words of which 8 to 270 run, 12 heads of
32: where programs are many, smaller tiles of keys let more of them run side by side."""
SINGLE = Tile(16, 32, 4, 1)
"""For float32, which tensor cores do not take."""
MULTIPROCESSORS = 132
"""Of an H100 or H200."""
SEARCH = 16
"""The fewest texts among which a program looks for its own at once."""


class Texts(NamedTuple):
    """Where the words of a batch are."""

    rows: Tensor
    """(N,) int32, text by text; within a text those that run longest come first."""
    starts: Tensor
    """(B + 1,) int32, where each text begins in `rows`."""
    by_length: Tensor
    """(2, B) int32, where texts begin and where they end, the longest first."""


class Step(NamedTuple):
    """The words that run in one layer: the first so many rows, and of each text the first so many."""

    numbers: Tensor
    """(2 + 2B,) int32: how many run here, how many in the next layer, how many of each text, the longest first, and the
    number of tiles up to the end of each text."""
    tile: Tile


@cache
def choose_tile(words: int, texts: int, heads: int, dtype: torch.dtype) -> Tile:
    """For so many running words in so many texts."""
    if dtype == torch.float32:
        return SINGLE
    for least, programs, tile in TILES:
        if words >= least * texts and words // tile.queries * heads >= programs * MULTIPROCESSORS:
            return tile
    raise AssertionError("the last tile fits all")


def step_numbers(running: Array, tiles: list[Tile]) -> Array:
    """(K, B) words that run in each layer, of the longest text first → (K, 2 + 2B) as a `Step` has them."""
    queries, texts = np.array([[tile.queries] for tile in tiles], dtype=np.int32), running.shape[1]
    numbers = np.zeros((len(tiles), 2 + 2 * texts), dtype=np.int32)
    numbers[:, 0] = running.sum(1)
    numbers[:-1, 1] = numbers[1:, 0]
    numbers[:, 2 : 2 + texts] = running
    np.cumsum((running + queries - 1) // queries, axis=1, out=numbers[:, 2 + texts :])
    return numbers


def attend_rows(q: Tensor, k: Tensor, v: Tensor, out: Tensor, heads: int, texts: Texts, step: Step) -> None:
    """softmax(q kᵀ / √d) v of (n, D) queries into the rows of `out`, (N, D), that belong to running words.

    Keys and values are (planes, N, D), alike in their strides; of two planes the second is for words that have stopped,
    and gets those that stop now. n may be larger than the number of running words.
    """
    if not q.is_cuda:
        return attend_text_by_text(q, k, v, out, heads, texts, step)
    launch(q, k, v, out, heads, texts, step)


def attend_text_by_text(q: Tensor, k: Tensor, v: Tensor, out: Tensor, heads: int, texts: Texts, step: Step) -> None:
    """What the kernel computes."""
    here, after, *running = step.numbers[: 2 + texts.by_length.shape[1]].tolist()
    rows = texts.rows.long()
    for (first, end), queries in zip(texts.by_length.T.tolist(), running):
        every, mine = rows[first:end], rows[first : first + queries]
        plane = (every >= here).long() if len(k) > 1 else torch.zeros_like(every)
        tensors = q[mine], k[plane, every], v[plane, every]
        split = (tensor.unflatten(1, (heads, -1)).transpose(0, 1) for tensor in tensors)
        out[mine] = F.scaled_dot_product_attention(*split).transpose(0, 1).flatten(1)
    if len(k) > 1:
        k[1, after:here], v[1, after:here] = k[0, after:here], v[0, after:here]


def launch(q: Tensor, k: Tensor, v: Tensor, out: Tensor, heads: int, texts: Texts, step: Step) -> None:
    count, width, tile = texts.by_length.shape[1], q.shape[1] // heads, step.tile
    if k.stride() != v.stride() or any(x.stride(-1) != 1 for x in (q, k, v, out)):
        raise ValueError("attend_rows needs contiguous rows, and keys that stand as values do")
    programs = len(q) // tile.queries + min(count, len(q))  # a tile at most of each text is not full
    attend_kernel[(programs * heads,)](
        q, k, v, out, texts.rows, texts.by_length, step.numbers, count, math.log2(math.e) / math.sqrt(width),
        q.stride(0), k.stride(1), k.stride(0), out.stride(0),
        heads, width, max(SEARCH, 1 << (count - 1).bit_length()), tile.queries, tile.keys, len(k) > 1,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


@jit
def attend_kernel(
    q, k, v, out, rows, by_length, numbers, texts, scale, q_row, k_row, k_plane, out_row,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, SEARCH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
    KEPT: tl.constexpr,
):  # fmt: skip
    tile, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    several = tl.arange(0, SEARCH)
    ends = tl.load(numbers + 2 + texts + several, mask=several < texts, other=0x7FFFFFFF)
    text = tl.sum((ends <= tile).to(tl.int32), 0)
    if text >= texts:  # counts of words are rounded up
        return
    tile -= tl.max(tl.where(ends <= tile, ends, 0), 0)
    here, queries = tl.load(numbers), tl.load(numbers + 2 + text)
    start, end = tl.load(by_length + text), tl.load(by_length + texts + text)
    columns = (head * WIDTH + tl.arange(0, WIDTH))[None, :]

    places = tile * QUERIES + tl.arange(0, QUERIES)
    real = places < queries
    mine = tl.load(rows + start + places, mask=real, other=0).to(tl.int64)  # large batches pass 2³¹ numbers
    q_tile = tl.load(q + mine[:, None] * q_row + columns, mask=real[:, None], other=0.0)
    highest = tl.full((QUERIES,), -1e30, tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    attended = tl.zeros((QUERIES, WIDTH), tl.float32)
    for first in range(start, end, KEYS):
        seen = first + tl.arange(0, KEYS) < end
        row = tl.load(rows + first + tl.arange(0, KEYS), mask=seen, other=0)
        at = row.to(tl.int64) * k_row
        if KEPT:
            at += tl.where(row < here, 0, k_plane)
        k_tile = tl.load(k + at[:, None] + columns, mask=seen[:, None], other=0.0)
        v_tile = tl.load(v + at[:, None] + columns, mask=seen[:, None], other=0.0)
        scores = tl.where(seen[None, :], product(q_tile, tl.trans(k_tile)), float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1) * scale)
        p = tl.exp2(scores * scale - higher[:, None])
        shrink = tl.exp2(highest - higher)
        total = total * shrink + tl.sum(p, 1)
        attended = attended * shrink[:, None] + product(p.to(v_tile.dtype), v_tile)
        highest = higher
    found = (attended / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + mine[:, None] * out_row + columns, found, mask=real[:, None])
    if KEPT:
        stops = (real & (mine >= tl.load(numbers + 1)))[:, None]
        at = mine[:, None] * k_row + columns
        tl.store(k + k_plane + at, tl.load(k + at, mask=stops), mask=stops)
        tl.store(v + k_plane + at, tl.load(v + at, mask=stops), mask=stops)
