"""One loss for one plan: the objective of a plain Transformer, and of any policy that samples a plan per step."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from anydepth.data.collate import Batch
from anydepth.models import Translator
from anydepth.plan import Plans


class Loss(NamedTuple):
    """Sums over the words of a batch, so that batches, accumulation steps and machines add up."""

    total: Tensor
    """What is minimised: label-smoothed cross-entropy."""
    nll: Tensor
    """Plain negative log-likelihood, detached."""


CrossEntropy = Callable[[Tensor, Tensor, Tensor, int, float], tuple[Tensor, Tensor]]


def smoothed_cross_entropy(
    states: Tensor, output: Tensor, words: Tensor, pad: int, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Smoothed and plain cross-entropy, summed over the words that are not padding.

    With log-sum-exp Z, (1 − ε) · (Z − logit_y) + ε · mean_v(Z − logit_v) = Z − (1 − ε) · logit_y − ε · mean logit.
    """
    logits = F.linear(states, output).float()
    real = words != pad
    normaliser = torch.logsumexp(logits, dim=-1)
    right = logits.gather(-1, words.unsqueeze(-1)).squeeze(-1)
    smoothed = normaliser - (1 - smoothing) * right - smoothing * logits.mean(-1)
    nll = (normaliser - right).detach()
    return torch.where(real, smoothed, 0).sum(), torch.where(real, nll, 0).sum()


def single(
    model: Translator,
    batch: Batch,
    plans: Plans,
    smoothing: float = 0.0,
    cross_entropy: CrossEntropy = smoothed_cross_entropy,
) -> Loss:
    states = model(batch, plans)
    return Loss(*cross_entropy(states, model.output.weight, batch.target_out, model.pad, smoothing))
