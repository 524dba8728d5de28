"""The course of a calibration: which settings are measured again, and how far it is."""

import math
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

from anydepth.calibrating.calibration import fitted
from anydepth.calibrating.racing import Race, Setting, Times

Progress = Callable[[int, int], None]
"""Called with the per cent of the work that is done, and 100."""

OFTEN_MS = 100.0
"""What takes no longer is measured in every round; what does, in as many as take as long together …"""
LEAST = 3
"""… but in so many at least."""
QUICK_MS, MOST = (1000.0, 200.0), 40
"""What takes milliseconds is measured in more rounds than asked for, as many as fit into this time at the slowest
length, but not in more than these: few sentences may happen to have short translations. In batches, for which the
second number is, that evens out."""
ENOUGH = 40, 20
"""Measurements of a setting, sentences alone or batches, that tell what 19 of 20 take at most …"""
KNOWN, KNOWN_WELL = 0.03, 0.01
"""… and that suffice if they are as much as this, the standard error, from the line in the tokens; the second where
measuring is quick."""


class Course:
    """What was measured, and what is left to do."""

    def __init__(
        self,
        settings: Sequence[Setting],
        tokens: Sequence[int],
        rounds: int,
        sparing: bool = True,
        progress: Progress | None = None,
    ) -> None:
        """`tokens` is the typical source of each length; unless `sparing`, all are measured in every round."""
        self.tokens, self.rounds, self.sparing, self.progress = tokens, rounds, sparing, progress
        self.measured: dict[Setting, Times] = {setting: [[] for _ in tokens] for setting in settings}
        self.plain = [setting for setting in settings if not setting.draft]
        self.races = {one: Race([other for other in settings if other.drafts_for(one)]) for one in self.plain}
        self.finished: set[Setting] = set()
        self.expected: dict[Setting, list[float]] = {}
        """Milliseconds of plain search at every length."""
        self.spent, self.raced = 0.0, False

    def expect(self, setting: Setting, ms: float) -> None:
        """From one batch of the shortest: others take longer in proportion to their tokens."""
        self.expected[setting] = [ms * tokens / self.tokens[0] for tokens in self.tokens]

    def repetitions(self, setting: Setting, place: int) -> int:
        if not self.sparing:
            return self.rounds
        often = math.ceil(self.rounds * OFTEN_MS / max(self.expected[setting][place], 1e-9))
        return max(min(self.rounds, max(LEAST, often)), self.quickly(setting))

    def quickly(self, setting: Setting) -> int:
        """How often it is measured at each length because that takes hardly any time."""
        return min(MOST, int(QUICK_MS[setting.batch > 1] / max(*self.expected[setting], 1e-9)))

    @property
    def most_rounds(self) -> int:
        return max(self.rounds, MOST) if self.sparing else self.rounds

    def todo(self, number: int, place: int) -> list[Setting]:
        """What is measured at a length in a round, from 0: drafts where plain search is."""
        going = [one for one in self.plain if one not in self.finished and number < self.repetitions(one, place)]
        return [each for one in going for each in (one, *self.races[one].running)]

    def add(self, setting: Setting, place: int, tokens: float, ms: float) -> None:
        times = self.measured[setting][place]
        times.append((tokens, ms))
        self.spent += ms
        if not setting.draft:
            self.expected[setting][place] = median(each for _, each in times)
        self.tell()

    def race(self) -> None:
        """After every length."""
        for setting, race in self.races.items():
            race.give_up(self.measured[setting], self.measured)

    def settle(self) -> None:
        """After every round: what is known well enough is finished."""
        self.raced = True
        for one in (one for one in self.plain if self.sparing and one not in self.finished):
            found = np.log(fitted(one.depth, one.batch, self.measured[one]).ratios)
            error, quick = found.std() / len(found) ** 0.5, self.quickly(one) >= self.rounds
            if len(found) >= ENOUGH[one.batch > 1] and error <= (KNOWN_WELL if quick else KNOWN):
                self.finished.add(one)
        self.tell()

    def tell(self) -> None:
        if self.progress:
            self.progress(int(100 * self.spent / (self.spent + self.left())), 100)

    def left(self) -> float:
        """Milliseconds that plain search will take, as it has so far, and drafts that have survived a round."""
        total = 0.0
        for one in self.plain:
            if one not in self.finished:
                each = 1 + (len(self.races[one].running) if self.raced else 0)
                for place, (ms, times) in enumerate(zip(self.expected[one], self.measured[one])):
                    total += each * ms * max(0, self.repetitions(one, place) - len(times))
        return total
