"""Several exports and their report."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli

import anydepth
from anydepth.errors import UserError
from anydepth.evaluation.metrics import Scorer
from anydepth.sizing.sizes import Export, Size, Sizes, make_sizes, quality
from anydepth.sizing.sizes_page import write_sizes

GOLDEN = Path(__file__).parent.parent / "golden" / "model"
SOURCE = ["July", "the first of May", "twenty-three euros", "Monday, 4 July 2011"]
REFERENCE = ["Juli", "der erste Mai", "dreiundzwanzig Euro", "Montag, 4. Juli 2011"]


def size(depth: str, bleu: float, p95: float, p_value: float = 0.5) -> Size:
    scores, p_values = {"bleu": bleu, "chrf": 50.0}, {"bleu": p_value, "chrf": 1.0}
    return Size(
        depth=depth, scores=scores, p_values=p_values, p50_ms=p95 / 2, p95_ms=p95,
        memory=3_000_000, disk=1_500_000,
    )  # fmt: skip


def found(*sizes: Size) -> Sizes:
    return Sizes(
        run="runs/toy", to="ctranslate2", quantization="int8", machine={"name": "Toy <CPU>", "torch": "2.13"},
        device="cpu", beam=5, sentences=400, signatures={"bleu": "a", "chrf": "b"}, full={"bleu": 30.0, "chrf": 55.0},
        full_depth="6-6", sizes=list(sizes),
    )  # fmt: skip


def test_a_depth_for_every_budget() -> None:
    four = found(size("6-6", 30, 40), size("6-2", 29, 15), size("1-6", 28, 35, 0.01), size("1-1", 20, 5, 0.01))
    assert [(one.budget_ms, one.depth) for one in four.advice] == [(5, "1-1"), (15, "6-2"), (40, "6-6")]
    assert four.enough is four.sizes[1]
    assert found(size("1-1", 20, 5, 0.01)).enough is None
    assert found(size("1-1", 31, 5, 0.01), size("6-6", 30, 40)).enough.depth == "1-1"  # significantly better


def test_the_page_shows_all(tmp_path: Path) -> None:
    page = write_sizes(found(size("6-6", 30, 40), size("1-1", 20, 5, 0.01)), tmp_path).read_text()
    for text in ("<b>6-6</b> is the fastest", "Toy &lt;CPU&gt;", "3.0 MB", "<svg", "ctranslate2, int8"):
        assert text in page
    assert page.count('class="worse"') == 1
    kept = json.loads((tmp_path / "sizes.json").read_text())
    assert (kept["enough"], kept["advice"][0]) == ("6-6", {"budget_ms": 5.0, "depth": "1-1"})
    assert "are significantly worse" in write_sizes(found(size("1-1", 20, 5, 0.01)), tmp_path).read_text()


def test_exports_say_what_the_run_says(tmp_path: Path) -> None:
    run, out = anydepth.load(GOLDEN, device="cpu"), tmp_path / "out"
    told: list[tuple[int, int, str]] = []
    asked: dict[str, Any] = {"beam": 1, "rounds": 1, "progress": lambda *step: told.append(step)}
    made = make_sizes(run, ["2-2", "1-1", "2-2"], out, SOURCE, REFERENCE, **asked)
    assert [done for done, total, _ in told] == [*range(8)]
    assert {total for _, total, _ in told} == {8}
    full, small = made.sizes
    assert (full.depth, full.scores, full.p_values) == ("2-2", made.full, {"bleu": 1.0, "chrf": 1.0})
    said = Scorer(REFERENCE).score(run.translate(SOURCE, "1-1", beam=1))
    assert small.scores == {"bleu": said.bleu, "chrf": said.chrf}
    assert small.disk < full.disk == sum(file.stat().st_size for file in (out / "2-2").iterdir())
    assert full.memory > 0
    chances = quality(run, {"1-1": Export(run, "1-1")}, SOURCE, REFERENCE, 1, lambda _: None).comparisons[1].estimates
    assert small.p_values == {name: pytest.approx(min(1, 2 * one.p_value)) for name, one in chances.items()}
    assert 0 < small.p50_ms < small.p95_ms
    assert anydepth.load(out / "1-1").depths() == ["1-1"]
    with pytest.raises(UserError, match="depth 3-1: this run has"):
        make_sizes(run, ["3-1"], tmp_path / "other", SOURCE, REFERENCE)
    for nothing in ([], ["", " "]):
        with pytest.raises(UserError, match="no sentence to measure with"):
            make_sizes(run, ["1-1"], tmp_path / "other", nothing, nothing)


def test_ctranslate2_from_the_command_line(tmp_path: Path, cli: Cli) -> None:
    pytest.importorskip("ctranslate2")
    files, out = (tmp_path / "source", tmp_path / "reference"), tmp_path / "out"
    for file, lines in zip(files, (SOURCE, REFERENCE)):
        file.write_text("".join(f"{line}\n" for line in lines))
    test_set = ("--source", files[0], "--reference", files[1])
    code, printed, _ = cli(
        "sizes", GOLDEN, "--out", out, "--depths", "2-2", "--to", "ctranslate2", "--beam", 1, *test_set
    )
    assert code == 0
    assert f"the report is in {out / 'sizes.html'}" in printed
    assert "fastest that is not significantly worse: 2-2" in printed
    assert (out / "2-2" / "model.bin").exists()
    kept = json.loads((out / "sizes.json").read_text())
    (only,) = kept["sizes"]
    assert only["scores"] == kept["full"]  # greedy search gives the same tokens
    assert only["memory"] > 0
    code, _, error = cli("sizes", GOLDEN, "--out", out, *test_set, "--quantization", "int8")
    assert code == 2
    assert "is not empty" in error


def test_an_interrupted_comparison_leaves_nothing(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        assert (tmp_path / "out").exists() is False  # though there are exports already
        raise UserError("stopped")

    monkeypatch.setattr("anydepth.sizing.sizes.quality", interrupt)
    files = tmp_path / "source", tmp_path / "reference"
    for file, lines in zip(files, (SOURCE, REFERENCE)):
        file.write_text("".join(f"{line}\n" for line in lines))
    code, _, error = cli("sizes", GOLDEN, "--out", tmp_path / "out", "--source", files[0], "--reference", files[1])
    assert (code, error) == (2, "anydepth: stopped\n")
    assert sorted(tmp_path.iterdir()) == sorted(files)
