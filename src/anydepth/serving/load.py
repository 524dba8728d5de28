"""Load-aware depth: the longer others wait, the shallower; pure arithmetic over a clock that is given."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from anydepth.calibrating.calibration import LEAST_GAIN

Clock = Callable[[], float]
"""Seconds that only grow."""

ClearMs = Callable[[str, int, int], float]
"""What so many texts take at a depth, the longest of so many tokens."""

CALM = 0.5
"""A deeper step is taken again when the wait there is at most this share of the longest allowed: without a gap between
falling and rising, depth would flutter."""
LEARNING = 0.2
"""The weight of the last batch in what is thought of the machine."""
SLOWEST = 4.0
"""Times as long as calibrated, at most: one batch that was stopped for seconds says nothing about the next."""
HOLD = 1.0
"""Seconds that this must have lasted, for every step."""


class Point(NamedTuple):
    """A depth that a run can be served at."""

    depth: str
    quality: float
    """By the main metric of its task; NaN where it was not evaluated."""
    ms: float
    """For one text of usual length in a full batch; infinite where it was not calibrated."""


Ladder = Sequence[Point]
"""Depths to choose from, the slowest and best first."""


def worthwhile(points: Iterable[Point]) -> list[Point]:
    """Without the steps down that cost quality and save no time: each kept one is clearly faster than the last."""
    kept: list[Point] = []
    for point in points:
        if not kept or kept[-1].ms >= LEAST_GAIN * point.ms:
            kept.append(point)
    return kept


def up_to(ladder: Ladder, ms: float) -> Ladder:
    """The steps that take no longer than this for a text, or else the fastest."""
    return [point for point in ladder if point.ms <= ms] or ladder[-1:]


def above_floor(ladder: Ladder, floor: tuple[int, ...]) -> list[Point]:
    """The steps with at least so many layers in every stack; the first stays where none has."""
    kept = [point for point in ladder if all(have >= least for have, least in zip(layers(point.depth), floor))]
    return kept or [ladder[0]]


def layers(depth: str) -> tuple[int, ...]:
    return tuple(int(number) for number in depth.split("-"))


class LoadAware:
    """Which step of a ladder the load allows.

    The wait at a step is what all that is queued would take there. Depth falls at once to the first step whose wait is
    within the objective, and rises one step for every HOLD seconds of calm. Who comes while a batch is computed waits
    for that batch and for the next: as neither takes longer than the objective for the wait, nobody waits more than
    twice that, until the last step is reached.
    """

    def __init__(self, ladder: Ladder, longest_wait_ms: float, clear_ms: ClearMs, clock: Clock) -> None:
        self.ladder, self.longest_wait_ms, self.clear_ms, self.clock = ladder, longest_wait_ms, clear_ms, clock
        self.step = 0
        self.calm_since: float | None = None
        self.slowness = 1.0
        """Of late, how many times as long batches took as they should: a machine may be busier than when calibrated."""

    def took(self, depth: str, texts: int, tokens: int, ms: float) -> None:
        """Learns from a batch."""
        if expected := self.clear_ms(depth, texts, tokens):
            ratio = min(SLOWEST, max(1.0, ms / expected))
            self.slowness += LEARNING * (ratio - self.slowness)

    def update(self, queued: int, tokens: int) -> None:
        """Called whenever the queue has changed: how many texts, and how long the longest of those that come next."""
        waits = [self.slowness * self.clear_ms(point.depth, queued, tokens) if queued else 0.0 for point in self.ladder]
        last = len(self.ladder) - 1
        needed = next((step for step, wait in enumerate(waits) if wait <= self.longest_wait_ms), last)
        if needed > self.step:
            self.step, self.calm_since = needed, None
            return
        while self.step and waits[self.step - 1] <= CALM * self.longest_wait_ms:
            if self.calm_since is None:
                self.calm_since = self.clock()
            if self.clock() - self.calm_since < HOLD:
                return
            self.step, self.calm_since = self.step - 1, self.calm_since + HOLD
        self.calm_since = None

    @property
    def ms(self) -> float:
        """That a text may take now."""
        return self.ladder[self.step].ms if self.step else math.inf
