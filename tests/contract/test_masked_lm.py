"""Masked language models with every depth policy: a new one is tested by being there."""

import typing

import pytest
import torch
import torch.nn.functional as F
from conftest import PAD
from masked_models import VOCABULARY, masked_batch, tiny_masked_lm

from anydepth.config import Config
from anydepth.data.builtin_corpora import BuiltinText
from anydepth.data.collate import Packing
from anydepth.data.corpora import DataConfig
from anydepth.data.masking import MaskedBatch
from anydepth.depth import DepthConfig
from anydepth.depth.latent import LatentConfig
from anydepth.depth.perword import PerWordConfig
from anydepth.depth.prefix import PrefixConfig
from anydepth.depth.recurrent import RecurrentConfig
from anydepth.depth.subnetwork import SubnetworkConfig
from anydepth.encoder_models import MaskedLM
from anydepth.errors import UserError
from anydepth.interop.extract import extracted
from anydepth.objectives import ExitGridConfig, MultitaskConfig
from anydepth.objectives.cross_entropy import cross_entropy, losses_and_gradient
from anydepth.objectives.single import single
from anydepth.objectives.tasks import Tasks, encoder_exits
from anydepth.run import Run
from anydepth.training.checkpoint import load_weights, weights

CONFIGS = [kind() for kind in typing.get_args(DepthConfig) if kind is not PerWordConfig]  # that is for classifiers
CONFIGS += [LatentConfig(inference="soft"), LatentConfig(inference="sample")]
BATCH = masked_batch([5, 3, 7])

each_policy = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.type)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def packed(batch: MaskedBatch) -> MaskedBatch:
    """The sentences of a padded batch one after the other, with two words of padding at the end."""
    lengths = [*(batch.source != PAD).sum(1).tolist(), 2]
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    row = torch.cat([batch.source[batch.source != PAD], torch.full((2,), PAD)])[None]
    width = batch.source.shape[1]
    moved = [int(starts[slot // width]) + slot % width for slot in batch.slots.tolist()]
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    return batch._replace(source=row, slots=torch.tensor(moved), packing=Packing(starts, max(lengths), positions))


@each_policy
def test_a_depth_is_one_number(config: DepthConfig) -> None:
    model = tiny_masked_lm(config)
    assert model.depths() == [str(depth) for depth in sorted(model.encoder_depth.plans())]
    for name in model.depths():
        assert model.plan(name).name == name
    with pytest.raises(UserError, match="no decoder; expected encoder layers, for example 6"):
        model.plan("2-2")


@each_policy
def test_a_layer_not_in_the_plan_is_not_computed(config: DepthConfig) -> None:
    model, calls = tiny_masked_lm(config), list[int]()
    for number, layer in enumerate(model.encoder.layers):
        layer.register_forward_hook(lambda *_, number=number: calls.append(number))
    for name in model.depths():
        calls.clear()
        model(BATCH, model.plan(name))
        assert tuple(calls) == model.plan(name).encoder.layers


@each_policy
def test_neither_the_batch_nor_its_layout_matters(config: DepthConfig) -> None:
    model = tiny_masked_lm(config).double()
    for name in model.depths():
        plans = model.plan(name)
        together = model(BATCH, plans)
        for row, length in enumerate((5, 3, 7)):
            alone = BATCH._replace(source=BATCH.source[row : row + 1, :length], slots=torch.tensor([0, 2]))
            assert torch.allclose(model(alone, plans), together[2 * row : 2 * row + 2], atol=1e-10)
        if getattr(config, "inference", "") != "sample":  # which draws for each row
            assert torch.allclose(model(packed(BATCH), plans), together, atol=1e-10)


@each_policy
def test_gradients_reach_the_policy(config: DepthConfig) -> None:
    model = tiny_masked_lm(config, layers=2).double()
    own = list(model.encoder_depth.parameters())
    if not own:
        pytest.skip("this policy learns nothing")
    batch = masked_batch([3])._replace(noise=model.noise(1, generator(1), generator(2)))
    plans = model.sample("", generator(1), generator(2))
    weight = torch.randn(16, dtype=torch.double)  # a plain sum does not change: the head ends with a norm

    def total(*_: torch.Tensor) -> torch.Tensor:
        return (model(batch, plans) * weight).sum()

    assert torch.autograd.gradcheck(total, own)
    for gradient in torch.autograd.grad(total(), own):
        assert bool((gradient != 0).all())


@each_policy
def test_weights_round_trip(config: DepthConfig) -> None:
    one, other = tiny_masked_lm(config), tiny_masked_lm(config)
    load_weights(other, {name: value.clone() for name, value in weights(one).items()})
    for name in one.depths():
        assert torch.equal(one(BATCH, one.plan(name)), other(BATCH, other.plan(name)))


@each_policy
def test_an_extracted_model_computes_what_the_large_one_does_at_that_depth(config: DepthConfig) -> None:
    model = tiny_masked_lm(config)
    data = DataConfig(train=(BuiltinText(),))
    run = Run(Config(model=model.config, data=data), model, tokenizers=None)  # type: ignore[arg-type]
    for name in model.depths():
        smaller_config, tensors = extracted(run, model.plan(name))
        smaller = smaller_config.model.build(VOCABULARY, VOCABULARY, PAD).eval()
        load_weights(smaller, tensors)
        assert smaller.depths()[-1] == name
        assert torch.equal(smaller(BATCH, smaller.plan()), model(BATCH, model.plan(name)))


def test_dlcl_mixes_the_states_of_all_layers() -> None:
    model = tiny_masked_lm(mix="dlcl").double()
    loss = single(model, BATCH, model.plan()).total
    loss.backward()
    assert model.encoder.mix is not None
    assert all(bool((weight.grad != 0).all()) for weight in model.encoder.mix.weights)


# ---- the loss


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_that_of_the_slots_through_the_head(smoothing: float) -> None:
    """Against the head applied to every word, and PyTorch's cross-entropy."""
    model = tiny_masked_lm().double()
    loss = single(model, BATCH, model.plan(), smoothing)
    found = torch.autograd.grad(loss.total, list(model.parameters()))
    everywhere = torch.full(BATCH.source.shape, PAD).flatten()
    everywhere[BATCH.slots[:-1]] = BATCH.target_out[:-1]
    states = model(BATCH._replace(slots=torch.arange(BATCH.source.numel())), model.plan())
    logits = F.linear(states, model.source.words.weight, model.output_bias)
    wanted = F.cross_entropy(logits, everywhere, ignore_index=PAD, label_smoothing=smoothing, reduction="sum")
    assert float(loss.total.detach()) == pytest.approx(float(wanted.detach()))
    for one, other in zip(found, torch.autograd.grad(wanted, list(model.parameters()))):
        assert torch.allclose(one, other, atol=1e-9)


def test_slices_of_the_words_do_not_matter_to_the_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    states, output = (torch.randn(size, 8, dtype=torch.double) for size in (9, 23))
    bias, words = torch.randn(23, dtype=torch.double, requires_grad=True), torch.randint(1, 23, (9,))
    (whole,) = torch.autograd.grad(cross_entropy(states, output, words, 0, bias=bias).total, bias)
    monkeypatch.setattr("anydepth.objectives.cross_entropy.SLICE", 60)
    (parts,) = torch.autograd.grad(cross_entropy(states, output, words, 0, bias=bias).total, bias)
    assert torch.allclose(whole, parts)


def gradients(model: MaskedLM) -> dict[str, torch.Tensor | None]:
    found = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    return found


def one_by_one(model: MaskedLM, tasks: Tasks) -> float:
    total = 0.0
    for plans, weight in tasks:
        loss = weight * single(model, BATCH, plans, 0.1).total
        loss.backward()
        total += float(loss.detach())
    return total


@pytest.mark.parametrize("depth", [PrefixConfig(), SubnetworkConfig(), RecurrentConfig(depth=5)], ids=lambda d: d.type)
@pytest.mark.parametrize("objective", [ExitGridConfig(), MultitaskConfig()], ids=lambda o: o.type)
def test_all_exits_at_once_equal_separate_runs(depth: DepthConfig, objective: ExitGridConfig | MultitaskConfig) -> None:
    model = tiny_masked_lm(depth).double()
    (tasks,) = objective.choices(model)
    assert [task.plans.name for task in tasks] == model.depths()
    loss = encoder_exits(model, BATCH, tasks, 0.1, losses_and_gradient)
    found, total = gradients(model), one_by_one(model, tasks)
    assert float(loss.total) * sum(weight for _, weight in tasks) == pytest.approx(total, rel=1e-10)
    for name, gradient in gradients(model).items():
        assert gradient is not None, name
        assert torch.allclose(gradient, found[name], atol=1e-9), name


def test_exits_share_the_layers_before_them() -> None:
    model, calls = tiny_masked_lm(PrefixConfig()), list[int]()
    for number, layer in enumerate(model.encoder.layers):
        layer.register_forward_hook(lambda *_, number=number: calls.append(number))
    (tasks,) = ExitGridConfig().choices(model)
    encoder_exits(model, BATCH, tasks, 0.0, losses_and_gradient)
    assert calls == [0, 1, 2, 3]
