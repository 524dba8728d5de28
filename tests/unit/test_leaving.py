"""Texts that leave early, and the unit that lets words stop."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from classifiers import LABELS, VOCABULARY, labelled_batch, tiny_classifier
from conftest import PAD
from test_perword import masked_twin

from anydepth.classifying.leaving import Rule, check_exits, leave_early
from anydepth.config import loads
from anydepth.data.labelled_batch import NO_LABEL
from anydepth.depth.full import FullConfig
from anydepth.depth.latent import LatentConfig
from anydepth.depth.layerdrop import LayerDropConfig
from anydepth.depth.perword import HaltingConfig, PerWordConfig
from anydepth.depth.prefix import PrefixConfig
from anydepth.depth.recurrent import RecurrentConfig
from anydepth.encoder_models import Classifier, ClassifierConfig
from anydepth.errors import UserError
from anydepth.models import StackConfig
from anydepth.objectives.cross_entropy import losses_and_gradient
from anydepth.objectives.exit_grid import ExitGridConfig
from anydepth.objectives.halting import HaltingObjectiveConfig, halting, pseudo_labels
from anydepth.objectives.single import single
from anydepth.plan import Request

LENGTHS, LAYERS = [5, 1, 7, 3, 4, 6], 4
HALTING = PerWordConfig(estimate=HaltingConfig())


def decided_classifier(layers: int = LAYERS) -> Classifier:
    """Its answers differ from exit to exit, and in how sure they are."""
    model = tiny_classifier(PrefixConfig(), layers, norm="post")
    model.output.weight.data.mul_(10)
    return model


def exits(model: Any, batch: Any) -> torch.Tensor:
    """(layers, B, labels) all answers of all exits."""
    return torch.stack([model.logits(model(batch, model.plan(depth))) for depth in model.depths()])


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.9])
def test_a_text_leaves_at_the_first_exit_that_is_sure(share: float) -> None:
    model, batch = decided_classifier(), labelled_batch(LENGTHS)
    answers = exits(model, batch)
    confidence = float(answers.softmax(-1).amax(-1).detach().quantile(share))
    found = leave_early(model, batch, model.plan().encoder, Rule(confidence=confidence))
    sure = answers.softmax(-1).amax(-1) >= confidence
    for text in range(len(LENGTHS)):
        first = next((n for n in range(LAYERS) if sure[n, text]), LAYERS - 1)
        assert found.layers[text] == first + 1
        assert torch.allclose(torch.from_numpy(found.logits[text]), answers[first, text], atol=1e-5)


@pytest.mark.parametrize("patience", [1, 2])
def test_a_text_leaves_once_so_many_exits_in_a_row_agree(patience: int) -> None:
    model, batch = decided_classifier(6), labelled_batch(LENGTHS)
    answers = exits(model, batch)
    labels = answers.argmax(-1)
    found = leave_early(model, batch, model.plan().encoder, Rule(patience=patience))
    for text in range(len(LENGTHS)):
        agree = [n for n in range(patience, 6) if len({int(labels[n - k, text]) for k in range(patience + 1)}) == 1]
        assert found.layers[text] == (agree[0] if agree else 5) + 1
        assert torch.allclose(torch.from_numpy(found.logits[text]), answers[found.layers[text] - 1, text], atol=1e-5)


def test_layers_run_only_for_texts_that_have_not_left() -> None:
    model, batch = decided_classifier(), labelled_batch(LENGTHS)
    rows: list[int] = []
    for layer in model.encoder.layers:
        layer.grow.register_forward_hook(lambda _, given, __: rows.append(len(given[0])))
    first = model.logits(model(batch, model.plan("1"))).softmax(-1).amax(-1)
    rows.clear()
    found = leave_early(model, batch, model.plan().encoder, Rule(confidence=float(first.detach().quantile(0.5))))
    assert len(set(found.layers.tolist())) > 1
    assert sum(rows) == found.layers.sum()


def test_there_may_be_exits_after_some_layers_only() -> None:
    depth = PrefixConfig(exits=(2, 3))
    model, batch = tiny_classifier(depth, 5, norm="post"), labelled_batch(LENGTHS)
    model.output.weight.data.mul_(10)
    assert model.exits == [int(name) for name in model.depths()] == [2, 3, 5]
    answers = exits(model, batch)
    sure = answers.softmax(-1).amax(-1)
    confidence = float(sure.detach().quantile(0.6))
    found = leave_early(model, batch, model.plan().encoder, Rule(confidence=confidence))
    first = [next((n for n in range(3) if sure[n, text] >= confidence), 2) for text in range(len(LENGTHS))]
    assert found.layers.tolist() == [[2, 3, 5][n] for n in first]
    assert torch.allclose(torch.from_numpy(found.logits), answers[first, torch.arange(len(LENGTHS))], atol=1e-5)
    assert len(set(first)) > 1


@pytest.mark.parametrize(
    ("exits", "complaint"), [((0, 2), "at least 1"), ((2, 2), "each once"), ((3, 1), "shallowest first")]
)
def test_exits_that_cannot_be_are_refused(exits: tuple[int, ...], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        PrefixConfig(exits=exits)


def test_exits_above_the_last_layer_are_refused() -> None:
    with pytest.raises(ValueError, match=r"depth.exits: 5, but there are 4 layers"):
        StackConfig(layers=4, depth=PrefixConfig(exits=(2, 5)))


def test_only_the_exits_there_are_are_trained_and_drawn() -> None:
    model = tiny_classifier(PrefixConfig(exits=(1, 3)), 4)
    (tasks,) = ExitGridConfig().choices(model)
    assert [len(plans.encoder) for plans, _ in tasks] == [1, 3, 4]
    generator = torch.Generator().manual_seed(0)
    drawn = {len(model.encoder_depth.sample(Request(), generator)) for _ in range(60)}
    assert drawn == {1, 3, 4}


def test_rules_are_read() -> None:
    assert Rule.parse("0.9") == Rule.parse("confidence 0.9") == Rule(confidence=0.9)
    assert Rule.parse(" patience 2") == Rule(patience=2)
    for wrong in ("2", "patience 0", "sure", "confidence 9"):
        with pytest.raises(UserError, match="expected a probability"):
            Rule.parse(wrong)


# ---- the halting unit


def test_pseudo_labels_are_the_cheapest_right_exit() -> None:
    right = torch.tensor([[False, True, True], [True, False, True], [False, False, False], [False, False, True]])
    assert pseudo_labels(right, 0.01).tolist() == [1, 0, 0, 2]
    assert pseudo_labels(right, 0.6).tolist() == [1, 0, 0, 0]  # two layers more cost more than a right answer


@pytest.mark.parametrize("stopped", ["refresh", "keep"])
def test_words_stop_where_the_unit_says(stopped: Any) -> None:
    model = tiny_classifier(PerWordConfig(estimate=HaltingConfig(), stopped=stopped), LAYERS)
    batch = labelled_batch(LENGTHS)
    pooled, words = model.read_words(batch, model.plan().encoder)
    x, sees = model.embed(batch)
    first = list(model.encoder.states(x, model.plan().encoder, None, sees))[1]
    assert model.unit is not None
    expected = (model.unit(model.norm(first)).argmax(-1) + 1)[batch.source != PAD]
    assert words.depths.tolist() == expected.tolist()
    assert len(set(words.depths.tolist())) > 1
    twin = masked_twin(model, batch, expected.numpy(), stopped == "refresh")
    assert torch.allclose(pooled, twin, atol=1e-5)


def test_the_unit_and_all_exits_are_trained() -> None:
    model, batch = tiny_classifier(HALTING, LAYERS), labelled_batch(LENGTHS)
    plain = tiny_classifier(PrefixConfig(), LAYERS)
    plain.load_state_dict({name: value for name, value in model.state_dict().items() if not name.startswith("unit")})
    settings = HaltingObjectiveConfig(weight=0.5)
    loss = halting(model, batch, settings, 0.0, losses_and_gradient)
    expected = torch.stack([single(plain, batch, plain.plan(depth)).total for depth in plain.depths()]).mean()
    assert torch.allclose(loss.nll, expected.detach(), atol=1e-4)
    assert loss.total > loss.nll
    loss.total.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_loss_of_the_unit_by_hand() -> None:
    """The mean over the words of each text, summed over the texts that have a label."""
    model, batch = tiny_classifier(HALTING, LAYERS), labelled_batch(LENGTHS)
    batch = batch._replace(target_out=torch.cat([torch.tensor([NO_LABEL]), batch.target_out[1:]]))
    x, sees = model.embed(batch)
    _, *states = model.encoder.states(x, model.plan().encoder, None, sees)
    right = torch.stack([model.logits(model.predict(state, batch)).argmax(-1) == batch.target_out for state in states])
    assert 0 < right[:, 1:].sum() < right[:, 1:].numel()
    assert model.unit is not None
    expected = torch.zeros(())
    for text in range(1, len(LENGTHS)):
        cheapest = next((number for number, good in enumerate(right[:, text].tolist()) if good), 0)
        choices = model.unit(model.norm(states[0][text, : LENGTHS[text]]))
        expected += F.cross_entropy(choices, torch.full((LENGTHS[text],), cheapest))
    loss = halting(model, batch, HaltingObjectiveConfig(weight=0.5), 0.0, losses_and_gradient)
    assert torch.allclose(loss.total - loss.nll, 0.5 * expected, atol=1e-4)


def test_the_objective_and_the_unit_go_together() -> None:
    recipe = '[model]\ntype="classifier"\n'
    unit, objective = (
        "model.encoder.depth={type='per-word', estimate={type='halting'}}",
        "training.objective.type=halting",
    )
    assert loads(recipe, [unit, objective]).model.encoder.depth == HALTING
    for alone in (unit, objective):
        with pytest.raises(UserError, match="goes with depth per word"):
            loads(recipe, [alone])


def test_only_models_with_exits_can_be_left_early() -> None:
    for depth in (PrefixConfig(), RecurrentConfig(depth=4)):
        check_exits(tiny_classifier(depth))
    refused = (FullConfig(), LayerDropConfig(), LatentConfig(), PerWordConfig())
    for depth in refused:
        with pytest.raises(UserError, match="exits below the last layer"):
            check_exits(tiny_classifier(depth))


def test_what_is_mixed_after_the_layers_cannot_be_left_early() -> None:
    """One layer is all there is to leave, but DLCL mixes its state with the words before anyone reads it."""
    mixed = ClassifierConfig(labels=LABELS, encoder=StackConfig(layers=1, mix="dlcl"))
    with pytest.raises(UserError, match="exits below the last layer"):
        check_exits(Classifier(mixed, VOCABULARY, PAD))
