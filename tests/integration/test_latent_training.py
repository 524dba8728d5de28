"""Latent depth trained through interruptions: two-level optimisation, annealing and all."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_training import Crash, config, crash, metrics, outcome, recipe, when

from anydepth.config import Config
from anydepth.data.store import Store
from anydepth.errors import UserError
from anydepth.training.loop import train

LATENT = (
    "model.encoder.depth={type='latent', anneal='linear', final_temperature=1.0, anneal_steps=8}",
    "model.decoder.depth={type='latent', samples='hard', soft_steps=4}",
    "training.objective={type='latent', kl_scale='step', kl_warmup=6, encoder_layers=1, decoder_layers=1}",
    "training.depth_optimizer={learning_rate=0.1, warmup=0}",
    "training.inner_steps=2",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpora")
    recipe(folder)
    return folder


def settings(folder: Path) -> Config:
    return config(folder, *LATENT)


@pytest.fixture(scope="module")
def finished(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return train(settings(folder), tmp_path_factory.mktemp("runs") / "finished", quiet=True)


@pytest.mark.parametrize(("step", "kind"), [(5, "logits"), (7, "train"), (10, "train"), (12, "average")])
def test_resume_after_a_crash(folder: Path, finished: Path, tmp_path: Path, step: int, kind: str) -> None:
    run = tmp_path / "run"
    with when(step, kind, crash), pytest.raises(Crash):
        train(settings(folder), run, quiet=True)
    train(settings(folder), run, resume=True, quiet=True)
    assert outcome(run) == outcome(finished)


def test_the_journal_follows_the_logits(finished: Path) -> None:
    lines = [line for line in metrics(finished) if line["kind"] == "logits"]
    assert [(line["step"], line["stack"]) for line in lines] == [
        (step, stack) for step in (5, 10, 12) for stack in ("encoder", "decoder")
    ]
    last = load_file(finished / "checkpoints" / "step-00000012" / "model.safetensors")
    assert lines[-1]["logits"] == {"": last["decoder_depth.logits.0"].tolist()}
    assert lines[0]["logits"] != lines[-2]["logits"]


def test_a_term_for_the_whole_corpus_is_shared_by_its_words(folder: Path, tmp_path: Path) -> None:
    """Of 2 + 2 layers, each with probability 1/2 at first and 3/4 under the prior."""
    objective = "{type='latent', beta=1000.0, kl_scale='corpus', prior='beta', prior_a=3.0}"
    changes = (f"training.objective={objective}", "training.steps=1", "training.label_smoothing=0.0")
    run = train(config(folder, *LATENT[:2], *changes), tmp_path / "run", quiet=True)
    words = sum(Store(path).target_tokens for path in (run / "data").glob("train-*"))
    (first,) = (line for line in metrics(run) if line["kind"] == "train")
    assert first["loss"] - first["nll"] == pytest.approx(1000 * 4 * 0.143841 / words, rel=1e-3)


def test_depths_that_are_still_to_be_learnt_cannot_be_validated(folder: Path, tmp_path: Path) -> None:
    """Refused at once, not by the first validation that finds other layers chosen."""
    hard = "model.encoder.depth={type='latent'}"
    wanted = "training.objective={type='latent'}", "training.steps=1", "training.validate_depths=['2-1']"
    with pytest.raises(
        UserError, match="validate_depths: how many layers the encoder runs is what latent depth learns"
    ):
        train(config(folder, hard, *wanted), tmp_path / "run", quiet=True)
    soft = "model.encoder.depth={type='latent', inference='soft'}"
    with pytest.raises(UserError, match="depth 1-1: the encoder has depths 2"):
        train(config(folder, soft, *wanted, "training.validate_depths=['1-1']"), tmp_path / "run", quiet=True)
    run = train(config(folder, soft, *wanted), tmp_path / "run", quiet=True)
    assert [line["depth"] for line in metrics(run) if line["kind"] == "valid"] == ["2-1"]
