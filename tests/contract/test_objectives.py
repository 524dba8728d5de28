"""Training several depths at once against training them one by one: values and gradients."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from conftest import FULL, packed_batch, random_batch, tiny_translator

from anydepth.data.collate import Batch
from anydepth.depth import DepthConfig
from anydepth.depth.prefix import PrefixConfig
from anydepth.depth.recurrent import RecurrentConfig
from anydepth.depth.rezero import ReZeroConfig
from anydepth.depth.subnetwork import SubnetworkConfig
from anydepth.errors import UserError
from anydepth.models import Translator
from anydepth.objectives import ExitGridConfig, MultitaskConfig, SingleConfig, cross_entropy
from anydepth.objectives.cross_entropy import losses_and_gradient
from anydepth.objectives.single import single
from anydepth.objectives.tasks import SharedPass, Task, Tasks, tree
from anydepth.plan import Plan

BATCH = random_batch([(5, 6), (2, 4), (7, 3)])
SMOOTHING = 0.1

Gradients = dict[str, torch.Tensor | None]


def gradients(model: Translator) -> Gradients:
    found = {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    return found


def together(model: Translator, tasks: Tasks, batch: Batch = BATCH, exits_at_once: int = 1) -> tuple[float, Gradients]:
    loss = SharedPass(model, batch, SMOOTHING, losses_and_gradient, exits_at_once).backward(tasks)
    return float(loss.total) * sum(weight for _, weight in tasks), gradients(model)


def one_by_one(model: Translator, tasks: Tasks) -> tuple[float, Gradients]:
    total = 0.0
    for plans, weight in tasks:
        loss = weight * single(model, BATCH, plans, SMOOTHING).total
        loss.backward()
        total += float(loss.detach())
    return total, gradients(model)


def assert_same(one: tuple[float, Gradients], other: tuple[float, Gradients]) -> None:
    assert one[0] == pytest.approx(other[0], rel=1e-10)
    for name, gradient in one[1].items():
        if gradient is None:
            assert other[1][name] is None, name
        else:
            assert torch.allclose(gradient, other[1][name], atol=1e-9), name


@pytest.mark.parametrize(
    "depth",
    [PrefixConfig(), PrefixConfig(exits=(2,)), SubnetworkConfig(), RecurrentConfig(depth=5)],
    ids=lambda d: d.type,
)
@pytest.mark.parametrize("objective", [ExitGridConfig(), MultitaskConfig()], ids=lambda o: o.type)
def test_all_tasks_at_once_equal_separate_runs(depth: DepthConfig, objective: ExitGridConfig | MultitaskConfig) -> None:
    model = tiny_translator(depth).double()
    (tasks,) = objective.choices(model)
    assert len(tasks) == len(model.depths())
    assert_same(together(model, tasks), one_by_one(model, tasks))


@pytest.mark.parametrize("batch", [BATCH, packed_batch([(5, 6), (2, 4), (7, 3)])], ids=["padded", "packed"])
@pytest.mark.parametrize("at_once", [2, 3, 8])
def test_stacked_encoder_exits_equal_one_after_the_other(batch: Batch, at_once: int) -> None:
    model = tiny_translator(SubnetworkConfig()).double()
    every, some = MultitaskConfig().choices(model)[0], ExitGridConfig(pairs=5).choices(model)[2]
    for tasks in (every, some):
        assert_same(together(model, tasks, batch, at_once), together(model, tasks, batch))


@pytest.mark.parametrize("at_once", [1, 3])
@pytest.mark.parametrize("pairs", [0, 5])
@pytest.mark.parametrize("depth", [PrefixConfig(), SubnetworkConfig(), RecurrentConfig(depth=5)], ids=lambda d: d.type)
def test_the_deepest_pair_learns_from_words_and_teaches_the_others(
    depth: DepthConfig, pairs: int, at_once: int
) -> None:
    model = tiny_translator(depth).double()
    tasks = ExitGridConfig(taught_by="deepest", pairs=pairs, always_deepest=True).choices(model)[0]
    *others, (deepest, weight) = tasks
    assert deepest == model.plan()
    loss = SharedPass(model, BATCH, SMOOTHING, losses_and_gradient, at_once, self_taught=True).backward(tasks)
    found = float(loss.total) * sum(weight for _, weight in tasks), gradients(model)
    first = weight * single(model, BATCH, deepest, SMOOTHING).total
    first.backward()
    total, lesson = float(first.detach()), model.logits(model(BATCH, deepest)).softmax(-1).detach()
    for plans, weight in others:
        log_probabilities = model.logits(model(BATCH, plans)).log_softmax(-1)
        loss = -weight * (lesson * log_probabilities).sum(-1)[BATCH.target_out != model.pad].sum()
        loss.backward()
        total += float(loss.detach())
    assert_same(found, (total, gradients(model)))


def test_gates_get_their_gradients_too() -> None:
    model = tiny_translator(ReZeroConfig()).double()
    (tasks,) = ExitGridConfig().choices(model)
    assert_same(together(model, tasks), one_by_one(model, tasks))
    assert len(tasks) == 1


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_deepest_exit_alone_is_the_plain_loss(norm: str) -> None:
    model = tiny_translator(PrefixConfig(), norm=norm).double()
    deepest = (Task(model.plan(), 1.0),)
    plain = tiny_translator(FULL, norm=norm).double()
    plain.load_state_dict(model.state_dict())
    assert_same(together(model, deepest), one_by_one(plain, (Task(plain.plan(), 1.0),)))


def test_a_layer_in_no_task_gets_no_gradient() -> None:
    model = tiny_translator(PrefixConfig()).double()
    _, found = together(model, (Task(model.plan("2-1"), 1.0), Task(model.plan("1-2"), 0.5)))
    for name, gradient in found.items():
        used = not any(part in name for part in ("layers.2.", "layers.3."))
        assert (gradient is not None) == used, name


def test_the_weights_of_the_grid_are_a_mean_and_those_of_multitask_a_sum() -> None:
    model = tiny_translator(PrefixConfig())
    (grid,), (tasks,) = ExitGridConfig(deepest=3).choices(model), MultitaskConfig().choices(model)
    assert sum(weight for _, weight in grid) == pytest.approx(1)
    assert grid[-1].plans.name == "4-4"
    assert grid[-1].weight == pytest.approx(3 * grid[0].weight)
    assert {weight for _, weight in tasks} == {1.0}


@pytest.mark.parametrize(
    "objective",
    [
        ExitGridConfig(pairs=4),
        ExitGridConfig(pairs=5),
        ExitGridConfig(pairs=1, deepest=2),
        ExitGridConfig(pairs=4, always_deepest=True),
        MultitaskConfig(encoder_depths=2, decoder_depths=1),
        MultitaskConfig(decoder_depths=2),
        MultitaskConfig(encoder_depths=1, decoder_depths=2, encoder_weights=(1, 1, 4), decoder_weights=(3, 2, 1)),
    ],
    ids=str,
)
def test_the_expectation_over_draws_is_the_whole(objective: ExitGridConfig | MultitaskConfig) -> None:
    model = tiny_translator(PrefixConfig(), layers=3).double()
    if isinstance(objective, ExitGridConfig):
        (everything,) = replace(objective, pairs=0, always_deepest=False).choices(model)
    else:
        (everything,) = replace(objective, encoder_depths=0, decoder_depths=0).choices(model)
    choices = objective.choices(model)
    assert len(choices) > 1
    mean: dict[object, float] = {}
    for tasks in choices:
        for plans, weight in tasks:
            mean[plans] = mean.get(plans, 0.0) + weight / len(choices)
    assert mean == pytest.approx(dict(everything))


def test_tasks_may_count_differently() -> None:
    model = tiny_translator(PrefixConfig(), layers=3)
    (tasks,) = MultitaskConfig(encoder_weights=(1, 1, 4), decoder_weights=(3, 2, 1)).choices(model)
    assert sum(weight for _, weight in tasks) == pytest.approx(9)
    assert [weight for _, weight in tasks] == pytest.approx([a * b / 4 for a in (1, 1, 4) for b in (3, 2, 1)])
    with pytest.raises(UserError, match=r"decoder_weights: 2 weights for 3 depths \(1, 2, 3\)"):
        MultitaskConfig(decoder_weights=(1, 2)).choices(model)


def test_draws_are_among_the_choices_and_all_occur() -> None:
    model = tiny_translator(PrefixConfig(), layers=3)
    for objective in (ExitGridConfig(pairs=3), MultitaskConfig(encoder_depths=2, decoder_depths=1)):
        generators = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
        drawn = {objective.draw(model, "", *generators) for _ in range(300)}
        assert drawn == set(objective.choices(model))
    (task,) = SingleConfig().draw(model, "", *generators)
    assert task.weight == 1


def test_shared_beginnings_run_once() -> None:
    root = tree([Plan((0, 1)), Plan((0, 1, 2)), Plan((0,)), Plan((3, 1))])
    assert [child.layer for child in root.children] == [0, 3]
    assert root.children[0].ends == [Plan((0,))]
    assert [node.layer for node in root.children[0].children] == [1]

    model = tiny_translator(PrefixConfig(), layers=3)
    calls = []
    for layer in (*model.encoder.layers, *model.decoder.layers):
        layer.attention.register_forward_hook(lambda module, *_: calls.append(module.causal))
    (tasks,) = ExitGridConfig().choices(model)
    together(model, tasks)
    assert calls.count(False) == 3  # the encoder once
    assert calls.count(True) == 1 + 3 * 2  # the first self-attention for all, the others per encoder exit


def test_cross_entropy_equals_pytorch_and_slices_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    states = torch.randn(3, 7, 8, dtype=torch.double, requires_grad=True)
    output = torch.randn(23, 8, dtype=torch.double, requires_grad=True)
    words = torch.randint(0, 23, (3, 7))
    logits = F.linear(states, output).flatten(0, 1)
    expected = F.cross_entropy(logits, words.flatten(), ignore_index=0, label_smoothing=0.1, reduction="sum")
    wanted = torch.autograd.grad(3 * expected, (states, output))
    teacher = torch.randn(3, 7, 8, dtype=torch.double)
    lesson = F.linear(teacher, output.detach()).flatten(0, 1).softmax(-1)
    taught = F.cross_entropy(F.linear(states, output).flatten(0, 1), lesson, reduction="none")[
        words.flatten() != 0
    ].sum()
    learnt = torch.autograd.grad(taught, (states, output))
    for size in (1 << 25, 100, 23):
        monkeypatch.setattr(cross_entropy, "SLICE", size)
        loss = cross_entropy.cross_entropy(states, output, words, 0, 0.1)
        assert float(loss.total.detach()) == pytest.approx(float(expected.detach()))
        for got, right in zip(torch.autograd.grad(3 * loss.total, (states, output)), wanted):
            assert torch.allclose(got, right, atol=1e-12)
        loss = cross_entropy.cross_entropy(states, output, words, 0, 0.1, taught_by=teacher)
        assert float(loss.total.detach()) == pytest.approx(float(taught.detach()))
        for got, right in zip(torch.autograd.grad(loss.total, (states, output)), learnt):
            assert torch.allclose(got, right, atol=1e-12)
