"""Benchmarks at tiny size: that they run. What they show is for larger runs to tell."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Cli

import anydepth
from anydepth.chain.planning import planned

ROOT = Path(__file__).parents[2]
TEXTS = ["the first of May", "twenty-three euros", "Monday, 4 July 2011", "five kilometres"]


def benchmark(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, f"benchmarks/{name}", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        text=True,
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_every_budget_is_asked_for(tmp_path: Path, cli: Cli) -> None:
    run, texts, out = tmp_path / "run", tmp_path / "text", tmp_path / "out.json"
    shutil.copytree(ROOT / "tests" / "golden" / "model", run)
    texts.write_text("".join(f"{line}\n" for line in 26 * TEXTS))
    files = ["--source", str(texts), "--reference", str(texts)]
    assert cli("evaluate", run, "--depths", "1-1,2-2", *files)[0] == 0
    budgets = ["--budgets", "1e6", "2e6"]
    told = benchmark("budget.py", run, *files, "--processor-time", texts, "--device", "cpu", *budgets, "--out", out)
    assert "100 of 104 sentences" in told.stderr  # written then, in case of a time limit
    rows = json.loads(out.read_text())
    assert [(row["budget_ms"], row["in_time"], row["sentences"]) for row in rows] == [(1e6, 1.0, 104), (2e6, 1.0, 104)]
    assert all(row["best"] in ("1-1", "2-2") and row["best_in_time"] == row["fixed_in_time"] == 1.0 for row in rows)
    best = max(json.loads((run / "grid.json").read_text())["cells"], key=lambda cell: cell["bleu"])
    assert {row["fixed"] for row in rows} == {f"{best['encoder']}-{best['decoder']}"}
    files += ["--processor-time", str(texts), "--device", "cpu", "--speculate"]
    benchmark("budget.py", run, *files, "--sentences", "8", *budgets, "--out", out)
    assert [(row["in_time"], row["sentences"]) for row in json.loads(out.read_text())] == [(1.0, 8), (1.0, 8)]


def test_what_a_section_found_before_it_failed_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    small = ["--random", "--layers", "2", "--width", "16", "--vocabulary", "50", "--sentences", "4"]
    few = ["--repetitions", "1", "--drafts", "1x2", "--batches", "4,0", "--sections", "speculation,depths"]
    benchmark("decoding_speed.py", *small, *few, "--out", out)
    found = json.loads(out.read_text())
    row, failed = found["speculation"]
    assert row["batch"] == 4
    assert failed["failed"].startswith(("ZeroDivisionError", "ValueError"))
    assert set(found["depths"]["milliseconds"]) == {"2-1", "2-2"}


def test_time_that_kernels_share_counts_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    profile = importlib.import_module("decoding_profile")
    kernels = [profile.Kernel(*each) for each in (("a", 0, 4), ("b", 1, 3), ("a", 2, 6), ("b", 9, 10), ("a", 10, 11))]
    assert list(profile.shares(kernels)) == [("a", 4), ("b", 0), ("a", 2), ("b", 1), ("a", 1)]
    assert profile.gaps(kernels) == [0, 0, 0, 3, 0]
    for some, told in ((kernels, "3 x   2.33 us  a"), ([], "no kernels")):
        profile.tell_of_kernels(some, 2)
        assert told in capsys.readouterr().out


def test_where_the_time_of_decoding_goes() -> None:
    small = ["--layers", "1", "--width", "16", "--vocabulary", "50", "--length", "4", "--shapes", "2x1,1x2"]
    told = benchmark("decoding_profile.py", *small)
    assert re.findall(r"batch (\d), beam (\d), sources of up to 4 tokens", told.stdout) == [("2", "1"), ("1", "2")]
    assert len(re.findall(r"words \d+ to \d+: -?[\d.]+ us each", told.stdout)) == 8


def test_a_wider_run_says_the_same(tmp_path: Path) -> None:
    small, wide = ROOT / "tests" / "golden" / "model", tmp_path / "wide"
    benchmark("wider.py", small, "--times", 3, "--ffn", 128, "--vocabulary", 1234, "--out", wide)
    runs = [anydepth.load(run, device="cpu") for run in (small, wide)]
    assert runs[1].model.output.weight.shape == (1234, 96)
    for depth in ("2-2", "1-1"):
        said = [run.translations(TEXTS, depth, beam=1) for run in runs]
        assert [one.text for (one,) in said[0]] == [one.text for (one,) in said[1]]
    assert len({one.text for (one,) in said[0]}) == len(TEXTS)


def test_what_is_reproduced_is_what_the_chains_make() -> None:
    script = (ROOT / "benchmarks" / "reproduce.sh").read_text()
    chains = re.findall(r"^ +chain (\S+) (\S+) (\S+)$", script, re.M)
    made = {folder: {work.name for work in planned(ROOT / "recipes" / of / f"{name}.toml", Path("out") / folder)}
            for of, name, folder in chains}  # fmt: skip
    assert set(made) == {"imdb", "rates", "trec", "choosing", "multiscale", "summaries", "latent"}
    listed = re.search(r"local runs=\(([^)]*)\)", script)
    assert listed is not None
    assert set(listed[1].split()) <= made["imdb"]
    rates = re.search(r"^ +(runs=.*\n +runs=.*)$", script, re.M)
    assert rates is not None
    names = subprocess.check_output(["bash", "-c", f"{rates[1]}; echo ${{runs[@]}}"], text=True)
    assert set(names.split()) <= made["rates"]
    several = re.search(r'"\$out"/trec/\{([^}]*)\}', script)
    assert several is not None
    assert set(several[1].split(",")) <= made["trec"]
    assert set(re.findall(r"\$out/(\w+)/(\w+)", script)) == {
        ("imdb", "mlm"), ("choosing", "tied"), ("rates", "exits_6_after_deepest"),
    }  # fmt: skip
    assert "exits_6_after_deepest" in made["rates"]
    assert "mlm" in made["imdb"]
    assert "tied" in made["choosing"]
