"""The paired bootstrap gives what sacreBLEU's own gives; corrections and intervals by hand."""

import random

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

from anydepth.evaluation.metrics import Scorer
from anydepth.evaluation.significance import PairedBootstrap, holm, interval, p_value, paired_bootstrap

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
DRAW = random.Random(1)
REFERENCES = [" ".join(DRAW.choices(WORDS, k=9)) for _ in range(40)]


def with_errors(rate: float) -> list[str]:
    return [" ".join(w if DRAW.random() > rate else DRAW.choice(WORDS) for w in s.split()) for s in REFERENCES]


SYSTEMS = {"baseline": with_errors(0.4), "much better": with_errors(0.1), "similar": with_errors(0.4)}
STATISTICS = {name: Scorer(REFERENCES).statistics(texts) for name, texts in SYSTEMS.items()}


@pytest.fixture(scope="module")
def ours() -> PairedBootstrap:
    return paired_bootstrap(STATISTICS, samples=100, seed=7)


def test_equals_sacrebleus(ours: PairedBootstrap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    metrics = {"BLEU": BLEU(), "chrF": CHRF()}
    signatures, theirs = PairedTest(list(SYSTEMS.items()), metrics, [REFERENCES], test_type="bs", n_samples=100)()
    for i, comparison in enumerate(ours.comparisons):
        assert comparison.system == theirs["System"][i]
        for estimate, result in (
            (comparison.estimates["bleu"], theirs["BLEU"][i]),
            (comparison.estimates["chrf"], theirs["chrF2"][i]),
        ):
            assert estimate.score == result.score
            assert estimate.mean == pytest.approx(result.mean, abs=1e-4)  # sacreBLEU adds up in float32
            assert estimate.interval == pytest.approx(result.ci, abs=1e-4)
            assert estimate.p_value == result.p_value
    assert ours.signatures == {"bleu": signatures["BLEU"].format(), "chrf": signatures["chrF2"].format()}
    assert "bs:100|seed:7|" in ours.signatures["bleu"]


def test_tells_better_from_similar(ours: PairedBootstrap) -> None:
    baseline, better, similar = ours.comparisons
    assert baseline.estimates["bleu"].p_value is None
    assert better.estimates["bleu"].p_value is not None
    assert better.estimates["bleu"].p_value < 0.05
    assert similar.estimates["bleu"].p_value is not None
    assert similar.estimates["bleu"].p_value > 0.05


def test_equal_systems_do_not_differ() -> None:
    again = paired_bootstrap({"one": STATISTICS["baseline"], "other": STATISTICS["baseline"]}, samples=10)
    assert again.comparisons[1].estimates["bleu"].p_value == again.comparisons[1].estimates["chrf"].p_value == 1.0


def test_refuses_what_sacrebleu_would_misread() -> None:
    with pytest.raises(ValueError, match="39 hypotheses for 40"):
        Scorer(REFERENCES).statistics(SYSTEMS["baseline"][1:])
    with pytest.raises(ValueError, match="positive"):
        paired_bootstrap(STATISTICS, samples=2, seed=0)


def test_p_value_by_hand() -> None:
    baseline, other = np.zeros(4), np.array([1.0, -3.0, 2.0, 2.0])
    # sizes 1, 3, 2, 2 less their mean 2: -1, 1, 0, 0; one of four exceeds 0.5
    assert p_value(baseline, other, -0.5) == 2 / 5
    assert p_value(baseline, other, 1.0) == 1 / 5
    assert p_value(baseline, other, 0.0) == 1.0


@pytest.mark.parametrize(
    ("given", "corrected"),
    [
        ([0.01], [0.01]),
        # sorted 0.005 · 4, 0.01 · 3, 0.03 · 2, 0.04 · 1, of which the last may not fall below the one before
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.5, 0.4, 0.001], [0.8, 0.8, 0.003]),
        ([0.9, 0.8], [1.0, 1.0]),
        ([0.02, 0.02, 0.02], [0.06, 0.06, 0.06]),
        ([], []),
    ],
)
def test_holm_by_hand(given: list[float], corrected: list[float]) -> None:
    assert holm(given) == pytest.approx(corrected)


def test_interval_leaves_out_a_fortieth_at_either_end() -> None:
    assert interval(np.arange(80.0)[::-1]) == (2.0, 77.0)
    assert interval(np.array([3.0])) == (3.0, 3.0)
