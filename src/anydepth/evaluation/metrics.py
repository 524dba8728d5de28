"""BLEU and chrF, always by sacreBLEU, always with the signature that makes a score comparable. (ROUGE: rouge.py.)

Papineni et al. 2002 (BLEU), Popović 2015 (chrF), Post 2018 (signatures).

Both are computed from counts that add up over sentences. Counting is what takes time; once counted (`Statistics`), any
selection of sentences is scored at once: the whole test set, one sentence, a resampled test set, or a test set in which
every sentence was translated at a depth of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from anydepth.evaluation.rouge import RougeStatistics, mean_of_sums

Array = np.ndarray

METRICS = {"bleu": "BLEU", "chrf": "chrF", "rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}
"""Their names in print."""


@dataclass(frozen=True)
class Scores:
    bleu: float
    chrf: float
    signatures: dict[str, str]
    """sacreBLEU's description of each metric: tokenization, case, smoothing, version."""


class Statistics(NamedTuple):
    """A row of counts for each sentence of a test set. `score` turns the sum of some rows into their score."""

    bleu: Array
    """(sentences, 10) words of hypothesis and reference; matching and all n-grams of orders 1 … 4."""
    chrf: Array
    """(sentences, 18) characters, orders 1 … 6: n-grams of the hypothesis, of the reference, in both."""

    def scores(self) -> dict[str, float]:
        """Of all sentences together."""
        return {metric: score_of_counts(metric, rows.sum(0).tolist()) for metric, rows in self._asdict().items()}

    def sentence_chrf(self) -> Array:
        """Of each sentence by itself: to rank sentences, never to compare systems."""
        return np.array([score_of_counts("chrf", row) for row in self.chrf.tolist()])

    @staticmethod
    def signatures(lowercase: bool = False, **more: int) -> dict[str, str]:
        """How each metric was computed."""
        return signatures(lowercase, **more)

    @staticmethod
    def made_with(lowercase: bool) -> list[object]:
        """What other counts would come from."""
        from sacrebleu import __version__

        return [__version__, lowercase]

    @staticmethod
    def scorer(references: Sequence[str], lowercase: bool = False) -> "Scorer":
        return Scorer(references, lowercase)


AnyStatistics = Statistics | RougeStatistics
"""Of translations, or of summaries."""


def metrics_of(cell: dict[str, Any]) -> dict[str, str]:
    """The metrics that a depth was scored by and their names in print, the most important one first."""
    return {metric: name for metric, name in METRICS.items() if metric in cell}


def main_metric(cell: dict[str, Any]) -> str:
    return next(iter(metrics_of(cell)))


class Scorer:
    """Scores many systems against the same references, whose n-grams are counted once."""

    def __init__(self, references: Sequence[str], lowercase: bool = False) -> None:
        self._references = len(references)
        self._metrics = sacrebleu_metrics(lowercase, references=[list(references)])
        self.signatures = signatures(lowercase)

    def statistics(self, hypotheses: Sequence[str]) -> Statistics:
        if len(hypotheses) != self._references:
            raise ValueError(f"{len(hypotheses)} hypotheses for {self._references} references")
        # sacreBLEU's own tests take the counts this way; there is no public one
        counts = (metric._extract_corpus_statistics(hypotheses, None) for metric in self._metrics.values())
        return Statistics(*(np.array(rows, dtype=np.int32) for rows in counts))

    def score(self, hypotheses: Sequence[str]) -> Scores:
        return Scores(**self.statistics(hypotheses).scores(), signatures=dict(self.signatures))


def score(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False) -> Scores:
    """Corpus BLEU (13a tokenization) and chrF, one reference a sentence."""
    return Scorer(references, lowercase).score(hypotheses)


def sentence_chrf(hypothesis: str, reference: str) -> float:
    """chrF of one sentence: to rank or to show sentences, never to compare systems."""
    from sacrebleu import sentence_chrf as sacrebleu_sentence_chrf

    value: float = sacrebleu_sentence_chrf(hypothesis, [reference]).score
    return value


def score_of_counts(metric: str, counts: list[float]) -> float:
    """The score of summed rows of statistics."""
    if metric in RougeStatistics._fields:
        return mean_of_sums(counts)
    value: float = _counting_metrics()[metric]._compute_score_from_stats(counts).score
    return value


def signatures(lowercase: bool = False, **more: int) -> dict[str, str]:
    """Of each metric; `more` is what else made the scores: `bs` resampled test sets, a `seed`."""
    found = {}
    for name, metric in sacrebleu_metrics(lowercase).items():
        metric.num_refs = 1
        signature = metric.get_signature()
        for key, value in more.items():
            signature.update(key, value)
        found[name] = signature.format()
    return found


def sacrebleu_metrics(lowercase: bool = False, references: list[list[str]] | None = None) -> dict[str, Any]:
    """sacreBLEU's metric objects by our names, with the n-grams of the references cached in them."""
    from sacrebleu.metrics import BLEU, CHRF

    # `force` only silences the hint, once for every depth, that the text looks tokenized
    bleu = BLEU(tokenize="13a", lowercase=lowercase, force=True, references=references)
    return {"bleu": bleu, "chrf": CHRF(lowercase=lowercase, references=references)}


@cache
def _counting_metrics() -> dict[str, Any]:
    return sacrebleu_metrics()  # once counted, case no longer matters
