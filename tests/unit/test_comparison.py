"""Several runs compared: grids put together, differences with their significance, costs; on the page and in words."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import Cli
from synthetic_runs import write_run

from anydepth.describe import describe_path
from anydepth.errors import UserError
from anydepth.evaluation.comparison import Comparison, compare
from anydepth.evaluation.differences import differences, enough_samples
from anydepth.evaluation.metrics import Scorer
from anydepth.evaluation.records import read_records
from anydepth.evaluation.significance import holm, paired_bootstrap
from anydepth.files import read_lines
from anydepth.reporting.comparison_page import common_span
from anydepth.reporting.report import write_report

SENTENCES, SAMPLES = 150, 200


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with six depths, a much worse and an equal one, and three models of one depth each."""
    folder = tmp_path_factory.mktemp("runs")
    grid = {"encoders": (1, 2, 4), "decoders": (1, 2), "sentences": SENTENCES}
    write_run(folder / "flexible", skill=0.2, **grid)
    write_run(folder / "worse", skill=0.0, **grid)
    for encoder, decoder in ((1, 1), (2, 2), (4, 2)):
        sizes = {"encoders": (encoder,), "decoders": (decoder,), "sentences": SENTENCES}
        write_run(folder / f"sep-{encoder}-{decoder}", skill=0.15, **sizes)
    return folder


def compared(folder: Path, *runs: str, baseline: str = "") -> Comparison:
    return compare(read_records([run.replace("@", f"{folder}/") for run in runs]), baseline, SAMPLES)


@pytest.fixture(scope="module")
def comparison(folder: Path) -> Comparison:
    return compared(folder, "separate=@sep-*", "@flexible", "@worse")


def bootstrapped(folder: Path, baseline: Path, other: Path, depth: str) -> tuple[float, float]:
    """BLEU difference and p-value, the long way."""
    scorer = Scorer(read_lines(folder / "flexible" / "outputs" / "reference.txt"))
    texts = {str(run): read_lines(run / "outputs" / f"{depth}.txt") for run in (baseline, other)}
    first, second = paired_bootstrap(
        {name: scorer.statistics(lines) for name, lines in texts.items()}, SAMPLES
    ).comparisons
    assert second.estimates["bleu"].p_value is not None
    return second.estimates["bleu"].score - first.estimates["bleu"].score, second.estimates["bleu"].p_value


# ---- runs put together


def test_one_grid_of_several_runs(folder: Path) -> None:
    listed = ",".join(f"{folder}/sep-{depth}" for depth in ("4-2", "1-1", "2-2"))
    named, pattern = (read_records([runs])[0] for runs in (f"separate={listed}", f"separate={folder}/sep-*"))
    assert named.name == "separate"
    assert named.cells == pattern.cells
    assert named.depths == ["1-1", "2-2", "4-2"]
    assert named.deepest == "4-2"
    assert named.main.path == folder / "sep-4-2"
    assert named.outputs(["2-2"]) == {"2-2": read_lines(folder / "sep-2-2" / "outputs" / "2-2.txt")}
    assert named.settings()["model.encoder.layers"] == "4 / 1 / 2"
    assert named.settings()["model.layer.width"] == "512"


def test_one_run_under_another_name(folder: Path) -> None:
    assert read_records([f"ours={folder}/flexible", f"{folder}/worse"])[0].name == "ours"
    with pytest.raises(UserError, match="worse: two runs have this name"):
        read_records([f"worse={folder}/flexible", f"{folder}/worse"])
    with pytest.raises(UserError, match="the same run twice"):
        read_records([f"one={folder}/flexible", f"two={folder}/flexible"])
    with pytest.raises(UserError, match="=: expected NAME=RUN or NAME=RUN,RUN"):
        read_records(["="])


def test_a_folder_with_an_equals_sign_is_a_folder(folder: Path, tmp_path: Path) -> None:
    odd = tmp_path / "drop=0.2"
    shutil.copytree(folder / "sep-1-1", odd)
    assert read_records([str(odd)])[0].name == "drop=0.2"


def test_runs_that_make_no_grid_are_refused(folder: Path, tmp_path: Path) -> None:
    first = folder / "sep-1-1"
    twice = write_run(tmp_path / "twice", encoders=(1,), decoders=(1,), sentences=SENTENCES)
    with pytest.raises(UserError, match=f"both {first} and {twice} have depth 1-1"):
        read_records([f"separate={first},{twice}"])
    few = write_run(tmp_path / "few", encoders=(2,), decoders=(1,), sentences=20)
    with pytest.raises(UserError, match=f"{few} was evaluated on another test set than {first}"):
        read_records([f"separate={first},{few}"])
    greedy = write_run(tmp_path / "greedy", encoders=(3,), decoders=(1,), sentences=SENTENCES, beam=1)
    with pytest.raises(UserError, match=f"{greedy} was decoded with another beam"):
        read_records([f"separate={first},{greedy}"])
    (few / "grid.json").unlink()
    with pytest.raises(UserError, match=f"{few} has no depth grid yet"):
        read_records([f"separate={first},{few}"])
    with pytest.raises(UserError, match="nothing: not a run"):
        read_records([f"separate={first},{folder}/nothing"])


# ---- differences


def test_every_shared_depth_is_tested_and_corrected(folder: Path, comparison: Comparison) -> None:
    found = next(one for one in comparison.differences if (one.run, one.metric) == ("flexible", "bleu"))
    assert [one.depth for one in found.depths] == ["1-1", "2-2", "4-2"]
    expected = [
        bootstrapped(folder, folder / f"sep-{one.depth}", folder / "flexible", one.depth) for one in found.depths
    ]
    assert [one.difference for one in found.depths] == pytest.approx([difference for difference, _ in expected])
    assert [one.p_value for one in found.depths] == [chance for _, chance in expected]
    assert [one.corrected for one in found.depths] == holm([chance for _, chance in expected])
    assert found.mean == pytest.approx(np.mean([difference for difference, _ in expected]))
    assert found.low < found.mean < found.high


def test_verdicts_follow_the_corrected_values(comparison: Comparison) -> None:
    for found in comparison.differences:
        for one in found.depths:
            assert bool(one.verdict) == (one.corrected < 0.05)
            assert one.verdict in ("", "better" if one.difference > 0 else "worse")
        assert found.count("worse") == (3 if found.run == "worse" else 0)


def test_the_interval_of_the_mean_by_resampling(folder: Path, comparison: Comparison) -> None:
    """Against percentiles of the mean difference over test sets drawn and scored here."""
    references = read_lines(folder / "flexible" / "outputs" / "reference.txt")
    draws = np.random.default_rng(5).integers(SENTENCES, size=(100, SENTENCES))
    means = np.zeros(len(draws))
    for depth in ("1-1", "2-2", "4-2"):
        for sign, run in ((-1, f"sep-{depth}"), (1, "flexible")):
            rows = Scorer(references).statistics(read_lines(folder / run / "outputs" / f"{depth}.txt"))
            means += [sign * rows._replace(bleu=rows.bleu[d], chrf=rows.chrf[d]).scores()["bleu"] / 3 for d in draws]
    found = next(one for one in comparison.differences if (one.run, one.metric) == ("flexible", "bleu"))
    width = found.high - found.low
    assert found.low == pytest.approx(np.percentile(means, 2.5), abs=0.2 * width)
    assert found.high == pytest.approx(np.percentile(means, 97.5), abs=0.2 * width)


def test_another_baseline(folder: Path) -> None:
    found = compared(folder, "separate=@sep-*", "@flexible", "@worse", baseline="flexible")
    assert {one.run for one in found.differences} == {"separate", "worse"}
    worse = next(one for one in found.differences if (one.run, one.metric) == ("worse", "chrf"))
    assert len(worse.depths) == 6
    with pytest.raises(UserError, match="--baseline other: expected one of separate, flexible"):
        compared(folder, "separate=@sep-*", "@flexible", baseline="other")


def test_without_a_shared_depth_the_deepest_are_compared(folder: Path) -> None:
    found = compared(folder, "@sep-1-1", "@sep-4-2")
    assert [one.depth for one in found.differences[0].depths] == ["4-2 against 1-1"]
    assert [name for name, _, _ in found.rows] == ["deepest of each"]


def test_equal_runs_do_not_differ(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "flexible", tmp_path / "again")
    first, again = read_records([folder / "flexible", tmp_path / "again"])
    for one in differences(first, [again], SAMPLES):
        assert (one.mean, one.low, one.high) == (0, 0, 0)
        assert {depth.corrected for depth in one.depths} == {1.0}


def test_samples_are_enough_for_the_correction() -> None:
    assert enough_samples(24) == 1000
    for depths in (24, 36, 72):
        assert depths / (enough_samples(depths) + 1) < 0.05  # the smallest p-value passes


# ---- costs


def test_costs_are_those_of_describe_and_add_up(folder: Path, comparison: Comparison) -> None:
    described = {path.name: describe_path(path) for path in folder.iterdir() if path.is_dir()}
    separate, flexible, _ = comparison.costs
    parts = [described[f"sep-{depth}"] for depth in ("1-1", "2-2", "4-2")]
    assert separate.models == 3
    assert separate.parameters == sum(part["parameters"] for part in parts)
    assert separate.flops == sum(part["training_flops"] for part in parts)
    assert separate.seconds == sum(part["training"]["seconds"] for part in parts) == 3 * 1000
    assert flexible.flops == described["flexible"]["training_flops"]
    assert not flexible.bound
    # 10,000 steps in 1,000 seconds at 21,000 tokens a second
    assert described["flexible"]["training"]["target_tokens"] == 21_000_000


def test_a_model_evaluated_in_parts_costs_once(folder: Path, tmp_path: Path) -> None:
    whole = json.loads((folder / "flexible" / "grid.json").read_text())
    described = {"run": "elsewhere", "weights": "abc", "parameters": 7, "training_flops": 8, "training": {"seconds": 9}}
    for name, cells in (("a", whole["cells"][:2]), ("b", whole["cells"][2:])):
        (tmp_path / name).mkdir()
        shutil.copy(folder / "flexible" / "config.toml", tmp_path / name)
        (tmp_path / name / "grid.json").write_text(json.dumps(whole | described | {"cells": cells}))
    _, parts = compared(folder, "@flexible", f"parts={tmp_path}/a,{tmp_path}/b").costs
    assert (parts.models, parts.parameters, parts.flops, parts.seconds) == (1, 7, 8, 9)


def test_a_run_that_does_not_tell_costs_nothing_known(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "sep-1-1", tmp_path / "bare")
    (tmp_path / "bare" / "tokenizer.json").unlink()
    _, bare = compared(folder, "@flexible", f"{tmp_path}/bare").costs
    assert (bare.parameters, bare.flops, bare.seconds) == (None, None, None)


# ---- on the page and in words


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    runs = [f"separate={folder}/sep-*", folder / "flexible", folder / "worse"]
    return write_report(runs, folder / "page.html", samples=SAMPLES).read_text()


def section(page: str, name: str) -> str:
    return page.split(f'<section id="{name}">')[1].split("</section>")[0]


def test_maps_have_the_numbers_in_their_tiles(page: str, comparison: Comparison) -> None:
    scores = section(page, "comparison")
    assert scores.count("<figure>") == 2 * (3 + 2)  # a map for each run, and scores against the depth of each stack
    for record in comparison.measured:
        for cell in record.cells:
            assert f"<title>{cell['encoder']}-{cell['decoder']}: {cell['bleu']:.1f} BLEU</title>" in scores
    shown = section(page, "differences")
    assert shown.count("<figure>") == 2 * 2
    for found in comparison.differences:
        label = {"bleu": "BLEU", "chrf": "chrF"}[found.metric]
        for one in found.depths:
            number = f"{one.difference:+.2f}".replace("-", "−")
            significant = f", significantly {one.verdict}" if one.verdict else ""
            assert f"<title>{one.depth}: {number} {label}{significant}</title>" in shown
        assert f"significantly better at {found.count('better')}, worse at {found.count('worse')}" in shown


def test_costs_and_their_ratios_are_on_the_page(page: str, comparison: Comparison) -> None:
    text = re.sub(r"<[^>]+>", "", section(page, "cost"))
    separate, flexible, _ = comparison.costs
    assert f"{flexible.parameters / separate.parameters:.2f}×" in text
    assert f"{flexible.flops / separate.flops:.2f}×" in text
    assert f"{flexible.parameters / 1e6:.2f} M" in text


def test_all_runs_are_in_the_picture_of_quality_and_time(page: str) -> None:
    for run in ("separate 4-2", "flexible 4-2", "worse 1-1"):
        assert f"<title>{run}: " in section(page, "tradeoff")


def test_maps_of_one_scale() -> None:
    assert common_span([30.0, 34.0, 36.0]) == (30.0, 36.0)
    assert common_span([0.1, 33.0, 34.0, 35.0, 36.0]) == (28.0, 36.0)  # one far below does not take all colours
    assert common_span([5.0]) == (4.0, 5.0)


def test_the_command_prints_and_writes(folder: Path, cli: Cli, tmp_path: Path) -> None:
    runs = f"separate={folder}/sep-*", folder / "flexible", "--out", tmp_path / "page.html"
    code, out, _ = cli("report", *runs)
    assert code == 0
    found = compare(read_records([str(run) for run in runs[:2]]))
    bleu = next(one for one in found.differences if one.metric == "bleu")
    assert f"{bleu.mean:+.2f}" in out
    assert f"{bleu.depths[0].difference:+.2f}" in out
    assert (tmp_path / "page.html").exists()
    told = json.loads(cli("report", *runs, "--baseline", "flexible", "--json")[1])
    assert told["baseline"] == "flexible"
    assert told["samples"] == 1000
    assert [run["run"] for run in told["runs"]] == ["separate", "flexible"]
    assert [len(run["cells"]) for run in told["runs"]] == [3, 6]
    reverse = next(one for one in told["differences"] if one["metric"] == "bleu")
    assert reverse["mean_difference"] == pytest.approx(-bleu.mean)
    assert {"depth", "difference", "p_value", "corrected", "verdict"} <= set(reverse["depths"][0])
