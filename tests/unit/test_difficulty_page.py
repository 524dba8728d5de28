"""Scores of every run on the easy and the difficult sentences of a test set, and what each gains there."""

import json
from pathlib import Path

import numpy as np
import pytest
from synthetic_runs import write_run

from anydepth.evaluation.difficulty import NAMES, Difficulty
from anydepth.evaluation.metrics import score
from anydepth.evaluation.records import read_records
from anydepth.files import read_lines
from anydepth.reporting.difficulty_page import difficulty_part
from anydepth.reporting.figures import signed
from anydepth.reporting.report import write_report

SENTENCES = 40
PART = [(7 * number) % 4 for number in range(SENTENCES)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Better, judge and worse, and one that was evaluated on other text."""
    folder = tmp_path_factory.mktemp("runs")
    for name, skill in (("better", 0.3), ("judge", 0.15), ("worse", 0.0), ("elsewhere", 0.2)):
        write_run(folder / name, skill=skill, encoders=(2, 4), decoders=(2,), sentences=SENTENCES)
        grid = json.loads((folder / name / "grid.json").read_text())
        grid["test_set"] = "another" if name == "elsewhere" else "toy"
        (folder / name / "grid.json").write_text(json.dumps(grid))
    judged = Difficulty(
        steps=[1, 2, 3], weights="", test_set="toy", mean=[0.0] * SENTENCES, deviation=[0.0] * SENTENCES, part=PART
    )
    (folder / "judge" / "difficulty.json").write_text(json.dumps(judged._asdict()))
    return [folder / name for name in ("better", "judge", "worse", "elsewhere")]


def by_part(run: Path) -> list[float]:
    """BLEU at the deepest depth."""
    outputs, references = (np.array(read_lines(run / "outputs" / f"{name}.txt")) for name in ("4-2", "reference"))
    chosen = [np.array(PART) == number for number in range(4)]
    return [score(outputs[rows].tolist(), references[rows].tolist()).bleu for rows in chosen]


def test_scores_and_gains_on_each_part(runs: list[Path]) -> None:
    part = difficulty_part(read_records(runs))
    assert part is not None
    assert (part.judge, part.baseline, part.checkpoints) == ("judge", "judge", 3)
    assert part.names == ["simple", "ordinary", "difficult", "challenging"]
    assert part.sizes == [10] * 4
    expected = {run.name: by_part(run) for run in runs[:3]}
    assert [name for name, _, _ in part.rows] == ["better", "judge", "worse"]
    for name, scores, gains in part.rows:
        assert scores == pytest.approx(expected[name])
        assert gains == pytest.approx([mine - theirs for mine, theirs in zip(expected[name], expected["judge"])])
    (_, _, better), _, (_, _, worse) = part.rows
    assert sum(better) > 1 > sum(worse)


def test_gains_are_on_the_page(runs: list[Path], tmp_path: Path) -> None:
    page = write_report(runs[:2], tmp_path / "page.html", samples=0).read_text()
    shown = page.split('<section id="difficulty">')[1].split("</section>")[0]
    for name, mine, theirs in zip(NAMES, by_part(runs[0]), by_part(runs[1])):
        assert f"<title>better, {name}: {signed(mine - theirs)} BLEU</title>" in shown
        assert f"<td>{mine:.2f}" in shown


def test_nobody_has_judged(runs: list[Path]) -> None:
    assert difficulty_part(read_records([runs[0], runs[3]])) is None
