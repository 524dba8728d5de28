"""Runs against a baseline: at every depth they share, and on average over these depths."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from anydepth.evaluation.metrics import AnyStatistics, Array
from anydepth.evaluation.records import Record
from anydepth.evaluation.significance import SAMPLES, Resampling, holm, interval, p_value

LEVEL = 0.05
Systems = dict[str, tuple[AnyStatistics, AnyStatistics, dict[str, Array], dict[str, Array]]]
"""By name: the statistics of the baseline and of a run, and their scores on resampled test sets."""


@dataclass(frozen=True)
class Difference:
    """A run and the baseline at one depth, under one metric."""

    depth: str
    baseline: float
    score: float
    p_value: float
    """By paired bootstrap."""
    corrected: float
    """The same after Holm's correction for the number of depths compared."""

    @property
    def difference(self) -> float:
        return self.score - self.baseline

    @property
    def verdict(self) -> str:
        """`better` or `worse` where the difference is significant, otherwise nothing."""
        if self.corrected >= LEVEL:
            return ""
        return "better" if self.difference > 0 else "worse"


@dataclass(frozen=True)
class Differences:
    """A run and the baseline under one metric, at all depths that both have; where they share none, each at its
    deepest."""

    run: str
    metric: str
    depths: list[Difference]
    mean: float
    """Over the depths."""
    low: float
    """The 95 % interval of the mean, over resampled test sets."""
    high: float

    def count(self, verdict: str) -> int:
        return sum(one.verdict == verdict for one in self.depths)

    def at(self, depth: str) -> Difference | None:
        return next((one for one in self.depths if one.depth == depth), None)

    def as_json(self) -> dict[str, Any]:
        depths = [asdict(one) | {"difference": one.difference, "verdict": one.verdict} for one in self.depths]
        mean = {"mean_difference": self.mean, "mean_interval": [self.low, self.high]}
        counts = {verdict: self.count(verdict) for verdict in ("better", "worse")}
        return {"run": self.run, "metric": self.metric, **mean, **counts, "depths": depths}


def enough_samples(depths: int) -> int:
    """With k depths the smallest p-value, 1 / (samples + 1), must be well below LEVEL / k for Holm to let it pass."""
    return max(SAMPLES, round(2 * depths / LEVEL))


def differences(baseline: Record, others: list[Record], samples: int | None = None) -> list[Differences]:
    """Of every other run, under each metric; nothing for a run whose outputs were not kept.

    The runs must have been evaluated on the same test set. Resampled test sets are the same for all depths, so that
    the interval of the mean takes into account that the depths err on the same sentences.
    """
    compared = {other.name: compared_depths(baseline, other) for other in others}
    first = baseline.statistics(unique(pair[0] for pairs in compared.values() for pair in pairs.values()))
    if not first:
        return []
    samples = samples or enough_samples(max(len(pairs) for pairs in compared.values()))
    resampling = Resampling(len(next(iter(first.values()))[0]), samples)
    resampled = {depth: resampling.scores(statistics) for depth, statistics in first.items()}
    found = []
    for other in others:
        pairs = compared[other.name]
        second = other.statistics(unique(depth for _, depth in pairs.values()))
        kept = {name: pair for name, pair in pairs.items() if pair[0] in first and pair[1] in second}
        if kept:
            again = {depth: resampling.scores(statistics) for depth, statistics in second.items()}
            systems = {name: (first[a], second[b], resampled[a], again[b]) for name, (a, b) in kept.items()}
            found += _under_each_metric(other.name, systems)
    return found


def language_differences(baseline: Record, others: list[Record], samples: int) -> list[Differences]:
    """As `differences`, but language by language, every run at the deepest depth it has there; `depths` are languages.

    Where two runs were not evaluated on the same test set of a language, or outputs were not kept, it is left out.
    """
    found = []
    for other in others:
        systems = {}
        for language, ours in baseline.languages.items():
            theirs = other.languages.get(language)
            if theirs is None or not (ours.test_set() == theirs.test_set() is not None):
                continue
            a, b = (list(one.statistics([one.deepest]).values()) for one in (ours, theirs))
            if a and b:
                resampling = Resampling(len(a[0][0]), samples)
                systems[language] = (a[0], b[0], resampling.scores(a[0]), resampling.scores(b[0]))
        if systems:
            found += _under_each_metric(other.name, systems)
    return found


def compared_depths(baseline: Record, other: Record) -> dict[str, tuple[str, str]]:
    """What is compared with what, under the name of the depth; without a shared depth, each run's deepest."""
    shared = {depth: (depth, depth) for depth in baseline.depths if depth in other.depths}
    return shared or {f"{other.deepest} against {baseline.deepest}": (baseline.deepest, other.deepest)}


def _under_each_metric(run: str, systems: Systems) -> list[Differences]:
    (first, *_), *_ = systems.values()
    return [_differences(run, metric, systems) for metric in first._fields]


def _differences(run: str, metric: str, systems: Systems) -> Differences:
    scores = {name: (a.scores()[metric], b.scores()[metric]) for name, (a, b, _, _) in systems.items()}
    resampled = {name: (a[metric], b[metric]) for name, (_, _, a, b) in systems.items()}
    chances = [p_value(*resampled[name], scores[name][1] - scores[name][0]) for name in systems]
    depths = [
        Difference(name, *scores[name], chance, corrected)
        for name, chance, corrected in zip(systems, chances, holm(chances))
    ]
    mean = float(np.mean([one.difference for one in depths]))
    low, high = interval(np.mean([b - a for a, b in resampled.values()], axis=0))
    return Differences(run, metric, depths, mean, low, high)


def unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
