"""Which words are the best, and what searches note of them, on a GPU: Triton kernels. By single ones that would take as
long as the model."""

# mypy: disallow-untyped-defs=False
# (kernels are written in Triton's language, in which an annotation means something else)

from typing import NamedTuple

import torch
from torch import Tensor, nn

from anydepth.nn import few_words, overlap
from anydepth.nn.few_words import Vectors, embed_word, parts_of
from anydepth.nn.multiplying import choose_tile, multiply, rows_of
from anydepth.nn.overlap import wait
from anydepth.nn.packed_attention import jit, tl, triton

WORDS = 1 << 14
"""Logits that one program compares at a time."""
MOST_WORDS = 1 << 15
"""Logits of which one program finds several best."""


class Candidates(NamedTuple):
    """The best word of each of P parts of the vocabulary, (…, P): all that is needed of logits to pick the best."""

    words: Tensor
    logits: Tensor
    """Of these words."""
    highest: Tensor
    """Logit of the part, of words that are never picked as well."""
    totals: Tensor
    """The sum of exp(logit - highest) over the part."""


class Said(NamedTuple):
    """Where greedy search notes what it says."""

    words: Tensor
    """(T, R) all so far, in the host's memory; these at place `at`."""
    gains: Tensor
    """(T, R) their log-probabilities, also there."""
    last: Tensor
    """(R, 1)"""
    at: Tensor
    """(1,) or (R,)"""
    coming: Tensor
    """The place after it. (One of (1,) is another than `at`, which other rows may still read.)"""


class Next(NamedTuple):
    """Words that are picked to be read next, embedded where they are picked: that saves a kernel."""

    vectors: Vectors
    states: Tensor
    """(R, 1, D)"""

    def embed(self, tokens: Tensor, places: Tensor) -> None:
        """(R, 1) words picked otherwise, such as the first."""
        few_words.embed(tokens, places, self.vectors, self.states)


def candidates(
    states: Tensor, weight: Tensor, bias: Tensor | None, norm: nn.Module | None, forbidden: tuple[int, int]
) -> Candidates:
    """Of the logits norm(states) weightᵀ + bias: (B, q, D) states of few words → (B, q, P)."""
    x = states.flatten(0, 1)
    (rows, width), size = x.shape, len(weight)
    tile = choose_tile(rows, size, width)
    scale, shift, epsilon, normed = parts_of(norm, x)
    shape = (*states.shape[:2], triton.cdiv(size, tile.columns))
    found = Candidates(x.new_empty(shape, dtype=torch.int32), *x.new_empty(3, *shape, dtype=torch.float32).unbind())
    blocks = tile.blocks(rows)
    overlap.launch(
        candidates_kernel, blocks * shape[-1],
        x, weight, x if bias is None else bias, scale, shift, *found,
        rows, size, blocks, shape[-1], x.stride(0), epsilon, *forbidden,
        width, *tile.shape, normed, bias is not None,
        num_warps=tile.warps, num_stages=2,
    )  # fmt: skip
    return found


@jit
def candidates_kernel(
    x, weight, bias, norm_scale, norm_shift, words, logits, highests, totals,
    rows, size, blocks, parts, x_row, epsilon, one, other,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr,
    SINGLY: tl.constexpr, PARTS: tl.constexpr, NORM: tl.constexpr, BIAS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    first, row = rows_of(blocks, rows, ROWS, SINGLY)
    part = tl.program_id(0) // blocks
    word = part * COLUMNS + tl.arange(0, COLUMNS)
    if BIAS:
        shift = tl.load(bias + word, mask=word < size, other=0.0).to(tl.float32)[None, :]
    scores = multiply(
        x, weight, norm_scale, norm_shift, x_row, first, row, rows, word, size, epsilon,
        WIDTH, INNER, NORM, 0, SINGLY, ROWS, COLUMNS, PARTS, OVERLAP,
    )  # fmt: skip
    if BIAS:
        scores += shift
    scores = scores.to(x.dtype.element_ty).to(tl.float32)  # as logits are rounded
    scores = tl.where((word < size)[None, :], scores, float("-inf"))
    highest = tl.maximum(tl.max(scores, 1), -1e30)
    total = tl.sum(tl.exp(scores - highest[:, None]), 1)
    scores = tl.where(((word == one) | (word == other))[None, :], float("-inf"), scores)
    best = tl.max(scores, 1)
    # the last word where no score is a number: what reads it next looks it up
    chosen = tl.min(tl.where(scores == best[:, None], word[None, :], size - 1), 1)
    at = row * parts + part
    tl.store(words + at, chosen, mask=row < rows)
    tl.store(logits + at, best, mask=row < rows)
    tl.store(highests + at, highest, mask=row < rows)
    tl.store(totals + at, total, mask=row < rows)


def say(choices: Tensor | Candidates, forbidden: tuple[int, int], said: Said, coming: Next | None = None) -> None:
    """Notes what `pick` picks for R rows, (R, 1, …), in tables that are contiguous."""
    launch_pick(choices, forbidden, said.words, said.gains, said, coming)


def pick(choices: Tensor | Candidates, forbidden: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The log-probability of the most probable word of each row of (…, V) logits, or of (…, P) candidates, and that
    word, the first of several. Two words are never picked (-1 forbids none; candidates come without them)."""
    logits = choices if isinstance(choices, Tensor) else choices.logits
    shape = logits.shape[:-1]
    gains = logits.new_empty(shape.numel(), dtype=torch.float32)
    words = torch.empty_like(gains, dtype=torch.long)
    launch_pick(choices, forbidden, words, gains)
    return gains.view(shape), words.view(shape)


def pick_into(
    words: Tensor,
    gains: Tensor,
    choices: Tensor | Candidates,
    forbidden: tuple[int, int],
    coming: Next | None,
    places: Tensor,
) -> None:
    """What `pick` picks for R rows, into (R,) words and gains, which may be columns of tables. They are to stand at
    (R,) places."""
    launch_pick(choices, forbidden, words, gains, None, coming, places)


def launch_pick(
    choices: Tensor | Candidates,
    forbidden: tuple[int, int],
    words: Tensor,
    gains: Tensor,
    said: Said | None = None,
    coming: Next | None = None,
    places: Tensor | None = None,
) -> None:
    notes = (words, gains, words, words if places is None else places, words) if said is None else said
    rows, place_row = words.shape[-1], notes[3].stride(0) if notes[3].numel() > 1 else 0
    tables = (rows, 1, 1, place_row) if said else (rows, words.stride(0), gains.stride(0), place_row)
    given = (*notes, *tables, *for_kernel(coming, gains))
    how = said is not None, *tile_of(coming)
    if isinstance(choices, Tensor):
        size = choices.shape[-1]
        overlap.launch(
            pick_kernel, choices.numel() // size, choices, *given, size, *forbidden,
            min(WORDS, triton.next_power_of_2(size)), *how, num_warps=8,
        )  # fmt: skip
    else:
        parts = choices.logits.shape[-1]
        overlap.launch(
            pick_candidate_kernel, choices.logits.numel() // parts, *choices, *given, parts,
            triton.next_power_of_2(parts), *how, num_warps=1 if parts <= 512 else 8,
        )  # fmt: skip


def for_kernel(coming: Next | None, other: Tensor) -> tuple[Tensor, Tensor, float, Tensor, int]:
    """What a kernel embeds with, and where; another tensor where it does not."""
    return (*coming.vectors, coming.states, len(coming.vectors.positions)) if coming else (other, other, 1.0, other, 0)


def tile_of(coming: Next | None) -> tuple[int, int]:
    """The states that a kernel makes, and their power of two: none where it makes none."""
    width = coming.states.shape[-1] if coming else 0
    return width, triton.next_power_of_2(width) if width else 0


@jit
def note(
    chosen, gain, words, gains, last, place, coming, row, rows, word_row, gain_row, place_row,
    vectors, positions, scale, states, longest, NOTED: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """The place is read ahead of all comparisons, for which warps wait for each other: `coming` may be where it stands,
    and one of them sets that while others may not have got as far."""
    words += row * word_row
    gains += row * gain_row
    if NOTED:
        words += place * rows
        gains += place * rows
        place += 1
        tl.store(last + row, chosen)
        tl.store(coming + row * place_row, place)
    tl.store(words, chosen)
    tl.store(gains, gain)
    if WIDTH:
        embed_word(chosen, place, vectors, positions, scale, states + row * WIDTH, longest, WIDTH, PADDED)


@jit
def pick_kernel(
    logits, words, gains, last, at, coming, rows, word_row, gain_row, place_row,
    vectors, positions, scale, states, longest, size, one, other,
    WORDS: tl.constexpr, NOTED: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    wait(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    place = tl.load(at + row * place_row) if NOTED or WIDTH else 0
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
        first_best = tl.min(tl.where(scores == here, word, 0x7FFFFFFF), 0)
        chosen = tl.where(here > best, first_best, chosen)
        best = tl.maximum(best, here)
    gain = best - highest - tl.log(total)
    note(
        chosen, gain, words, gains, last, place, coming, row, rows, word_row, gain_row, place_row,
        vectors, positions, scale, states, longest, NOTED, WIDTH, PADDED,
    )  # fmt: skip


@jit
def pick_candidate_kernel(
    candidates, logits, highests, totals, words, gains, last, at, coming, rows, word_row, gain_row, place_row,
    vectors, positions, scale, states, longest, parts,
    PARTS: tl.constexpr, NOTED: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    wait(OVERLAP)
    row, part = tl.program_id(0).to(tl.int64), tl.arange(0, PARTS)
    place = tl.load(at + row * place_row) if NOTED or WIDTH else 0
    here, real = row * parts + part, part < parts
    best = tl.load(logits + here, mask=real, other=float("-inf"))
    candidate = tl.load(candidates + here, mask=real, other=0)
    highest = tl.load(highests + here, mask=real, other=-1e30)
    total = tl.load(totals + here, mask=real, other=0.0)
    top = tl.max(highest, 0)
    logit = tl.max(best, 0)
    any_word = tl.max(candidate, 0)  # where no logit is a number: what reads it next looks it up
    chosen = tl.min(tl.where((best == logit) & real, candidate, any_word), 0)
    gain = logit - top - tl.log(tl.sum(total * tl.exp(highest - top), 0))
    note(
        chosen, gain, words, gains, last, place, coming, row, rows, word_row, gain_row, place_row,
        vectors, positions, scale, states, longest, NOTED, WIDTH, PADDED,
    )  # fmt: skip


def pick_several(logits: Tensor, count: int, forbidden: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """As `pick` of (R, V) logits, V at most MOST_WORDS: the `count` best, (R, count), the best first."""
    rows, size = logits.shape
    gains = logits.new_empty(rows, count, dtype=torch.float32)
    words = torch.empty_like(gains, dtype=torch.long)
    overlap.launch(
        pick_several_kernel, rows, logits, words, gains, size, count, *forbidden, triton.next_power_of_2(size),
        num_warps=8 if size <= WORDS else 16,
    )  # fmt: skip
    return gains, words


@jit
def pick_several_kernel(
    logits, words, gains, size, count, one, other, WORDS: tl.constexpr, OVERLAP: tl.constexpr
):  # fmt: skip
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
