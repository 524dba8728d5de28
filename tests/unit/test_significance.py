"""The paired bootstrap is sacreBLEU's own."""

import os
import random

import pytest
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.significance import PairedTest

from anydepth.evaluation.significance import PairedBootstrap, paired_bootstrap

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
DRAW = random.Random(1)
REFERENCES = [" ".join(DRAW.choices(WORDS, k=9)) for _ in range(40)]


def with_errors(rate: float) -> list[str]:
    return [" ".join(w if DRAW.random() > rate else DRAW.choice(WORDS) for w in s.split()) for s in REFERENCES]


SYSTEMS = {"baseline": with_errors(0.4), "much better": with_errors(0.1), "similar": with_errors(0.4)}


@pytest.fixture(scope="module")
def ours() -> PairedBootstrap:
    return paired_bootstrap(SYSTEMS, REFERENCES, samples=100, seed=7)


def test_equals_sacrebleus(ours: PairedBootstrap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SACREBLEU_SEED", "7")
    metrics = {"BLEU": BLEU(), "chrF": CHRF()}
    signatures, theirs = PairedTest(list(SYSTEMS.items()), metrics, [REFERENCES], test_type="bs", n_samples=100)()
    for i, comparison in enumerate(ours.comparisons):
        assert comparison.system == theirs["System"][i]
        for estimate, result in ((comparison.bleu, theirs["BLEU"][i]), (comparison.chrf, theirs["chrF2"][i])):
            assert estimate.score == result.score
            assert estimate.mean == pytest.approx(result.mean)
            assert estimate.interval == pytest.approx(result.ci)
            assert estimate.p_value == result.p_value
    assert ours.signatures == {"bleu": signatures["BLEU"].format(), "chrf": signatures["chrF2"].format()}
    assert "bs:100|seed:7|" in ours.signatures["bleu"]


def test_tells_better_from_similar(ours: PairedBootstrap) -> None:
    baseline, better, similar = ours.comparisons
    assert baseline.bleu.p_value is None
    assert better.bleu.p_value is not None
    assert better.bleu.p_value < 0.05
    assert similar.bleu.p_value is not None
    assert similar.bleu.p_value > 0.05


@pytest.mark.parametrize("before", [None, "5"])
def test_leaves_the_environment_alone(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if before:
        monkeypatch.setenv("SACREBLEU_SEED", before)
    else:
        monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    paired_bootstrap({"a": SYSTEMS["baseline"]}, REFERENCES, samples=2, seed=9)
    assert os.environ.get("SACREBLEU_SEED") == before


def test_refuses_what_sacrebleu_would_misread() -> None:
    with pytest.raises(ValueError, match="short: 39 hypotheses for 40"):
        paired_bootstrap({"short": SYSTEMS["baseline"][1:]}, REFERENCES, samples=2)
    with pytest.raises(ValueError, match="positive"):
        paired_bootstrap(SYSTEMS, REFERENCES, samples=2, seed=0)
