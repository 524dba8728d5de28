"""A decoder step of a few words on a GPU, in as few kernels as it takes: Triton kernels.

With few words, a step reads every weight once and waits for one kernel after the other. Norms, activations and residual
additions are therefore parts of the products beside them, and attention writes its own cache: a decoder layer takes
eight kernels instead of eighteen. What they compute is rounded where single kernels would round it.

From Hopper on, a kernel begins while the one before it still runs (programmatic dependent launch): it reads its
weights, which nobody writes, and then waits for the states.

States are (R, D), as many rows as words: R = 1 for greedy search of one sentence, beams and drafts have more.
"""

# mypy: disallow-untyped-defs=False
# (kernels are written in Triton's language, in which an annotation means something else)

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anydepth.nn.packed_attention import KERNEL_HEADS, available, jit, product, tl, triton

MOST = 64
"""Rows that the products here take: with more, the products by themselves are what takes time."""
MANY = 8192
"""Columns, such as the words of a vocabulary, from which on this holds of fewer rows."""
FEWEST = 16
"""Rows and columns of the smallest product that tensor cores have."""
HOPPER = 9
"""The compute capability for which tiles were chosen: others lack room for them, or Triton does not compile them."""
KEYS = 64
"""That attention reads at a time."""
QUERIES = 64
"""Words of a sentence, or hypotheses, that attend at a time, at most: the chip has no room for many more."""
WORDS = 1 << 14
"""Logits that one program compares at a time."""
MOST_WORDS = 1 << 15
"""Logits of which one program finds several best."""
OVERLAP = True
"""Whether kernels begin before the last one has ended, where the GPU can."""
ACTIVATIONS: dict[object, int] = {None: 0, F.relu: 1, F.gelu: 2}


class Tile(NamedTuple):
    """How one program multiplies."""

    columns: int
    """Of the result."""
    inner: int
    """Of what is summed over, at a time."""
    warps: int
    stages: int


@cache
def choose_tile(rows: int, columns: int, inner: int) -> Tile:
    """For a product of this shape, the fastest or nearly on an H200: narrow, so that all multiprocessors have something
    to read, and where it fits in one go, so that a program reads all its weights before it waits."""
    if columns > MANY:
        return Tile(64, 512, 8, 2)
    if inner <= 1024:
        return Tile(16, 1024, 8 if rows > 32 or inner > 512 else 4, 2)
    return Tile(16, 2048, 8, 2) if rows <= 16 else Tile(16, 256, 4, 4)


def launch(kernel: Any, programs: int, *given: Any, **settings: int) -> None:
    """Starts a kernel where its first tensor is: the current device may be another. Its last parameter tells whether it
    begins before the last kernel has ended."""
    early = OVERLAP and is_hopper(given[0].device)
    with torch.cuda.device_of(given[0]):
        kernel[(programs,)](*given, early, **settings, **({"launch_pdl": True} if early else {}))


@cache
def is_hopper(device: torch.device) -> bool:
    return device.type == "cuda" and available() and torch.cuda.get_device_capability(device)[0] == HOPPER


@jit
def begin(OVERLAP: tl.constexpr):
    """Lets the next kernel begin."""
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()


@jit
def wait(OVERLAP: tl.constexpr):
    """For all that earlier kernels have written."""
    if OVERLAP:
        tl.extra.cuda.gdc_wait()


def takes(width: int, heads: int, weight: Tensor) -> bool:
    """Whether there are kernels for layers with such weights, where they are."""
    known = width // heads in KERNEL_HEADS and weight.dtype in (torch.bfloat16, torch.float16)
    return known and is_hopper(weight.device)


def embed(tokens: Tensor, places: Tensor, words: Tensor, positions: Tensor, scale: float) -> Tensor:
    """scale · words[token] + positions[place]: (B, q) tokens, places that broadcast to them → (B · q, D)."""
    places, width = places.expand_as(tokens), words.shape[1]
    out = words.new_empty(tokens.numel(), width)
    launch(
        embed_kernel, len(out), tokens, places, words, positions, out, scale, tokens.shape[1], *tokens.stride(),
        *places.stride(), width, triton.next_power_of_2(width), num_warps=4,
    )  # fmt: skip
    return out


@jit
def embed_kernel(
    tokens, places, words, positions, out, scale, count, token_row, token_column, place_row, place_column,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    begin(OVERLAP)
    wait(OVERLAP)
    row, column = tl.program_id(0) // count, tl.program_id(0) % count
    token = tl.load(tokens + row * token_row + column * token_column).to(tl.int64)
    place = tl.load(places + row * place_row + column * place_column).to(tl.int64)
    columns = tl.arange(0, PADDED)
    kind = out.dtype.element_ty
    real = columns < WIDTH
    word = (tl.load(words + token * WIDTH + columns, mask=real).to(tl.float32) * scale).to(kind)
    position = tl.load(positions + place * WIDTH + columns, mask=real).to(tl.float32)
    tl.store(out + tl.program_id(0) * WIDTH + columns, word.to(tl.float32) + position, mask=real)


def project(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    norm: nn.Module | None = None,
    activation: Callable[[Tensor], Tensor] | None = None,
    residual: Tensor | None = None,
    gate: Tensor | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """residual + gate · activation(norm(x) weightᵀ + bias): (R, D) → (R, N). Without a residual there is no gate."""
    (rows, width), columns = x.shape, len(weight)
    if rows > MOST or (rows > FEWEST and columns > MANY):
        return by_single_kernels(x, weight, bias, norm, activation, residual, gate)
    out = x.new_empty(rows, columns)
    norm = norm if isinstance(norm, nn.LayerNorm) else None
    scale, shift, epsilon = (x, x, 0.0) if norm is None else (norm.weight, norm.bias, norm.eps)
    padded = max(FEWEST, triton.next_power_of_2(rows))
    chosen = tile or choose_tile(padded, columns, width)
    inner = min(chosen.inner, max(FEWEST, triton.next_power_of_2(width)))
    launch(
        project_kernel, triton.cdiv(columns, chosen.columns),
        x, weight, x if bias is None else bias, scale, shift, x if residual is None else residual,
        x if gate is None else gate, out, rows, columns, x.stride(0), epsilon,
        width, padded, chosen.columns, inner,
        norm is not None, bias is not None, ACTIVATIONS[activation], residual is not None, gate is not None,
        num_warps=chosen.warps, num_stages=chosen.stages,
    )  # fmt: skip
    return out


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
    return tl.load(weight + column[None, :].to(tl.int64) * WIDTH + inner[:, None], mask=real, other=0.0)


@jit
def load_row(row, first, WIDTH: tl.constexpr, INNER: tl.constexpr):
    inner = first + tl.arange(0, INNER)
    return tl.load(row + inner, mask=inner < WIDTH, other=0.0).to(tl.float32)


@jit
def spread_of(centred, first, WIDTH: tl.constexpr, INNER: tl.constexpr):
    if WIDTH % INNER:
        centred = tl.where((first + tl.arange(0, INNER) < WIDTH)[None, :], centred, 0.0)
    return tl.sum(centred * centred, 1)


@jit
def multiply_at_once(
    x, weight, norm_scale, norm_shift, x_row, row, rows, column, columns, epsilon,
    WIDTH: tl.constexpr, INNER: tl.constexpr, NORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """norm(x) weightᵀ, all that is summed over in one tile."""
    weights = load_weights(weight, column, columns, 0, WIDTH, INNER)
    if NORM:
        scale = load_row(norm_scale, 0, WIDTH, INNER)
        shift = load_row(norm_shift, 0, WIDTH, INNER)
    wait(OVERLAP)
    states = load_states(x, x_row, row, rows, 0, WIDTH, INNER)
    if NORM:
        exact = states.to(tl.float32)
        centred = exact - (tl.sum(exact, 1) / WIDTH)[:, None]
        centred *= (1 / tl.sqrt(spread_of(centred, 0, WIDTH, INNER) / WIDTH + epsilon))[:, None]
        states = (centred * scale[None, :] + shift[None, :]).to(states.dtype)
    return tl.dot(states, weights)


@jit
def multiply_in_parts(
    x, weight, norm_scale, norm_shift, x_row, row, rows, column, columns, epsilon,
    WIDTH: tl.constexpr, INNER: tl.constexpr, NORM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    mean = tl.zeros((ROWS,), tl.float32)
    spread = tl.zeros((ROWS,), tl.float32)
    if NORM:
        for first in range(0, WIDTH, INNER):
            mean += tl.sum(load_states(x, x_row, row, rows, first, WIDTH, INNER).to(tl.float32), 1)
        mean /= WIDTH
        for first in range(0, WIDTH, INNER):
            centred = load_states(x, x_row, row, rows, first, WIDTH, INNER).to(tl.float32) - mean[:, None]
            spread += spread_of(centred, first, WIDTH, INNER)
        spread = 1 / tl.sqrt(spread / WIDTH + epsilon)
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
def project_kernel(
    x, weight, bias, norm_scale, norm_shift, residual, gate, out, rows, columns, x_row, epsilon,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr,
    NORM: tl.constexpr, BIAS: tl.constexpr, ACTIVATION: tl.constexpr, ADD: tl.constexpr, GATE: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    begin(OVERLAP)
    kind = out.dtype.element_ty
    row = tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    if INNER >= WIDTH:
        total = multiply_at_once(
            x, weight, norm_scale, norm_shift, x_row, row, rows, column, columns, epsilon, WIDTH, INNER, NORM, OVERLAP
        )
    else:
        wait(OVERLAP)
        total = multiply_in_parts(
            x, weight, norm_scale, norm_shift, x_row, row, rows, column, columns, epsilon,
            WIDTH, INNER, NORM, ROWS, COLUMNS,
        )  # fmt: skip
    if BIAS:
        total += tl.load(bias + column, mask=column < columns, other=0.0).to(tl.float32)[None, :]
    total = total.to(kind)
    if ACTIVATION == 1:
        total = tl.maximum(total, 0.0)
    if ACTIVATION == 2:
        exact = total.to(tl.float32)
        total = (0.5 * exact * (1 + tl.math.erf(exact * 0.7071067811865476))).to(kind)
    at = row[:, None] * columns + column[None, :]
    real = (row < rows)[:, None] & (column < columns)[None, :]
    if GATE:
        total = (total.to(tl.float32) * tl.load(gate).to(kind).to(tl.float32)).to(kind)
    if ADD:
        total = (tl.load(residual + at, mask=real, other=0.0).to(tl.float32) + total.to(tl.float32)).to(kind)
    tl.store(out + at, total, mask=real)


def attend_said(qkv: Tensor, keys: Tensor, values: Tensor, places: Tensor, seen: Tensor | None = None) -> Tensor:
    """What q words of each sentence attend to in what was said before, and in each other: (B, q, 3, H, d) → (B · q, D).

    The new words stand one after the other from places, (B,) or (1,), in keys and values, (B, T, H, d), which get
    theirs. Each sees what stands before them all and, among them, those not after itself. Those of a beam stand at one
    place, in keys and values (B, T, q, H, d), and see what `seen`, (B, q, T, q) scores, allows, and themselves.
    """
    batch, count, _, heads, size = qkv.shape
    out = qkv.new_empty(batch * count, heads * size)
    places = places.expand(batch)
    launch(
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
    launch(
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


class Said(NamedTuple):
    """Where greedy search notes what it says: in (R, T) words and gains at place `at`, (1,), and the last, (R, 1)."""

    words: Tensor
    gains: Tensor
    last: Tensor
    at: Tensor


def say(logits: Tensor, forbidden: tuple[int, int], said: Said) -> None:
    """Notes what `pick` picks of (R, 1, V) logits."""
    launch_pick(logits, forbidden, said.words, said.gains, said)


def pick(logits: Tensor, forbidden: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The log-probability of the most probable word of each row of (…, V) logits, and that word, the first of several.
    Two words are never picked (-1 forbids none)."""
    gains = logits.new_empty(logits.shape[:-1].numel(), dtype=torch.float32)
    words = torch.empty_like(gains, dtype=torch.long)
    launch_pick(logits, forbidden, words, gains)
    return gains.view(logits.shape[:-1]), words.view(logits.shape[:-1])


def pick_into(words: Tensor, gains: Tensor, logits: Tensor, forbidden: tuple[int, int]) -> None:
    """What `pick` picks of (R, V) logits, into (R,) words and gains, which may be columns of tables."""
    launch_pick(logits, forbidden, words, gains)


def launch_pick(
    logits: Tensor, forbidden: tuple[int, int], words: Tensor, gains: Tensor, said: Said | None = None
) -> None:
    size = logits.shape[-1]
    launch(
        pick_kernel, logits.numel() // size,
        logits, words, gains, words if said is None else said.last, words if said is None else said.at, size,
        *forbidden, words.stride(0), gains.stride(0), min(WORDS, triton.next_power_of_2(size)), said is not None,
        num_warps=8,
    )  # fmt: skip


@jit
def pick_kernel(
    logits, words, gains, last, at, size, one, other, word_row, gain_row,
    WORDS: tl.constexpr, NOTED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    begin(OVERLAP)
    wait(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    highest = -1e30
    total = 0.0
    best = float("-inf")
    chosen = 0
    for first in range(0, size, WORDS):
        word = first + tl.arange(0, WORDS)
        scores = tl.load(logits + row * size + word, mask=word < size, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(highest, tl.max(scores, 0))
        total = total * tl.exp(highest - higher) + tl.sum(tl.exp(scores - higher), 0)
        highest = higher
        scores = tl.where((word == one) | (word == other), float("-inf"), scores)
        here = tl.max(scores, 0)
        place = tl.min(tl.where(scores == here, word, 0x7FFFFFFF), 0)
        chosen = tl.where(here > best, place, chosen)
        best = tl.maximum(best, here)
    words += row * word_row
    gains += row * gain_row
    if NOTED:
        words += tl.load(at)
        gains += tl.load(at)
        tl.store(last + row, chosen)
    tl.store(words, chosen)
    tl.store(gains, best - highest - tl.log(total))


def pick_several(logits: Tensor, count: int, forbidden: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """As `pick` of (R, V) logits, V at most MOST_WORDS: the `count` best, (R, count), the best first."""
    rows, size = logits.shape
    gains = logits.new_empty(rows, count, dtype=torch.float32)
    words = torch.empty_like(gains, dtype=torch.long)
    launch(
        pick_several_kernel, rows, logits, words, gains, size, count, *forbidden, triton.next_power_of_2(size),
        num_warps=8 if size <= WORDS else 16,
    )  # fmt: skip
    return gains, words


@jit
def pick_several_kernel(
    logits, words, gains, size, count, one, other, WORDS: tl.constexpr, OVERLAP: tl.constexpr
):  # fmt: skip
    begin(OVERLAP)
    wait(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    word = tl.arange(0, WORDS)
    scores = tl.load(logits + row * size + word, mask=word < size, other=float("-inf")).to(tl.float32)
    highest = tl.max(scores, 0)
    normaliser = highest + tl.log(tl.sum(tl.exp(scores - highest), 0))
    scores = tl.where((word == one) | (word == other), float("-inf"), scores)
    for number in range(0, count):
        best = tl.max(scores, 0)
        # the last word where no score is a number: what reads it next looks it up
        chosen = tl.min(tl.where(scores == best, word, size - 1), 0)
        tl.store(words + row * count + number, chosen)
        tl.store(gains + row * count + number, best - normaliser)
        scores = tl.where(word == chosen, float("-inf"), scores)


class Round(NamedTuple):
    """A round of speculation in R rows: q words read in each, the last one found and q - 1 drafted."""

    words: Tensor
    """(R, q); the first is set for the next round."""
    places: Tensor
    """(R, q) where they stand; those of the next round when it ends."""
    tokens: Tensor
    """(R, T) the words found."""
    lengths: Tensor
    """(R,) how many, as are all that follow."""
    limits: Tensor
    last: Tensor
    log_probabilities: Tensor
    running: Tensor
    rounds: Tensor
    asked: Tensor
    """(R,) the length of rows that go on, else -1."""


def settle(round: Round, chosen: Tensor, gains: Tensor, eos: int) -> None:
    """Lengthens the rows as `judge` in decoding/speculative.py does, given the (R, q) words that the full depth would
    choose after those read, and their log-probabilities."""
    rows, count = round.words.shape
    launch(
        settle_kernel, rows, chosen, gains, *round._replace(running=round.running.view(torch.uint8)),
        count, round.tokens.stride(0), eos, triton.next_power_of_2(count), num_warps=1,
    )  # fmt: skip


@jit
def settle_kernel(
    chosen, gains, words, places, tokens, lengths, limits, last, totals, running, rounds, asked, count, token_row, eos,
    COUNT: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    begin(OVERLAP)
    wait(OVERLAP)
    row, number = tl.program_id(0).to(tl.int64), tl.arange(0, COUNT)
    real = number < count
    runs, length, limit = tl.load(running + row).to(tl.int64), tl.load(lengths + row), tl.load(limits + row)
    word = tl.load(chosen + row * count + number, mask=real, other=0)
    drafted = tl.load(words + row * count + number + 1, mask=number + 1 < count, other=-1)
    goes_on = (number + 1 < count) & (drafted == word) & (word != eos)
    kept = tl.min(tl.where(goes_on, COUNT, number), 0) + 1  # up to the first that is another, which is kept as well
    kept = tl.minimum(kept, limit - length) * runs
    tl.store(tokens + row * token_row + length + number, word, mask=real & (runs > 0))
    gained = tl.load(gains + row * count + number, mask=number < kept, other=0.0)
    tl.store(totals + row, tl.load(totals + row) + tl.sum(gained, 0))
    final = tl.where(runs > 0, tl.sum(tl.where(number == kept - 1, word, 0), 0), tl.load(last + row))
    length += kept
    runs = runs * ((final != eos) & (length < limit)).to(tl.int64)
    tl.store(rounds + row, tl.load(rounds + row) + tl.load(running + row).to(tl.int64))
    tl.store(lengths + row, length)
    tl.store(last + row, final)
    tl.store(running + row, runs.to(tl.uint8))
    tl.store(asked + row, tl.where(runs > 0, length, -1))
    tl.store(places + row * count + number, length + number, mask=real)
    tl.store(words + row * count, final)
