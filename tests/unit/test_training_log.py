"""What metrics.jsonl tells: curves by depth and language, whatever a killed training left."""

import json
from pathlib import Path
from typing import Any

from anydepth.training.log import mean_curve, read_log


def write(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def valid(step: int, depth: str, loss: float, **more: Any) -> dict[str, Any]:
    return {"step": step, "kind": "valid", "depth": depth, "loss": loss, **more}


def test_depths_that_were_asked_for_are_curves_of_their_own(tmp_path: Path) -> None:
    lines = [valid(step, depth, 1.0) for step in (1, 2) for depth in ("6-6", "1-12", "2-1")]
    curves = read_log(write(tmp_path / "log", *lines)).valid
    assert [curve.name for curve in curves] == ["2-1", "6-6", "1-12"]
    assert all(len(curve.lines) == 2 for curve in curves)


def test_languages_do_not_overwrite_one_another_and_a_chosen_depth_is_one_curve(tmp_path: Path) -> None:
    lines = [
        valid(1, "2-4", 5.0, language="en-de", bleu=1.0),
        valid(1, "2-4", 7.0, language="en-fr", bleu=2.0),
        valid(2, "2-3", 3.0, language="en-de", bleu=3.0),
        valid(2, "2-4", 4.0, language="en-fr", bleu=5.0),
        valid(3, "2-3", 2.0, language="en-de", bleu=9.0),
    ]
    log = read_log(write(tmp_path / "log", *lines))
    german, french = log.valid
    assert (german.depth, german.name, [line["loss"] for line in german.lines]) == ("", "en-de", [5.0, 3.0, 2.0])
    assert (french.name, [line["loss"] for line in french.lines]) == ("en-fr 2-4", [7.0, 4.0])
    assert log.deepest == [german, french]
    assert mean_curve(log.deepest) == [{"step": 1, "loss": 6.0, "bleu": 1.5}, {"step": 2, "loss": 3.5, "bleu": 4.0}]
    assert log.last["step"] == 3


def test_the_last_line_of_a_step_counts_and_broken_ones_are_counted(tmp_path: Path) -> None:
    path = write(
        tmp_path / "log",
        {"step": 2, "kind": "train", "loss": 1.0},
        {"step": 1, "kind": "train", "loss": 2.0},
        {"step": 2, "kind": "train", "loss": 3.0},
        {"step": 2, "kind": "average", "depth": "6-6", "loss": 3.0},
        {"step": 2, "kind": "logits", "stack": "decoder", "logits": {"": [0.5]}},
        {"step": 2, "kind": "gradients", "stack": "encoder", "norms": [0.5, None]},
        {"step": 2, "kind": "valid", "loss": 1.0},  # no depth
    )
    with path.open("a") as file:
        file.write('[1]\n{"step": 3, "ki')
    log = read_log(path)
    assert [line["loss"] for line in log.train] == [2.0, 3.0]
    assert log.logits["decoder"][0]["logits"] == {"": [0.5]}
    assert log.gradients["encoder"][0]["norms"] == [0.5, None]
    assert (log.valid, log.unreadable) == ([], 3)
    assert read_log(tmp_path / "missing").train == []
