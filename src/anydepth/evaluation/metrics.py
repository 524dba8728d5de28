"""BLEU and chrF, always by sacreBLEU, always with the signature that makes a score comparable.

Papineni et al. 2002 (BLEU), Popović 2015 (chrF), Post 2018 (signatures).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Scores:
    bleu: float
    chrf: float
    signatures: dict[str, str]
    """sacreBLEU's description of each metric: tokenization, case, smoothing, version."""


class Scorer:
    """Scores many systems against the same references, whose n-grams are counted once."""

    def __init__(self, references: Sequence[str], lowercase: bool = False) -> None:
        self._references = len(references)
        self._metrics = sacrebleu_metrics(references, lowercase)
        self.signatures = {name: metric.get_signature().format() for name, metric in self._metrics.items()}

    def score(self, hypotheses: Sequence[str]) -> Scores:
        if len(hypotheses) != self._references:
            raise ValueError(f"{len(hypotheses)} hypotheses for {self._references} references")
        bleu, chrf = (metric.corpus_score(hypotheses, None).score for metric in self._metrics.values())
        return Scores(bleu, chrf, dict(self.signatures))


def score(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False) -> Scores:
    """Corpus BLEU (13a tokenization) and chrF, one reference a sentence."""
    return Scorer(references, lowercase).score(hypotheses)


def sentence_chrf(hypothesis: str, reference: str) -> float:
    """chrF of one sentence: to rank or to show sentences, never to compare systems."""
    from sacrebleu import sentence_chrf as sacrebleu_sentence_chrf

    value: float = sacrebleu_sentence_chrf(hypothesis, [reference]).score
    return value


def sacrebleu_metrics(references: Sequence[str], lowercase: bool = False) -> dict[str, Any]:
    """sacreBLEU's metric objects by our names, with the references' n-grams cached in them."""
    from sacrebleu.metrics import BLEU, CHRF

    # `force` only silences the hint, once for every depth, that the text looks tokenized
    bleu = BLEU(tokenize="13a", lowercase=lowercase, force=True, references=[list(references)])
    return {"bleu": bleu, "chrf": CHRF(lowercase=lowercase, references=[list(references)])}
