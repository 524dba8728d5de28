"""ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004), the F1 version, always by the library `rouge-score`.

Words are what the library takes for words in English (lower case, letters and digits, Porter's stemmer); in other
languages it would drop every letter that is not ASCII, so these are kept here. A score is the mean over summaries.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray

WORDS = re.compile(r"[^\W_]+")


class RougeStatistics(NamedTuple):
    """For each metric (summaries, 2): the F1 of a summary, and 1. Like the counts of BLEU they can be added."""

    rouge1: Array
    rouge2: Array
    rougeL: Array

    def scores(self) -> dict[str, float]:
        """Of all summaries together."""
        return {metric: mean_of_sums(rows.sum(0).tolist()) for metric, rows in self._asdict().items()}

    @staticmethod
    def signatures(lowercase: bool = False, **more: int) -> dict[str, str]:
        """How each metric was computed. ROUGE is always without case."""
        rest = "".join(f"|{name}:{value}" for name, value in more.items())
        return {metric: f"f1|stem:porter|tok:unicode{rest}|{_library()}" for metric in RougeStatistics._fields}

    @staticmethod
    def made_with(lowercase: bool) -> list[object]:
        """What other counts would come from."""
        return [_library()]

    @staticmethod
    def scorer(references: Sequence[str], lowercase: bool = False) -> "RougeScorer":
        return RougeScorer(references)


class RougeScorer:
    """Scores many systems against the same references."""

    def __init__(self, references: Sequence[str]) -> None:
        from rouge_score.rouge_scorer import RougeScorer as Library

        self.references = list(references)
        self.library = Library(list(RougeStatistics._fields), tokenizer=Stems())
        self.signatures = RougeStatistics.signatures()

    def statistics(self, hypotheses: Sequence[str]) -> RougeStatistics:
        if len(hypotheses) != len(self.references):
            raise ValueError(f"{len(hypotheses)} hypotheses for {len(self.references)} references")
        each = [self.library.score(*pair) for pair in zip(self.references, hypotheses)]
        rows = ([[found[metric].fmeasure, 1.0] for found in each] for metric in RougeStatistics._fields)
        return RougeStatistics(*(np.array(row) for row in rows))


class Stems:
    """Text to the stems that are counted; of ASCII text those of `rouge_score.tokenize`."""

    def __init__(self) -> None:
        from nltk.stem.porter import PorterStemmer

        self.stemmer: Any = PorterStemmer()

    def tokenize(self, text: str) -> list[str]:
        return [self.stemmer.stem(word) if len(word) > 3 else word for word in WORDS.findall(text.lower())]


def mean_of_sums(sums: list[float]) -> float:
    """Percent, from summed rows of `RougeStatistics`."""
    total, number = sums
    return 100 * total / number


def _library() -> str:
    from importlib.metadata import version

    return f"rouge-score:{version('rouge-score')}"
