"""Every recipe for very deep encoders trains, translates and is exported through the command line, at tiny width."""

import json
import tomllib
from pathlib import Path

import pytest
from conftest import Cli
from tiny_training import shrunk

RECIPES = sorted((Path(__file__).parents[2] / "recipes/multiscale").glob("*.toml"))
RECIPES = [path for path in RECIPES if "stages" not in tomllib.loads(path.read_text())]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The depth of the recipe, a few thousand weights a layer, three updates; some choose their weights by a score."""
    settings = [*shrunk(tmp_path_factory.mktemp("corpus")), "training.steps=3", "training.log_every=1"]
    settings += ["training.validate_sentences=1"]
    return [part for setting in settings for part in ("--set", setting)]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_trains(path: Path, tiny: list[str], tmp_path: Path, cli: Cli) -> None:
    code, _, said = cli("train", path, "--out", tmp_path / "run", *tiny)
    assert code == 0, said
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    assert losses == pytest.approx([5.7] * 3, abs=2)  # near log 300, whatever the depth


def test_a_shallow_decoder_trains_translates_and_is_exported(tiny: list[str], tmp_path: Path, cli: Cli) -> None:
    path = next(path for path in RECIPES if path.stem == "iwslt-msc-36")
    run, small, text = tmp_path / "run", tmp_path / "small", tmp_path / "text"
    text.write_text("eins zwei\ndrei\n")
    settings = [
        "--set",
        'model.decoder.depth={type="prefix"}',
        "--set",
        'training.objective={type="exit-grid", pairs=2}',
    ]
    code, _, said = cli("train", path, "--out", run, *tiny, *settings)
    assert code == 0, said
    code, there, said = cli("translate", run, text, "--depth", "36-2", "--beam", 3)
    assert code == 0, said
    code, _, said = cli("export", run, "--to", "anydepth", "--depth", "36-2", "--out", small)
    assert code == 0, said
    assert "layers = 12" in (small / "config.toml").read_text()
    code, here, said = cli("translate", small, text, "--beam", 3)
    assert (code, here) == (0, there), said


def test_what_has_no_meaning_is_one_line(tiny: list[str], tmp_path: Path, cli: Cli) -> None:
    path = next(path for path in RECIPES if path.stem == "iwslt-msc-36")
    code, _, said = cli("train", path, "--out", tmp_path / "run", *tiny, "--set", 'model.encoder.depth={type="prefix"}')
    assert code == 2
    assert "multiscale blocks end at fixed encoder layers" in said
    assert len(said.strip().splitlines()) == 1
