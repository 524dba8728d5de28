"""Reports of runs with several languages, learned depth and logged gradients."""

import base64
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from synthetic_runs import used_by, write_multilingual_run, write_run
from test_report import Outline

from anydepth.depth.latent import UNDECIDED, LatentConfig
from anydepth.errors import UserError
from anydepth.evaluation.comparison import compare
from anydepth.evaluation.records import read_records
from anydepth.reporting import plots
from anydepth.reporting.layer_pictures import COLUMNS, jaccard, jaccard_by_chance, layer_ticks, over_steps, used_layers
from anydepth.reporting.report import write_report
from anydepth.reporting.terminal import print_comparison
from anydepth.selecting.oracle import oracle

LANGUAGES = ("en-de", "en-fr", "en-nl")
LAYERS = 9


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("multilingual")
    return [
        write_multilingual_run(folder / "static", LANGUAGES, skill=0.05),
        write_multilingual_run(folder / "latent", LANGUAGES, skill=0.2, latent=LAYERS),
    ]


@pytest.fixture(scope="module")
def page(runs: list[Path]) -> str:
    return write_report(runs[1:], runs[0].parent / "one.html").read_text()


@pytest.fixture(scope="module")
def both(runs: list[Path]) -> str:
    return write_report(runs, runs[0].parent / "both.html", samples=400).read_text()


def section(page: str, name: str) -> str:
    return page.split(f'<section id="{name}">')[1].split("</section>")[0]


@pytest.mark.parametrize("which", ["page", "both"])
def test_stands_alone(which: str, request: pytest.FixtureRequest) -> None:
    page = request.getfixturevalue(which)
    assert not re.search(r"https?://|@import", page)
    outline = Outline(page)
    assert len(set(outline.ids)) == len(outline.ids)
    for reference in outline.references:
        picture = reference.startswith("data:image/png;base64,")
        assert picture or reference == "data:," or reference.removeprefix("#") in outline.ids


def test_one_run_shows_every_language_and_the_mean(page: str, runs: list[Path]) -> None:
    grid = json.loads((runs[1] / "grid.json").read_text())
    assert [cell["language"] for cell in grid["cells"]] == list(LANGUAGES)
    shown = section(page, "languages")
    for cell in grid["cells"]:
        depth = f"{cell['encoder']}-{cell['decoder']}"
        assert f'<th scope="row">{cell["language"]}</th><td>{depth}</td><td>{cell["bleu"]:.2f}</td>' in shown
    mean = sum(cell["bleu"] for cell in grid["cells"]) / 3
    assert grid["average"]["bleu"] == pytest.approx(mean)
    assert f"<b>{mean:.2f} BLEU</b>" in page
    assert "has no depth grid" not in page


def test_learned_layers_are_told(page: str) -> None:
    shown = section(page, "layers")
    for number, language in enumerate(("de", "fr", "nl")):
        for layer in range(LAYERS):
            used = layer in used_by(number, LAYERS)
            title = f"<title>{language}, layer {layer + 1}: {'used' if used else 'left out'}"
            assert title in shown
            tile = shown.split(title)[1].split("/>")[0]
            assert ("fill: var(--accent)" in tile, "fill: none" in tile) == (used, not used)
    assert "6 of 9 layers on average; 9 are used by some language" in shown
    assert "layer 1: used by 33% of the languages" in shown
    assert shown.count("<image") == 4  # the mean and each language
    assert section(page, "gradients").count("<image") == 1


def test_undecided_layers_are_marked(tmp_path: Path) -> None:
    run = write_multilingual_run(tmp_path / "run", LANGUAGES, latent=3, sentences=5)
    line = {"step": 4000, "kind": "logits", "stack": "decoder"}
    logits = {"de": [UNDECIDED / 2, 1.0, -1.0], "fr": [-1.0, -2.0, -3.0], "nl": [1.0, 1.0, -UNDECIDED / 2]}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line | {"logits": logits}) + "\n")
    shown = section(write_report([run], tmp_path / "report.html").read_text(), "layers")
    assert "de, layer 1: used, undecided (probability 0.51, logit +0.05)" in shown
    assert "nl, layer 3: left out, undecided" in shown
    assert "fr, layer 1: used (probability 0.27" in shown  # a plan is never empty
    assert "1.67 of 3 layers on average (1 to 2); 2 are used by some language; 2 undecided" in shown


def test_several_runs_side_by_side(both: str, runs: list[Path]) -> None:
    comparison = compare(read_records(runs), samples=400)
    table = comparison.languages
    assert table is not None
    assert [row.name for row in table.rows] == list(LANGUAGES)
    bleu, _ = table.differences
    for row in table.rows:
        static, latent = row.cells
        assert static is not None
        assert latent is not None
        assert row.best is latent
        one = bleu.at(row.name)
        assert one is not None
        assert one.difference == pytest.approx(latent["bleu"] - static["bleu"])
        assert one.verdict == "better"
    assert bleu.low < bleu.mean < bleu.high
    means = [cell["bleu"] for cell in table.mean.cells if cell]
    assert bleu.mean == pytest.approx(means[1] - means[0])
    assert comparison.as_json()["languages"]["rows"][-1]["latent"]["bleu"] == means[1]
    assert f"latent: {bleu.mean:+.2f} on average over 3 languages" in re.sub("<[^>]+>", "", section(both, "languages"))
    text = io.StringIO()
    print_comparison(Console(file=text, width=100), comparison)
    assert f"mean {means[0]:.2f} {means[1]:.2f}" in " ".join(text.getvalue().split())
    assert text.getvalue().count("*") == 4  # every language, and what it means
    assert '<section id="differences">' not in both
    assert both.count("validation loss over training steps") == 1


def test_other_test_sets_are_not_compared(runs: list[Path], tmp_path: Path) -> None:
    other = write_multilingual_run(tmp_path / "other", LANGUAGES[:2], sentences=9)
    grid = other / "languages" / "en-de" / "grid.json"
    grid.write_text(json.dumps(json.loads(grid.read_text()) | {"test_set": "another"}))
    table = compare(read_records([runs[0], other])).languages
    assert table is not None
    assert "not evaluated on the same test sets" in table.incomparable[0]
    assert (table.differences, table.rows[0].best) == ([], None)
    assert [cell is None for cell in table.rows[2].cells] == [False, True]
    assert table.mean.name == "mean of 2"


def test_depths_that_all_languages_have_get_a_map_of_the_mean(tmp_path: Path) -> None:
    run = write_multilingual_run(tmp_path / "run", LANGUAGES[:2], depths=((1, 1), (6, 2)), sentences=5)
    cells = json.loads((run / "grid.json").read_text())["cells"]
    mean = sum(cell["bleu"] for cell in cells if (cell["encoder"], cell["decoder"]) == (6, 2)) / 2
    assert f"<title>6-2: {mean:.1f} BLEU</title>" in write_report([run], tmp_path / "report.html").read_text()


def test_languages_do_not_make_one_grid(runs: list[Path], tmp_path: Path) -> None:
    plain = write_run(tmp_path / "plain", encoders=(1,), decoders=(1,), sentences=3)
    with pytest.raises(UserError, match="was evaluated in several languages: not one grid"):
        read_records([f"all={runs[0]},{plain}"])


def test_the_oracle_asks_for_a_language(runs: list[Path]) -> None:
    (record,) = read_records(runs[:1])
    with pytest.raises(UserError, match="a depth grid for each language: expected one of them"):
        oracle(record)


def test_expected_gates_follow_the_temperature() -> None:
    alpha = torch.tensor([-2.0, 0.0, 2.0])
    config = LatentConfig(temperature=5.0, anneal="linear", final_temperature=0.1, anneal_steps=100)
    early, late = config.expected(alpha, 1), config.expected(alpha, 101)
    assert early[1] == pytest.approx(0.5)
    assert abs(early[2] - 0.5) < abs(late[2] - 0.5)
    assert late == pytest.approx(alpha.sigmoid(), abs=0.01)  # nearly hard
    hard = LatentConfig(samples="hard", soft_steps=10)
    assert torch.equal(hard.expected(alpha, 11), alpha.sigmoid())
    assert not torch.equal(hard.expected(alpha, 10), alpha.sigmoid())


def test_layers_on_an_axis() -> None:
    assert used_layers([-3.0, -1.0, 0.0]) == {2}
    assert used_layers([0.5, -1.0, 0.1]) == {0, 2}
    assert layer_ticks(6) == [1, 2, 3, 4, 5, 6]
    assert layer_ticks(100) == [1, 20, 40, 60, 80, 100]
    svg = over_steps([10, 20, 90], [[1.0, None], [2.0, 1.0], [3.0, 1.0]], "something", span=(0, 3))
    assert 'aria-label="something"' in svg


def pictured(svg: str) -> np.ndarray:
    """(layers, columns) how bright a picture over steps is, its lowest row first."""
    image = re.search(r'<image [^>]*base64,([^"]+)"[^>]*matrix\(\S+ 0 0 (-?)', svg)
    assert image is not None
    with Image.open(io.BytesIO(base64.b64decode(image[1]))) as opened:
        rows = np.asarray(opened.convert("L"), dtype=float)
    return rows if image[2] else rows[::-1]  # upside down in the file, and turned by the page


def test_layers_go_up_and_steps_to_the_right() -> None:
    values = [[0.0, 0.5, 1.0], [0.0, 0.5, 1.0], [1.0, 0.5, 0.0]]
    rows = pictured(over_steps([10, 20, 40], values, "something", span=(0, 1)))
    assert rows.shape == (3, COLUMNS)
    first, last = rows[:, 0], rows[:, -1]
    assert first[0] < first[1] < first[2]
    assert last[0] > last[1] > last[2]
    changed = np.flatnonzero(rows[0] != first[0])
    assert changed[0] == pytest.approx(0.75 * COLUMNS, abs=1)  # 30, half-way between the last two of 40 steps


def test_every_language_has_the_picture_of_its_own_gates(page: str) -> None:
    for number, language in enumerate(("de", "fr", "nl")):
        svg = section(page, "layers").split(f'decoder, {language}: expected gates over steps"')[1].split("</svg>")[0]
        brightness = pictured(svg)[:, -1]
        used = np.isin(np.arange(LAYERS), used_by(number, LAYERS))
        assert brightness[used].min() > brightness[~used].max()


def test_how_alike_languages_choose(page: str, both: str) -> None:
    used, left_out = 2.0, -2.0
    one, other = [used, used, used, left_out], [left_out, used, used, used]
    assert (jaccard(one, one), jaccard(one, other)) == (1.0, 0.5)
    assert jaccard_by_chance(one, other) == pytest.approx((9 / 4) / (6 - 9 / 4))
    for where in (page, both):
        found = re.findall(r"(\w\w) and (\w\w): \d layers in common, similarity (\d\.\d\d)", section(where, "layers"))
        alike = {(first, second): float(value) for first, second, value in found}
        assert len(alike) == len(LANGUAGES) ** 2
        layers = {name.removeprefix("en-"): set(used_by(n, LAYERS)) for n, name in enumerate(LANGUAGES)}
        for (first, second), value in alike.items():
            common, either = layers[first] & layers[second], layers[first] | layers[second]
            assert value == pytest.approx(len(common) / len(either), abs=0.005)


@pytest.mark.parametrize(
    ("norms", "marks"),
    [
        ((0.015, 0.15), ["0.02", "0.05", "0.1"]),
        ((0.0008, 3.0), ["0.001", "0.01", "0.1", "1"]),
    ],
)
def test_norms_can_be_read_off_a_logarithmic_axis(norms: tuple[float, float], marks: list[str]) -> None:
    svg = plots.curves([plots.Line("", [10, 20], norms, "#123456", False)], "gradient norm", log=True)
    written = re.findall(r">([\d.]+)</text>", svg)
    assert [text for text in written if float(text) < 5] == marks
