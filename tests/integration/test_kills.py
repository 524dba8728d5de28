"""The short form of benchmarks/kills.py: a training that is killed again and again ends with the same bits."""

import importlib
from pathlib import Path

import pytest

from anydepth.config import load
from anydepth.training.loop import train

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
STEPS, EVERY = 60, 10


def test_kills_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    kills = importlib.import_module("kills")
    recipe = kills.write_recipe(tmp_path, STEPS, EVERY)
    undisturbed = train(load(recipe), tmp_path / "undisturbed", quiet=True)
    moments = kills.plan(STEPS, EVERY, kills=6, inside=2)
    died = kills.train_killed(recipe, tmp_path / "killed", moments, EVERY)
    assert len(died) >= 6
    assert sum(bool(kill.left) for kill in died) >= 2
    assert kills.fingerprint(tmp_path / "killed", STEPS) == kills.fingerprint(undisturbed, STEPS)
    assert not list((tmp_path / "killed").rglob(".*"))  # nothing half written stays
