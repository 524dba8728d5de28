"""Is one system really better than another? Paired bootstrap resampling (Koehn 2004), as sacreBLEU does it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anydepth.evaluation.metrics import AnyStatistics, Array, score_of_counts

SAMPLES = 1000
SEED = 12345
"""sacreBLEU's own."""


@dataclass(frozen=True)
class Estimate:
    """One system under one metric."""

    score: float
    """On the test set as it is."""
    mean: float
    """Over the resampled test sets."""
    interval: float
    """Half the width of the 95 % interval around the mean."""
    p_value: float | None
    """How likely a difference from the baseline this large is by chance; the baseline itself has none."""


@dataclass(frozen=True)
class Comparison:
    system: str
    estimates: dict[str, Estimate]
    """By metric."""


@dataclass(frozen=True)
class PairedBootstrap:
    comparisons: list[Comparison]
    """The baseline first, then every other system compared with it."""
    signatures: dict[str, str]
    samples: int


class Resampling:
    """Test sets made of the sentences of one, drawn with replacement: the same ones for every system."""

    def __init__(self, sentences: int, samples: int = SAMPLES, seed: int = SEED) -> None:
        if samples < 1 or seed < 1:  # sacreBLEU takes 0 for "the default" and "no seed"
            raise ValueError("samples and seed must be positive")
        drawn = np.random.default_rng(seed).choice(sentences, size=(samples, sentences))
        # how often each sentence is in each test set: counts of n-grams are added by one matrix product
        self.counts = np.stack([np.bincount(one, minlength=sentences) for one in drawn]).astype(np.float64)

    def scores(self, statistics: AnyStatistics) -> dict[str, Array]:
        """Of one system on every resampled test set, by metric."""
        return {
            metric: np.array([score_of_counts(metric, row) for row in (self.counts @ rows).tolist()])
            for metric, rows in statistics._asdict().items()
        }


def paired_bootstrap(
    systems: dict[str, AnyStatistics], samples: int = SAMPLES, seed: int = SEED, lowercase: bool = False
) -> PairedBootstrap:
    """Compare every system with the first one on `samples` resampled test sets.

    `lowercase` says how the statistics were counted, for the signatures.
    """
    first = next(iter(systems))
    resampling = Resampling(len(systems[first][0]), samples, seed)
    scores = {name: statistics.scores() for name, statistics in systems.items()}
    resampled = {name: resampling.scores(statistics) for name, statistics in systems.items()}

    def estimate(name: str, metric: str) -> Estimate:
        score, others = scores[name][metric], resampled[name][metric]
        difference = score - scores[first][metric]
        chance = None if name == first else p_value(resampled[first][metric], others, difference)
        return Estimate(score, *mean_and_interval(others), chance)

    metrics = systems[first]._fields
    comparisons = [Comparison(name, {metric: estimate(name, metric) for metric in metrics}) for name in systems]
    return PairedBootstrap(comparisons, systems[first].signatures(lowercase, bs=samples, seed=seed), samples)


def p_value(baseline: Array, other: Array, difference: float) -> float:
    """How likely a difference this large is by chance, from the scores on resampled test sets; 1 for none at all.

    sacreBLEU's (after Moses and MultEval): how often a resampled difference, less the mean of all, exceeds the
    observed one, without regard to its sign.
    """
    if difference == 0:
        return 1.0
    sizes = np.abs(other - baseline)
    beyond = int(np.sum(sizes - sizes.mean() > abs(difference)))
    return (beyond + 1) / (len(sizes) + 1)


def mean_and_interval(scores: Array) -> tuple[float, float]:
    """The mean, and half the width of the interval that holds 95 % of the scores."""
    low, high = interval(scores)
    return float(scores.mean()), (high - low) / 2


def interval(values: Array) -> tuple[float, float]:
    """What 95 % of the values lie between: a fortieth is left out at either end."""
    ordered = np.sort(values)
    left_out = len(ordered) // 40
    return float(ordered[left_out]), float(ordered[-1 - left_out])


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values corrected for their number (Holm 1979), in the order given.

    Of k p-values the smallest is multiplied by k, the next one by k − 1, and so on; none comes out below one that
    was smaller. Calling every corrected value below 5 % significant keeps the risk of even one false alarm below 5 %.
    """
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = largest
    return corrected
