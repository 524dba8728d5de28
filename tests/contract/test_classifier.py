"""What any classifier has to do, whatever its depth policy."""

import pytest
import torch
from classifiers import LABELS, labelled_batch, tiny_classifier
from conftest import PAD
from torch.nn.functional import kl_div

from anydepth.data.collate import Packing
from anydepth.data.labelled_batch import NO_LABEL, LabelledBatch
from anydepth.depth import DepthConfig
from anydepth.depth.full import FullConfig
from anydepth.depth.layerdrop import LayerDropConfig
from anydepth.depth.prefix import PrefixConfig
from anydepth.depth.recurrent import RecurrentConfig
from anydepth.objectives import ExitGridConfig
from anydepth.objectives.cross_entropy import losses_and_gradient
from anydepth.objectives.single import single
from anydepth.objectives.tasks import encoder_exits

LENGTHS = [5, 1, 7, 3]
POLICIES = [FullConfig(), PrefixConfig(), LayerDropConfig(), RecurrentConfig(depth=6)]


def packed(batch: LabelledBatch, lengths: list[int]) -> LabelledBatch:
    """The same texts one after the other, two words of padding and an empty segment behind them."""
    sizes = [*lengths, 2, 0]
    row = torch.cat([*(text[:size] for text, size in zip(batch.source, lengths)), torch.full((2,), PAD)])[None]
    starts = torch.tensor([0, *sizes]).cumsum(0).int()
    positions = torch.cat([torch.arange(size) for size in sizes])[None]
    labels = torch.cat([batch.target_out, torch.full((2,), NO_LABEL)])
    return batch._replace(source=row, target_out=labels, packing=Packing(starts, max(sizes), positions))


def test_the_head_is_the_papers() -> None:
    model = tiny_classifier(FullConfig(), norm="post")
    batch = labelled_batch(LENGTHS)
    x, sees = model.embed(batch)
    *_, last = model.encoder.states(x, model.plan().encoder, None, sees)
    for text, (states, size) in enumerate(zip(last, LENGTHS)):
        pooled = torch.cat([states[:size].max(0).values, states[:size].mean(0)]).relu()
        expected = pooled @ model.output.weight.T + model.output_bias
        got = model.logits(model(batch, model.plan()))[text]
        assert torch.allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("depth", POLICIES, ids=lambda depth: depth.type)
def test_padded_and_packed_are_one_function(depth: DepthConfig, norm: str) -> None:
    model, batch = tiny_classifier(depth, norm=norm), labelled_batch(LENGTHS)
    for name in model.depths():
        plans = model.plan(name)
        alone = torch.cat([model(labelled_batch(LENGTHS, only=n), plans) for n in range(4)])
        assert torch.allclose(model(batch, plans), alone, atol=1e-5)
        assert torch.allclose(model(packed(batch, LENGTHS), plans)[:4], alone, atol=1e-5)
        losses = [single(model, given, plans).nll for given in (batch, packed(batch, LENGTHS))]
        assert torch.allclose(*losses, atol=1e-4)


def test_exits_trained_at_once_equal_separate_passes() -> None:
    model, batch = tiny_classifier(PrefixConfig()), labelled_batch(LENGTHS)
    (tasks,) = ExitGridConfig().choices(model)
    encoder_exits(model, batch, tasks, 0.1, losses_and_gradient)
    together = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    for plans, weight in tasks:
        (weight * single(model, batch, plans, 0.1).total).backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(together[name], parameter.grad, atol=1e-6), name


def test_the_deepest_exit_learns_from_labels_and_teaches_the_others() -> None:
    model, batch = tiny_classifier(PrefixConfig()), labelled_batch(LENGTHS)
    given = packed(batch, LENGTHS)
    (tasks,) = ExitGridConfig(taught_by="deepest").choices(model)
    encoder_exits(model, given, tasks, 0.1, losses_and_gradient, self_taught=True)
    together = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    *shallower, (deepest, weight) = tasks
    (weight * single(model, batch, deepest, 0.1).total).backward()
    lesson = model.logits(model(batch, deepest)).softmax(-1).detach()
    for plans, weight in shallower:
        divergence = kl_div(model.logits(model(batch, plans)).log_softmax(-1), lesson, reduction="sum")
        (weight * divergence).backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(together[name], parameter.grad, atol=1e-6), name


def test_exits_are_taught_only_when_the_deepest_is_there() -> None:
    with pytest.raises(ValueError, match="the deepest exit has to be in every step"):
        ExitGridConfig(taught_by="deepest", pairs=2)
    ExitGridConfig(taught_by="deepest", pairs=2, always_deepest=True)


def test_a_depth_is_a_number_of_layers() -> None:
    model = tiny_classifier(PrefixConfig(), layers=3)
    assert model.depths() == ["1", "2", "3"]
    assert model.output.weight.shape == (len(LABELS), 2 * 16)


def test_losses_of_deeper_exits_can_weigh_less() -> None:
    model = tiny_classifier(PrefixConfig(), layers=3)
    (tasks,) = ExitGridConfig(decay=True).choices(model)
    assert [len(task.plans.encoder) for task in tasks] == [1, 2, 3]
    assert [task.weight for task in tasks] == pytest.approx([3 / 6, 2 / 6, 1 / 6])
