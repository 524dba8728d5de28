"""Weights rounded to bfloat16 once a step against autocast, which rounds them where they are used."""

import pytest
import torch
from conftest import PAD, random_batch

from anydepth.data.collate import Batch
from anydepth.depth.prefix import PrefixConfig
from anydepth.models import BridgeConfig, StackConfig, Translator, TranslatorConfig
from anydepth.nn.bridge import LastStateConfig
from anydepth.nn.layers import LayerConfig
from anydepth.nn.multiscale import MultiscaleConfig
from anydepth.objectives import ExitGridConfig, MultitaskConfig, ObjectiveConfig, SingleConfig
from anydepth.objectives.tasks import Task
from anydepth.plan import Plan, Plans
from anydepth.training.distributed import Ranks
from anydepth.training.optim import OptimizerConfig, Optimizers
from anydepth.training.rounded import Rounded
from anydepth.training.settings import TrainingConfig
from anydepth.training.step import Step, used_once

VOCABULARY = 30


def step_in(precision: str, bridge: BridgeConfig, objective: ObjectiveConfig) -> Step:
    torch.manual_seed(0)
    layer = LayerConfig(width=16, ffn=32, heads=2, dropout=0.0)
    encoder = StackConfig(layers=4, depth=PrefixConfig()) if bridge == LastStateConfig() else StackConfig(layers=4)
    decoder = StackConfig(layers=2, depth=PrefixConfig())
    config = TranslatorConfig(layer=layer, encoder=encoder, decoder=decoder, bridge=bridge)
    model = config.build(VOCABULARY, VOCABULARY, PAD)
    optimizer = OptimizerConfig(type="adamw", learning_rate=1e-2, warmup=0)
    settings = TrainingConfig(optimizer=optimizer, objective=objective, precision=precision)  # type: ignore[arg-type]
    return Step(model, Optimizers(model, optimizer), settings, 1, Ranks(0, 1, torch.device("cpu")))


def batches() -> list[Batch]:
    return [random_batch([(5, 4), (3, 6)]), random_batch([(2, 7), (4, 1), (6, 3)])]


@pytest.mark.parametrize(
    ("bridge", "objective"),
    [
        (LastStateConfig(), SingleConfig()),
        (LastStateConfig(), ExitGridConfig(pairs=3)),
        (LastStateConfig(), MultitaskConfig(encoder_depths=2, decoder_depths=2)),
        (MultiscaleConfig(), SingleConfig()),
        (MultiscaleConfig(context="none"), SingleConfig()),
    ],
    ids=["plain", "exits", "tasks", "multiscale", "blocks"],
)
def test_three_steps_end_with_the_same_bits(bridge: BridgeConfig, objective: ObjectiveConfig) -> None:
    rounded, autocast = (step_in("bf16", bridge, objective) for _ in range(2))
    autocast.rounded = Rounded(autocast.model, wanted=False)
    before = [weight.detach().clone() for weight in rounded.model.parameters()]
    for number in range(1, 4):
        losses = [float(step(number, batches()).loss) for step in (rounded, autocast)]
        assert losses[0] == losses[1]
    for (name, one), other, first in zip(rounded.model.named_parameters(), autocast.model.parameters(), before):
        assert one.dtype == torch.float32
        assert torch.equal(one, other), name
        assert not torch.equal(one, first) or "gate" in name, name


def test_layers_have_their_rounded_weights_inside_only() -> None:
    step = step_in("bf16", LastStateConfig(), SingleConfig())
    assert isinstance(step.model, Translator)
    model = step.model
    names = {name for name, weight in model.named_parameters() if weight.dtype == torch.float32}
    with step.rounded:
        rounded = {name for name, weight in model.named_parameters() if weight.dtype == torch.bfloat16}
    assert rounded == {name for name in names if "layers" in name and "norm" not in name}
    assert {name for name, weight in model.named_parameters() if weight.dtype == torch.float32} == names
    assert not step_in("fp32", LastStateConfig(), SingleConfig()).rounded.copies


def test_weights_used_twice_are_left_to_autocast() -> None:
    """Gradients of a copy would be added up in bfloat16."""
    once, twice = Plan((0, 1)), Plan((0, 0))
    assert used_once((Task(Plans(once, once), 1.0),))
    assert not used_once((Task(Plans(once, twice), 1.0),))
    assert not used_once((Task(Plans(once, once), 1.0), Task(Plans(once, Plan((0,))), 1.0)))
