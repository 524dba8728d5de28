"""Depths from reconstruction losses (depth-adaptive §2.1): a word that is easy to guess needs few layers.

A masked language model with an exit at every layer guesses each word of a text, hidden behind <mask>, from the others:

    d(x_t) = argmin_n (loss_n + λ n)

(Eq. 4 prints loss_n − λ n, which would reward depth; the text and Table 4 mean a penalty.) The words of a text are
hidden one at a time: as many passes as it has words. With `every` = 16, one word in 16 is hidden at once and a text
takes 16 passes; `agreement` says how much that changes. The pieces of a word are hidden together and their losses
averaged.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from anydepth.data.collate import Packing
from anydepth.data.masking import MaskedBatch
from anydepth.encoder_models import MaskedLM
from anydepth.estimating.pieces import Pieces

Array = np.ndarray

TOKENS, TOKENS_ON_GPU = 1 << 14, 1 << 17
"""Read together: packed, so that nothing is computed for padding."""
CHOSEN = 1 << 12
"""Words guessed together: each has a logit for every word of the vocabulary."""


class Rows(NamedTuple):
    """Texts with hidden words."""

    ids: list[Array]
    words: list[Array]
    """For each hidden piece of each row, the word it is part of, numbered over all texts."""
    hidden: list[Array]
    """Where the hidden pieces are in each row."""
    answers: list[Array]


class Reconstruction:
    """A masked language model and what is asked of it."""

    def __init__(self, model: MaskedLM, pieces: Pieces, mask: int, every: int = 0) -> None:
        self.model, self.pieces, self.mask, self.every = model, pieces, mask, every
        self.plan = model.plan().encoder
        self.layers = len(self.plan)
        self.device = model.output.weight.device
        self.tokens = TOKENS if self.device.type == "cpu" else TOKENS_ON_GPU

    def losses(self, ids: Array, lengths: Array) -> Array:
        """(N, layers) of every piece of some texts: the loss of its word at each layer; 0 for special tokens."""
        words = self.pieces.words(ids, lengths)
        total = np.zeros((int(words[-1]) + 1 if len(words) else 0, self.layers))
        for rows in self.batches(ids, lengths, words):
            found = self.guess(rows)
            np.add.at(total, np.concatenate(rows.words), found)
        sizes = np.bincount(words, minlength=len(total))
        return (total / np.maximum(sizes, 1)[:, None])[words].astype(np.float32)

    def batches(self, ids: Array, lengths: Array, words: Array) -> Iterator[Rows]:
        """All texts with every word hidden in one of their copies."""
        ends, batch, longest, hidden = np.cumsum(lengths), Rows([], [], [], []), 0, 0
        for number in np.argsort(lengths, kind="stable"):  # texts of similar length together: little padding
            end, length = ends[number], lengths[number]
            text, mine = ids[end - length : end], words[end - length : end]
            ordinary = ~self.pieces.special[text]
            phases = np.zeros(length, dtype=np.int64)
            ranks = np.unique(mine[ordinary], return_inverse=True)[1] if ordinary.any() else np.zeros(0, dtype=np.int64)
            count = int(ranks.max(initial=-1)) + 1
            phases[ordinary] = ranks % min(self.every, count) if self.every and count else ranks
            for phase in np.unique(phases[ordinary]):
                where = np.flatnonzero(ordinary & (phases == phase))
                row = text.astype(np.int64)
                row[where] = self.mask
                full = (len(batch.ids) + 1) * max(longest, int(length)) > self.tokens or hidden + len(where) > CHOSEN
                if batch.ids and full:
                    yield batch
                    batch, longest, hidden = Rows([], [], [], []), 0, 0
                batch.ids.append(row)
                batch.words.append(mine[where])
                batch.hidden.append(where)
                batch.answers.append(text[where].astype(np.int64))
                longest, hidden = max(longest, int(length)), hidden + len(where)
        if batch.ids:
            yield batch

    @torch.no_grad()
    def guess(self, rows: Rows) -> Array:
        """(hidden pieces, layers) losses."""
        model, lengths = self.model, np.array([len(row) for row in rows.ids])
        starts = np.concatenate([[0], np.cumsum(lengths)])
        places = np.concatenate([start + hidden for start, hidden in zip(starts, rows.hidden)])
        positions = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
        packing = Packing(
            torch.from_numpy(starts.astype(np.int32)), int(lengths.max()), torch.from_numpy(positions)[None]
        )
        answers = torch.from_numpy(np.concatenate(rows.answers))
        batch = MaskedBatch(
            source=torch.from_numpy(np.concatenate(rows.ids))[None],
            slots=torch.from_numpy(places),
            target_out=answers,
            packing=packing,
            key="",
            tokens=int(lengths.sum()),
            sentences=len(lengths),
            predictions=len(places),
        ).to(self.device)
        found = []
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type != "cpu"):
            x, sees = model.embed(batch)
            for number, state in enumerate(model.encoder.states(x, self.plan, None, sees)):
                if number:
                    logits = model.logits(model.predict(state, batch)).float()
                    found.append(F.cross_entropy(logits, batch.target_out, reduction="none"))
        return torch.stack(found, 1).cpu().numpy()


def depths_of(losses: Array, penalty: float) -> Array:
    """argmin_n (loss_n + λ n), n counted from 1; of equal ones the smallest."""
    cost = losses + penalty * np.arange(1, losses.shape[1] + 1)
    return (cost.argmin(1) + 1).astype(np.uint8)


class Agreement(NamedTuple):
    """How alike two estimates of the same words are."""

    equal: float
    """Share of the words with the same depth."""
    near: float
    """Share of those at most one layer apart."""
    difference: float
    """Mean of the second less the first, in layers."""


def agreement(first: Array, second: Array) -> Agreement:
    apart = second.astype(np.int64) - first.astype(np.int64)
    return Agreement(float((apart == 0).mean()), float((np.abs(apart) <= 1).mean()), float(apart.mean()))
