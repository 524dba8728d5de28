"""Latent depth's loss (Li et al. 2020, Eq. 8): NLL per target token + β · KL(q ‖ p) + λ · L_K.

The two further terms depend on the logits and on the gates drawn, not on the words. They are computed once a step,
beside the passes over the batches, and added when gradients of sums have become gradients per token.

The paper does not say what the KL is measured against, and that decides everything: z is one draw for the whole corpus,
so the evidence lower bound of Eq. 4 has one KL per corpus. Counted once per token, the KL to 0.5 outweighs all that
words can say about a layer, and its optimum α = 0 selects nothing. The scale of each term is therefore a setting.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from anydepth.config_class import config
from anydepth.data.any_batch import AnyBatch
from anydepth.depth.latent import Latent, draw_gates
from anydepth.objectives.tasks import Task, Tasks
from anydepth.planned import Planned

Scale = Literal["token", "step", "corpus"]

TINY = 1e-7
"""Prior probabilities stay this far from 0 and 1."""


class Term(NamedTuple):
    """A part of the loss that is counted once per token, per step or per corpus."""

    value: Tensor
    scale: Scale


class LatentStack(NamedTuple):
    """What one step knows about a stack of N rows of L layers; M batches had their gates drawn."""

    name: str
    """encoder or decoder"""
    logits: Tensor
    """(N, L) α. Rows without a batch in this step are constants: what has no data is not moved."""
    rows: list[int]
    """(M) the row of each batch."""
    gates: Tensor
    """(M, N, L) the gates drawn for each batch, those of the other rows included."""

    def chosen(self, values: Tensor) -> Tensor:
        """(M, L) of (N, L): the row of each batch."""
        return torch.stack([values[row] for row in self.rows])


@config
class LatentObjectiveConfig:
    """NLL per target token + β · KL + λ · L_K, for latent depth in one stack or both."""

    type: Literal["latent"] = "latent"
    together: ClassVar[int] = 1
    beta: float = 1.0
    """β, the weight of the KL divergence of the layers' probabilities from the prior, summed over layers and stacks."""
    kl_scale: Scale = "corpus"
    """How often the KL counts: once per `corpus`, as in the evidence lower bound (Eq. 4; with N rows it is the mean of
    theirs, and the bound is at β = N); once per `step`; or once per `token`, where with a uniform prior it holds all
    logits at 0 unless β is small."""
    kl_warmup: int = 0
    """Steps in which β grows linearly from 0 (KL annealing)."""
    prior: Literal["uniform", "beta", "aggregated"] = "uniform"
    """Probability of a layer under the prior: 0.5; the mean a / (a + b) of a Beta distribution; or the mean over the
    rows, held constant (Eq. 7), which makes languages choose alike."""
    prior_a: float = 1.0
    """a of the Beta prior: above b it favours using layers."""
    prior_b: float = 1.0
    """b of the Beta prior."""
    depth_weight: float = 0.1
    """λ, the weight of L_K, the distance of the sum of gates, averaged over languages, from the layers wanted."""
    depth_scale: Scale = "token"
    """How often L_K counts."""
    encoder_layers: int = 0
    """K of the encoder; 0 wants no depth in particular."""
    decoder_layers: int = 0
    """K of the decoder; 0 wants no depth in particular."""
    distance: Literal["absolute", "squared"] = "absolute"
    """|Σu − K| as in the paper, or its square as in the public code."""

    def __post_init__(self) -> None:
        for name in ("beta", "kl_warmup", "depth_weight", "encoder_layers", "decoder_layers"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
        for name in ("prior_a", "prior_b"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0")

    def draw(self, model: Planned, key: str, encoder: Generator, decoder: Generator) -> Tasks:
        return (Task(model.sample(key, encoder, decoder), 1.0),)

    def terms(self, stacks: Sequence[LatentStack], step: int) -> list[Term]:
        """What is added to the NLL at a step, counted from 1."""
        beta = self.beta * (min(1.0, step / self.kl_warmup) if self.kl_warmup else 1.0)
        divergence = torch.stack([bernoulli_kl(stack.chosen(stack.logits), self.prior_of(stack)) for stack in stacks])
        terms = [Term(beta * divergence.sum(), self.kl_scale)]
        for stack in stacks:
            wanted = self.encoder_layers if stack.name == "encoder" else self.decoder_layers
            if wanted:
                missed = depth_distance(stack.gates, wanted, self.distance)
                terms.append(Term(self.depth_weight * missed, self.depth_scale))
        return terms

    def prior_of(self, stack: LatentStack) -> Tensor:
        """(L,) the probability of each layer under the prior."""
        match self.prior:
            case "uniform":
                return torch.full_like(stack.logits[0], 0.5)
            case "beta":
                return torch.full_like(stack.logits[0], self.prior_a / (self.prior_a + self.prior_b))
            case "aggregated":
                return stack.logits.detach().sigmoid().mean(0)


def bernoulli_kl(logits: Tensor, prior: Tensor) -> Tensor:
    """KL(Bernoulli(sigmoid(α)) ‖ Bernoulli(p)) summed over layers, the mean over (M, L) rows.

    As sigmoid(α) (α − logit p) − log(1 + e^α) − log(1 − p), which takes a GPU fewer kernels than the definition.
    """
    prior = prior.clamp(TINY, 1 - TINY)
    divergence = logits.sigmoid() * (logits - prior.logit()) - F.softplus(logits) - torch.log1p(-prior)
    return divergence.sum(-1).mean()


def depth_distance(gates: Tensor, wanted: int, distance: str) -> Tensor:
    """L_K of (M, N, L) gates: u is the mean over N languages, the result the mean over M batches."""
    missed = gates.mean(1).sum(-1) - wanted
    return (missed.abs() if distance == "absolute" else missed.square()).mean()


def latent_stacks(model: Planned, batches: Sequence[AnyBatch]) -> list[LatentStack]:
    """The stacks that have latent depth, with the gates that the batches' noise draws."""
    found = []
    for place, (name, policy) in enumerate(model.policies.items()):
        if isinstance(policy, Latent):
            rows = [policy.row(batch.key) for batch in batches]
            logits = torch.stack([a if row in rows else a.detach() for row, a in enumerate(policy.logits)])
            noises = [noise for batch in batches if (noise := batch.noise[place])]
            noise = noises[0]._replace(logistic=torch.stack([noise.logistic for noise in noises]))
            found.append(LatentStack(name, logits, rows, draw_gates(logits, noise)))
    return found
