"""The depth grid: what is measured, kept, continued and refused; and how its cells are read."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import toy_test_set, toy_translation

from anydepth.errors import UserError
from anydepth.evaluation.cells import best, fastest_within, pareto_front, telling_depths
from anydepth.evaluation.grid import evaluate, set_aside
from anydepth.evaluation.metrics import score
from anydepth.evaluation.samples import Piece, choose_samples, differences
from anydepth.evaluation.statistics import read_statistics
from anydepth.files import read_lines
from anydepth.plan import parse_depth

SOURCE, REFERENCE = toy_test_set(12)


class Toy:
    """A translator that knows the test set and errs less the deeper it is run."""

    device = "cpu"

    def __init__(self, weights_hash: str | None = "w1", fails_at: str = "") -> None:
        self.weights_hash = weights_hash
        self.fails_at = fails_at
        self.decoded: list[str] = []

    def depths(self) -> list[str]:
        return ["1-1", "1-2", "2-1", "2-2"]

    def describe(self, depth: str) -> dict[str, int]:
        return {"parameters": 100 * sum(parse_depth(depth))}

    def translate(self, texts: list[str], *, depth: str, beam: int, batch: int) -> list[str]:
        if depth == self.fails_at:
            raise KeyboardInterrupt
        if texts == SOURCE:  # not the warm-up
            self.decoded.append(depth)
        by_source = dict(zip(SOURCE, toy_translation(REFERENCE, *parse_depth(depth), skill=0.1)))
        return [by_source[text] for text in texts]


def run_grid(run: Toy, out: Path, depths: list[str] | None = None, **changed: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {"beam": 5, "batch": 4, "out": out} | changed
    return evaluate(run, SOURCE, REFERENCE, depths or run.depths(), **settings)


def cell_of(name: str, bleu: float, seconds: float) -> dict[str, Any]:
    encoder, decoder = parse_depth(name)
    return {"encoder": encoder, "decoder": decoder, "bleu": bleu, "chrf": bleu + 20, "seconds": seconds}


def test_every_cell_is_scored_timed_and_kept(tmp_path: Path) -> None:
    calls = []
    grid = run_grid(Toy(), tmp_path, progress=lambda done, total, depth: calls.append((done, total, depth)))
    assert grid == json.loads((tmp_path / "grid.json").read_text())
    assert [(cell["encoder"], cell["decoder"]) for cell in grid["cells"]] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    for cell in grid["cells"]:
        hypotheses = read_lines(tmp_path / "outputs" / f"{cell['encoder']}-{cell['decoder']}.txt")
        scores = score(hypotheses, REFERENCE)
        assert (cell["bleu"], cell["chrf"]) == (scores.bleu, scores.chrf)
        assert grid["signatures"] == scores.signatures
        assert cell["seconds"] > 0
        assert cell["parameters"] == 100 * (cell["encoder"] + cell["decoder"])
    assert (grid["beam"], grid["batch"], grid["device"], grid["sentences"]) == (5, 4, "cpu", 12)
    assert read_lines(tmp_path / "outputs" / "source.txt") == SOURCE
    assert read_lines(tmp_path / "outputs" / "reference.txt") == REFERENCE
    assert calls == [(0, 4, "1-1"), (1, 4, "1-2"), (2, 4, "2-1"), (3, 4, "2-2"), (4, 4, "")]
    assert not list(tmp_path.rglob(".*")), "temporary files are left"


def test_an_interrupted_grid_continues_without_decoding_again(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_grid(Toy(fails_at="2-1"), tmp_path)
    before = json.loads((tmp_path / "grid.json").read_text())["cells"]
    assert len(before) == 2
    again = Toy()
    grid = run_grid(again, tmp_path)
    assert again.decoded == ["2-1", "2-2"]
    assert grid["cells"][:2] == before
    assert set(grid["samples"][0]["outputs"]) == {"1-1", "1-2", "2-1", "2-2"}


def test_more_depths_join_those_measured(tmp_path: Path) -> None:
    run = Toy()
    run_grid(run, tmp_path, ["2-2"])
    grid = run_grid(run, tmp_path, ["1-1", "2-2"])
    assert run.decoded == ["2-2", "1-1"]
    assert len(grid["cells"]) == 2


def test_a_lost_output_is_decoded_again(tmp_path: Path) -> None:
    run = Toy()
    run_grid(run, tmp_path, ["1-1", "2-2"])
    (tmp_path / "outputs" / "1-1.txt").unlink()
    run_grid(run, tmp_path, ["1-1", "2-2"])
    assert run.decoded == ["1-1", "2-2", "1-1"]


@pytest.mark.parametrize("name", ["source", "reference"])
def test_a_damaged_test_set_is_written_again(tmp_path: Path, name: str) -> None:
    run_grid(Toy(), tmp_path, ["1-1"])
    file = tmp_path / "outputs" / f"{name}.txt"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    run_grid(Toy(), tmp_path, ["1-1"])
    assert file.read_bytes() == whole


def test_a_grid_that_is_no_grid_is_measured_again(tmp_path: Path) -> None:
    (tmp_path / "grid.json").write_text("[]")
    assert len(run_grid(Toy(), tmp_path, ["1-1"])["cells"]) == 1


def test_outputs_that_do_not_fit_the_references_are_named(tmp_path: Path) -> None:
    run_grid(Toy(), tmp_path, ["1-1"])
    output = tmp_path / "outputs" / "1-1.txt"
    for damaged, lines in (
        (output, "it has 3 lines, reference.txt beside it 12"),
        (output.with_name("reference.txt"), ""),
    ):
        damaged.write_text("one\n" * 3 if lines else "")
        with pytest.raises(UserError, match=rf"1-1\.txt is damaged: {lines}.*anydepth evaluate"):
            read_statistics(tmp_path, ["1-1"], lowercase=False)
    output.write_text("")  # as many lines as there are references: none
    with pytest.raises(UserError, match=r"1-1\.txt is damaged: it has 0 lines"):
        read_statistics(tmp_path, ["1-1"], lowercase=False)


@pytest.mark.parametrize("changed", [{"beam": 1}, {"batch": 8}, {"lowercase": True}, {"run": Toy("w2")}])
def test_another_question_starts_anew(
    tmp_path: Path, changed: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = run_grid(Toy(), tmp_path, ["1-1", "2-2"])
    output = (tmp_path / "outputs" / "1-1.txt").read_text()
    run = changed.pop("run", Toy())
    grid = run_grid(run, tmp_path, ["2-2"], **changed)
    assert run.decoded == ["2-2"]
    assert len(grid["cells"]) == 1
    assert not (tmp_path / "outputs" / "1-1.txt").exists()
    before = tmp_path / "evaluated-before"
    assert f"the scores of before are in {before} now" in capsys.readouterr().err
    assert json.loads((before / "grid.json").read_text()) == earlier
    assert (before / "outputs" / "1-1.txt").read_text() == output
    assert (before / "statistics" / "1-1.npz").exists()


def test_an_evaluation_is_kept_however_often_making_room_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = run_grid(Toy(), tmp_path, ["1-1"])
    rename, calls = Path.rename, list[Path]()

    def stopped(path: Path, target: Path) -> Path:
        calls.append(path)
        if len(calls) % 2:
            return rename(path, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", stopped)
    before = tmp_path / "evaluated-before"
    while not before.exists():
        with contextlib.suppress(KeyboardInterrupt):
            set_aside(tmp_path)
    assert len(calls) > 4
    assert json.loads((before / "grid.json").read_text()) == earlier
    assert (before / "outputs" / "1-1.txt").exists()
    assert (before / "statistics" / "1-1.npz").exists()
    assert not (tmp_path / "grid.json").exists()


def test_unknown_weights_are_never_taken_for_the_same(tmp_path: Path) -> None:
    run = Toy(weights_hash=None)
    run_grid(run, tmp_path, ["2-2"])
    run_grid(run, tmp_path, ["2-2"])
    assert run.decoded == ["2-2", "2-2"]


def test_mistakes_are_named_and_leave_earlier_results(tmp_path: Path) -> None:
    run_grid(Toy(), tmp_path, ["1-1"])
    before = (tmp_path / "grid.json").read_bytes()
    with pytest.raises(UserError, match="source has 12 lines but the reference 11"):
        evaluate(Toy(), SOURCE, REFERENCE[1:], ["1-1"], beam=5, batch=4, out=tmp_path)
    with pytest.raises(UserError, match="depth 9-9: this run has 1-1, 1-2"):
        run_grid(Toy(), tmp_path, ["9-9"])
    with pytest.raises(UserError, match="depth 'six': expected"):
        run_grid(Toy(), tmp_path, ["six"])
    with pytest.raises(UserError, match="empty"):
        evaluate(Toy(), [], [], ["1-1"], beam=5, batch=4, out=tmp_path)
    assert (tmp_path / "grid.json").read_bytes() == before


def test_outputs_survive_odd_characters(tmp_path: Path) -> None:
    class Odd(Toy):
        def translate(self, texts: list[str], *, depth: str, beam: int, batch: int) -> list[str]:
            return ["a\u2028b\x85c\rd\ne" for _ in texts]

    run_grid(Odd(), tmp_path, ["1-1"])
    assert read_lines(tmp_path / "outputs" / "1-1.txt") == ["a\u2028b\x85c\rd e"] * len(SOURCE)


def test_pareto_front_by_hand() -> None:
    cells = [
        cell_of("1-1", 20, 1.0),
        cell_of("2-1", 25, 2.0),
        cell_of("1-2", 24, 2.5),  # worse and slower than 2-1
        cell_of("3-1", 28, 3.0),  # as good as 2-2 but slower
        cell_of("2-2", 28, 2.0),  # as fast as 2-1 but better
        cell_of("3-3", 30, 5.0),
        cell_of("4-4", 29.5, 6.0),
    ]
    assert pareto_front(cells) == [cells[0], cells[4], cells[5]]
    assert pareto_front(cells[:1]) == cells[:1]
    assert best(cells) is cells[5]
    assert fastest_within(cells, 1.0) is cells[5]
    assert fastest_within(cells, 2.0) is cells[4]
    assert telling_depths(cells) == ["1-1", "2-2", "3-3", "4-4"]


def test_differences_between_outputs() -> None:
    assert differences("the cat sat", "the dog sat down") == [
        Piece("the ", "same"),
        Piece("cat", "different"),
        Piece(" sat", "same"),
        Piece("down", "missing"),
    ]
    assert differences("same", "same") == [Piece("same", "same")]
    assert differences("", "gone") == [Piece("gone", "missing")]
    assert [piece.text for piece in differences("我愛貓", "我愛狗")] == ["我愛", "貓"]


def test_samples_show_disagreement_and_the_usual() -> None:
    source = [f"sentence {i}" for i in range(20)]
    shallow = ["same"] * 20
    shallow[7], shallow[13] = "something else entirely", "sane"
    samples = choose_samples(source, source, {"1-1": shallow, "6-6": ["same"] * 20}, count=4)
    assert [(sample["line"], sample["chosen"]) for sample in samples[:2]] == [(8, "disagreement"), (14, "disagreement")]
    assert [sample["chosen"] for sample in samples[2:]] == ["evenly"] * 2
    assert samples[0]["outputs"] == {"1-1": "something else entirely", "6-6": "same"}
    assert len(choose_samples(source[:1], source[:1], {"6-6": ["a"]})) == 1
