"""A `Decoder` without a model: random but fixed logits for every prefix, and a search through all outputs."""

from functools import cache

import numpy as np
import torch
from torch import Tensor

from anydepth.decoding.decoder import Hypothesis

PAD, BOS, EOS = 0, 1, 2
WORDS = 3
"""Words come after the special tokens: 3, 4, ..."""


@cache
def logits(table: int, prefix: tuple[int, ...], words: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng([table, *prefix]).normal(scale=1.5, size=3 + words)).float()


def log_probability(table: int, tokens: list[int], words: int = WORDS) -> float:
    """Forced decoding, in float64: the log-probability of tokens (eos among them or not)."""
    total = 0.0
    for position, token in enumerate(tokens):
        total += logits(table, tuple(tokens[:position]), words).double().log_softmax(-1)[token].item()
    return total


def every_output(table: int, max_length: int, penalty: float, words: int = WORDS) -> list[Hypothesis]:
    """All hypotheses in order: those that ended by score, then those cut at the maximal length."""
    ended, cut, prefixes = [], [], [[]]
    for length in range(1, max_length + 1):
        for prefix in prefixes:
            total = log_probability(table, [*prefix, EOS], words)
            ended.append(Hypothesis(prefix, total / length**penalty, total))
        prefixes = [[*prefix, 3 + word] for prefix in prefixes for word in range(words)]
    for prefix in prefixes:
        total = log_probability(table, prefix, words)
        cut.append(Hypothesis(prefix, total / max_length**penalty, total))

    def by_score(hypothesis: Hypothesis) -> float:
        return -hypothesis.score

    return sorted(ended, key=by_score) + sorted(cut, key=by_score)


class ToyDecoder:
    """Row i begins as sentence i, whose logits come from `tables[i]`. Checks what it is fed."""

    def __init__(self, tables: list[int], words: int = WORDS) -> None:
        self.words = words
        self.rows: list[tuple[int, list[int]]] = [(table, []) for table in tables]
        self.rows_at_each_step: list[int] = []

    def step(self, tokens: Tensor) -> Tensor:
        assert tokens.shape == (len(self.rows),)
        first = not self.rows_at_each_step
        self.rows_at_each_step.append(len(self.rows))
        for (_, prefix), token in zip(self.rows, tokens.tolist()):
            if first:
                assert token == BOS
            elif PAD in prefix:
                assert token == PAD, "a row that is over does not come back"
            else:
                assert token == PAD or token > EOS
                prefix.append(token)
        return torch.stack([self.row_logits(table, prefix) for table, prefix in self.rows])

    def row_logits(self, table: int, prefix: list[int]) -> Tensor:
        if PAD in prefix:  # nobody should look
            return torch.zeros(3 + self.words)
        return logits(table, tuple(prefix), self.words)

    def reorder(self, rows: Tensor) -> None:
        before = self.rows
        self.rows = [(before[row][0], list(before[row][1])) for row in rows.tolist()]
        if len(before) == len(self.rows):
            assert [table for table, _ in before] == [table for table, _ in self.rows]
