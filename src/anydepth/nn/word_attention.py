"""Attention of a few words, to what was said before them and to their source: Triton kernels (see nn/few_words.py). A
program takes one head of one sentence, and loops over its keys with the online softmax of FlashAttention."""

# mypy: disallow-untyped-defs=False
# (kernels are written in Triton's language, in which an annotation means something else)

import math

import torch
from torch import Tensor

from anydepth.nn import overlap
from anydepth.nn.few_words import FEWEST
from anydepth.nn.overlap import begin, wait
from anydepth.nn.packed_attention import jit, product, tl, triton

KEYS = 64
"""That attention reads at a time."""
QUERIES = 64
"""Words of a sentence, or hypotheses, that attend at a time, at most: the chip has no room for many more."""


def attend_said(qkv: Tensor, keys: Tensor, values: Tensor, places: Tensor, seen: Tensor | None = None) -> Tensor:
    """What q words of each sentence attend to in what was said before, and in each other: (B, q, 3, H, d) → (B · q, D).

    The new words stand one after the other from places, (B,) or (1,), in keys and values, (B, T, H, d), which get
    theirs. Each sees what stands before them all and, among them, those not after itself. Those of a beam stand at one
    place, in keys and values (B, T, q, H, d), and see what `seen`, (B, q, T, q) scores, allows, and themselves.
    """
    batch, count, _, heads, size = qkv.shape
    out = qkv.new_empty(batch * count, heads * size)
    places = places.expand(batch)
    overlap.launch(
        said_kernel, batch * heads,
        qkv, keys, values, out, places, qkv if seen is None else seen, count, keys.stride(0), places.stride(0),
        *((0, 0) if seen is None else seen.stride()[:2]), math.log2(math.e) / math.sqrt(size),
        heads, size, max(FEWEST, triton.next_power_of_2(count)), KEYS, seen is not None, num_warps=4,
    )  # fmt: skip
    return out


@jit
def said_kernel(
    qkv, keys, values, out, places, seen, count, key_row, place_row, seen_row, seen_word, scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, BEAM: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    begin(OVERLAP)
    wait(OVERLAP)
    row, head = (tl.program_id(0) // HEADS).to(tl.int64), tl.program_id(0) % HEADS
    word, column = tl.arange(0, QUERIES), tl.arange(0, WIDTH)
    real, states = (word < count)[:, None], HEADS * WIDTH
    here = qkv + (row * count + word[:, None]) * 3 * states + head * WIDTH + column[None, :]
    q = tl.load(here, mask=real, other=0.0)
    k = tl.load(here + states, mask=real, other=0.0)
    v = tl.load(here + 2 * states, mask=real, other=0.0)
    first = tl.load(places + row * place_row).to(tl.int32)
    if BEAM:
        first *= count
    base = row * key_row + head * WIDTH
    new = base + (first + word[:, None]) * states + column[None, :]
    tl.store(keys + new, k, mask=real)
    tl.store(values + new, v, mask=real)

    own = word[:, None] == word[None, :]
    if not BEAM:
        own = own | ((word[None, :] < word[:, None]) & (word < count)[None, :])
    scores = tl.where(own, product(q, tl.trans(k)) * scale, float("-inf"))
    highest = tl.max(scores, 1)
    p = tl.exp2(scores - highest[:, None])
    total = tl.sum(p, 1)
    attended = product(p.to(v.dtype), v)
    for start in range(0, first, KEYS):
        place = start + tl.arange(0, KEYS)
        at = base + place[:, None] * states + column[None, :]
        k_before = tl.load(keys + at, mask=(place < first)[:, None], other=0.0)
        v_before = tl.load(values + at, mask=(place < first)[:, None], other=0.0)
        before = tl.where((place < first)[None, :], product(q, tl.trans(k_before)) * scale, float("-inf"))
        if BEAM:
            allowed = seen + row * seen_row + word[:, None] * seen_word + place[None, :]
            before += tl.load(allowed, mask=real & (place < first)[None, :], other=0.0).to(tl.float32)
        higher = tl.maximum(highest, tl.max(before, 1))
        weights = tl.exp2(before - higher[:, None])
        shrink = tl.exp2(highest - higher)
        total = total * shrink + tl.sum(weights, 1)
        attended = attended * shrink[:, None] + product(weights.to(v.dtype), v_before)
        highest = higher
    found = (attended / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + (row * count + word[:, None]) * states + head * WIDTH + column[None, :], found, mask=real)


def attend_source(q: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """Words' (B · q, D) queries to the (B, S, H, d) keys and values of their sentence's source → (B · q, D). `seen`,
    (B, 1, 1, S), is added to their scores: 0 or -∞."""
    batch, length, heads, size = keys.shape
    out, count = torch.empty_like(q), len(q) // batch
    overlap.launch(
        source_kernel, batch * heads,
        q, keys, values, out, seen, count, length, keys.stride(0), keys.stride(1), seen.stride(0),
        math.log2(math.e) / math.sqrt(size),
        heads, size, max(FEWEST, triton.next_power_of_2(count)), KEYS, num_warps=4,
    )  # fmt: skip
    return out


@jit
def source_kernel(
    q, keys, values, out, seen, count, length, key_row, key_word, seen_row, scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    begin(OVERLAP)
    wait(OVERLAP)
    row, head = (tl.program_id(0) // HEADS).to(tl.int64), tl.program_id(0) % HEADS
    word, column = tl.arange(0, QUERIES), tl.arange(0, WIDTH)
    real = (word < count)[:, None]
    here = (row * count + word[:, None]) * HEADS * WIDTH + head * WIDTH + column[None, :]
    queries = tl.load(q + here, mask=real, other=0.0)
    base = row * key_row + head * WIDTH
    highest = tl.full((QUERIES,), -1e30, tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    attended = tl.zeros((QUERIES, WIDTH), tl.float32)
    for start in range(0, length, KEYS):
        place = start + tl.arange(0, KEYS)
        at = base + place[:, None] * key_word + column[None, :]
        k = tl.load(keys + at, mask=(place < length)[:, None], other=0.0)
        v = tl.load(values + at, mask=(place < length)[:, None], other=0.0)
        allowed = tl.load(seen + row * seen_row + place, mask=place < length, other=float("-inf")).to(tl.float32)
        scores = product(queries, tl.trans(k)) * scale + allowed[None, :]
        higher = tl.maximum(highest, tl.max(scores, 1))
        p, shrink = tl.exp2(scores - higher[:, None]), tl.exp2(highest - higher)
        total = total * shrink + tl.sum(p, 1)
        attended = attended * shrink[:, None] + product(p.to(v.dtype), v)
        highest = higher
    found = attended / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out + here, found.to(out.dtype.element_ty), mask=real)
