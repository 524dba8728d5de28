"""The report: one file, no network, true to the run folders, whatever they lack."""

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console
from synthetic_runs import write_run

from anydepth.errors import UserError
from anydepth.reporting.pictures import write_pictures
from anydepth.reporting.report import write_report
from anydepth.reporting.terminal import print_grid, print_samples

VOID = {"meta", "link", "input", "br", "img"}


class Outline(HTMLParser):
    """Checks that tags nest, and collects what refers to something else."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.ids: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("href", "src", "srcset", "xlink:href", "action", "data"):
                self.references.append(value or "")
            if name == "id":
                self.ids.append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    return [
        write_run(folder / "tied-multi", skill=0.12),
        write_run(folder / "flexible", skill=0.17, width=384),
    ]


@pytest.fixture(scope="module")
def one(runs: list[Path]) -> str:
    return write_report(runs[:1], runs[0] / "report.html", samples=20).read_text()


@pytest.fixture(scope="module")
def two(runs: list[Path]) -> str:
    return write_report(runs, runs[0].parent / "new" / "both.html", samples=20).read_text()


def page_of(tmp_path: Path, *folders: Path) -> str:
    return write_report(folders, tmp_path / "report.html", samples=5).read_text()


@pytest.mark.parametrize("which", ["one", "two"])
def test_stands_alone(which: str, request: pytest.FixtureRequest) -> None:
    page = request.getfixturevalue(which)
    assert not re.search(r"https?://|@import|url\((?!#)", page)
    outline = Outline(page)
    ids = set(outline.ids)
    assert len(ids) == len(outline.ids)
    for reference in outline.references:
        assert reference == "data:," or reference.removeprefix("#") in ids
    for reference in re.findall(r"url\(#([^)]+)\)", page):
        assert reference in ids


def test_figures_as_files(one: str, runs: list[Path], tmp_path: Path) -> None:
    written = write_pictures(runs[0] / "report.html", tmp_path / "pictures")
    shown = re.findall(r'role="img" aria-label="([^"]*)"', one)
    assert [path.name[:2] for path in written] == [f"{number:02}" for number in range(1, len(written) + 1)]
    assert len(set(shown)) <= len(written) < len(shown)  # those for small screens are left out
    for path in written:
        root = ElementTree.parse(path).getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert root.get("aria-label") in shown
        colours, text = set(re.findall(r"var\((--[\w-]+)\)", path.read_text())), path.read_text()
        assert colours
        assert all(text.count(f"{colour}: ") >= 1 for colour in colours)


def test_one_run_tells_what_was_measured(one: str, runs: list[Path]) -> None:
    grid = json.loads((runs[0] / "grid.json").read_text())
    for cell in grid["cells"]:
        name = f"{cell['encoder']}-{cell['decoder']}"
        assert f"<title>{name}: {cell['bleu']:.1f} BLEU</title>" in one
        assert f'<tr><th scope="row">{name}</th><td>{cell["bleu"]:.2f}</td><td>{cell["chrf"]:.2f}</td>' in one
    for section in ("grid", "tradeoff", "oracle", "significance", "training", "samples", "configuration"):
        assert f'<section id="{section}">' in one
    assert grid["signatures"]["bleu"] in one
    assert "Toy CPU @ 2.00GHz, 2 threads" in one
    assert "width = 512" in one
    best = max(grid["cells"], key=lambda cell: cell["bleu"])
    near = min((c for c in grid["cells"] if c["bleu"] >= best["bleu"] - 1), key=lambda cell: cell["seconds"])
    lede = re.sub(r"<[^>]+>|\s+", " ", one[one.index('class="lede"') : one.index('class="facts"')])
    assert f"{near['encoder']}-{near['decoder']} keeps {near['bleu']:.2f} of" in re.sub(" +", " ", lede)
    assert f"{best['seconds'] / near['seconds']:.1f} times as fast" in lede


def test_comparison_shows_shared_depths_and_differing_settings(two: str) -> None:
    scores = two[two.index('<section id="comparison">') : two.index('<section id="differences">')]
    assert len(re.findall(r'<th scope="row">', scores)) == 37  # the deepest of each, and 36 shared depths
    assert "model.layer.width" in two
    assert "model.layer.heads" not in two.split('<section id="configuration">')[1].split("<pre>")[0]
    assert "cannot be compared" not in two


def test_many_runs_do_not_fill_the_title(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / f"run{number}", encoders=(1,), decoders=(1,)) for number in range(9)]
    page = page_of(tmp_path, *runs)
    assert "<h1>run0 · run1 · run2 · run3 · run4 · run5 · run6 · 2 more</h1>" in page
    assert "comparison of 9 runs" in page


def test_different_test_sets_are_not_compared(tmp_path: Path, runs: list[Path]) -> None:
    small = write_run(tmp_path / "small", encoders=(1, 6, 12), decoders=(6,), sentences=20)
    page = page_of(tmp_path, runs[0], small)
    Outline(page)
    assert "scores cannot be compared" in page
    assert '<section id="differences">' not in page
    assert 'class="group top"' not in page


def test_text_is_escaped(tmp_path: Path) -> None:
    evil = '<script>alert(1)</script> & "quotes" \'n $x$'
    run = write_run(tmp_path / "a$b<i>&c", encoders=(1, 2), decoders=(1,), sentences=5)
    (run / "config.toml").write_text(f"name = '''{evil}'''\n")
    grid = json.loads((run / "grid.json").read_text())
    grid["machine"]["name"] = evil
    for sample in grid["samples"]:
        sample |= {"source": evil, "reference": evil, "outputs": dict.fromkeys(sample["outputs"], evil)}
    (run / "grid.json").write_text(json.dumps(grid))
    other = write_run(tmp_path / "<b>other</b>", encoders=(1, 2), decoders=(1,), sentences=5)
    for folders in ([run], [run, other]):
        page = page_of(tmp_path, *folders)
        Outline(page)
        assert "alert(1)" in page
        assert "<script>alert" not in page
        assert "<b>other" not in page
        assert "<i>&c" not in page


def test_missing_parts_are_left_out_with_a_hint(tmp_path: Path, runs: list[Path]) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.toml").write_text("seed = 1\n")
    page = page_of(tmp_path, bare)
    Outline(page)
    assert f"anydepth evaluate {bare}" in page
    assert "no training curves" in page
    assert re.findall(r'<section id="(\w+)">', page) == ["configuration"]
    page = page_of(tmp_path, bare, runs[0])
    Outline(page)
    assert '<section id="training">' in page
    assert '<section id="comparison">' not in page


def test_a_grid_with_the_promised_keys_alone_is_enough(tmp_path: Path) -> None:
    run = tmp_path / "minimal"
    run.mkdir()
    (run / "config.toml").write_text("")
    cell = {"encoder": 6, "decoder": 2, "bleu": 0.0, "chrf": 0.0, "seconds": 0.02}
    grid = {"signatures": {}, "batch": 1, "beam": 1, "device": "cpu", "cells": [cell], "samples": []}
    (run / "grid.json").write_text(json.dumps(grid))
    page = page_of(tmp_path, run)
    Outline(page)
    assert "6-2</b> reaches 0.00 BLEU" in page


def test_damaged_training_log_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    run = write_run(tmp_path / "killed", encoders=(1,), decoders=(1,), sentences=3)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 10050, "kind": "tr\n{"step": 50, "kind": "train", "loss": NaN, "learning_rate": 0.1}\n')
    page = page_of(tmp_path, run)
    assert "1 unreadable lines" in page
    assert '<section id="training">' in page


def test_what_is_no_run_is_named(tmp_path: Path, runs: list[Path]) -> None:
    with pytest.raises(UserError, match=f"{tmp_path / 'nothing'}: not a run"):
        write_report([runs[0], tmp_path / "nothing"], tmp_path / "report.html")
    with pytest.raises(UserError, match="the same run twice"):
        write_report([runs[0], runs[0]], tmp_path / "report.html")
    with pytest.raises(UserError, match="at least one"):
        write_report([], tmp_path / "report.html")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.toml").write_text("")
    (broken / "grid.json").write_text("{")
    with pytest.raises(UserError, match=r"grid\.json: not JSON"):
        write_report([broken], tmp_path / "report.html")
    (broken / "grid.json").write_text("[]")
    with pytest.raises(UserError, match=r"grid\.json: expected a JSON object, not \[\]"):
        write_report([broken], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_runs_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    for seed in ("seed-1", "seed-2"):
        write_run(tmp_path / seed / "run", encoders=(1,), decoders=(1,), sentences=3)
    page = page_of(tmp_path, tmp_path / "seed-1" / "run", tmp_path / "seed-2" / "run")
    assert "<h1>seed-1/run · seed-2/run</h1>" in page
    assert "significantly better at 0, worse at 0" in page  # the same outputs are equal


@pytest.mark.parametrize("width", [100, 40])
def test_terminal_shows_every_cell(runs: list[Path], width: int) -> None:
    grid = json.loads((runs[0] / "grid.json").read_text())
    text = io.StringIO()
    console = Console(file=text, width=width)
    print_grid(console, grid)
    for cell in grid["cells"]:
        assert f"{cell['bleu']:.1f}" in text.getvalue()
        assert f"{cell['seconds']:.2f}" in text.getvalue()
    grid["samples"][0]["source"] = "[bold]not markup[/bold]"
    print_samples(console, grid, count=1)
    assert "[bold]not markup[/bold]" in text.getvalue()
