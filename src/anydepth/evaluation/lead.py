"""The beginning of a document as its summary: the baseline that costs nothing."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from anydepth.data.sources import split_sentences
from anydepth.evaluation.rouge import RougeScorer


def lead_scores(documents: Sequence[str], summaries: Sequence[str]) -> list[dict[str, Any]]:
    """ROUGE of the first sentence, and of as many words as the mean summary has."""
    words = max(1, round(fmean(len(summary.split()) for summary in summaries)))
    scorer = RougeScorer(summaries)
    leads = {
        "first sentence": [first_sentence(document) for document in documents],
        f"first {words} words": [first_words(document, words) for document in documents],
    }
    return [{"name": name, **scorer.statistics(texts).scores()} for name, texts in leads.items()]


def first_sentence(document: str) -> str:
    return next(iter(split_sentences(document)), "")


def first_words(document: str, count: int) -> str:
    return " ".join(document.split()[:count])
