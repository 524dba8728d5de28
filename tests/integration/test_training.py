"""Training, and above all its interruptions: a resumed run must end as if nothing had happened."""

import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
import typing
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_training import Crash, all_files, config, crash, metrics, outcome, recipe, when

from anydepth.depth import DepthConfig
from anydepth.depth.perword import PerWordConfig
from anydepth.errors import UserError
from anydepth.files import put_in_place
from anydepth.training import checkpoint
from anydepth.training.journal import read_metrics
from anydepth.training.loop import train
from anydepth.training.step import Sums
from anydepth.training.window import Diverged, Window


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpora")
    recipe(folder)
    return folder


@pytest.fixture(scope="module")
def finished(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without interruption."""
    torch.set_num_threads(1)
    return train(config(folder), tmp_path_factory.mktemp("runs") / "finished", quiet=True)


def command(*arguments: object) -> "subprocess.CompletedProcess[str]":
    """The command line in a process of its own."""
    given = [sys.executable, "-m", "anydepth", *map(str, arguments)]
    return subprocess.run(given, env=os.environ | {"OMP_NUM_THREADS": "1"}, text=True, capture_output=True)


# ---- interruptions


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (2, "train"),  # before the first checkpoint
        (5, "valid"),  # the best weights are written, the step is not saved
        (9, "train"),  # just before a save
        (10, "train"),  # just after one
        (12, "train"),  # before the last save
        (12, "valid"),  # after it, before the mean is tried
        (12, "average"),  # before that can be written
    ],
)
def test_resume_after_a_crash(folder: Path, finished: Path, tmp_path: Path, step: int, kind: str) -> None:
    run = tmp_path / "run"
    with when(step, kind, crash), pytest.raises(Crash):
        train(config(folder), run, quiet=True)
    train(config(folder), run, resume=True, quiet=True)
    assert outcome(run) == outcome(finished)


def test_resume_after_many_crashes(folder: Path, finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for life, step in enumerate((1, 4, 5, 8, 11, 12)):
        with when(step, "train", crash), pytest.raises(Crash):
            train(config(folder), run, resume=life > 0, quiet=True)
    train(config(folder), run, resume=True, quiet=True)
    assert outcome(run) == outcome(finished)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_a_resume_goes_on(folder: Path, finished: Path, tmp_path: Path, number: int) -> None:
    run = tmp_path / "run"
    handler = signal.getsignal(number)
    for life, step in enumerate((3, 6, 10)):  # saved after 4, 7 and 11, when no checkpoint is due
        with when(step, "train", lambda: signal.raise_signal(number)), pytest.raises(KeyboardInterrupt):
            train(config(folder), run, resume=life > 0, quiet=True)
        saved = checkpoint.step_of(checkpoint.steps(run / "checkpoints")[-1])
        assert saved == metrics(run)[-1]["step"] == step + 1  # the signal waits for a step to end
        assert signal.getsignal(number) is handler
    train(config(folder), run, resume=True, quiet=True)
    assert outcome(run) == outcome(finished)


def test_a_crash_before_the_last_save_has_tidied_up(folder: Path, finished: Path, tmp_path: Path) -> None:
    """The checkpoint of an interruption is still there, and must not become part of the mean."""
    run = tmp_path / "run"
    with when(10, "train", lambda: signal.raise_signal(signal.SIGINT)), pytest.raises(KeyboardInterrupt):
        train(config(folder), run, quiet=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "prune", lambda *_: crash())
        with pytest.raises(Crash):
            train(config(folder), run, resume=True, quiet=True)
    assert [checkpoint.step_of(path) for path in checkpoint.steps(run / "checkpoints")] == [6, 9, 11, 12]
    train(config(folder), run, resume=True, quiet=True)
    assert outcome(run) == outcome(finished)


def test_a_second_signal_does_not_wait(folder: Path, tmp_path: Path) -> None:
    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with when(5, "train", twice), pytest.raises(KeyboardInterrupt):
        train(config(folder), tmp_path / "run", quiet=True)
    assert [path.name for path in checkpoint.steps(tmp_path / "run" / "checkpoints")] == ["step-00000003"]


def test_sigterm_through_the_command_line(folder: Path, tmp_path: Path) -> None:
    run, environment = tmp_path / "run", os.environ | {"OMP_NUM_THREADS": "1"}
    arguments = ["train", str(recipe(folder)), "--out", str(run)]
    endless = [sys.executable, "-m", "anydepth", *arguments, "--set", "training.steps=1000000"]
    with subprocess.Popen(endless, env=environment, text=True, stderr=subprocess.PIPE) as process:
        while not (run / "metrics.jsonl").exists() and process.poll() is None:
            time.sleep(0.01)
        process.terminate()
        err = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "Traceback" not in err
    step = metrics(run)[-1]["step"]
    assert f"stopped after step {step}" in plain(err)
    assert f"{run} can go on with --resume" in plain(err)
    more = f"training.steps={step + 5}"
    result = command(*arguments, "--resume", "--set", more)
    assert result.returncode == 0, result.stderr
    assert f"resumed after step {step}" in result.stderr
    straight = train(config(folder, more), tmp_path / "straight", quiet=True)
    assert outcome(run) == outcome(straight)


def test_training_off_the_main_thread(folder: Path, finished: Path, tmp_path: Path) -> None:
    """Where Python allows no signal handlers."""
    thread = threading.Thread(target=train, args=(config(folder), tmp_path / "run", False, True))
    thread.start()
    thread.join()
    assert outcome(tmp_path / "run") == outcome(finished)


def test_a_crash_between_the_two_tokenizers(folder: Path, tmp_path: Path) -> None:
    def put_or_crash(part: Path, path: Path) -> None:
        if path.name == "tokenizer.source.json":
            raise Crash
        put_in_place(part, path)

    separate, run = config(folder, "tokenizer.joint=false", "model.tie=none", "training.steps=1"), tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("anydepth.training.data.put_in_place", put_or_crash)
        with pytest.raises(Crash):
            train(separate, run, quiet=True)
    assert not (run / "tokenizer.source.json").exists()
    train(separate, run, resume=True, quiet=True)
    names = {path.name for path in run.iterdir() if path.is_file()}
    assert names == {
        "config.toml", "metrics.jsonl", "model.safetensors", "tokenizer.source.json", "tokenizer.target.json",
    }  # fmt: skip


def test_a_damaged_newest_checkpoint(folder: Path, finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with when(11, "train", crash), pytest.raises(Crash):
        train(config(folder), run, quiet=True)
    file = run / "checkpoints" / "step-00000009" / "optimizer.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.warns(UserWarning, match=r"step-00000009: optimizer\.safetensors does not match its checksum"):
        train(config(folder), run, resume=True, quiet=True)
    assert outcome(run) == outcome(finished)


def test_without_a_whole_checkpoint_a_training_begins_again_and_says_so(
    folder: Path, finished: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    with when(5, "train", crash), pytest.raises(Crash):
        train(config(folder), run, quiet=True)
    (run / "checkpoints" / "step-00000003" / "state.json").unlink()
    with pytest.warns(UserWarning, match="state.json is missing"):
        train(config(folder), run, resume=True)
    assert "no checkpoint is whole (of 1): the training begins again" in plain(capfd.readouterr().err)
    assert outcome(run) == outcome(finished)


def test_without_a_whole_checkpoint_a_training_starts_from_where_it_started(
    folder: Path, finished: Path, tmp_path: Path
) -> None:
    short = config(folder, f"training.start_from={finished}", "training.steps=4", "training.average=1")
    straight, run = train(short, tmp_path / "straight", quiet=True), tmp_path / "run"
    with when(4, "train", crash), pytest.raises(Crash):
        train(short, run, quiet=True)
    (run / "checkpoints" / "step-00000003" / "state.json").unlink()
    with pytest.warns(UserWarning, match="state.json is missing"):
        train(short, run, resume=True, quiet=True)
    assert outcome(run) == outcome(straight)


def test_a_damaged_checkpoint_is_no_part_of_the_mean(folder: Path, finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with when(12, "valid", crash), pytest.raises(Crash):
        train(config(folder), run, quiet=True)
    (run / "checkpoints" / "step-00000009" / "model.safetensors").unlink()
    with pytest.warns(UserWarning, match="step-00000009: model.safetensors is missing"):
        train(config(folder), run, resume=True, quiet=True)
    assert "average" not in {line["kind"] for line in metrics(run)}


def test_another_machine_is_told(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    short = config(folder, "training.steps=4", "training.average=1")
    with when(4, "train", crash), pytest.raises(Crash):
        train(short, tmp_path / "run", quiet=True)
    torch.set_num_threads(2)
    train(short, tmp_path / "run", resume=True)
    assert re.search(r"warning: saved with .*'threads': 1.* resumed with .*'threads': 2", plain(capfd.readouterr().err))


def test_a_training_that_begins_badly_is_not_lost() -> None:
    """As deep models without norms do; lost is what ends far above where it began."""

    def sums(nll: float) -> Sums:
        return Sums(*(torch.tensor(value) for value in (nll, nll, 1.0, 1.0, 1.0)))

    window = Window(explosion=10.0)
    for nll in (50.0, 90.0):
        window.add(sums(nll))
        window.check(1, Path())
    window.add(sums(101.0))
    with pytest.raises(Diverged, match="101 nats a word"):
        window.check(1, Path())


def plain(text: str) -> str:
    """Without the line ends that a terminal's width brings."""
    return " ".join(text.split())


# ---- finished and refused runs


def test_a_finished_run_is_left_alone(folder: Path, finished: Path) -> None:
    before = all_files(finished)
    result = command("train", recipe(folder), "--out", finished, "--resume")
    assert result.returncode == 0
    assert "finished after 12 steps; nothing to do" in plain(result.stderr)
    assert all_files(finished) == before
    assert not any(".part-" in name for name in before)


def test_a_finished_run_can_be_trained_longer(folder: Path, finished: Path, tmp_path: Path) -> None:
    """Steps 1 to 12 in two parts: the schedule does not look ahead, so that all weights are the same."""
    run = tmp_path / "run"
    train(config(folder, "training.steps=7"), run, quiet=True)
    train(config(folder), run, resume=True, quiet=True)
    longer, straight = outcome(run), outcome(finished)
    assert longer["step-00000012"][:2] == straight["step-00000012"][:2]
    assert longer.keys() == straight.keys()


def test_a_crash_on_the_longer_way(folder: Path, tmp_path: Path) -> None:
    """Before the first checkpoint after the first end, to which the metrics go back, too."""
    for name in ("straight", "crashed"):
        train(config(folder, "training.steps=7"), tmp_path / name, quiet=True)
    train(config(folder), tmp_path / "straight", resume=True, quiet=True)
    with when(8, "train", crash), pytest.raises(Crash):
        train(config(folder), tmp_path / "crashed", resume=True, quiet=True)
    train(config(folder), tmp_path / "crashed", resume=True, quiet=True)
    assert outcome(tmp_path / "crashed") == outcome(tmp_path / "straight")


@pytest.mark.parametrize("average", [1, 3])
def test_a_run_that_is_trained_longer_keeps_its_best_weights(folder: Path, tmp_path: Path, average: int) -> None:
    """Those of the validation, or of the mean, at its first end: later checkpoints must know about them."""
    hot = "training.optimizer.learning_rate=0.5", "training.optimizer.schedule=constant", "training.validate_every=0"
    settings, run = (*hot, f"training.average={average}"), tmp_path / "run"
    train(config(folder, *settings), run, quiet=True)
    best = min(line["loss"] for line in metrics(run) if line["kind"] in ("valid", "average"))
    before = outcome(run)["model"]
    hotter = "training.steps=13", "training.average=1", "training.optimizer.learning_rate=2.0"
    train(config(folder, *settings, *hotter), run, resume=True, quiet=True)
    assert metrics(run)[-1]["loss"] > best
    assert outcome(run)["model"] == before


def test_weights_that_were_judged_otherwise_do_not_keep_better_ones_out(folder: Path, tmp_path: Path) -> None:
    """A loss is never below minus a score."""
    run, changes = tmp_path / "run", ("training.validate_sentences=3", "training.average=1")
    train(config(folder, *changes, "training.best=score", "training.steps=6"), run, quiet=True)
    train(config(folder, *changes), run, resume=True, quiet=True)
    losses = [line["loss"] for line in metrics(run) if line["kind"] == "valid"]
    assert losses[-1] == min(losses)
    assert differences(run, load_file(run / "checkpoints" / "step-00000012" / "model.safetensors")) == 0


def test_a_finished_run_of_an_earlier_version_is_left_alone(folder: Path, tmp_path: Path) -> None:
    """Its mark had the number of its last step alone."""
    run, short = tmp_path / "run", config(folder, "training.steps=3", "training.average=1")
    train(short, run, quiet=True)
    (run / "checkpoints" / "finished").write_text("3")
    before = all_files(run)
    train(short, run, resume=True, quiet=True)
    assert all_files(run) == before


def test_an_existing_run_is_not_overwritten(folder: Path, finished: Path, tmp_path: Path) -> None:
    before = all_files(finished)
    with pytest.raises(UserError, match="already holds a run: give --resume"):
        train(config(folder), finished)
    with pytest.raises(UserError, match="nothing to resume"):
        train(config(folder), tmp_path / "none", resume=True)
    assert all_files(finished) == before
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ("seed=4", "seed"),
        ("model.layer.width=32", "model"),
        ("model.encoder.depth={type='full'}", "model"),
        ("data.temperature=1.0", "data"),
        ("tokenizer.vocabulary=301", "tokenizer"),
        ("batching.tokens=256", "batching"),
    ],
)
def test_a_resume_with_other_settings_is_refused(folder: Path, finished: Path, change: str, part: str) -> None:
    before = all_files(finished)
    with pytest.raises(UserError, match=rf"cannot resume with other settings in \[{part}\]"):
        train(config(folder, change), finished, resume=True)
    assert all_files(finished) == before


def test_changed_data_are_refused(folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "corpora"
    own.mkdir()
    with when(5, "train", crash), pytest.raises(Crash):
        train(config(own), tmp_path / "run", quiet=True)
    with (own / "more.source").open("a") as source, (own / "more.target").open("a") as target:
        source.write("one\n")
        target.write("ONE\n")
    with pytest.raises(UserError, match="cannot continue at the recorded place in the data: pairs was"):
        train(config(own), tmp_path / "run", resume=True, quiet=True)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("data.train.0.target=missing.de", "missing.de: no such file"),
        ("data.test={type='tsv',path='missing.tsv'}", "missing.tsv: no such file"),
        ("training.validate_depths=['2-2','3-1']", "validate_depths: depth 3-1: the encoder has depths 1, 2"),
        ("training.validate_depths=['2x2']", "validate_depths: depth '2x2': expected encoder-decoder layers"),
        ("training.device=cuda:77", "training.device: 'cuda:77' is not here; expected cpu, cuda"),
        ("training.device=abacus", "training.device: 'abacus' is not here; expected cpu, cuda"),
    ],
)
def test_what_cannot_work_is_refused_before_a_run_is_made(
    folder: Path, tmp_path: Path, change: str, expected: str
) -> None:
    with pytest.raises(UserError, match=expected):
        train(config(folder, change), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_two_trainings_do_not_share_a_folder(folder: Path, finished: Path, tmp_path: Path) -> None:
    def another() -> None:
        with pytest.raises(UserError, match="run: another training is at work in this folder"):
            train(config(folder), tmp_path / "run", resume=True, quiet=True)

    with when(7, "train", another):
        train(config(folder), tmp_path / "run", quiet=True)
    assert outcome(tmp_path / "run") == outcome(finished)


SHORT = ("training.steps=2", "training.average=1", "training.validate_every=0")


def test_a_warmup_that_never_ends_is_told(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(config(folder, *SHORT), tmp_path / "run")
    told = "training.optimizer.warmup is 4, but training.steps 2: the learning rate only reaches 0.005 of 0.01"
    assert told in plain(capfd.readouterr().err)
    train(config(folder, *SHORT, "training.optimizer.warmup=2"), tmp_path / "other")
    assert "warmup" not in capfd.readouterr().err


def test_two_levels_of_training_without_a_second_are_told(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    two_levels = ("training.inner_steps=2", "training.depth_optimizer={learning_rate=0.1}")
    train(config(folder, *SHORT, *two_levels), tmp_path / "run")
    told = plain(capfd.readouterr().err)
    for name in ("inner_steps", "depth_optimizer"):
        assert f"note: training.{name} has no effect: no depth policy of this model learns anything" in told
    train(config(folder, *SHORT, *two_levels, "model.decoder.depth={type='rezero'}"), tmp_path / "other")
    assert "no effect" not in capfd.readouterr().err


def test_weights_of_no_depth_and_fusions_of_no_context_are_told(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    latent = ("model.decoder.depth={type='latent'}", "training.objective={type='latent', depth_weight=0.5}")
    train(config(folder, *SHORT, *latent), tmp_path / "latent")
    told = plain(capfd.readouterr().err)
    assert "note: training.objective.depth_weight has no effect: no depth is wanted" in told
    blocks = ("model.encoder.depth={type='full'}", "model.bridge={type='multiscale', context='none', fusion='add'}")
    train(config(folder, *SHORT, *blocks), tmp_path / "blocks")
    assert "note: model.bridge.fusion has no effect: there is no context" in plain(capfd.readouterr().err)


# ---- what a run holds


def test_metrics_are_complete(finished: Path) -> None:
    lines = read_metrics(finished / "metrics.jsonl")
    assert [line["step"] for line in lines if line["kind"] == "train"] == list(range(1, 13))
    assert [line["step"] for line in lines if line["kind"] == "valid"] == [5, 10, 12]
    assert [line["step"] for line in lines] == sorted(line["step"] for line in lines)
    numbers = {
        "train": {"loss", "nll", "tokens", "gradient_norm", "tokens_per_second", "learning_rate", "seconds", "epoch"},
        "gradients": {"stack", "norms"},
    }
    for line in lines:
        expected = numbers.get(line["kind"], {"depth", "loss", "perplexity", "seconds"})
        assert line.keys() == {"step", "kind"} | expected
    epochs = [line["epoch"] for line in lines if line["kind"] == "train"]
    assert epochs == sorted(epochs)
    assert epochs[-1] > 1.0  # the data were shuffled anew on the way


def test_tokens_are_counted_exactly(folder: Path, finished: Path, tmp_path: Path) -> None:
    """Also where checkpoints fall between two lines, and the training is taken up there."""
    counts = [line["tokens"] for line in metrics(finished) if line["kind"] == "train"]
    assert all(0 < more - less <= 256 for less, more in pairwise((0, *counts)))  # two batches of 128 words
    settings = config(folder, "training.log_every=5")
    with when(10, "train", crash), pytest.raises(Crash):
        train(settings, tmp_path / "run", quiet=True)
    train(settings, tmp_path / "run", resume=True, quiet=True)
    assert [line["tokens"] for line in metrics(tmp_path / "run") if line["kind"] == "train"] == [counts[4], counts[9]]


def test_gradients_of_layers(finished: Path) -> None:
    """Together with those of the embeddings they make the norm of all; layers that no plan of a step runs have none."""
    lines = metrics(finished)
    whole = {line["step"]: line["gradient_norm"] for line in lines if line["kind"] == "train"}
    norms: dict[int, list[float | None]] = {step: [] for step in whole}
    for line in lines:
        if line["kind"] == "gradients":
            norms[line["step"]] += line["norms"]
    for step, each in norms.items():
        assert len(each) == 4
        assert 0 < math.hypot(*(norm for norm in each if norm is not None)) < whole[step]
    assert {norm is None for each in norms.values() for norm in each} == {True, False}


def test_files_can_be_read_by_those_who_may_read_new_files(finished: Path) -> None:
    modes = {file.stat().st_mode for file in finished.rglob("*") if file.is_file()}
    assert len(modes) == 1


def test_validation_at_several_depths(folder: Path, tmp_path: Path) -> None:
    changes = "training.validate_depths=['1-1', '2-1', '2-2']", "training.validate_sentences=3", "training.average=1"
    run = train(config(folder, *changes, "training.validate_every=0"), tmp_path / "run", quiet=True)
    lines = [line for line in metrics(run) if line["kind"] == "valid"]
    assert [(line["step"], line["depth"]) for line in lines] == [(12, "1-1"), (12, "2-1"), (12, "2-2")]
    assert len({line["loss"] for line in lines}) == 3
    assert all(0 <= line["bleu"] <= 100 and 0 <= line["chrf"] <= 100 for line in lines)


def test_validation_is_plain_greedy_search_whatever_the_settings_of_decoding(folder: Path, tmp_path: Path) -> None:
    """Some of which a shallow depth, or the device of the training, would refuse."""
    changes = "training.validate_depths=['1-1', '2-2']", "training.validate_sentences=20", "training.average=1"
    plain = train(config(folder, *changes), tmp_path / "plain", quiet=True)
    fast = "decoding.beam=1", "decoding.exit=1", "decoding.exit_margin=0.0", "decoding.precision=int8"
    run = train(config(folder, *changes, *fast), tmp_path / "fast", quiet=True)
    assert metrics(run) == metrics(plain)


def scalars(run: Path) -> dict[str, list[int]]:
    """What TensorBoard would show: the steps of every curve."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(run / "tensorboard"))
    reader.Reload()
    return {tag: [event.step for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


@pytest.mark.filterwarnings("ignore")  # TensorBoard's own
def test_tensorboard(folder: Path, tmp_path: Path) -> None:
    with_board, run = config(folder, "training.tensorboard=true"), tmp_path / "run"
    with when(8, "train", crash), pytest.raises(Crash):
        train(with_board, run, quiet=True)
    train(with_board, run, resume=True, quiet=True)
    curves = scalars(run)
    assert curves["train/loss"] == curves["train/learning_rate"] == list(range(1, 13))
    assert curves["valid-2-2/loss"] == [5, 10, 12]


def test_without_asking_there_is_no_tensorboard(finished: Path) -> None:
    assert not (finished / "tensorboard").exists()


# ---- the model that is kept


def mean_of_last(run: Path, count: int) -> dict[str, torch.Tensor]:
    paths = checkpoint.steps(run / "checkpoints")[-count:]
    weights = [load_file(path / "model.safetensors") for path in paths]
    return {name: sum(w[name].double() for w in weights).float() / count for name in weights[0]}  # type: ignore[union-attr]


def differences(run: Path, expected: dict[str, torch.Tensor]) -> float:
    model = load_file(run / "model.safetensors")
    assert model.keys() == expected.keys()
    return max(float((model[name] - expected[name]).abs().max()) for name in model)


def without_dev(folder: Path, *changes: str) -> Any:
    text = recipe(folder).read_text()
    from anydepth.config import loads

    return loads(re.sub(r"^dev = .*$", "", text, flags=re.MULTILINE), changes)


def test_without_a_dev_set_the_mean_is_the_model(folder: Path, tmp_path: Path) -> None:
    run = train(without_dev(folder, "training.average=3"), tmp_path / "mean", quiet=True)
    assert differences(run, mean_of_last(run, 3)) < 1e-6
    run = train(without_dev(folder, "training.average=1", "training.patience=1"), tmp_path / "last", quiet=True)
    assert differences(run, load_file(run / "checkpoints" / "step-00000012" / "model.safetensors")) == 0


def test_with_a_dev_set_the_best_is_the_model(folder: Path, finished: Path, tmp_path: Path) -> None:
    """Early in training a mean is worse than the newest; around a minimum it is better."""
    losses = {line["kind"]: line["loss"] for line in metrics(finished) if "loss" in line}
    assert losses["average"] > losses["valid"]
    newest = finished / "checkpoints" / "step-00000012" / "model.safetensors"
    assert differences(finished, load_file(newest)) == 0

    hot = "training.optimizer.learning_rate=0.5", "training.optimizer.schedule=constant", "training.validate_every=0"
    run = train(config(folder, *hot, "training.average=3"), tmp_path / "hot", quiet=True)
    losses = {line["kind"]: line["loss"] for line in metrics(run) if "loss" in line}
    assert losses["average"] < losses["valid"]
    assert differences(run, mean_of_last(run, 3)) < 1e-6


def test_patience(folder: Path, tmp_path: Path) -> None:
    """With a learning rate that moves nothing, the first validation is the best."""
    changes = "training.optimizer.learning_rate=1e-30", "training.patience=2", "training.validate_every=2"
    run = train(config(folder, *changes, "training.steps=1000"), tmp_path / "run", quiet=True)
    assert [line["step"] for line in metrics(run) if line["kind"] == "valid"] == [2, 4, 6]
    assert metrics(run)[-1]["step"] == 6


def test_a_time_limit(folder: Path, tmp_path: Path) -> None:
    changes = "training.seconds=0.3", "training.steps=100000"
    run = train(config(folder, *changes), tmp_path / "run", quiet=True)
    found = checkpoint.newest(run / "checkpoints")
    assert found is not None
    assert 0.3 <= found.state["progress"]["seconds"] < 10
    assert found.step == max(line["step"] for line in metrics(run)) < 100000


# ---- trainings that fail, and that work


@pytest.mark.parametrize("rate", ["1e6", "1e30"])  # explodes; overflows
def test_a_lost_training_stops_and_keeps_the_last_good_state(folder: Path, tmp_path: Path, rate: str) -> None:
    run = tmp_path / "run"
    train(config(folder, "training.steps=6"), run, quiet=True)
    before = outcome(run)
    wild = ("training.steps=30", f"training.optimizer.learning_rate={rate}")
    with pytest.raises(Diverged, match=r"training diverged at step [78]: .* nats a word\. The last good state is kept"):
        train(config(folder, *wild), run, resume=True, quiet=True)
    after = outcome(run)
    assert after["step-00000006"] == before["step-00000006"]
    assert after["model"] == before["model"]
    train(config(folder), run, resume=True, quiet=True)
    assert metrics(run)[-1]["step"] == 12


def test_a_lost_training_is_one_line_and_exit_code_2(folder: Path, tmp_path: Path) -> None:
    wild = "training.optimizer.learning_rate=1e6", "training.optimizer.warmup=0", "training.steps=1000"
    result = command("train", recipe(folder), "--out", tmp_path / "run", *(f for w in wild for f in ("--set", w)))
    assert result.returncode == 2
    complaints = [line for line in result.stderr.splitlines() if line.startswith("anydepth: ")]
    assert len(complaints) == 1
    assert "training diverged at step 2" in complaints[0]
    assert "Nothing was saved yet" in complaints[0]
    assert "training.optimizer.learning_rate" in complaints[0]
    assert "Traceback" not in result.stderr


def norm_for(kind: Callable[..., Any]) -> str:
    return "none" if kind().type == "rezero" else "pre"


FOR_TRANSLATION = [kind for kind in typing.get_args(DepthConfig) if kind is not PerWordConfig]


@pytest.mark.parametrize("kind", FOR_TRANSLATION, ids=lambda kind: kind().type)
def test_every_policy_learns(folder: Path, tmp_path: Path, kind: Callable[..., Any]) -> None:
    depth = f"{{type='{kind().type}'}}"
    changes = (
        f"model.encoder.depth={depth}", f"model.decoder.depth={depth}", f"model.layer.norm={norm_for(kind)}",
        "training.steps=30", "training.accumulate=1", "training.save_every=100", "training.average=1",
        "training.validate_every=0",
    )  # fmt: skip
    run = train(config(folder, *changes), tmp_path / "run", quiet=True)
    losses = [line["nll"] for line in metrics(run) if line["kind"] == "train"]
    assert sum(losses[-5:]) / 5 < sum(losses[:5]) / 5 - 0.5


def test_data_that_do_not_fit_leave_the_folder_free(folder: Path, tmp_path: Path) -> None:
    short = ("training.steps=1", "training.validate_every=0")
    with pytest.raises(UserError, match=r"batching\.tokens"):
        train(config(folder, *short, "batching.tokens=8"), tmp_path / "run", quiet=True)
    with pytest.raises(UserError, match="nothing to resume"):
        train(config(folder, *short), tmp_path / "run", resume=True, quiet=True)
    other = config(folder, *short, "tokenizer.vocabulary=300")
    run = train(other, tmp_path / "run", quiet=True)
    (run / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        train(other, run, resume=True, quiet=True)
    assert (run / "config.toml").exists()  # what is a run stays one


def test_out_of_memory_says_what_to_try(tmp_path: Path) -> None:
    def no_memory() -> None:
        raise torch.OutOfMemoryError

    settings = config(tmp_path, "training.accumulate=2", "training.at_once=2", "training.log_every=1")
    wanted = r"lower batching.tokens \(now \d+\) .* training.accumulate \(now 2\), or a lower training.at_once"
    with when(3, "train", no_memory), pytest.raises(UserError, match=wanted):
        train(settings, tmp_path / "run", quiet=True)
