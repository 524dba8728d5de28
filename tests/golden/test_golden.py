"""A run made long ago still loads and still says, word for word, what it said then. See make.py."""

import json
from pathlib import Path
from typing import Any

import pytest

import anydepth
from anydepth.run import Run

HERE = Path(__file__).parent
GOLDEN: dict[str, Any] = json.loads((HERE / "outputs.json").read_text(encoding="utf-8"))
DEPTHS = ["1-1", "1-2", "2-1", "2-2"]


@pytest.fixture(scope="module")
def run() -> Run:
    return anydepth.load(HERE / "model", device="cpu")


def test_the_model_is_small_enough_to_be_kept() -> None:
    assert sum(path.stat().st_size for path in (HERE / "model").iterdir()) < 300_000
    assert {path.name for path in (HERE / "model").iterdir()} == {"config.toml", "model.safetensors", "tokenizer.json"}


def test_every_depth_is_there_and_has_its_own_voice(run: Run) -> None:
    assert run.depths() == list(GOLDEN["outputs"]) == DEPTHS
    voices = [[said["text"] for said in GOLDEN["outputs"][depth]["greedy"]] for depth in DEPTHS]
    assert len({tuple(voice) for voice in voices}) == len(DEPTHS)
    assert all(len(text) > 5 for voice in voices for text in voice)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize(("search", "beam"), [("greedy", 1), ("beam", 4)])
def test_the_same_words_as_ever(run: Run, depth: str, search: str, beam: int) -> None:
    expected = GOLDEN["outputs"][depth][search]
    found = [best for [best] in run.translations(GOLDEN["sentences"], depth, beam=beam)]
    assert [best.text for best in found] == [said["text"] for said in expected]
    assert [best.log_probability for best in found] == pytest.approx(
        [said["log_probability"] for said in expected], abs=1e-3
    )
