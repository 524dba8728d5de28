"""Several depths per step, through the training loop."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_training import config, recipe

from anydepth.data.collate import Batch
from anydepth.describe import describe, describe_path
from anydepth.errors import UserError
from anydepth.run import load
from anydepth.training.journal import read_metrics
from anydepth.training.loop import train
from anydepth.training.step import Step, Sums

FLEXIBLE = [
    'training.objective={type="exit-grid"}',
    'training.objective={type="exit-grid", pairs=2}',
    'training.objective={type="multitask"}',
    'training.objective={type="multitask", encoder_depths=1, decoder_depths=1}',
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpora")
    recipe(folder)
    return folder


@pytest.mark.parametrize("objective", FLEXIBLE)
def test_every_depth_learns(folder: Path, tmp_path: Path, objective: str) -> None:
    depths = ["1-1", "1-2", "2-1", "2-2"]
    settings = [objective, f"training.validate_depths={depths}", "training.steps=40", "training.validate_every=20"]
    run = train(config(folder, *settings), tmp_path / "run", quiet=True)
    lines = [line for line in read_metrics(run / "metrics.jsonl") if line["kind"] == "valid"]
    for depth in depths:
        first, *_, last = [line["loss"] for line in lines if line["depth"] == depth]
        assert last < first, depth
    assert load(run, device="cpu").depths() == depths


def test_a_flexible_model_can_start_from_a_plain_one(folder: Path, tmp_path: Path) -> None:
    full = ['model.encoder.depth={type="full"}', 'model.decoder.depth={type="full"}']
    plain = train(config(folder, *full), tmp_path / "plain", quiet=True)
    start = ["training.steps=1", "training.optimizer.learning_rate=1e-12", f"training.start_from={plain}", FLEXIBLE[0]]
    run = train(config(folder, *start, "seed=9", "training.average=1"), tmp_path / "flexible", quiet=True)
    assert (run / "tokenizer.json").read_text() == (plain / "tokenizer.json").read_text()
    weights = load_file(plain / "model.safetensors")
    for name, tensor in load_file(run / "model.safetensors").items():
        assert torch.allclose(tensor, weights[name], atol=1e-9), name


def test_a_start_that_does_not_fit_is_refused(folder: Path, tmp_path: Path) -> None:
    plain = train(config(folder, "training.steps=1"), tmp_path / "plain", quiet=True)
    deeper = config(folder, "model.encoder.layers=3", f"training.start_from={plain}")
    with pytest.raises(UserError, match=r"training.start_from: .*encoder.layers.2.* is missing"):
        train(deeper, tmp_path / "deeper", quiet=True)
    assert not (tmp_path / "deeper" / "config.toml").exists()  # free for the next try
    with pytest.raises(UserError, match="is not a trained run"):
        train(config(folder, "training.start_from=nowhere"), tmp_path / "other", quiet=True)


def test_where_a_run_started_from_is_not_needed_to_resume(folder: Path, tmp_path: Path) -> None:
    plain = train(config(folder, "training.steps=2"), tmp_path / "plain", quiet=True)
    settings = config(folder, f"training.start_from={plain}", "training.steps=4")
    run = train(settings, tmp_path / "run", quiet=True)
    plain.rename(tmp_path / "moved")
    longer = config(folder, f"training.start_from={plain}", "training.steps=6")
    assert train(longer, run, resume=True, quiet=True) == run
    with pytest.raises(UserError, match=r"training\.start_from"):
        train(settings, tmp_path / "again", quiet=True)


def test_the_words_of_a_training_are_counted(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its log: exactly if it was not interrupted, and nearly so where the last steps were not logged."""
    trained: list[float] = []
    step = Step.__call__

    def count(self: Step, number: int, batches: Sequence[Batch]) -> Sums:
        sums = step(self, number, batches)
        trained.append(float(sums.tokens))
        return sums

    monkeypatch.setattr(Step, "__call__", count)
    for every, tolerance in ((1, 1e-9), (5, 0.2)):
        trained.clear()
        settings = config(folder, f"training.log_every={every}", 'training.objective={type="multitask"}')
        run = train(settings, tmp_path / f"every-{every}", quiet=True)
        description = describe_path(run)
        told = description["training"]
        assert len(trained) == 12
        assert told["target_tokens"] == pytest.approx(sum(trained), rel=tolerance)
        assert description["training_flops"] == pytest.approx(told["flops_per_target_token"] * told["target_tokens"])
        assert not told["bound"]
        assert sum(trained) < describe(settings)["training"]["target_tokens"] == 12 * 2 * 128
