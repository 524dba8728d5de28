"""Pre-train, distil, fine-tune with one command."""

from pathlib import Path

import pytest
from tiny_training import recipe

from anydepth.chain import load, run_chain
from anydepth.errors import UserError
from anydepth.run import load as load_run
from anydepth.training import checkpoint

RECIPES = Path(__file__).parents[2] / "recipes"

CHAIN = """
[[stages]]
type = "train"
name = "teacher"
recipe = "tiny.toml"
settings = ['model.encoder.depth={type="full"}', 'model.decoder.depth={type="full"}', "training.steps=6"]

[[stages]]
type = "distill"
name = "distilled"
teacher = "teacher"
source = "FOLDER/train.source"
beam = 2

[[stages]]
type = "train"
name = "student"
recipe = "tiny.toml"
settings = ["training.start_from=$teacher", "data.train.0.target=$distilled", 'training.objective={type="exit-grid"}']
"""


def chain(folder: Path, text: str = CHAIN) -> Path:
    recipe(folder)
    path = folder / "chain.toml"
    path.write_text(text.replace("FOLDER", str(folder)))
    return path


def test_a_chain_is_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = run_chain(chain(tmp_path), tmp_path / "out", quiet=True)
    assert left == {
        "teacher": tmp_path / "out" / "teacher",
        "distilled": tmp_path / "out" / "distilled.txt.gz",
        "student": tmp_path / "out" / "student",
    }
    assert load_run(left["student"], device="cpu").depths() == ["1-1", "1-2", "2-1", "2-2"]
    hashes = {name: checkpoint.checksum(left[name] / "model.safetensors") for name in ("teacher", "student")}

    def refuse(*_: object) -> None:
        raise AssertionError("a finished stage is done again")

    monkeypatch.setattr("anydepth.training.step.Step.__call__", refuse)
    monkeypatch.setattr("anydepth.run.Run.translations", refuse)
    assert run_chain(tmp_path / "chain.toml", tmp_path / "out", quiet=True) == left
    for name, before in hashes.items():
        assert checkpoint.checksum(left[name] / "model.safetensors") == before


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (('name = "student"', 'name = "teacher"'), "two have the name teacher"),
        (('teacher = "teacher"', 'teacher = "nobody"'), r"stages.1.teacher: there is no training 'nobody'"),
        (("=$distilled", "=$distiled"), "no stage 'distiled' before it, only teacher, distilled"),
        (('recipe = "tiny.toml"\nsettings = ["', 'recipe = "other.toml"\nsettings = ["'), "other.toml: no such file"),
        (('name = "student"', 'name = "tied-multi"'), "stages.2.name: 'tied-multi' must be letters"),
        (("=$distilled", "=$5"), "must begin the name of a stage"),
        (("beam = 2", "beam = 0"), r"stages.1.beam: must be at least 1"),
        (("train.source", "nowhere.source"), "nowhere.source: no such file"),
        (('beam = 2', 'beem = 2'), "stages.1.beem: no such setting, did you mean"),
    ],
)  # fmt: skip
def test_mistakes_are_found_before_the_first_stage(tmp_path: Path, change: tuple[str, str], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        run_chain(chain(tmp_path, CHAIN.replace(*change)), tmp_path / "out", quiet=True)
    assert not (tmp_path / "out").exists()


def test_the_chains_among_the_recipes_can_be_read() -> None:
    chains = sorted(RECIPES.glob("*/chain*.toml"))
    assert chains
    for path in chains:
        for stage in load(path).stages:
            assert stage.type == "distill" or (path.parent / stage.recipe).is_file()
