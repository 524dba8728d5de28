"""A pass replayed as a CUDA graph against the same pass kernel by kernel: losses and gradients."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pytest
import torch
from conftest import PAD

from anydepth.data.collate import Batch, Packing
from anydepth.data.masking import MaskedBatch
from anydepth.depth import DepthConfig
from anydepth.depth.full import FullConfig
from anydepth.depth.latent import LatentConfig
from anydepth.depth.prefix import PrefixConfig
from anydepth.depth.rezero import ReZeroConfig
from anydepth.depth.subnetwork import SubnetworkConfig
from anydepth.encoder_models import MaskedLMConfig
from anydepth.models import BridgeConfig, StackConfig, Translator, TranslatorConfig
from anydepth.nn.bridge import LastStateConfig, TransparentConfig
from anydepth.nn.layers import LayerConfig
from anydepth.nn.multiscale import MultiscaleConfig
from anydepth.objectives import ExitGridConfig, LatentObjectiveConfig, MultitaskConfig, ObjectiveConfig, SingleConfig
from anydepth.objectives.tasks import Task, Tasks
from anydepth.training.distributed import Ranks
from anydepth.training.optim import OptimizerConfig, Optimizers
from anydepth.training.settings import TrainingConfig
from anydepth.training.step import Step

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU"),
    pytest.mark.filterwarnings("default"),  # the compiler's own, which as errors would stop it
]
VOCABULARY = 1000
KEY_BIASES = "qkv.bias", "key_value.bias"
"""That of keys has no gradient: Adam makes steps of its rounding."""
LAST, SINGLE = LastStateConfig(), SingleConfig()


def step_on_gpu(
    depth: DepthConfig,
    bridge: BridgeConfig = LAST,
    masked: bool = False,
    objective: ObjectiveConfig = SINGLE,
    mix: Literal["residual", "dlcl"] = "residual",
) -> Step:
    torch.manual_seed(0)
    layer = LayerConfig(width=128, ffn=256, heads=4, dropout=0.0)
    decoder = StackConfig(layers=4, depth=depth, mix=mix)
    encoder = decoder if bridge == LAST else StackConfig(layers=8)
    translator = TranslatorConfig(layer=layer, encoder=encoder, decoder=decoder, bridge=bridge)
    config = MaskedLMConfig(layer=layer, encoder=encoder) if masked else translator
    model = config.build(VOCABULARY, VOCABULARY, PAD).cuda()
    optimizer = OptimizerConfig(type="adamw", learning_rate=1e-3, warmup=10)
    settings = TrainingConfig(optimizer=optimizer, objective=objective)
    return Step(model, Optimizers(model, optimizer), settings, 1, Ranks(0, 1, torch.device("cuda")))


def batch(seed: int, count: int = 32, length: int = 16) -> Batch:
    words = torch.Generator().manual_seed(seed)
    source, target = (torch.randint(4, VOCABULARY, (1, count * length), generator=words).cuda() for _ in range(2))
    starts = torch.arange(0, count * length + 1, length, dtype=torch.int32).cuda()
    packing = Packing(starts, 64, torch.arange(length).repeat(count)[None].cuda())
    return Batch(
        source=source, target_in=target.roll(1), target_out=target, source_packing=packing, target_packing=packing,
        key="", tokens=count * length, sentences=count,
    )  # fmt: skip


def masked_batch(seed: int) -> MaskedBatch:
    """As many sentences; the number of hidden words differs, that of slots does not."""
    words, given = torch.Generator().manual_seed(seed), batch(seed)
    size, hidden = given.source.shape[1], 60 + seed
    slots = torch.cat([torch.randperm(size, generator=words)[:hidden], torch.zeros(80 - hidden, dtype=torch.long)])
    answers = torch.randint(4, VOCABULARY, (80,), generator=words)
    answers[hidden:] = PAD
    return MaskedBatch(
        source=given.source, slots=slots.cuda(), target_out=answers.cuda(), packing=given.source_packing,
        key="", tokens=size, sentences=given.sentences, predictions=hidden,
    )  # fmt: skip


def draws(seed: int) -> tuple[torch.Generator, torch.Generator]:
    return torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed + 1000)


def gradients(model: Translator) -> dict[str, torch.Tensor | None]:
    found = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    return found


@pytest.mark.parametrize(
    ("depth", "sets"),
    [
        (FullConfig(), lambda model: [(Task(model.plan(), 1.0),)]),
        (ReZeroConfig(), lambda model: [(Task(model.plan(), 1.0),)]),
        (LatentConfig(), lambda model: [(Task(model.sample("", *draws(0)), 1.0),)] * 3),
        (PrefixConfig(), lambda model: [(Task(model.plan(name), 1.0),) for name in ("4-4", "1-2", "3-1", "4-4")]),
        (PrefixConfig(), ExitGridConfig().choices),
        (PrefixConfig(), ExitGridConfig(pairs=4).choices),
        (SubnetworkConfig(), MultitaskConfig(encoder_depths=2, decoder_depths=2).choices),
    ],
)
def test_replayed_equals_kernel_by_kernel(depth: DepthConfig, sets) -> None:  # type: ignore[no-untyped-def]
    step = step_on_gpu(depth)
    compare(step, sets(step.model), batch)


def test_mixtures_of_layers_are_replayed_too() -> None:
    step = step_on_gpu(FullConfig(), mix="dlcl")
    compare(step, [(Task(step.model.plan(), 1.0),)] * 3, batch)


@pytest.mark.parametrize(
    "bridge",
    [MultiscaleConfig(), MultiscaleConfig(context="ffn", fusion="add"), TransparentConfig(dropout=0.0)],
    ids=str,
)
def test_bridges_are_replayed_too(bridge: BridgeConfig) -> None:
    step = step_on_gpu(PrefixConfig(), bridge)
    compare(step, [(Task(step.model.plan(name), 1.0),) for name in ("8-4", "8-2")], batch)
    compare(step, ExitGridConfig().choices(step.model), batch)


@pytest.mark.parametrize(
    ("depth", "sets"),
    [
        (FullConfig(), lambda model: [(Task(model.plan(), 1.0),)] * 3),
        (LatentConfig(), lambda model: [(Task(model.sample("", *draws(0)), 1.0),)] * 3),
        (PrefixConfig(), lambda model: [(Task(model.plan(name), 1.0),) for name in ("4", "1", "4")]),
        (PrefixConfig(), ExitGridConfig().choices),
    ],
)
def test_masked_language_models_are_replayed_too(depth: DepthConfig, sets) -> None:  # type: ignore[no-untyped-def]
    step = step_on_gpu(depth, masked=True)
    compare(step, sets(step.model), masked_batch)


def compare(step: Step, seen: list[Tasks], make: Callable[[int], Batch | MaskedBatch]) -> None:
    assert step.graphs is not None
    for number, tasks in enumerate([*seen, *seen[:2]]):  # some a second time, when others have been recorded
        given = make(number)._replace(noise=step.model.noise(number + 1, *draws(number)))
        replayed, by_graph = step.graphs(given, tasks, alone=True), gradients(step.model)
        total = float(replayed.total)
        plain, by_kernel = step.run(given, tasks), gradients(step.model)
        assert total == pytest.approx(float(plain.total), rel=1e-3)
        for name, gradient in by_graph.items():
            other = by_kernel[name]
            assert (gradient is None) == (other is None), name
            if gradient is not None:
                # while recording, cuBLAS chooses other algorithms, which round in bfloat16: 2.8 % was seen; what all
                # keys have in common has no gradient but that of rounding: 1.5e-3 was seen
                least = 3e-3 if name.endswith("key_norm.bias") else 1e-3
                assert float((gradient - other).norm()) <= 0.05 * float(other.norm()) + least, name


def test_batches_of_a_step_add_up() -> None:
    step = step_on_gpu(PrefixConfig())
    assert step.graphs is not None
    tasks = (Task(step.model.plan("2-2"), 1.0),)
    for number in (1, 2):
        step.graphs(batch(number), tasks, alone=False)
    added = gradients(step.model)
    for number in (1, 2):
        step.run(batch(number), tasks)
    for name, gradient in gradients(step.model).items():
        assert (gradient is None) == (added[name] is None)
        if gradient is not None:
            assert float((gradient - added[name]).norm()) <= 0.02 * float(gradient.norm()) + 1e-3, name


def test_languages_computed_as_one_are_replayed_too() -> None:
    """Against those computed one by one: two of three languages at once, then all."""
    depth, objective = LatentConfig(per="pair", keys=("a", "b", "c")), LatentObjectiveConfig(decoder_layers=2)
    for languages in ("ab", "abc"):
        joined, apart = (step_on_gpu(depth, objective=objective) for _ in range(2))
        joined.settings = replace(joined.settings, accumulate=len(languages), at_once=len(languages))
        for number in range(1, 4):
            batches = [batch(number)._replace(key=key) for key in languages]
            losses = [float(step(number, batches).loss) for step in (joined, apart)]
            assert losses[0] == pytest.approx(losses[1], rel=1e-3)
        assert joined.graphs is not None
        assert [keys for _, keys in joined.graphs.recorded] == [tuple(languages)]
        for (name, one), other in zip(joined.model.named_parameters(), apart.model.parameters()):
            if not name.endswith(KEY_BIASES):
                assert float((one.detach() - other.detach()).norm()) <= 0.02 * float(other.norm()) + 1e-3, name


def test_steps_with_terms_of_their_own_are_replayed_too() -> None:
    """The terms of latent depth hold the logits that the recorded pass holds as well."""
    objective = LatentObjectiveConfig(encoder_layers=2, decoder_layers=2)
    recorded, plain = (step_on_gpu(LatentConfig(), objective=objective) for _ in range(2))
    plain.graphs = None
    for number in range(1, 5):
        losses = [float(step(number, [batch(number), batch(number + 10)]).loss) for step in (recorded, plain)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert recorded.graphs is not None
    assert len(recorded.graphs.recorded) == 1
    for (name, one), other in zip(recorded.model.named_parameters(), plain.model.parameters()):
        if not name.endswith(KEY_BIASES):
            assert float((one.detach() - other.detach()).norm()) <= 0.02 * float(other.norm()) + 1e-3, name
