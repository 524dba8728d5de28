"""Scores against depth: which runs a line joins, what its points are, and that they are on the page."""

from pathlib import Path

import pytest
from synthetic_runs import write_run

from anydepth.evaluation.records import Record, read_records
from anydepth.reporting.depth_curves import by_depth, depth_curves, families, name_of
from anydepth.reporting.report import write_report

BLOCKS = ('model.bridge={type="multiscale"}',)
DECAY = ("training.optimizer.weight_decay=2e-5", "training.optimizer.decays=encoder")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plain and multiscale models of 6, 12 and 18 layers, one of them with weight decay, and one with every depth."""
    folder = tmp_path_factory.mktemp("depths")
    for layers in (6, 12, 18):
        dropout = f"model.layer.dropout={0.1 if layers == 6 else 0.3}"
        for name, settings in (("plain", ()), ("msc", BLOCKS)):
            write_run(
                folder / f"{name}_{layers}",
                skill=layers / 60 + 0.05 * (name == "msc"),
                encoders=(layers,),
                decoders=(6,),
                settings=(*settings, dropout),
            )
    write_run(folder / "decayed_18", encoders=(18,), decoders=(6,), settings=(*BLOCKS, *DECAY))
    write_run(folder / "flexible", encoders=(2, 4, 6), decoders=(1, 6))
    return folder


def records(folder: Path, *names: str) -> list[Record]:
    return read_records([folder / name for name in names])


def test_lines_join_runs_that_differ_in_depth_alone(runs: Path) -> None:
    found = families(records(runs, "plain_6", "msc_12", "plain_18", "msc_6", "decayed_18", "plain_12", "flexible"))
    assert [[one.name for one in family] for family in found] == [
        ["plain_6", "plain_18", "plain_12"],
        ["msc_12", "msc_6"],
        ["decayed_18"],
        ["flexible"],
    ]


def test_a_line_is_named_after_its_runs(runs: Path) -> None:
    found = families(records(runs, "plain_6", "plain_12", "decayed_18", "msc_6", "msc_18", "flexible"))
    assert [name_of(family) for family in found] == ["plain", "decayed_18", "msc", "flexible"]
    assert name_of(read_records([f"a={runs / 'plain_6'}", f"b={runs / 'plain_12'}"])) == "a …"


def test_other_texts_are_other_lines(runs: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "train_6", encoders=(6,), decoders=(6,), sentences=20)
    first, second, third = read_records([runs / "plain_6", runs / "plain_12", tmp_path / "train_6"])
    assert first.grid is not None
    assert third.grid is not None
    first.grid["test_set"], third.grid["test_set"] = "test", "train"
    assert second.grid is not None
    second.grid["test_set"] = "test"
    assert families([first, second, third]) == [[first, second], [third]]


def test_of_every_depth_the_deepest_cell_is_shown(runs: Path) -> None:
    (flexible,) = records(runs, "flexible")
    assert [(cell["encoder"], cell["decoder"]) for cell in by_depth(flexible, "encoder")] == [(2, 6), (4, 6), (6, 6)]
    assert [(cell["encoder"], cell["decoder"]) for cell in by_depth(flexible, "decoder")] == [(6, 1), (6, 6)]


def test_a_picture_for_each_stack_that_differs(runs: Path) -> None:
    (encoder,) = depth_curves(records(runs, "plain_6", "plain_12"), "bleu", "BLEU")
    assert "BLEU against encoder layers" in encoder
    both = depth_curves(records(runs, "plain_6", "flexible"), "bleu", "BLEU")
    assert ["against decoder layers" in svg for svg in both] == [False, True]
    assert depth_curves(records(runs, "msc_18", "plain_18"), "bleu", "BLEU") == []


def test_scores_against_depth_are_on_the_page(runs: Path, tmp_path: Path) -> None:
    names = ["plain_6", "plain_12", "plain_18", "msc_6", "msc_12", "msc_18"]
    page = write_report([runs / name for name in names], tmp_path / "page.html", samples=0).read_text()
    scores = page.split('<section id="comparison">')[1].split("</section>")[0]
    assert scores.count("against encoder layers") == 2  # BLEU and chrF
    for record in records(runs, *names):
        (cell,) = record.cells
        assert f"<title>{record.name} {cell['encoder']}-6: {cell['bleu']:.1f} BLEU</title>" in scores
    alone = write_report([runs / "plain_18", runs / "msc_18"], tmp_path / "alone.html", samples=0).read_text()
    assert "against encoder layers" not in alone
