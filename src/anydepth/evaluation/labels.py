"""How good predicted labels are. All take two arrays of label numbers: those found and the right ones."""

import math
from typing import NamedTuple

import numpy as np

Array = np.ndarray

Z = 1.959964
"""Standard deviations to either side that hold 95 % of a normal distribution."""


def accuracy(found: Array, right: Array) -> float:
    """In per cent."""
    return 100 * float(np.mean(found == right))


def interval(found: Array, right: Array) -> tuple[float, float]:
    """95 % confidence interval of the accuracy, by Wilson's score: right also near 0 and 100 %, and for few texts."""
    return wilson(float(np.mean(found == right)), len(right))


def wilson(share: float, texts: int) -> tuple[float, float]:
    """95 % confidence interval, in per cent, of a share of so many texts."""
    middle = (share + Z**2 / (2 * texts)) / (1 + Z**2 / texts)
    reach = Z * math.sqrt(share * (1 - share) / texts + Z**2 / (4 * texts**2)) / (1 + Z**2 / texts)
    return 100 * max(0.0, middle - reach), 100 * min(1.0, middle + reach)


def macro_f1(found: Array, right: Array) -> float:
    """The mean over all labels that occur of the harmonic mean of precision and recall; in per cent."""
    scores = []
    for label in np.union1d(found, right):
        hits = np.sum((found == label) & (right == label))
        scores.append(2 * hits / (np.sum(found == label) + np.sum(right == label)))
    return 100 * float(np.mean(scores))


def sign_test(first: Array, second: Array, right: Array) -> float:
    """How likely two equally good classifiers would differ at least as much (exact McNemar test, two-sided)."""
    better = int(np.sum((first == right) & (second != right)))
    worse = int(np.sum((first != right) & (second == right)))
    differ = better + worse
    if not differ:
        return 1.0
    each = [math.lgamma(differ + 1) - math.lgamma(k + 1) - math.lgamma(differ - k + 1) for k in range(differ + 1)]
    tail = sum(math.exp(one - differ * math.log(2)) for one in each[: min(better, worse) + 1])
    return min(1.0, 2 * tail)


class Paired(NamedTuple):
    """By how much one classifier is more accurate than another, on the same texts."""

    difference: float
    """In points of accuracy."""
    low: float
    """Of its 95 % interval."""
    high: float
    p: float
    """How likely the difference is chance."""


def paired(first: Array, second: Array, right: Array) -> Paired:
    apart = 100 * ((first == right).astype(float) - (second == right))
    mean, reach = float(apart.mean()), Z * float(apart.std()) / math.sqrt(len(apart))
    return Paired(mean, mean - reach, mean + reach, sign_test(first, second, right))
