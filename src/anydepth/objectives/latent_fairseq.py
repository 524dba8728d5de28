"""The loss of latent depth's public code (fairseq, examples/latent_depth), for comparison. It is not that of the paper:

- its KL is taken of the samples z instead of the probabilities, and has one side only: Σ_l z_l · log(z_l / p_l) / L.
  With hard samples the gradient vanishes where a layer is used with probability 0.906, so that it asks for more layers;
  with soft ones at z = 0.184, so that it asks for fewer;
- its aggregated posterior is normalised over layers instead of languages: p_l = Σ_n z_l^(n) / Σ_l Σ_n z_l^(n);
- the KL's weight is negative before `soft_update`;
- L_K is squared, has `share_weight` for a weight, and comes with an undocumented entropy of the layers' utilisation;
  the ramp of both ends at share_weight² and then jumps to share_weight.

Everything counts once per token. The code also draws soft gates up to `soft_update` and hard ones afterwards:
`samples = "hard"` and `soft_steps` of the depth policy. Other languages' samples are drawn afresh here, where the code
has those of their last batch.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor

from anydepth.config_class import config
from anydepth.objectives.latent import TINY, LatentStack, Term, depth_distance
from anydepth.objectives.tasks import Task, Tasks
from anydepth.planned import Planned


@config
class FairseqLatentConfig:
    """The loss of latent depth's public code, under the names that it has there; differs from the paper's."""

    type: Literal["latent-fairseq"] = "latent-fairseq"
    together: ClassVar[int] = 1
    prior: Literal["uniform", "agged_posterior"] = "uniform"
    """What the KL compares samples with: 0.5, or the share of each layer in all samples of all languages."""
    sparsity_weight: float = 0.0
    """Weight of the KL at the end of its ramp."""
    share_weight: float = 0.0
    """Weight of the squared L_K and of the entropy of the utilisation, after their ramp."""
    target_layers: int = -1
    """K, the same for encoder and decoder; without it neither L_K nor the entropy counts."""
    soft_update: int = 1
    """Updates before the KL's ramp; before them its weight is negative."""
    anneal_updates: int = 1
    """Updates of each of the two ramps."""

    def __post_init__(self) -> None:
        for name in ("sparsity_weight", "share_weight", "soft_update"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
        if self.anneal_updates < 1:
            raise ValueError("anneal_updates must be at least 1")

    def draw(self, model: Planned, key: str, encoder: Generator, decoder: Generator) -> Tasks:
        return (Task(model.sample(key, encoder, decoder), 1.0),)

    def terms(self, stacks: Sequence[LatentStack], step: int) -> list[Term]:
        """What is added to the NLL at a step, counted from 1; the code counts updates from 0."""
        kl_weight, share_weight = self.kl_weight(step - 1), self.share_weight_at(step - 1)
        terms = [Term(kl_weight * self.one_sided_kl(stack), "token") for stack in stacks]
        if share_weight:
            distances = [depth_distance(stack.gates, self.target_layers, "squared") for stack in stacks]
            entropies = [utilisation_entropy(stack.gates) for stack in stacks]
            terms += [Term(share_weight * value, "token") for value in (*distances, *entropies)]
        return terms

    def kl_weight(self, update: int) -> float:
        done = (update - self.soft_update) / self.anneal_updates
        return self.sparsity_weight * min(1.0, done)

    def share_weight_at(self, update: int) -> float:
        done = (update - self.soft_update - self.anneal_updates) / self.anneal_updates
        if self.target_layers <= 0 or done <= 0:
            return 0.0
        return self.share_weight * (done * self.share_weight if done < 1 else 1.0)

    def one_sided_kl(self, stack: LatentStack) -> Tensor:
        own = torch.stack([gates[row] for gates, row in zip(stack.gates, stack.rows)])
        prior = torch.full_like(own, 0.5)
        if self.prior == "agged_posterior":
            used = stack.gates.detach().sum(1)
            prior = used / used.sum(-1, keepdim=True) + TINY
        return (own * (torch.log(own + TINY) - prior.log())).mean()


def utilisation_entropy(gates: Tensor) -> Tensor:
    """Σ_l −u_l · log u_l of (M, N, L) gates, the logarithm a constant; the mean over M batches. A layer that no one
    uses does not count, nor does it get a gradient."""
    use = gates.mean(1)
    return (-use * use.detach().where(use > 0, 1.0).log()).sum(-1).mean()
