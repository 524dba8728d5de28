"""Two processes against one: the same weights, whatever layers a plan leaves out."""

import os
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import random_batch, tiny_translator
from safetensors.torch import load_file, save_file
from tiny_training import config, metrics, recipe

from anydepth.data.collate import Batch
from anydepth.depth import DepthConfig
from anydepth.depth.layerdrop import LayerDropConfig
from anydepth.errors import UserError
from anydepth.models import Translator
from anydepth.objectives import LatentObjectiveConfig
from anydepth.training import checkpoint
from anydepth.training.distributed import Ranks, first_does, share_weights
from anydepth.training.loop import train
from anydepth.training.optim import OptimizerConfig, Optimizers
from anydepth.training.settings import TrainingConfig
from anydepth.training.step import Step, generator

CPU = torch.device("cpu")
SEED, STEPS = 5, 5
POLICIES: dict[str, Any] = {kind().type: kind() for kind in typing.get_args(DepthConfig)}
POLICIES["layerdrop"] = LayerDropConfig(drop=0.5)


SETTINGS: dict[str, dict[str, Any]] = {  # of the training, where a policy has its own
    "latent": {
        "objective": LatentObjectiveConfig(beta=0.5, kl_scale="step", encoder_layers=1, decoder_layers=2),
        "depth_optimizer": OptimizerConfig(learning_rate=0.1, warmup=0),
        "inner_steps": 2,
    }
}


def build(policy: str) -> Translator:
    """The same random model in every process; in double precision, so that only a mistake makes a difference."""
    torch.manual_seed(0)
    return tiny_translator(POLICIES[policy], layers=3).double().train()


def whole_batch(step: int, micro: int) -> Batch:
    """Rows of very different lengths: the ranks must not count alike."""
    lengths = [(3, 9), (5, 2), (2, 7), (6, 1), (4, 8), (1, 3 + step + micro)]
    return random_batch(lengths)


def share(batch: Batch, rank: int, world: int) -> Batch:
    """Every `world`-th row."""
    rows = slice(rank, None, world)
    tokens = int((batch.target_out[rows] != 0).sum())
    parts = {name: getattr(batch, name)[rows] for name in ("source", "target_in", "target_out")}
    return batch._replace(**parts, tokens=tokens, sentences=len(parts["source"]))


def run_steps(model: Translator, ranks: Ranks, accumulate: int = 2) -> Iterator[int]:
    """Trains on this rank's share, and comes back after every step."""
    optimizer = OptimizerConfig(learning_rate=0.01, warmup=2, clip=1.0)
    own = SETTINGS.get(model.config.encoder.depth.type, {})
    settings = TrainingConfig(steps=STEPS, optimizer=optimizer, **own)
    optimizers = Optimizers(model, settings.optimizer, settings.depth_optimizer)
    step_once = Step(model, optimizers, settings, SEED, ranks)
    for step in range(1, STEPS + 1):
        batches = [share(whole_batch(step, micro), ranks.rank, ranks.world) for micro in range(accumulate)]
        step_once(step, batches)
        yield step


def run_rank(rank: int, folder: Path) -> None:
    """What each of two processes does."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    ranks = Ranks(rank, 2, CPU)
    for policy in POLICIES:
        model = build(policy)
        if rank == 1:  # whatever it starts from
            for parameter in model.parameters():
                torch.nn.init.ones_(parameter)
        share_weights(model, ranks)
        for _ in run_steps(model, ranks):
            pass
        save_file(checkpoint.weights(model), folder / f"{policy}-{rank}.safetensors")
    try:
        first_does(ranks, lambda: (folder / "missing").read_text())
    except (OSError, UserError) as error:
        (folder / f"failure-{rank}").write_text(f"{type(error).__name__}: {error}")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes leave behind, having trained with each policy."""
    folder = tmp_path_factory.mktemp("ranks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        torch.multiprocessing.spawn(run_rank, (folder,), nprocs=2)
    return folder


@pytest.mark.parametrize("policy", POLICIES)
def test_two_ranks_are_one_with_their_batches_together(two_ranks: Path, policy: str) -> None:
    model = build(policy)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    for _ in run_steps(model, Ranks(0, 1, CPU)):
        pass
    first, second = (load_file(two_ranks / f"{policy}-{rank}.safetensors") for rank in (0, 1))
    moved = 0.0
    for name, weight in model.named_parameters():
        assert torch.equal(first[name], second[name])
        torch.testing.assert_close(first[name], weight.detach(), rtol=0, atol=1e-9)
        moved += float((weight - before[name]).abs().sum().detach())
    assert moved > 1


@pytest.mark.parametrize("policy", ["prefix", "subnetwork", "layerdrop"])
def test_layers_that_do_not_run_are_not_moved(policy: str) -> None:
    """Not even by Adam's memory of earlier steps: they have no gradient, which is not a gradient of zero."""
    model = build(policy)
    before = {parameter: parameter.detach().clone() for parameter in model.parameters()}
    left_out = moved = 0
    for step in run_steps(model, Ranks(0, 1, CPU), accumulate=1):
        plans = model.sample("", *(generator(SEED, step, 0, stack) for stack in (0, 1)))
        for stack, plan in ((model.encoder, plans.encoder), (model.decoder, plans.decoder)):
            for number, layer in enumerate(stack.layers):
                still = all(torch.equal(parameter, before[parameter]) for parameter in layer.parameters())
                # a decoder without layers does not look at its encoder
                assert still == (number not in plan.layers or not plans.decoder.layers)
                left_out, moved = left_out + still, moved + (not still)
        before = {parameter: parameter.detach().clone() for parameter in model.parameters()}
    assert left_out > 3
    assert moved > 3


def test_a_failure_of_the_first_stops_all(two_ranks: Path) -> None:
    assert (two_ranks / "failure-0").read_text().startswith("FileNotFoundError")
    assert (two_ranks / "failure-1").read_text() == "UserError: rank 1 stops because rank 0 failed"


# ---- the command line under torchrun

PLAIN = (  # what sums in another order change least
    "model.layer.dropout=0.0",
    "model.layer.attention_dropout=0.0",
    "model.layer.activation_dropout=0.0",
    "model.layer.attention_bias=false",
    "model.encoder.depth={type='full'}",
    "model.decoder.depth={type='full'}",
    "training.optimizer.learning_rate=1e-3",
    "training.optimizer.epsilon=1e-4",
    "training.average=1",
    "training.tensorboard=true",
)


def torchrun(*arguments: object) -> "subprocess.CompletedProcess[str]":
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "anydepth"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    given = [sys.executable, *launcher, *map(str, arguments)]
    return subprocess.run(given, env=environment, text=True, capture_output=True, timeout=120)


def test_torchrun(tmp_path: Path) -> None:
    """Two ranks with a batch each, stopped half-way and resumed, are one with two batches."""
    lines = recipe(tmp_path).read_text().split("\n")
    # of several corpora, ranks take from the same one in a step
    recipe(tmp_path).write_text("\n".join(line for line in lines if "more.source" not in line))
    alone = train(config(tmp_path, *PLAIN, "training.accumulate=2"), tmp_path / "alone", quiet=True)
    settings = [flag for change in (*PLAIN, "training.accumulate=1") for flag in ("--set", change)]
    together = tmp_path / "together"
    command = ["train", recipe(tmp_path), "--out", together, *settings]
    for more in (["--set", "training.steps=7"], ["--resume"]):
        result = torchrun(*command, *more)
        assert result.returncode == 0, result.stderr
        assert result.stdout == f"The run is in {together}. Next: anydepth evaluate {together}\n"
    assert "resumed after step 7" in result.stderr

    paths = [run / "checkpoints" / "step-00000012" / "model.safetensors" for run in (alone, together)]
    expected, found = map(load_file, paths)
    assert expected.keys() == found.keys()
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=1e-6)
    steps, losses = zip(*((line["step"], line["loss"]) for line in metrics(together) if line["kind"] == "train"))
    assert steps == tuple(range(1, 13))
    assert losses == pytest.approx([line["loss"] for line in metrics(alone) if line["kind"] == "train"], abs=1e-5)
    for name in ("tokens", "norms"):
        logged = [[line[name] for line in metrics(run) if name in line] for run in (together, alone)]
        assert torch.tensor(logged[0]).numpy() == pytest.approx(torch.tensor(logged[1]).numpy(), abs=1e-5)
    assert len(list((together / "tensorboard").iterdir())) == 2  # one a life, not one a rank
