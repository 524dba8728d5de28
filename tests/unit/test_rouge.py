"""ROUGE is that of the library; the beginnings of documents are scored beside."""

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer as Library

from anydepth.evaluation.lead import first_sentence, first_words, lead_scores
from anydepth.evaluation.metrics import main_metric, metrics_of, score_of_counts
from anydepth.evaluation.rouge import RougeScorer, RougeStatistics
from anydepth.evaluation.significance import paired_bootstrap

REFERENCES = ["The meetings were moved to Friday, 3 PM.", "quarterly numbers attached", "Re: gas prices in May"]
HYPOTHESES = ["meeting moved to Friday at 3 pm", "numbers", "the weather"]


def test_english_scores_are_the_librarys_own() -> None:
    library = Library(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    each = [library.score(reference, hypothesis) for reference, hypothesis in zip(REFERENCES, HYPOTHESES)]
    found = RougeScorer(REFERENCES).statistics(HYPOTHESES).scores()
    assert found == {
        metric: pytest.approx(100 * sum(one[metric].fmeasure for one in each) / 3)
        for metric in ("rouge1", "rouge2", "rougeL")
    }
    assert 0 < found["rouge2"] < found["rougeL"] <= found["rouge1"] < 100


def test_letters_of_other_languages_count() -> None:
    assert RougeScorer(["Встреча в пятницу", "Übung für März"]).statistics(
        ["встреча в пятницу", "übung für mai"]
    ).scores()["rouge1"] == pytest.approx(100 * (1 + 2 / 3) / 2)


def test_an_empty_summary_scores_nothing() -> None:
    assert set(RougeScorer(["words"]).statistics([""]).scores().values()) == {0.0}


def test_as_many_hypotheses_as_references() -> None:
    with pytest.raises(ValueError, match="1 hypotheses for 3 references"):
        RougeScorer(REFERENCES).statistics(["one"])


def test_rows_can_be_added_up() -> None:
    rows = RougeScorer(REFERENCES).statistics(HYPOTHESES)
    some = RougeStatistics(*(column[[0, 0, 2]] for column in rows)).scores()
    expected = RougeScorer([REFERENCES[0]] * 2 + [REFERENCES[2]]).statistics([HYPOTHESES[0]] * 2 + [HYPOTHESES[2]])
    assert some == pytest.approx(expected.scores())
    assert score_of_counts("rouge1", rows.rouge1.sum(0).tolist()) == rows.scores()["rouge1"]


def test_significance_of_summaries() -> None:
    draw = np.random.default_rng(1)
    references = [f"event {number} in hall {number % 7}" for number in range(60)]
    worse = [text if draw.random() < 0.3 else "nothing of it" for text in references]
    scorer = RougeScorer(references)
    found = paired_bootstrap({"all": scorer.statistics(references), "some": scorer.statistics(worse)}, 100)
    best, other = found.comparisons
    assert best.estimates["rouge1"].score == pytest.approx(100)
    assert other.estimates["rougeL"].p_value < 0.05
    assert "bs:100|seed:12345|rouge-score:" in found.signatures["rouge2"]


def test_metrics_of_a_cell() -> None:
    assert list(metrics_of({"encoder": 1, "rougeL": 3.0, "rouge1": 4.0, "rouge2": 1.0})) == [
        "rouge1",
        "rouge2",
        "rougeL",
    ]
    assert main_metric({"chrf": 1.0, "bleu": 2.0}) == "bleu"


def test_the_beginning_of_a_document() -> None:
    document = "Hi Bob!  The deal is done. Call me."
    assert first_sentence(document) == "Hi Bob!"
    assert first_words(document, 4) == "Hi Bob! The deal"
    assert (first_sentence(""), first_words("", 3)) == ("", "")
    sentence, words = lead_scores(["Gas prices fell. Really.", "Lunch at noon? Yes."], ["Gas prices fell", "Lunch"])
    assert (sentence["name"], words["name"]) == ("first sentence", "first 2 words")
    assert sentence["rouge1"] == pytest.approx(100 * (1 + 0.5) / 2)
    assert words["rouge1"] == pytest.approx(100 * (0.8 + 2 / 3) / 2)
