"""The terms of latent depth's loss: by hand, by gradcheck, and as a training step adds them up."""

import math
from typing import Any

import pytest
import torch
from conftest import random_batch, tiny_translator

from anydepth.config import loads
from anydepth.data.collate import Batch
from anydepth.depth.latent import LatentConfig, draw_gates
from anydepth.errors import UserError
from anydepth.models import Translator
from anydepth.objectives import FairseqLatentConfig, LatentObjectiveConfig
from anydepth.objectives.latent import LatentStack, bernoulli_kl, latent_stacks
from anydepth.objectives.single import single
from anydepth.plan import Noise
from anydepth.training.distributed import Ranks
from anydepth.training.optim import OptimizerConfig, Optimizers
from anydepth.training.settings import TrainingConfig
from anydepth.training.step import Step, generator

LN3 = math.log(3)  # a logit of ln 3 is a probability of 3/4


def stack(logits: list[list[float]], rows: list[int], gates: Any = None, name: str = "decoder") -> LatentStack:
    alpha = torch.tensor(logits, dtype=torch.double, requires_grad=True)
    drawn = torch.zeros(len(rows), *alpha.shape) if gates is None else torch.tensor(gates)
    return LatentStack(name, alpha, rows, drawn.double())


def value(objective: Any, *stacks: LatentStack, step: int = 1) -> list[float]:
    return [float(term.value.detach()) for term in objective.terms(stacks, step)]


# ---- Eq. 8 by hand


def test_kl_to_a_uniform_prior() -> None:
    expected = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert value(LatentObjectiveConfig(), stack([[LN3, -LN3, 0.0]], [0])) == pytest.approx([2 * expected])
    assert expected == pytest.approx(0.130812, abs=1e-6)


def test_kl_to_the_mean_of_a_beta_prior() -> None:
    expected = 0.75 * math.log(0.75 / 0.25) + 0.25 * math.log(0.25 / 0.75)
    objective = LatentObjectiveConfig(prior="beta", prior_a=1, prior_b=3)
    assert value(objective, stack([[LN3]], [0])) == pytest.approx([expected])
    assert value(LatentObjectiveConfig(prior="beta"), stack([[LN3]], [0])) == pytest.approx([0.130812], abs=1e-6)


def test_kl_to_the_aggregated_posterior() -> None:
    """Rows of probability 3/4 and 1/4 have 1/2 on average; alike, they have no divergence at all."""
    objective = LatentObjectiveConfig(prior="aggregated")
    assert value(objective, stack([[LN3], [-LN3]], [0, 1])) == pytest.approx([0.130812], abs=1e-6)
    assert value(objective, stack([[LN3], [LN3]], [0, 1])) == pytest.approx([0.0], abs=1e-9)
    three_rows = stack([[LN3], [-LN3], [LN3]], [2])
    mean = (0.75 + 0.25 + 0.75) / 3
    expected = 0.75 * math.log(0.75 / mean) + 0.25 * math.log(0.25 / (1 - mean))
    assert value(objective, three_rows) == pytest.approx([expected])


def test_the_aggregated_posterior_is_held_constant() -> None:
    both = stack([[LN3], [-LN3]], [0])
    (term,) = LatentObjectiveConfig(prior="aggregated").terms([both], 1)
    (gradient,) = torch.autograd.grad(term.value, both.logits)
    # d/dα KL(σ(α) ‖ p) = σ'(α) · (α − logit p), with p = 1/2
    assert gradient[0].tolist() == pytest.approx([0.75 * 0.25 * LN3])
    assert gradient[1].tolist() == [0.0]


def test_saturated_rows_have_finite_terms() -> None:
    certain = stack([[300.0, -300.0]], [0])
    (term,) = LatentObjectiveConfig(prior="aggregated").terms([certain], 1)
    (gradient,) = torch.autograd.grad(term.value, certain.logits)
    assert math.isfinite(float(term.value.detach()))
    assert bool(gradient.isfinite().all())


def test_the_kl_is_summed_over_stacks_and_the_mean_over_batches() -> None:
    one, other = stack([[LN3], [0.0]], [0, 1]), stack([[LN3, LN3]], [0, 0], name="encoder")
    assert value(LatentObjectiveConfig(beta=2), one, other) == pytest.approx(
        [2 * (0.130812 / 2 + 2 * 0.130812)], abs=1e-5
    )


def test_beta_grows_during_the_warm_up() -> None:
    objective, one = LatentObjectiveConfig(kl_warmup=4), stack([[LN3]], [0])
    found = [value(objective, one, step=step)[0] / 0.130812 for step in (1, 2, 4, 9)]
    assert found == pytest.approx([0.25, 0.5, 1.0, 1.0], abs=1e-5)


def test_the_wanted_depth() -> None:
    """Two languages: u = (1, 0.5, 0), so that 1.5 layers are used."""
    gates = [[[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]]
    decoder, encoder = (stack([[0.0] * 3] * 2, [0], gates, name) for name in ("decoder", "encoder"))
    absolute = LatentObjectiveConfig(beta=0, depth_weight=0.5, decoder_layers=3, encoder_layers=1)
    assert value(absolute, encoder, decoder) == pytest.approx([0.0, 0.5 * 0.5, 0.5 * 1.5])
    squared = LatentObjectiveConfig(beta=0, depth_weight=0.5, decoder_layers=3, distance="squared")
    assert value(squared, encoder, decoder) == pytest.approx([0.0, 0.5 * 1.5**2])
    assert len(value(LatentObjectiveConfig(), encoder, decoder)) == 1


def test_scales_are_those_of_the_settings() -> None:
    objective = LatentObjectiveConfig(kl_scale="step", depth_scale="corpus", decoder_layers=1)
    assert [term.scale for term in objective.terms([stack([[0.0]], [0])], 1)] == ["step", "corpus"]


@pytest.mark.parametrize("prior", ["uniform", "beta", "aggregated"])
def test_kl_gradients(prior: str) -> None:
    prior_of = {"uniform": 0.5, "beta": 0.2, "aggregated": 0.7}[prior]
    logits = torch.randn(3, 5, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda alpha: bernoulli_kl(alpha, torch.full((5,), prior_of).double()), logits)


@pytest.mark.parametrize("distance", ["absolute", "squared"])
@pytest.mark.parametrize("prior", ["uniform", "beta"])
def test_gradients_of_the_terms(prior: Any, distance: Any) -> None:
    """From the logits of three languages through the gates drawn for two batches. The aggregated posterior is held
    constant, which is tested above."""
    objective = LatentObjectiveConfig(
        beta=0.7, prior=prior, prior_a=3, depth_weight=0.4, encoder_layers=1, decoder_layers=3, distance=distance
    )
    drawn = torch.randn(2, 3, 4, dtype=torch.double, generator=generator(3))
    noise = Noise(drawn, torch.tensor(0.8), torch.tensor(0.0))

    def terms(*logits: torch.Tensor) -> torch.Tensor:
        names = ("encoder", "decoder")
        stacks = [LatentStack(name, a, [0, 2], draw_gates(a, noise)) for name, a in zip(names, logits)]
        return torch.stack([term.value for term in objective.terms(stacks, 1)])

    logits = [torch.randn(3, 4, dtype=torch.double, generator=generator(seed), requires_grad=True) for seed in (1, 2)]
    assert len(terms(*logits)) == 3
    assert torch.autograd.gradcheck(terms, logits)


# ---- the public code's


def test_fairseq_kl_of_soft_samples_is_least_at_half_over_e() -> None:
    objective = FairseqLatentConfig(sparsity_weight=1.0, soft_update=0, anneal_updates=1)

    def kl(z: float) -> float:
        return value(objective, stack([[0.0]], [0], [[[z]]]), step=2)[0]

    assert kl(1.0) == pytest.approx(math.log(2), abs=1e-6)
    assert kl(0.5) == pytest.approx(0.0, abs=1e-6)
    least = 0.5 / math.e
    assert kl(least) < min(kl(least - 0.01), kl(least + 0.01))


@pytest.mark.parametrize(("z", "slope"), [(1.0, 1.69), (0.0, -15.4)])
def test_fairseq_kl_pushes_hard_samples_towards_use(z: float, slope: float) -> None:
    gates = torch.tensor([[[z]]], dtype=torch.double, requires_grad=True)
    objective = FairseqLatentConfig(sparsity_weight=1.0, soft_update=0)
    (term,) = objective.terms([LatentStack("decoder", torch.zeros(1, 1), [0], gates)], 2)
    assert float(torch.autograd.grad(term.value, gates)[0]) == pytest.approx(slope, abs=0.05)


def test_fairseq_aggregated_posterior_is_a_share_of_all_layers() -> None:
    gates = [[[0.8, 0.2], [0.4, 0.6]]]  # in all 1.2 and 0.8 of 2
    objective = FairseqLatentConfig(prior="agged_posterior", sparsity_weight=1.0, soft_update=0)
    expected = (0.8 * math.log(0.8 / 0.6) + 0.2 * math.log(0.2 / 0.4)) / 2
    assert value(objective, stack([[0.0] * 2] * 2, [0], gates), step=2) == pytest.approx([expected], abs=1e-5)


def test_fairseq_ramps() -> None:
    """Of its README: negative at first, then up; the second ends at the square of its weight and jumps."""
    objective = FairseqLatentConfig(
        sparsity_weight=0.1, share_weight=0.1, soft_update=500, anneal_updates=5000, target_layers=12
    )
    assert [objective.kl_weight(update) for update in (0, 500, 3000, 5500, 9000)] == pytest.approx(
        [-0.01, 0.0, 0.05, 0.1, 0.1]
    )
    found = [objective.share_weight_at(update) for update in (0, 5500, 8000, 10_499, 10_500, 20_000)]
    assert found == pytest.approx([0, 0, 0.005, 0.01, 0.1, 0.1], abs=1e-5)


def test_fairseq_depth_and_entropy() -> None:
    objective = FairseqLatentConfig(share_weight=0.5, soft_update=0, target_layers=2)
    one = stack([[0.0] * 3] * 2, [0], [[[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]])
    kl, depth, entropy = value(objective, one, step=10)
    assert kl == 0
    assert depth == pytest.approx(0.5 * (1.5 - 2) ** 2)
    assert entropy == pytest.approx(0.5 * 0.5 * math.log(2))
    gates = one.gates.clone().requires_grad_()
    term = objective.terms([one._replace(gates=gates)], 10)[2]
    (gradient,) = torch.autograd.grad(term.value, gates)
    assert gradient[0, 0, 1].item() == pytest.approx(0.5 * 0.5 * math.log(2))  # −log u, not −log u − 1
    assert gradient[0, :, 2].tolist() == [0.0, 0.0]  # a layer that nobody uses is left out, as in the public code
    without = FairseqLatentConfig(share_weight=0.5, soft_update=0)
    assert len(value(without, one, step=10)) == 1


# ---- a whole step


class Watched(Optimizers):
    """Remembers the gradients of the last update."""

    def update(self, step: int, steps: int) -> torch.Tensor:
        self.seen = {name: None if p.grad is None else p.grad.clone() for name, p in self.named.items()}
        return super().update(step, steps)


DEPTH = LatentConfig(per="pair", keys=("a", "b", "c"))
OBJECTIVE = LatentObjectiveConfig(
    beta=0.3, kl_scale="step", prior="aggregated", depth_weight=0.2, encoder_layers=1, decoder_layers=2
)
CPU = Ranks(0, 1, torch.device("cpu"))


def batches() -> list[Batch]:
    return [random_batch([(5, 6), (2, 4)])._replace(key="a"), random_batch([(7, 3)])._replace(key="c")]


def make_step(model: Translator, **settings: Any) -> tuple[Step, Watched]:
    training = TrainingConfig(label_smoothing=0.0, **{"objective": OBJECTIVE} | settings)
    optimizers = Watched(model, training.optimizer, training.depth_optimizer)
    return Step(model, optimizers, training, 5, CPU, corpus_tokens=1000), optimizers


def test_a_step_has_the_gradients_of_the_whole_loss() -> None:
    model = tiny_translator(DEPTH, layers=3).double().train()
    step, optimizers = make_step(model)
    noisy = []
    for micro, batch in enumerate(batches()):
        draws = [generator(5, 1, micro, stack) for stack in (0, 1)]
        noisy.append(batch._replace(noise=model.noise(1, *draws)))
    tokens = sum(batch.tokens for batch in noisy)
    plans = model.sample("a", generator(0), generator(0))
    loss = sum(single(model, batch, plans).total for batch in noisy) / tokens
    kl, *depths = OBJECTIVE.terms(latent_stacks(model, noisy), 1)
    whole = loss + kl.value / tokens + sum(term.value for term in depths)
    wanted = torch.autograd.grad(whole, list(model.parameters()), allow_unused=True)

    sums = step(1, batches())
    assert float(sums.loss / sums.tokens) == pytest.approx(float(whole.detach()), rel=1e-6)
    for (name, found), right in zip(optimizers.seen.items(), wanted):
        assert (found is None) == name.endswith("logits.1"), name  # the row of the language without a batch
        assert found is right is None or torch.allclose(found, right, atol=1e-7), name


@pytest.mark.parametrize("scale", ["token", "step", "corpus"])
def test_a_term_counts_as_often_as_its_scale_says(scale: Any) -> None:
    """All layers have probability 1/2 at first, and 3/4 under the prior: 0.143841 for each of 3 + 3."""
    objective = LatentObjectiveConfig(beta=7, kl_scale=scale, prior="beta", prior_a=3, prior_b=1)
    step, _ = make_step(tiny_translator(DEPTH, layers=3).train(), objective=objective)
    for policy in step.model.policies.values():
        for row in policy.parameters():
            torch.nn.init.zeros_(row)
    sums = step(1, batches())
    often = {"token": 1, "step": int(sums.tokens), "corpus": 1000}[scale]
    assert float((sums.loss - sums.nll) / sums.tokens) == pytest.approx(7 * 6 * 0.143841 / often, rel=1e-3)


def test_the_logits_move_once_in_every_inner_loop() -> None:
    """With the gradient of its last step alone, while the weights move every step."""
    own = OptimizerConfig(learning_rate=0.1, warmup=0, schedule="constant")
    model = tiny_translator(DEPTH, layers=3).train()
    step, optimizers = make_step(model, inner_steps=3, depth_optimizer=own)
    logits, weight = model.decoder_depth.logits[0], model.decoder.layers[0].grow.weight
    for number in range(1, 7):
        before = logits.detach().clone(), weight.detach().clone()
        step(number, batches())
        assert torch.equal(logits, before[0]) == (number % 3 != 0)
        assert not torch.equal(weight, before[1])
    assert int(optimizers.parts[1].optimizer.state[logits]["step"]) == 2
    assert int(optimizers.parts[0].optimizer.state[weight]["step"]) == 6


def test_an_inner_loop_of_one_step_is_joint_training() -> None:
    """The logits' update is Adam's with their own rate."""
    own = OptimizerConfig(learning_rate=0.1, warmup=0, schedule="constant")
    model = tiny_translator(DEPTH, layers=3).train()
    before = model.decoder_depth.logits[0].detach().clone()
    step, optimizers = make_step(model, depth_optimizer=own)
    step(1, batches())
    moved = model.decoder_depth.logits[0].detach() - before
    assert torch.allclose(moved, -0.1 * optimizers.seen["decoder_depth.logits.0"].sign(), atol=1e-4)


class Held:
    """A tensor kept for a backward pass; `most` is the largest sum of their sizes at a time."""

    now = most = 0

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        Held.now += tensor.numel()
        Held.most = max(Held.most, Held.now)

    def __del__(self) -> None:
        Held.now -= self.tensor.numel()


def test_memory_does_not_grow_with_the_batches_of_a_step() -> None:
    """The public code keeps the graphs of all languages until the last."""
    model = tiny_translator(DEPTH, layers=3).train()
    step, _ = make_step(model)
    most = []
    for count in (1, 8):
        Held.now = Held.most = 0
        with torch.autograd.graph.saved_tensors_hooks(Held, lambda held: held.tensor):
            step(1, [batches()[0]] * count)
        most.append(Held.most)
    assert most[1] < 1.1 * most[0]


# ---- refused


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("training.objective={type='latent'}", "training.objective: latent needs a stack with latent depth"),
        ("training.objective={type='latent', beta=-1.0}", "beta: must not be negative"),
        ("training.objective={type='latent', prior_a=0.0}", "prior_a: must be above 0"),
        ("training.inner_steps=0", "inner_steps: must be at least 1"),
    ],
)
def test_settings_that_make_no_sense(settings: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        loads("", [settings])
    assert message in str(error.value)


def test_a_depth_that_cannot_be_reached_is_refused() -> None:
    latent = "model.decoder.depth={type='latent'}"
    with pytest.raises(UserError, match=r"training\.objective\.encoder_layers: the encoder has no latent depth"):
        loads("", [latent, "training.objective={type='latent', encoder_layers=2}"])
    with pytest.raises(UserError, match=r"training\.objective\.decoder_layers: 9 wanted, but the decoder has 6"):
        loads("", [latent, "training.objective={type='latent', decoder_layers=9}"])


def test_fixed_plans_and_latent_depth_are_refused_together() -> None:
    with pytest.raises(UserError, match="exit-grid trains fixed plans"):
        loads("", ["model.decoder.depth={type='latent'}", "training.objective={type='exit-grid'}"])
