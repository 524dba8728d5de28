"""Masked language modelling: some words of a text are hidden, and the model has to find them (BERT, RoBERTa).

Of a training batch `share` of the words are chosen, exactly and anywhere; 80 % of those are replaced by <mask>, 10 % by
a word drawn from the vocabulary, 10 % stay. The ends of sentences are never chosen. All draws come from (seed, number
of the batch, rank), so that there is nothing to save for a resume and every epoch hides other words.

Held-out text always has the same words hidden: those of sentence n are drawn from n alone, whatever the batch, the
depth, the seed of the run. Of a sentence of w words share · w are chosen, rounded up or down at random so that the mean
is right.

A batch has a list of slots: where the hidden words are, and what they were. Only these get logits. A packed batch has
as many slots as its row may need, so that its shapes are fixed; free ones have padding to predict, which the loss
leaves out.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from anydepth.config_class import config
from anydepth.data.batching import Batches, IndexBatch
from anydepth.data.collate import Packing, mapped, one_row, pack, pad_rows
from anydepth.data.cutting import Limits
from anydepth.data.store import Store
from anydepth.data.tokenizer import Tokenizer
from anydepth.plan import BothNoises, Part

Array = np.ndarray

SLOTS = 8
"""The number of slots is a multiple of this."""
TRAINING, HELD_OUT = 5, 6
"""Streams of random numbers, apart from each other and from those of batching and of training steps."""


@config
class MaskingConfig:
    """Which words are hidden, and behind what; the rest of those chosen stays as it is."""

    share: float = 0.15
    """Share of the words that are chosen and predicted."""
    masked: float = 0.8
    """Share of the chosen words that are replaced by <mask>."""
    random: float = 0.1
    """Share of the chosen words that are replaced by a word drawn from the vocabulary."""

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError("share must be above 0 and below 1")
        for name in ("masked", "random"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be between 0 and 1")
        if self.masked + self.random > 1 + 1e-9:
            raise ValueError("random: with masked it comes to more than all chosen words")

    @property
    def signature(self) -> str:
        """How held-out text is masked, for those who compare perplexities."""
        return f"share:{self.share:g}|masked:{self.masked:g}|random:{self.random:g}|draws:per-sentence-1"


class MaskedBatch(NamedTuple):
    """Sentences with hidden words."""

    source: Tensor
    """(B, S) int64, each sentence with eos, hidden words replaced; (1, N) if packed."""
    slots: Tensor
    """(M,) int64, the places of the hidden words in the batch, row after row."""
    target_out: Tensor
    """(M,) int64, the words that were there; padding where a slot is free."""
    packing: Packing | None
    key: str
    tokens: int
    """Words read, ends of sentences included, padding not."""
    sentences: int
    predictions: int
    """Slots that are not free."""
    noise: BothNoises = (None, None)
    parts: tuple[Part, ...] = ()

    @property
    def packed(self) -> bool:
        return self.packing is not None

    def to(self, device: torch.device | str) -> "MaskedBatch":
        return mapped(lambda tensor: tensor.to(device, non_blocking=True), self)

    def pin_memory(self) -> "MaskedBatch":
        return mapped(Tensor.pin_memory, self)


class Masker:
    """Hides words of batches."""

    def __init__(self, settings: MaskingConfig, tokenizer: Tokenizer, seed: int) -> None:
        self.settings, self.seed = settings, seed
        self.mask, self.eos = tokenizer.mask, tokenizer.eos
        special = (tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.unk, tokenizer.mask)
        self.ordinary = np.setdiff1d(np.arange(len(tokenizer)), special)

    def training(self, batches: Batches, taken: IndexBatch) -> MaskedBatch:
        """The batch that was just taken."""
        store = batches.stores[taken.corpus]
        words, lengths = store.target(taken.pairs)
        hidden = words.astype(np.int64)
        candidates = np.flatnonzero(words != self.eos)
        count = min(len(candidates), max(1, round(self.settings.share * len(candidates))))
        random = np.random.default_rng((self.seed, TRAINING, batches.step, batches.rank))
        chosen = self.hide(hidden, candidates, count, random)
        return laid_out(store, words, hidden, chosen, lengths, batches.limits, self.settings.share)

    def held_out(self, store: Store, sentences: Array, limits: Limits) -> MaskedBatch:
        """These sentences of a corpus, masked as always."""
        words, lengths = store.target(sentences)
        hidden, chosen = words.astype(np.int64), [np.empty(0, dtype=np.int64)]
        ends = np.cumsum(lengths)
        for number, first, end in zip(sentences, ends - lengths, ends - 1):
            random = np.random.default_rng((0, HELD_OUT, int(number), 0))
            candidates = np.arange(first, end)
            count = int(self.settings.share * len(candidates) + random.random())
            chosen.append(self.hide(hidden, candidates, count, random))
        return laid_out(store, words, hidden, np.concatenate(chosen), lengths, limits, self.settings.share)

    def hide(self, words: Array, candidates: Array, count: int, random: np.random.Generator) -> Array:
        """Replaces `count` of the candidates; their places."""
        chosen = np.sort(random.choice(candidates, count, replace=False))
        fate, others = random.random(count), random.choice(self.ordinary, count)
        settings = self.settings
        words[chosen] = np.where(fate < settings.masked + settings.random, others, words[chosen])
        words[chosen[fate < settings.masked]] = self.mask
        return chosen


def laid_out(
    store: Store, words: Array, hidden: Array, chosen: Array, lengths: Array, limits: Limits, share: float
) -> MaskedBatch:
    """Padded or packed like any text, with the slots of the chosen words."""
    pad, packed = store.target_pad, limits.layout == "packed"
    answers = np.full_like(hidden, pad)
    answers[chosen] = words[chosen]
    rows, asked = (
        one_row(side, limits.target, pad) if packed else pad_rows(side, lengths, pad, limits.multiple)
        for side in (hidden, answers)
    )
    places = (asked.flatten() != pad).nonzero().flatten()
    most = int(np.ceil(share * limits.target)) + 1 if packed else len(places)
    free = -(-max(most, len(places), 1) // SLOTS) * SLOTS - len(places)
    return MaskedBatch(
        source=rows,
        slots=torch.cat([places, torch.zeros(free, dtype=torch.long)]),
        target_out=torch.cat([asked.flatten()[places], torch.full((free,), pad)]),
        packing=pack(lengths, limits.target, limits) if packed else None,
        key=store.key,
        tokens=len(words),
        sentences=len(lengths),
        predictions=len(places),
    )
