"""What a training costs, counted: against PyTorch's own count of what a step really computes."""

from dataclasses import replace

import pytest
import torch
from conftest import FULL, random_batch, tiny_translator
from masked_models import masked_batch, tiny_masked_lm
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from anydepth.config import loads
from anydepth.depth import DepthConfig
from anydepth.depth.layerdrop import LayerDropConfig
from anydepth.depth.prefix import PrefixConfig
from anydepth.depth.recurrent import RecurrentConfig
from anydepth.depth.rezero import ReZeroConfig
from anydepth.depth.subnetwork import SubnetworkConfig
from anydepth.describe import describe
from anydepth.models import BridgeConfig, StackConfig, Translator, TranslatorConfig
from anydepth.nn.bridge import TransparentConfig
from anydepth.nn.layers import LayerConfig
from anydepth.nn.multiscale import MultiscaleConfig
from anydepth.objectives import ExitGridConfig, MultitaskConfig, ObjectiveConfig, SingleConfig
from anydepth.objectives.tasks import Task, Tasks
from anydepth.plan import Request
from anydepth.training.cost import mean_work, tokens_trained, training_flops
from anydepth.training.distributed import Ranks
from anydepth.training.optim import Optimizers
from anydepth.training.settings import TrainingConfig
from anydepth.training.step import Step

SENTENCES, SOURCE, TARGET = 3, 5, 7
BATCH = random_batch([(SOURCE, TARGET)] * SENTENCES)


def counted(model: Translator, tasks: Tasks, recompute: bool = False, objective: ObjectiveConfig | None = None) -> int:
    """FLOPs of a training step's forward and backward pass over the batch, as PyTorch counts them."""
    settings = TrainingConfig(
        device="cpu", precision="fp32", recompute=recompute, objective=objective or SingleConfig()
    )
    for layer in (*model.encoder.layers, *model.decoder.layers):
        layer.dropout = 0.1  # without it PyTorch does not compute the last product of a layer again
    step = Step(model.train(), Optimizers(model, settings.optimizer), settings, 1, Ranks(0, 1, torch.device("cpu")))
    # the other kernels would hide their products from the counter, or be counted as computing some of them twice
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        step.run(BATCH, tasks)
    return counter.get_total_flops()


def expected(model: Translator, objective: ObjectiveConfig, recompute: bool = False) -> float:
    settings = TrainingConfig(objective=objective, recompute=recompute)
    return SENTENCES * training_flops(settings, model, SOURCE, TARGET)


@pytest.mark.parametrize("depth", [FULL, ReZeroConfig(), RecurrentConfig(depth=5)], ids=lambda depth: depth.type)
@pytest.mark.parametrize("recompute", [False, True])
def test_one_plan(depth: DepthConfig, recompute: bool) -> None:
    model = tiny_translator(depth, layers=3)
    tasks = (Task(model.plan(), 1.0),)
    assert counted(model, tasks, recompute) == expected(model, SingleConfig(), recompute)


BRIDGES = [
    TransparentConfig(),
    MultiscaleConfig(blocks=(1, 2, 1)),
    MultiscaleConfig(blocks=(1, 2, 1), context="none"),
    MultiscaleConfig(blocks=(1, 2, 1), context="ffn", decoder_context=False),
]


@pytest.mark.parametrize("bridge", BRIDGES, ids=str)
@pytest.mark.parametrize("objective", [SingleConfig(), ExitGridConfig()], ids=lambda objective: objective.type)
def test_bridges_and_the_blocks_they_leave_out(bridge: BridgeConfig, objective: ObjectiveConfig) -> None:
    layer = LayerConfig(width=16, ffn=24, heads=2)
    stacks = {"encoder": StackConfig(layers=4), "decoder": StackConfig(layers=3, depth=PrefixConfig())}
    model = Translator(TranslatorConfig(layer=layer, bridge=bridge, **stacks), 23, 23, 0)
    draws = [(Task(model.plan(name), 1.0),) for name in model.depths()]
    choices = draws if isinstance(objective, SingleConfig) else objective.choices(model)
    mean = sum(counted(model, tasks) for tasks in choices) / len(choices)
    assert mean == pytest.approx(expected(model, objective), rel=1e-12)


@pytest.mark.parametrize("depth", [PrefixConfig(), SubnetworkConfig(), RecurrentConfig(depth=5)], ids=lambda d: d.type)
@pytest.mark.parametrize(
    "objective",
    [
        ExitGridConfig(),
        ExitGridConfig(pairs=3, always_deepest=True),
        ExitGridConfig(taught_by="deepest"),
        ExitGridConfig(taught_by="deepest", pairs=4, always_deepest=True),
        MultitaskConfig(),
        MultitaskConfig(encoder_depths=2, decoder_depths=1),
    ],
    ids=str,
)
def test_several_tasks_and_what_they_share(depth: DepthConfig, objective: ExitGridConfig | MultitaskConfig) -> None:
    model = tiny_translator(depth, layers=3 if depth.type == "prefix" else 4)
    choices = objective.choices(model)
    mean = sum(counted(model, tasks, objective=objective) for tasks in choices) / len(choices)
    assert mean == pytest.approx(expected(model, objective), rel=1e-12)


@pytest.mark.parametrize(
    "objective",
    [SingleConfig(), ExitGridConfig(), ExitGridConfig(taught_by="deepest"), MultitaskConfig(encoder_depths=2)],
    ids=str,
)
def test_without_a_decoder(objective: ObjectiveConfig) -> None:
    """Two of six words are hidden, so that the head has two thirds less to do than the layers."""
    model = tiny_masked_lm(PrefixConfig(sample="full"), layers=3)
    masking = replace(model.config.masking, share=1 / 3)
    model.config = replace(model.config, masking=masking)
    batch = masked_batch([6] * 3)
    batch = batch._replace(slots=batch.slots[:-1], target_out=batch.target_out[:-1])
    settings = TrainingConfig(device="cpu", precision="fp32", objective=objective)
    step = Step(model.train(), Optimizers(model, settings.optimizer), settings, 1, Ranks(0, 1, torch.device("cpu")))
    choices = [(Task(model.plan(), 1.0),)] if isinstance(objective, SingleConfig) else objective.choices(model)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        for tasks in choices:
            step.run(batch, tasks)
    assert counter.get_total_flops() / len(choices) == pytest.approx(3 * training_flops(settings, model, 6, 6))


def test_several_tasks_computed_again() -> None:
    model = tiny_translator(PrefixConfig(), layers=2)
    (tasks,) = MultitaskConfig().choices(model)
    assert counted(model, tasks, recompute=True) == expected(model, MultitaskConfig(), recompute=True)


@pytest.mark.parametrize(
    "depth", [PrefixConfig(), SubnetworkConfig(), RecurrentConfig(depth=5, sample="uniform")], ids=lambda d: d.type
)
def test_a_depth_drawn_each_step(depth: DepthConfig) -> None:
    model = tiny_translator(depth)
    each = [counted(model, (Task(model.plan(name), 1.0),)) for name in model.depths()]
    assert sum(each) / len(each) == pytest.approx(expected(model, SingleConfig()), rel=1e-12)


def test_layerdrop_costs_its_expected_layers() -> None:
    model, plain = tiny_translator(LayerDropConfig(drop=0.25)), tiny_translator(FULL, layers=3)
    assert (
        expected(model, SingleConfig()) == expected(plain, SingleConfig()) == counted(plain, (Task(plain.plan(), 1),))
    )


@pytest.mark.parametrize(
    "depth",
    [FULL, PrefixConfig(), SubnetworkConfig(), RecurrentConfig(depth=5, sample="uniform"), LayerDropConfig(drop=0.3)],
    ids=lambda depth: depth.type,
)
def test_mean_steps_are_those_of_the_draws(depth: DepthConfig) -> None:
    policy, generator = depth.build(6), torch.Generator().manual_seed(1)
    drawn = [len(policy.sample(Request(), generator)) for _ in range(2000)]
    assert sum(drawn) / len(drawn) == pytest.approx(policy.mean_steps(), rel=0.03)


def test_tied_multi_and_flexible_depth_by_hand() -> None:
    """Tied-multi 6×6: the encoder once, of 36 decoder layers the first one's self-attention once instead of 6 times.
    Flexible depth 12-6: 28 and 12 layers in the sub-networks of the stacks, of which 3 and 1 are shared beginnings."""
    grid = tiny_translator(PrefixConfig(), layers=6)
    assert mean_work(TrainingConfig(objective=ExitGridConfig()), grid) == (6, 31, 36, 36, 0, 0)
    stacks = "\n".join(
        f"[model.{name}]\nlayers = {layers}\ndepth = {{ type = 'subnetwork' }}"
        for name, layers in (("encoder", 12), ("decoder", 6))
    )
    with torch.device("meta"):
        flexible = Translator(loads(stacks).model, 10, 10, 0)
    encoder, _, finished, exits, *_ = mean_work(TrainingConfig(objective=MultitaskConfig()), flexible)
    assert (encoder, finished, exits) == (28 - 3, 6 * (12 - 1), 24)


# ---- the words of a training


def line(step: int, seconds: float, tokens_per_second: float) -> dict[str, float]:
    return {"step": step, "seconds": seconds, "tokens_per_second": tokens_per_second}


def test_tokens_of_a_log_by_hand() -> None:
    lines = [line(10, 2.0, 500.0), line(20, 6.0, 250.0)]  # 1000 + 1000 tokens
    assert tokens_trained(lines, 20) == 2000
    assert tokens_trained(lines, 25) == 2500  # the last steps were not logged
    counted = [line | {"tokens": tokens} for line, tokens in zip(lines, (990, 2010))]
    assert tokens_trained(counted, 20) == 2010


def test_a_recipe_gives_an_upper_bound() -> None:
    config = loads("[training]\nsteps = 10\naccumulate = 3\n[batching]\ntokens = 100\n")
    planned = describe(config)
    assert planned["training"]["target_tokens"] == 3000
    assert planned["training"]["bound"]
    assert planned["training"]["seconds"] is None
    each = planned["training"]["flops_per_target_token"]
    assert planned["training_flops"] == pytest.approx(3000 * each)
    (plan,) = planned["plans"]
    # what the weights cost there, and attention on top of it
    assert 3 * plan["flops"] / 30 < each < 3.2 * plan["flops"] / 30
    assert "at most" in planned["training"]["counted"]
