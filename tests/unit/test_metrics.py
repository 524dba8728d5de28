"""Scores are sacreBLEU's own, with its signatures."""

import pytest
import sacrebleu

from anydepth.evaluation.metrics import Scorer, Statistics, score, sentence_chrf

REFERENCES = ["The cat sat on the mat .", "It costs 3,000.50 euros, doesn't it?", "Zwölf Boxkämpfer jagen Viktor."]
HYPOTHESES = ["A cat sat on the Mat .", "It costs 3,000.50 Euros, does it not?", "Zwölf Boxer jagen Viktor."]


@pytest.mark.parametrize("lowercase", [False, True])
def test_scores_are_sacrebleus(lowercase: bool) -> None:
    ours = score(HYPOTHESES, REFERENCES, lowercase)
    assert ours.bleu == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES], lowercase=lowercase).score
    metric = sacrebleu.CHRF(lowercase=lowercase)
    assert ours.chrf == metric.corpus_score(HYPOTHESES, [REFERENCES]).score
    case = "lc" if lowercase else "mixed"
    version = sacrebleu.__version__
    assert ours.signatures["bleu"] == f"nrefs:1|case:{case}|eff:no|tok:13a|smooth:exp|version:{version}"
    assert ours.signatures["chrf"] == f"nrefs:1|case:{case}|eff:yes|nc:6|nw:0|space:no|version:{version}"


def test_case_matters_unless_told() -> None:
    assert score(HYPOTHESES, REFERENCES, lowercase=True).bleu > score(HYPOTHESES, REFERENCES).bleu


def test_scorer_keeps_nothing_from_one_system_to_the_next() -> None:
    scorer = Scorer(REFERENCES)
    first = scorer.score(HYPOTHESES)
    assert scorer.score(REFERENCES).bleu == pytest.approx(100)
    assert scorer.score(HYPOTHESES) == first


def test_sentence_chrf_is_sacrebleus() -> None:
    assert sentence_chrf(HYPOTHESES[0], REFERENCES[0]) == sacrebleu.sentence_chrf(HYPOTHESES[0], [REFERENCES[0]]).score


def test_any_selection_of_sentences_is_scored_from_its_counts() -> None:
    statistics = Scorer(REFERENCES).statistics(HYPOTHESES)
    assert statistics.sentence_chrf().tolist() == [sentence_chrf(*pair) for pair in zip(HYPOTHESES, REFERENCES)]
    some = Statistics(statistics.bleu[[2, 0, 2]], statistics.chrf[[2, 0, 2]])
    texts = [[side[line] for line in (2, 0, 2)] for side in (HYPOTHESES, REFERENCES)]
    expected = score(*texts)
    assert some.scores() == {"bleu": expected.bleu, "chrf": expected.chrf}


def test_unequal_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="2 hypotheses for 3 references"):
        score(HYPOTHESES[:2], REFERENCES)
