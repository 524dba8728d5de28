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
from anydepth.objectives.halting import HaltingObjectiveConfig, halting, pseudo_labels, worth
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
    right = torch.tensor([[0.0, 1, 1], [1, 0, 1], [0, 0, 0], [0, 0, 1]])
    for penalty in (0.0, 0.01, 0.49):
        assert pseudo_labels(right, penalty).tolist() == [1, 0, 0, 2]
    assert pseudo_labels(right, 0.6).tolist() == [1, 0, 0, 0]  # two layers more cost more than a right answer


def test_pseudo_labels_go_deeper_while_a_layer_gains_enough_likelihood() -> None:
    likelihoods = torch.tensor([[0.6, 0.9, 0.95], [0.9, 0.5, 0.99], [0.1, 0.1, 0.1]]).log()
    # gains over the first exit: 0.405 and 0.460 nats; none and 0.095; none
    assert pseudo_labels(likelihoods, 0.0).tolist() == [2, 2, 0]
    assert pseudo_labels(likelihoods, 0.04).tolist() == [2, 2, 0]
    assert pseudo_labels(likelihoods, 0.05).tolist() == [2, 0, 0]  # two layers cost 0.1
    assert pseudo_labels(likelihoods, 0.06).tolist() == [1, 0, 0]  # the third layer of the first text gains 0.054
    assert pseudo_labels(likelihoods, 0.41).tolist() == [0, 0, 0]


def exits_with(probabilities: list[list[list[float]]]) -> tuple[Classifier, list[torch.Tensor]]:
    """A model, and states that let its exits give these probabilities: (exits, texts, labels)."""
    model = tiny_classifier(HALTING, len(probabilities))
    model.output.weight.data.copy_(torch.eye(*model.output.weight.shape))
    model.output_bias.data.zero_()
    columns = model.output.weight.shape[1] - len(LABELS)
    return model, [F.pad(torch.tensor(exit).log() + 5, (0, columns)) for exit in probabilities]


def test_what_exits_are_worth_by_both_oracles() -> None:
    model, states = exits_with([[[0.5, 0.3, 0.2], [0.2, 0.3, 0.5], [0.1, 0.1, 0.8]],
                                [[0.1, 0.7, 0.2], [0.1, 0.0625, 0.8375], [0.2, 0.7, 0.1]]])  # fmt: skip
    batch = labelled_batch([2, 2, 2])._replace(target_out=torch.tensor([0, 2, NO_LABEL]))
    assert worth(model, states, batch, "correctness")[:2].tolist() == [[1, 0], [1, 1]]
    found = worth(model, states, batch, "likelihood")
    assert torch.allclose(found[:2].exp(), torch.tensor([[0.5, 0.1], [0.5, 0.8375]]))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(worth(model, states, batch, "likelihood"), found)


@pytest.mark.parametrize("kind", [torch.float, torch.bfloat16])
def test_both_ways_from_probabilities_to_a_depth(kind: torch.dtype) -> None:
    probabilities = torch.tensor([[0.5, 0.1, 0.1, 0.3], [0.1, 0.2, 0.3, 0.4], [1, 0, 0, 0], [0, 0, 0, 1]])
    logits = probabilities.log().clamp(min=-100).to(kind)
    assert HaltingConfig().depths(logits).tolist() == [1, 4, 1, 4]
    assert HaltingConfig(choice="expected").depths(logits).tolist() == [2, 3, 1, 4]  # of 2.2, 3, 1 and 4


@pytest.mark.parametrize("stopped", ["refresh", "keep"])
@pytest.mark.parametrize("choice", ["likeliest", "expected"])
def test_words_stop_where_the_unit_says(choice: Any, stopped: Any) -> None:
    estimate = HaltingConfig(choice=choice)
    model = tiny_classifier(PerWordConfig(estimate=estimate, stopped=stopped), LAYERS)
    batch = labelled_batch(LENGTHS)
    pooled, words = model.read_words(batch, model.plan().encoder)
    x, sees = model.embed(batch)
    first = list(model.encoder.states(x, model.plan().encoder, None, sees))[1]
    assert model.unit is not None
    said = model.unit(model.norm(first))[batch.source != PAD]
    expected = (
        said.argmax(-1) + 1 if choice == "likeliest" else (said.softmax(-1) @ torch.arange(1.0, 5)).round().long()
    )
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


@pytest.mark.parametrize("oracle", ["correctness", "likelihood"])
def test_the_loss_of_the_unit_by_hand(oracle: Any) -> None:
    """The mean over the words of each text, summed over the texts that have a label."""
    model, batch = tiny_classifier(HALTING, LAYERS), labelled_batch(LENGTHS)
    batch = batch._replace(target_out=torch.cat([torch.tensor([NO_LABEL]), batch.target_out[1:]]))
    x, sees = model.embed(batch)
    _, *states = model.encoder.states(x, model.plan().encoder, None, sees)
    answers = torch.stack([model.logits(model.predict(state, batch)) for state in states])
    settings = HaltingObjectiveConfig(weight=0.5, penalty=0.01, oracle=oracle)
    assert model.unit is not None
    expected, targets = torch.zeros(()), []
    for text in range(1, len(LENGTHS)):
        label, found = batch.target_out[text], answers[:, text]
        gains = (found.argmax(-1) == label).float() if oracle == "correctness" else found.log_softmax(-1)[:, label]
        best = max(range(LAYERS), key=lambda number: gains[number].item() - 0.01 * number)
        targets.append(best)
        choices = model.unit(model.norm(states[0][text, : LENGTHS[text]]))
        expected += F.cross_entropy(choices, torch.full((LENGTHS[text],), best))
    assert len(set(targets)) > 1
    loss = halting(model, batch, settings, 0.0, losses_and_gradient)
    assert torch.allclose(loss.total - loss.nll, 0.5 * expected, atol=1e-4)


def test_a_dearer_layer_makes_words_shallower() -> None:
    """Of units that are trained on the likelihoods of the same exits, up to the depths that words then run."""
    estimate = PerWordConfig(estimate=HaltingConfig(choice="expected"))
    model, batch, means = tiny_classifier(estimate, LAYERS), labelled_batch(LENGTHS), []
    assert model.unit is not None
    for penalty in (0.0, 0.2, 2.0, 20.0):
        torch.nn.init.zeros_(model.unit.weight)
        torch.nn.init.zeros_(model.unit.bias)
        optimizer = torch.optim.Adam(model.unit.parameters(), lr=0.1)
        for _ in range(60):
            optimizer.zero_grad()
            settings = HaltingObjectiveConfig(oracle="likelihood", penalty=penalty, weight=1.0)
            halting(model, batch, settings, 0.0, losses_and_gradient).total.backward()
            optimizer.step()
        depths = model.read_words(batch, model.plan().encoder)[1].depths
        means.append(depths.float().mean().item())
    assert means == sorted(means, reverse=True)
    assert means[0] > means[1] > means[-1] == 1


def test_the_objective_and_the_unit_go_together() -> None:
    recipe = '[model]\ntype="classifier"\n'
    unit, objective = (
        "model.encoder.depth={type='per-word', estimate={type='halting'}}",
        "training.objective.type=halting",
    )
    config = loads(recipe, [unit, objective])
    assert config.model.encoder.depth == HALTING
    # what runs were that have no word about these
    assert (HALTING.estimate.choice, config.training.objective.oracle) == ("likeliest", "correctness")
    for alone in (unit, objective):
        with pytest.raises(UserError, match="goes with depth per word"):
            loads(recipe, [alone])


def test_only_models_with_exits_can_be_left_early() -> None:
    for depth in (PrefixConfig(), RecurrentConfig(depth=4)):
        check_exits(tiny_classifier(depth))
    refused = (FullConfig(), LayerDropConfig(), LatentConfig(), PerWordConfig(), PrefixConfig(exits=(4,)))
    for depth in refused:
        with pytest.raises(UserError, match="exits below the last layer"):
            check_exits(tiny_classifier(depth))


def test_what_is_mixed_after_the_layers_cannot_be_left_early() -> None:
    """One layer is all there is to leave, but DLCL mixes its state with the words before anyone reads it."""
    mixed = ClassifierConfig(labels=LABELS, encoder=StackConfig(layers=1, mix="dlcl"))
    with pytest.raises(UserError, match="exits below the last layer"):
        check_exits(Classifier(mixed, VOCABULARY, PAD))
