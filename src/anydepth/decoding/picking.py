"""Which words are the best, and what searches note of them, on a GPU: Triton kernels. By single ones that would take as
long as the model."""

# mypy: disallow-untyped-defs=False
# (kernels are written in Triton's language, in which an annotation means something else)

from typing import NamedTuple

import torch
from torch import Tensor

from anydepth.nn import overlap
from anydepth.nn.overlap import begin, wait
from anydepth.nn.packed_attention import jit, tl, triton

WORDS = 1 << 14
"""Logits that one program compares at a time."""
MOST_WORDS = 1 << 15
"""Logits of which one program finds several best."""


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
    overlap.launch(
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
    overlap.launch(
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


def settle(played: Round, chosen: Tensor, gains: Tensor, eos: int) -> None:
    """Lengthens the rows as `judge` in decoding/speculative.py does, given the (R, q) words that the full depth would
    choose after those read, and their log-probabilities."""
    rows, count = played.words.shape
    overlap.launch(
        settle_kernel, rows, chosen, gains, *played._replace(running=played.running.view(torch.uint8)),
        count, played.tokens.stride(0), eos, triton.next_power_of_2(count), num_warps=1,
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
