"""Attention of a few words, to what was said before them and to their source: Triton kernels (see nn/few_words.py).

A program takes one head of one word, without tensor cores, which take sixteen; or that of all hypotheses of a sentence.
It loops over the keys with the online softmax of FlashAttention (Dao et al. 2022, algorithm 1).
"""

# mypy: disallow-untyped-defs=False
# (kernels are written in Triton's language, in which an annotation means something else)

import math

import torch
from torch import Tensor

from anydepth.nn import overlap
from anydepth.nn.multiplying import FEWEST
from anydepth.nn.overlap import FRESH, wait
from anydepth.nn.packed_attention import jit, product, tl, triton

LEAST, SAID, SOURCE = 2048, 8192, 16384
"""Keys times their size that a word by itself reads at a time: at least, and at most of words before it (of which it is
not known how many there will be) and of its source."""
KEYS = 64
"""Keys that the words of a sentence read together at a time."""
ALONE = 256
"""Words that look at their sources each by itself: what those of a sentence read several times is not much yet."""
QUERIES = 64
"""Words of a sentence, or hypotheses, that attend at a time, at most: the chip has no room for many more."""


def keys_at_a_time(length: int, size: int, most: int) -> tuple[int, int]:
    """Keys that a word reads at a time, of so many, and the warps that do it. What is read in a second turn is not read
    ahead of the wait: all at once, 192 keys of a source take 2.4 µs on an H200, and 4 in three turns."""
    least = LEAST // size
    keys = min(most // size, max(least, triton.next_power_of_2(length)))
    return keys, max(1, keys // least)


def attend_said(qkv: Tensor, keys: Tensor, values: Tensor, places: Tensor, seen: Tensor | None = None) -> Tensor:
    """What q words of each sentence attend to in what was said before, and in each other: (B, q, 3, H, d) → (B · q, D).

    The new words stand one after the other from places, (B,) or (1,), in keys and values, (B, T, H, d), which get
    theirs. Each sees what stands before them all and, among them, those not after itself. Those of a beam stand at one
    place, in keys and values (B, T, q, H, d), and see what `seen`, (B, q, T, q) scores, allows, and themselves.

    What was said before, and places, are read before the kernel waits: only `qkv` may come from the one before it.
    """
    batch, count, _, heads, size = qkv.shape
    out = qkv.new_empty(batch * count, heads * size)
    places, scale = places.expand(batch), math.log2(math.e) / math.sqrt(size)
    if seen is None:
        # most sentences end long before there is no more room
        many, warps = keys_at_a_time(3 * keys.shape[1] // 4, size, SAID)
        overlap.launch(
            said_kernel, batch * count * heads,
            qkv, keys, values, out, places, count, keys.stride(0), places.stride(0), scale,
            heads, size, triton.next_power_of_2(count), many, num_warps=4 if warps > 1 else 1,
        )  # fmt: skip
    else:
        overlap.launch(
            beam_kernel, batch * heads,
            qkv, keys, values, out, places, seen, count, keys.stride(0), places.stride(0), *seen.stride()[:2], scale,
            heads, size, max(FEWEST, triton.next_power_of_2(count)), KEYS, num_warps=4,
        )  # fmt: skip
    return out


@jit
def said_kernel(
    qkv, keys, values, out, places, count, key_row, place_row, scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, NEW: tl.constexpr, KEYS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One head of one word."""
    word, head, states = (tl.program_id(0) // HEADS).to(tl.int64), tl.program_id(0) % HEADS, HEADS * WIDTH
    row, number = word // count, word % count
    column, other, place = tl.arange(0, WIDTH), tl.arange(0, NEW), tl.arange(0, KEYS)
    base = row * key_row + head * WIDTH
    first = tl.load(places + row * place_row, cache_modifier=FRESH).to(tl.int32)
    k, v = load_said(keys + base, values + base, place, first, states, WIDTH)
    wait(OVERLAP)
    here = qkv + row * count * 3 * states + head * WIDTH
    q = tl.load(here + number * 3 * states + column).to(tl.float32) * scale
    new = other[:, None] * 3 * states + column[None, :]
    seen = other <= number
    k_new = tl.load(here + states + new, mask=seen[:, None], other=0.0)
    v_new = tl.load(here + 2 * states + new, mask=seen[:, None], other=0.0)
    mine = base + (first + other[:, None]) * states + column[None, :]
    tl.store(keys + mine, k_new, mask=(other == number)[:, None])
    tl.store(values + mine, v_new, mask=(other == number)[:, None])

    if NEW == 1:
        highest = tl.sum(tl.sum(k_new.to(tl.float32) * q[None, :], 1), 0)
        total = 1.0
        attended = tl.sum(v_new.to(tl.float32), 0)
    else:
        scores = tl.where(seen, tl.sum(k_new.to(tl.float32) * q[None, :], 1), float("-inf"))
        highest = tl.max(scores, 0)
        p = tl.exp2(scores - highest)
        total = tl.sum(p, 0)
        attended = tl.sum(p.to(v.dtype).to(tl.float32)[:, None] * v_new.to(tl.float32), 0)
    before = tl.where(place < first, tl.sum(k.to(tl.float32) * q[None, :], 1), float("-inf"))
    highest, total, attended = attend_more(highest, total, attended, before, v)
    for start in range(KEYS, first, KEYS):
        k, v = load_said(keys + base, values + base, start + place, first, states, WIDTH)
        before = tl.where(start + place < first, tl.sum(k.to(tl.float32) * q[None, :], 1), float("-inf"))
        highest, total, attended = attend_more(highest, total, attended, before, v)
    tl.store(out + word * states + head * WIDTH + column, (attended / total).to(out.dtype.element_ty))


@jit
def load_said(keys, values, place, first, states, WIDTH: tl.constexpr):
    at = place[:, None] * states + tl.arange(0, WIDTH)[None, :]
    k = tl.load(keys + at, mask=(place < first)[:, None], other=0.0, cache_modifier=FRESH)
    return k, tl.load(values + at, mask=(place < first)[:, None], other=0.0, cache_modifier=FRESH)


@jit
def attend_more(highest, total, attended, scores, v):
    """Of one query, with further keys: the highest score, the sum of exponentials, and what is attended to."""
    higher = tl.maximum(highest, tl.max(scores, 0))
    p, shrink = tl.exp2(scores - higher), tl.exp2(highest - higher)
    more = tl.sum(p.to(v.dtype).to(tl.float32)[:, None] * v.to(tl.float32), 0)
    return higher, total * shrink + tl.sum(p, 0), attended * shrink + more


@jit
def beam_kernel(
    qkv, keys, values, out, places, seen, count, key_row, place_row, seen_row, seen_word, scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One head of all hypotheses of a sentence."""
    wait(OVERLAP)
    row, head = (tl.program_id(0) // HEADS).to(tl.int64), tl.program_id(0) % HEADS
    word, column = tl.arange(0, QUERIES), tl.arange(0, WIDTH)
    real, states = (word < count)[:, None], HEADS * WIDTH
    here = qkv + (row * count + word[:, None]) * 3 * states + head * WIDTH + column[None, :]
    q = tl.load(here, mask=real, other=0.0)
    k = tl.load(here + states, mask=real, other=0.0)
    v = tl.load(here + 2 * states, mask=real, other=0.0)
    first = tl.load(places + row * place_row).to(tl.int32) * count
    base = row * key_row + head * WIDTH
    new = base + (first + word[:, None]) * states + column[None, :]
    tl.store(keys + new, k, mask=real)
    tl.store(values + new, v, mask=real)

    own = word[:, None] == word[None, :]
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
    (B, 1, 1, S), is added to their scores: 0 or -∞. Only the queries may come from the kernel before."""
    batch, length, heads, size = keys.shape
    out, count = torch.empty_like(q), len(q) // batch
    given = q, keys, values, out, seen, count, length, keys.stride(0), keys.stride(1), seen.stride(0)
    scale = math.log2(math.e) / math.sqrt(size)
    if len(q) <= ALONE:
        many, warps = keys_at_a_time(length, size, SOURCE)
        overlap.launch(source_kernel, len(q) * heads, *given, scale, heads, size, many, num_warps=warps)
    else:
        queries = max(FEWEST, triton.next_power_of_2(count))
        overlap.launch(beam_source_kernel, batch * heads, *given, scale, heads, size, queries, KEYS, num_warps=4)
    return out


@jit
def source_kernel(
    queries, keys, values, out, seen, count, length, key_row, key_word, seen_row, scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, KEYS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One head of one word."""
    word, head = (tl.program_id(0) // HEADS).to(tl.int64), tl.program_id(0) % HEADS
    row, column = word // count, tl.arange(0, WIDTH)
    base, seen = row * key_row + head * WIDTH, seen + row * seen_row
    k, v, allowed = load_source(keys + base, values + base, seen, 0, length, key_word, KEYS, WIDTH)
    wait(OVERLAP)
    here = word * HEADS * WIDTH + head * WIDTH + column
    q = tl.load(queries + here).to(tl.float32) * scale
    found = look_through(q, k, v, allowed, keys + base, values + base, seen, length, key_word, KEYS, WIDTH)
    tl.store(out + here, found.to(out.dtype.element_ty))


@jit
def look_through(
    q, k, v, allowed, keys, values, seen, length, key_word, KEYS: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """What one query finds in a source whose first words are read already."""
    scores = tl.sum(k.to(tl.float32) * q[None, :], 1) + allowed
    highest = tl.maximum(tl.max(scores, 0), -1e30)  # a number even where nothing is seen
    p = tl.exp2(scores - highest)
    total = tl.sum(p, 0)
    attended = tl.sum(p.to(v.dtype).to(tl.float32)[:, None] * v.to(tl.float32), 0)
    for start in range(KEYS, length, KEYS):
        k, v, allowed = load_source(keys, values, seen, start, length, key_word, KEYS, WIDTH)
        scores = tl.sum(k.to(tl.float32) * q[None, :], 1) + allowed
        highest, total, attended = attend_more(highest, total, attended, scores, v)
    return attended / tl.where(total > 0, total, 1.0)


@jit
def load_source(keys, values, seen, start, length, key_word, KEYS: tl.constexpr, WIDTH: tl.constexpr):
    place = start + tl.arange(0, KEYS)
    at = place[:, None] * key_word + tl.arange(0, WIDTH)[None, :]
    k = tl.load(keys + at, mask=(place < length)[:, None], other=0.0, cache_modifier=FRESH)
    v = tl.load(values + at, mask=(place < length)[:, None], other=0.0, cache_modifier=FRESH)
    allowed = tl.load(seen + place, mask=place < length, other=float("-inf"), cache_modifier=FRESH)
    return k, v, allowed.to(tl.float32)


@jit
def beam_source_kernel(
    q, keys, values, out, seen, count, length, key_row, key_word, seen_row, scale,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One head of all words of a sentence."""
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
