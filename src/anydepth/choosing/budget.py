"""Which depth for how much time: quality from the depth grid (`anydepth evaluate`), time from the calibration."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from anydepth.calibrating.calibration import COVERAGE, Calibration, find_calibration
from anydepth.decoding.decoder import Precision
from anydepth.errors import UserError
from anydepth.evaluation.cells import Cell, depth_name, pareto_front
from anydepth.evaluation.differences import LEVEL, enough_samples
from anydepth.evaluation.metrics import METRICS, AnyStatistics, main_metric
from anydepth.evaluation.records import Record, read_records
from anydepth.evaluation.significance import Resampling, holm, p_value

if TYPE_CHECKING:
    from anydepth.run import Run


LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9)
"""How likely a single sentence must be in time, where others are surer: never less than not."""
AIM = 0.97
"""The share in time to aim at on average: above COVERAGE, because measurements are few."""
LATE, PACE = 0.035, 0.05
"""The share of late answers to end up with, and how much one of them changes what is taken to be a machine's mood."""
MOODS = 0.8, 4.0
"""The best and the worst: how many times as long as calibrated it can be taken to need."""
MANY = 1000
"""Budgets whose moods are remembered."""


class Chosen(NamedTuple):
    depth: str
    ms: float
    """For the whole batch: 19 of 20 take no longer."""
    fits: bool
    """Whether that is within the budget; otherwise it is the fastest depth."""


class Automatic(NamedTuple):
    depth: str
    reason: str
    """For people."""


class Options:
    """The depths of a run that were both evaluated and calibrated."""

    def __init__(
        self, cells: Sequence[Cell], calibration: Calibration, record: Record | None = None, drafts: bool = False
    ) -> None:
        """`record` is where the cells come from; only `automatic` looks into it. `drafts` tells whether there is
        speculation wherever it pays."""
        self.cells = [cell for cell in cells if depth_name(cell) in calibration.depths]
        if not self.cells:
            raise UserError("no depth was both evaluated and calibrated: give both commands the same --depths")
        self.metric = main_metric(self.cells[0])
        self.calibration, self.record, self.drafts = calibration, record, drafts
        self.levels: dict[tuple[float, int], float] = {}
        self.moods: dict[tuple[float, int], float] = {}
        """By budget and sentences of a batch: how many times as long as calibrated answers are taken to need, since
        some of them came late."""
        self.depths = [depth_name(cell) for cell in sorted(self.cells, key=lambda cell: -cell[self.metric])]
        """The best first."""

    def within(self, budget_ms: float, tokens: int, sentences: int = 1) -> Chosen:
        """The best depth that is likely enough to be in time; for a batch, whose sentences share its time, that is
        `budget_ms` for each of them."""
        asked = budget_ms, sentences
        if asked not in self.levels:
            if len(self.levels) == MANY:  # a budget of its own for every call
                self.levels.clear()
                self.moods.clear()
            self.levels[asked] = self.level(budget_ms, sentences)
        # moods pass: by the calibration alone it is told whether a budget can be kept
        depth, fits = self.at_level(self.levels[asked], budget_ms, tokens, sentences)
        if asked in self.moods:
            depth, _ = self.at_level(self.levels[asked], budget_ms / self.moods[asked], tokens, sentences)
        return Chosen(depth, self.times(depth, sentences).predict(depth, tokens, sentences), fits)

    def times(self, depth: str, sentences: int) -> Calibration:
        """What tells the time of a depth: of speculation where it is used."""
        drafts = self.drafts and self.calibration.draft_at(depth, sentences)
        return self.calibration.drafting if drafts else self.calibration

    def answered(self, budget_ms: float, sentences: int, in_time: bool) -> None:
        """Learns from an answer that could be in time, so that in the long run the wanted share is, however far the
        calibration is from how busy the machine is now (adaptive conformal inference, Gibbs and Candès 2021)."""
        mood = self.moods.get((budget_ms, sentences), 1.0) * math.exp(PACE * ((not in_time) - LATE))
        self.moods[budget_ms, sentences] = min(max(mood, MOODS[0]), MOODS[1])

    def at_level(self, level: float, budget_ms: float, tokens: float, sentences: int) -> tuple[str, bool]:
        """The best depth that is in time with this chance, or else the fastest; and which of the two it is."""
        times = {depth: self.times(depth, sentences).predict(depth, tokens, sentences, level) for depth in self.depths}
        fitting = [depth for depth in self.depths if times[depth] <= budget_ms * sentences]
        return (fitting[0], True) if fitting else (min(times, key=times.__getitem__), False)

    def level(self, budget_ms: float, sentences: int) -> float:
        """How likely each sentence must be in time for 19 of 20 to be so on average.

        Short sentences are in time almost surely; so long ones may take a risk, as they do where one depth serves all.
        The lengths are those of the sentences that were calibrated with.
        """
        for level in LEVELS:
            chances = []
            for tokens in self.calibration.tokens:
                depth, _ = self.at_level(level, budget_ms, tokens, sentences)
                times = self.times(depth, sentences)
                chances.append(times.chance(depth, tokens, sentences, budget_ms * sentences))
            if fmean(chances) >= AIM:
                return level
        return COVERAGE

    def automatic(self, sentences: int = 1) -> Automatic:
        """Of the depths that no other beats on quality without taking longer, at this batch size and the usual length,
        the fastest that is not significantly worse than the best."""
        timed = [cell | {"seconds": self.usual_seconds(depth_name(cell), sentences)} for cell in self.cells]
        front = pareto_front(timed, self.metric)
        best = front[-1]
        chances = {depth_name(cell): self.chances[depth_name(cell)] for cell in front[:-1]}
        corrected = dict(zip(chances, holm(list(chances.values()))))
        chosen = next((cell for cell in front[:-1] if corrected[depth_name(cell)] >= LEVEL), best)
        reason = f"depth {self.says(chosen)}"
        if chosen is best:
            if len(front) > 1:
                others = "every faster depth is significantly worse"
            else:
                others = "no other is faster" if len(timed) > 1 else "no other is known"
            return Automatic(depth_name(chosen), f"{reason}; {others}")
        chance = corrected[depth_name(chosen)]
        reason += f"; not significantly worse (p = {chance:.2g}) than {self.says(best)}"
        return Automatic(depth_name(chosen), reason)

    def says(self, cell: Cell) -> str:
        quality = f"{METRICS[self.metric]} {cell[self.metric]:.2f}"
        return f"{depth_name(cell)} with {quality} in {1000 * cell['seconds']:.3g} ms a sentence"

    def usual_seconds(self, depth: str, sentences: int) -> float:
        """For one of so many sentences of usual length."""
        tokens = self.calibration.usual_tokens
        return self.times(depth, sentences).predict(depth, tokens, sentences, None) / sentences / 1000

    @cached_property
    def chances(self) -> dict[str, float]:
        """How likely each depth's distance from the best one is by chance: paired bootstrap, not yet corrected."""
        found = self.statistics()
        best, *others = self.depths
        resampling = Resampling(len(found[best][0]), enough_samples(len(found)))
        scores = {depth: found[depth].scores()[self.metric] for depth in self.depths}
        resampled = {depth: resampling.scores(found[depth])[self.metric] for depth in self.depths}
        return {depth: p_value(resampled[best], resampled[depth], scores[depth] - scores[best]) for depth in others} | {
            best: 1.0
        }

    def statistics(self) -> dict[str, AnyStatistics]:
        found = self.record.statistics(self.depths) if self.record else {}
        for depth in self.depths:
            if depth not in found:
                raise UserError(f"depth auto: the outputs of depth {depth} were not kept; run anydepth evaluate again")
        return found


@dataclass(frozen=True)
class Guide:
    """What is known beside a run about its depths, read at the first need."""

    run: "Run"
    beam: int
    key: str
    precision: Precision

    def warn(self, message: str) -> None:
        """Once."""
        if message not in self.warned:
            self.warned.add(message)
            warnings.warn(message, stacklevel=3)

    @cached_property
    def warned(self) -> set[str]:
        return set()

    @cached_property
    def calibration(self) -> Calibration:
        return find_calibration(self.run, self.beam, self.key, self.precision)

    @property
    def calibrated(self) -> Calibration | None:
        """The same, or nothing where it is missing."""
        return self.sought[0]

    @cached_property
    def sought(self) -> tuple[Calibration | None, str]:
        """The same, or why it is missing: looked for once, where every batch asks."""
        try:
            return self.calibration, ""
        except UserError as error:
            return None, str(error)

    @cached_property
    def options(self) -> Options:
        record = evaluated(self.run, self.key)
        return Options(record.cells, self.calibration, record)

    @cached_property
    def drafting(self) -> Options:
        """The same, with speculation wherever it pays."""
        return Options(self.options.cells, self.calibration, self.options.record, drafts=True)


def worthwhile_depths(run: "Run") -> list[str]:
    """Those that a budget could ever choose: without the ones that need no fewer layers than another and score no
    better. All where the run was not evaluated; the deepest always."""
    try:
        cells = evaluated(run, run.key).cells
    except UserError:
        return run.depths()
    metric = main_metric(cells[0])

    def beaten(cell: Cell) -> bool:
        return any(
            other is not cell
            and other["encoder"] <= cell["encoder"]
            and other["decoder"] <= cell["decoder"]
            and other[metric] >= cell[metric]
            for other in cells
        )

    found = [depth_name(cell) for cell in cells if not beaten(cell)]
    return list(dict.fromkeys([*found, run.plan().name]))


def evaluated(run: "Run", key: str = "") -> Record:
    """The depth grid of a run, in a language, made with these weights."""
    if run.folder is None:
        raise UserError("this run has no folder, so no depth grid beside it: choose a depth")
    (record,) = read_records([run.folder])
    record = record.languages.get(key, record)
    again = f"run anydepth evaluate {run.folder}{f' --language {key}' if key else ''}"
    if not record.grid:
        raise UserError(f"{run.folder} has no depth grid, so the quality of a depth is not known: {again}")
    if record.grid.get("weights") != run.weights_hash:
        raise UserError(f"{record.folders[0].path / 'grid.json'} was made with other weights: {again}")
    return record
