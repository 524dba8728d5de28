"""Cheap features as a baseline of the selector: how long a sentence is, and how rare its words are.

A ridge regression of each depth's gain over full depth. Length comes as bins with as many sentences in each, so that
length alone is the mean gain of a bin.
"""

from dataclasses import dataclass

import numpy as np

from anydepth.evaluation.metrics import Array
from anydepth.selecting.labels import Labels

BINS = 10
RIDGE = 1.0
"""Pulls weights towards 0 as much as one sentence that gains nothing."""
RARE = 5
"""A token seen less often in the labelled corpus is rare."""


@dataclass(frozen=True)
class Cheap:
    edges: Array
    """Between the bins, in tokens."""
    weights: Array
    """(features, depths)"""
    counts: Array
    """(vocabulary,) how often each token was seen; nothing where length is all that counts."""

    def gains(self, ids: list[list[int]]) -> Array:
        """(sentences, depths) predicted chrF above that of full depth."""
        return features(ids, self.edges, self.counts) @ self.weights


def fit_cheap(labels: Labels, vocabulary: int, rarity: bool) -> Cheap:
    lengths = np.array([len(ids) for ids in labels.ids])
    edges = np.unique(np.quantile(lengths, np.arange(1, BINS) / BINS))
    counts = np.zeros(0)
    if rarity:
        counts = np.bincount([token for ids in labels.ids for token in ids], minlength=vocabulary).astype(float)
    x, y = features(labels.ids, edges, counts), labels.gains()
    weights = np.linalg.solve(x.T @ x + RIDGE * np.eye(x.shape[1]), x.T @ y)
    return Cheap(edges, weights, counts)


def features(ids: list[list[int]], edges: Array, counts: Array) -> Array:
    """(sentences, bins) which bin its length is in; with counts also the share of rare tokens and the mean logarithm of
    the frequencies."""
    lengths = np.array([len(tokens) for tokens in ids])
    bins = np.eye(len(edges) + 1)[np.searchsorted(edges, lengths)]
    if not len(counts):
        return bins
    seen = [counts[tokens] if tokens else np.ones(1) for tokens in ids]
    rare = np.array([[(one < RARE).mean(), np.log1p(one).mean()] for one in seen])
    return np.concatenate([bins, rare], axis=1)
