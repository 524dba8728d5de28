"""The selector of a real run: labels that survive a kill, one command to train it, one to judge it, and its use."""

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Cli

import anydepth
from anydepth.calibrating.calibration import Calibration, Timing, keep, origin_of
from anydepth.calibrating.timed import decode_timed
from anydepth.config import loads
from anydepth.data.builtin_corpora import Builtin
from anydepth.data.reading import Skips, read_pairs
from anydepth.errors import UserError
from anydepth.evaluation.metrics import sentence_chrf
from anydepth.run import Run
from anydepth.selecting.labels import label, read_labels, seen_in_training
from anydepth.selecting.model import SelectorConfig
from anydepth.selecting.search import search
from anydepth.selecting.selector import load_selector, save, source_of, train_selector
from anydepth.selecting.side_by_side import label_side_by_side

GOLDEN = Path(__file__).parents[1] / "golden" / "model"
SENTENCES, BLOCK = 30, 8
DEPTHS = ["1-1", "2-1", "1-2", "2-2"]
TINY = SelectorConfig(layers=1, heads=2, ffn=8, epochs=2, batch=8, validation=0.2)
QUICK = [f"--set={name}={getattr(TINY, name)}" for name in ("layers", "heads", "ffn", "epochs", "batch")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden run, with a smaller training corpus to look through, and short sentences to learn from."""
    folder = tmp_path_factory.mktemp("selector")
    shutil.copytree(GOLDEN, folder / "run")
    config = folder / "run" / "config.toml"
    config.write_text(config.read_text().replace("size = 30000", "size = 60").replace("size = 500", "size = 12"))
    some = [pair for pair in read_pairs(Builtin(size=400, seed=5), "train", Skips()) if len(pair[0]) < 40]
    for side, name in enumerate(("text.en", "text.de")):
        lines = [pair[side] for pair in some[:SENTENCES]]
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return anydepth.load(folder / "run", device="cpu")


def calibrated(run: Run) -> Calibration:
    """As measured with a beam of 1, at all depths but one."""
    assert run.folder
    timings = [
        Timing(depth=depth, batch=1, base=0.0, slope=ms, error=0.0, ratios=[1.0], lengths=[])
        for depth, ms in {"1-1": 0.1, "2-1": 0.2, "2-2": 0.4}.items()
    ]
    made = Calibration(
        origin=origin_of(run, 1), made="2020-02-02", rounds=8, tokens=[10], timings=timings, speculation=[]
    )
    keep(made, run.folder)
    run.guides.clear()
    return made


def test_killed_and_resumed_labels_are_the_same_files(run: Run, folder: Path, tmp_path: Path) -> None:
    files = folder / "text.en", folder / "text.de"
    whole = label(run, *files, tmp_path / "whole", beam=1, block=BLOCK)
    told: list[int] = []

    def kill(done: int, total: int) -> None:
        told.append(done)
        if done > 1.5 * SENTENCES:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        label(run, *files, tmp_path / "killed", beam=1, block=BLOCK, progress=kill)
    assert told[-1] < 4 * SENTENCES
    told.clear()
    resumed = label(
        run, *files, tmp_path / "killed", beam=1, block=BLOCK, progress=lambda done, total: told.append(done)
    )
    assert told[0] >= SENTENCES + BLOCK  # one depth and a block of the next were there
    assert told[-1] == 4 * SENTENCES
    assert np.array_equal(whole.chrf, resumed.chrf)
    for depth in DEPTHS:
        for file in (f"outputs/{depth}.txt.gz", f"chrf/{depth}.npz"):
            assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "killed" / file).read_bytes()


def test_processes_side_by_side_leave_the_same_files(run: Run, folder: Path, tmp_path: Path) -> None:
    files = folder / "text.en", folder / "text.de"
    alone = label(run, *files, tmp_path / "alone", beam=1, block=BLOCK)
    told: list[tuple[int, int]] = []
    show = {"progress": lambda *both: told.append(both)}
    label_side_by_side(run, *files, tmp_path / "both", 2, beam=1, block=BLOCK, **show)
    assert told == [(done, 4) for done in (1, 2, 3, 4)]
    for depth in DEPTHS:
        for file in (f"outputs/{depth}.txt.gz", f"chrf/{depth}.npz"):
            assert (tmp_path / "alone" / file).read_bytes() == (tmp_path / "both" / file).read_bytes()
    work = [("ties", TINY), ("quality", TINY), ("ties", replace(TINY, layers=2))]
    one, two = (search(work, source_of(run), alone, jobs) for jobs in (1, 2))
    assert one[1] == two[1]
    for kind, fitted in one[0].items():
        weights = two[0][kind].net.state_dict()
        assert all(torch.equal(tensor, weights[name]) for name, tensor in fitted.net.state_dict().items())


ORPHANS = """
import os, sys, time
from anydepth.selecting.side_by_side import processes

def start() -> None:
    print(os.getpid(), flush=True)

if __name__ == "__main__":
    with processes(2, start) as pool:
        running = [pool.submit(time.sleep, 60) for _ in range(2)]
        sys.stdin.readline()
        os._exit(9)  # as after a kill
"""


def test_processes_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    (tmp_path / "orphans.py").write_text(ORPHANS)
    command = [sys.executable, str(tmp_path / "orphans.py")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdin
        assert parent.stdout
        started = [int(parent.stdout.readline()) for _ in range(2)]
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert parent.wait(30) == 9
        until = time.monotonic() + 20
        while any(map(lives, started)) and time.monotonic() < until:
            time.sleep(0.1)
        assert not any(map(lives, started))


def lives(process: int) -> bool:
    """Not one that has ended and that nobody has asked about yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_labels_are_the_chrf_of_each_sentence(run: Run, folder: Path, tmp_path: Path) -> None:
    source, reference = tmp_path / "some.en", tmp_path / "some.de"
    source.write_text("ten kilograms\n\nfour\n", encoding="utf-8")
    reference.write_text("zehn Kilogramm\nnichts\nvier\n", encoding="utf-8")
    labels = label(run, source, reference, tmp_path / "labels", beam=1)
    assert labels.depths == DEPTHS
    assert labels.texts == ["ten kilograms", "four"]  # a line without a sentence is left out
    for place, depth in enumerate(DEPTHS):
        outputs = run.translate(labels.texts, depth, beam=1)
        expected = [sentence_chrf(output, right) for output, right in zip(outputs, ("zehn Kilogramm", "vier"))]
        assert labels.chrf[:, place].tolist() == pytest.approx(expected, abs=1e-9)
    reference.write_text("zehn Kilogramm\nnichts\nfünf\n", encoding="utf-8")
    other = read_labels(run, source, reference, tmp_path / "labels")
    assert not np.array_equal(other.chrf, labels.chrf)  # the counts of another reference are not taken
    reference.write_text("zehn Kilogramm\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"3 lines but .* 1: expected as many"):
        label(run, source, reference, tmp_path / "labels", beam=1)


def test_what_the_translation_model_has_seen(tmp_path: Path) -> None:
    for name in ("train.en", "train.de"):
        (tmp_path / name).write_text("a\nb\nc\n", encoding="utf-8")
    corpus = f'{{ type = "parallel", source = "{tmp_path}/train.en", target = "{tmp_path}/train.de" }}'
    config = loads(f"[data]\ntrain = [{corpus}]\n")
    assert seen_in_training(config, ["a", "x", "c", "a"])[0] == 0.75
    (tmp_path / "train.en").unlink()
    share, said = seen_in_training(config, ["a"])
    assert share is None
    assert "train.en" in said


def test_texts_are_translated_at_the_depths_that_were_chosen(run: Run, folder: Path, tmp_path: Path) -> None:
    labels = label(run, folder / "text.en", folder / "text.de", tmp_path / "labels", beam=1)
    texts = labels.texts[:12]
    made, tried = train_selector(run, labels, TINY)
    save(made, folder / "run" / "selector", tried)
    fresh = anydepth.load(folder / "run", device="cpu")
    with pytest.raises(UserError, match="is not calibrated"):
        fresh.translate(texts, "selector@2.5", beam=1)
    known = calibrated(fresh)
    for depth, chosen in {
        "selector": made.choose(labels.ids[:12]),
        "selector@2.5": made.choose_within(labels.ids[:12], 2.5, known),
    }.items():
        expected = [run.translate([text], one, beam=1)[0] for text, one in zip(texts, chosen)]
        assert fresh.translate(texts, depth, beam=1, batch=1) == expected
    chosen = made.choose_within(labels.ids, 2.5, known)
    times = [known.predict(depth, len(ids), 1, None) for depth, ids in zip(chosen, labels.ids)]
    assert sum(times) <= 2.5 * len(times)
    assert {"2-2"} < set(chosen) <= set(known.depths)  # of those with known times
    assert fresh.translate(["", texts[0]], "selector", beam=1)[0] == ""
    with pytest.raises(UserError, match=r"line 2: .* tokens, but this model reads"):
        fresh.translate(["a", "a " * 3000], "selector", beam=1)


def test_a_selector_of_other_weights_is_refused(run: Run, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no selector"):
        load_selector(run, tmp_path)
    labels = label(run, folder / "text.en", folder / "text.de", tmp_path / "labels", beam=1)
    made, tried = train_selector(run, labels, TINY)
    made.facts["weights"] = "others"
    save(made, tmp_path, tried)
    with pytest.raises(UserError, match="trained for other weights"):
        load_selector(run, tmp_path)


def test_labels_of_other_weights_are_refused_before_any_is_made(run: Run, cli: Cli, folder: Path) -> None:
    files = ["--source", folder / "text.en", "--reference", folder / "text.de", "--out", folder / "old"]
    label(run, folder / "text.en", folder / "text.de", folder / "old" / "labels", beam=1)
    for depth in DEPTHS[1:]:
        report = folder / "old" / "labels" / "outputs" / f"{depth}.txt.gz.json"
        report.write_text(report.read_text().replace(str(run.weights_hash), "0" * 64))
    (folder / "old" / "labels" / "outputs" / "1-1.txt.gz").unlink()
    code, _, err = cli("selector", folder / "run", *files, *QUICK, "--beam", 1)
    assert code == 2
    assert "old/labels has labels of other weights than those of" in err
    assert not (folder / "old" / "labels" / "outputs" / "1-1.txt.gz").exists()


@pytest.mark.parametrize("file", ["selector.toml", "ties.safetensors", "cheap.safetensors"])
@pytest.mark.parametrize("content", ["x", None], ids=["damaged", "missing"])
def test_a_damaged_selector_is_one_line(run: Run, folder: Path, tmp_path: Path, file: str, content: str | None) -> None:
    labels = label(run, folder / "text.en", folder / "text.de", folder / "kept", beam=1)
    made, tried = train_selector(run, labels, replace(TINY, epochs=1))
    save(made, tmp_path, tried)
    (tmp_path / file).unlink() if content is None else (tmp_path / file).write_text(content)
    with pytest.raises(UserError, match=r"is damaged .*: train the selector again|has no selector"):
        load_selector(run, tmp_path)


def test_times_of_another_precision_are_measured_again(run: Run, tmp_path: Path) -> None:
    texts = ["one", "the first of May"]
    decode_timed(run, ["1-1"], texts, texts, tmp_path, beam=1)
    kept = tmp_path / "seconds" / "1-1.npy"
    for precision, again in (("float32", False), ("bfloat16", True)):
        np.save(kept, np.full(2, 99.0))
        decoding = replace(run.config.decoding, precision=precision)
        other = Run(replace(run.config, decoding=decoding), run.model, run.tokenizers, run.folder, run.weights)
        timed = decode_timed(other, ["1-1"], texts, texts, tmp_path, beam=1)
        assert bool((timed.seconds < 99).all()) == again


def test_the_commands(cli: Cli, folder: Path) -> None:
    run, files = folder / "run", ["--source", folder / "text.en", "--reference", folder / "text.de"]
    common = [run, *files, "--beam", 1, "--device", "cpu"]
    shared = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "anydepth"]
    given = ["selector", *common, *QUICK, "--fine-tune"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    made = subprocess.run([*shared, *map(str, given)], env=environment, text=True, capture_output=True, timeout=120)
    assert made.returncode == 0, made.stderr
    assert made.stdout.count("the translation model was trained on") == 1  # one of the two processes speaks
    code, out, err = cli("selector", *common, "--evaluate", "--json", "--sentences", 12)
    assert (code, err) == (0, "")
    rows = {row["name"]: row for row in json.loads(out)["rows"]}
    names = ["length only", "length and rarity", "selector", "selector, fine-tuned", "budget-aware selector", "oracle"]
    assert next(iter(rows)) == "always full, 2-2"
    assert list(rows)[1].startswith("best fixed, ")
    assert list(rows)[2:] == names
    assert rows["oracle"]["regret"]["value"] == 0
    assert rows["selector"]["ms"][0] > 0
    code, out, _ = cli("selector", *common, "--evaluate", "--sentences", 12)  # decoded before
    assert code == 0
    assert "fixed depths in the same time" in out
    page = (run / "report.html").read_text(encoding="utf-8")
    assert 'id="choosing"' in page
    assert "budget-aware selector" in page
    code, out, err = cli("translate", run, folder / "text.en", "--depth", "selector", "--beam", 1)
    assert (code, out.count("\n")) == (0, SENTENCES)
    assert err.startswith("anydepth: sentences by depth: ")
    code, _, err = cli("translate", run, folder / "text.en", "--depth", "selector", "--budget-ms", 20)
    assert code == 2
    assert "depth selector: a budget chooses the depth; give one of the two, or selector@20" in err
    calibrated(anydepth.load(run, device="cpu"))
    alone = ["--beam", 1, "--batch", 1, "--device", "cpu"]
    code, _, err = cli("translate", run, folder / "text.en", "--depth", "selector@0.005", *alone)
    assert code == 2
    assert err.startswith("anydepth: 0.005 ms a sentence: the fastest depths take ")


def test_mistakes_are_named(cli: Cli, folder: Path) -> None:
    run = folder / "run"
    code, _, err = cli("selector", run, "--source", folder / "text.en")
    assert (code, err) == (2, "anydepth: --source and --reference: give both or neither\n")
    files = ["--source", folder / "text.en", "--reference", folder / "text.de"]
    code, _, err = cli("selector", run, *files, "--sentences", -5)
    assert code == 2
    assert "'--sentences'" in err
    code, _, err = cli("selector", run, *files, "--set", "lambda=1", "--out", folder / "other")
    assert code == 2
    assert "lambda: no such setting" in err
    for odd in (["--set", "heads=5"], ["--set", "heads=3", "--set", "width=3", "--search"]):
        code, _, err = cli("selector", run, *files, *odd, "--out", folder / "other")
        assert code == 2
        assert "selector: " in err
        assert not (folder / "other").exists()  # nothing was decoded
    cli("selector", run, *files, *QUICK, "--beam", 1, "--sentences", 10, "--out", folder / "small")
    code, _, err = cli("selector", run, *files, *QUICK, "--beam", 1, "--sentences", 11, "--out", folder / "small")
    assert code == 2
    assert "has labels of other sentences" in err
    (folder / "empty").touch()
    nothing = ["--source", folder / "empty", "--reference", folder / "empty", "--out", folder / "other"]
    code, _, err = cli("selector", run, *nothing)
    assert (code, "no sentence to learn from" in err) == (2, True)
    assert not (folder / "other").exists()  # or the next try would be told of labels of other sentences
