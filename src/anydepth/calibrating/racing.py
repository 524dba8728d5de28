"""Drafts race against plain search: a setting of speculation that is clearly behind is measured no further (racing,
Maron and Moore 1994)."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from anydepth.calibrating.calibration import LEAST_GAIN

NOISE = 0.15
"""How far the logarithm of the ratio of two times of one batch is off, as long as too few were measured to tell."""
FEW = 4
SURE = 2.0
"""Standard errors that make a distance clear."""


class Setting(NamedTuple):
    """One way to decode."""

    depth: str
    batch: int
    draft: int = 0
    """0: plain search."""
    draft_words: int = 0

    def drafts_for(self, other: "Setting") -> bool:
        """Whether this is speculation where the other is plain search."""
        return self.draft > 0 and self[:2] == other[:2]


Times = list[list[tuple[float, float]]]
"""(tokens, milliseconds) of every measurement of a setting, by length."""


class Race:
    """All drafts of a depth and batch size; each is measured with the same batches as plain search."""

    def __init__(self, drafts: Sequence[Setting]) -> None:
        self.running = list(drafts)

    def give_up(self, plain: Times, measured: Mapping[Setting, Times]) -> None:
        """Those that are clearly slower than another, or clearly not worth more than plain search."""
        logs = {draft: np.log(np.concatenate(ratios(plain, measured[draft]))) for draft in self.running}
        logs = {draft: found for draft, found in logs.items() if len(found)}
        if logs:
            best = min(logs.values(), key=np.median)
            late = {one for one, log in logs.items() if behind(log + np.log(LEAST_GAIN)) or behind(log - best)}
            self.running = [draft for draft in self.running if draft not in late]


def ratios(plain: Times, draft: Times) -> list[Any]:
    """By length: how many times as long a draft took with the same batches."""
    both = (zip(some, others) for some, others in zip(plain, draft))
    return [np.array([mine / ms for (_, ms), (_, mine) in pairs]) for pairs in both]


def behind(logs: Any) -> bool:
    """Whether such logarithms of ratios are above 0, and not by chance; nor by one bad moment of the machine: the lower
    median counts, of two the smaller."""
    if len(logs) < 2:
        return False
    spread = max(NOISE / 3, float(logs.std())) if len(logs) >= FEW else NOISE
    return float(np.quantile(logs, 0.5, method="lower")) > SURE * spread / len(logs) ** 0.5
