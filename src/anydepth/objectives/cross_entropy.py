"""Output layer and cross-entropy in one, a slice of the words at a time.

The logits of a batch are the largest tensor of a training step, and with many exits there would be one per exit. Here a
slice's logits are turned into their gradient at once, and that into the gradients of states and output matrix, so that
the memory for logits depends neither on the number of words nor on the number of exits.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import Function, FunctionCtx

SLICE = 1 << 25
"""Logits held at a time: 64 MiB in bfloat16, and as many of a lesson with its probabilities."""


class Loss(NamedTuple):
    """Sums over the words of a batch, so that batches, accumulation steps and machines add up."""

    total: Tensor
    """What is minimised: cross-entropy, label-smoothed or with a lesson."""
    nll: Tensor
    """Plain negative log-likelihood, detached."""


def losses(
    logits: Tensor, words: Tensor, pad: int, smoothing: float, lesson: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """What is minimised and the plain loss, summed over words that are not padding, and the log-sum-exp Z of each word.

    (1 − ε) · (Z − logit_y) + ε · mean_v(Z − logit_v) = Z − (1 − ε) · logit_y − ε · mean logit; or, with the logits of a
    lesson, whose probabilities are p, Z − Σ_v p_v · logit_v. (FastBERT, Liu et al. 2020, teaches its exits by KL
    divergence, which has the same gradient.)
    """
    logits, real = at_least_single(logits), words != pad
    normaliser = torch.logsumexp(logits, dim=-1)
    right = logits.gather(-1, torch.where(real, words, 0).unsqueeze(-1)).squeeze(-1)
    if lesson is None:
        total = normaliser - (1 - smoothing) * right - smoothing * logits.mean(-1)
    else:
        total = normaliser - (at_least_single(lesson).softmax(-1) * logits).sum(-1)
    return torch.where(real, total, 0).sum(), torch.where(real, normaliser - right, 0).sum(), normaliser


def losses_and_gradient(
    logits: Tensor, words: Tensor, pad: int, smoothing: float, lesson: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The losses, and the gradient of the first: softmax − (1 − ε) · one-hot − ε / V, or softmax − p, and 0 for
    padding."""
    total, nll, normaliser = losses(logits, words, pad, smoothing, lesson)
    gradient = torch.exp(at_least_single(logits) - normaliser.unsqueeze(-1))
    if lesson is None:
        right = words.unsqueeze(-1) == torch.arange(logits.shape[-1], device=words.device)
        gradient = gradient - smoothing / logits.shape[-1]
        gradient = torch.where(right, gradient - (1 - smoothing), gradient)
    else:
        gradient = gradient - at_least_single(lesson).softmax(-1)
    return total, nll, torch.where((words != pad).unsqueeze(-1), gradient, 0).to(logits.dtype)


Kernel = Callable[[Tensor, Tensor, int, float, Tensor | None], tuple[Tensor, Tensor, Tensor]]


class LinearCrossEntropy(Function):
    """Computes the gradients in the forward pass and hands them out in the backward pass."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        states: Tensor,
        output: Tensor,
        bias: Tensor | None,
        words: Tensor,
        pad: int,
        smoothing: float,
        kernel: Kernel,
        taught_by: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        words = words.flatten()
        flat = states.reshape(-1, states.shape[-1])
        teacher = None if taught_by is None else taught_by.reshape_as(flat)
        weight = output.to(torch.get_autocast_dtype(flat.device.type)) if autocast_on(flat) else output
        gradient, output_gradient = torch.empty_like(flat), torch.zeros_like(output)
        shift = None if bias is None else bias.to(weight.dtype)
        bias_gradient = None if bias is None else torch.zeros_like(bias)
        total = nll = at_least_single(flat.new_zeros(()))
        for part in slices(len(flat), output.shape[0]):
            rows = flat[part].to(weight.dtype)
            lesson = None if teacher is None else F.linear(teacher[part].to(weight.dtype), weight, shift)
            logits = F.linear(rows, weight, shift)
            part_total, part_nll, logits_gradient = kernel(logits, words[part], pad, smoothing, lesson)
            gradient[part] = logits_gradient @ weight
            output_gradient += logits_gradient.T @ rows
            if bias_gradient is not None:
                bias_gradient += logits_gradient.sum(0, dtype=bias_gradient.dtype)
            total, nll = total + part_total, nll + part_nll
        kept: list[Any] = [gradient.view_as(states), output_gradient, bias_gradient]
        ctx.save_for_backward(*kept)
        ctx.mark_non_differentiable(nll)
        return total, nll

    @staticmethod
    def backward(ctx: Any, total: Tensor, nll: Tensor) -> tuple[Tensor | None, ...]:
        gradient, output_gradient, bias_gradient = ctx.saved_tensors
        of_bias = None if bias_gradient is None else bias_gradient * total
        return gradient * total.to(gradient.dtype), output_gradient * total, of_bias, *[None] * 5


def at_least_single(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.double else tensor.float()


def autocast_on(tensor: Tensor) -> bool:
    return torch.is_autocast_enabled(tensor.device.type)


def slices(words: int, vocabulary: int) -> list[slice]:
    """Equal parts of at most SLICE logits."""
    parts = -(-words * vocabulary // SLICE)
    size = -(-words // parts)
    return [slice(start, start + size) for start in range(0, words, size)]


def cross_entropy(
    states: Tensor,
    output: Tensor,
    words: Tensor,
    pad: int,
    smoothing: float = 0.0,
    kernel: Kernel = losses_and_gradient,
    bias: Tensor | None = None,
    taught_by: Tensor | None = None,
) -> Loss:
    """Of (…, D) states that predict (…) words through a (V, D) output matrix, and (V,) a bias where there is one.

    Taught by other states, they learn what those predict instead, without smoothing.
    """
    if not torch.is_grad_enabled():
        assert taught_by is None
        flat, words = states.flatten(0, -2), words.flatten()
        parts = slices(len(flat), output.shape[0])
        found = [losses(F.linear(flat[part], output, bias), words[part], pad, smoothing)[:2] for part in parts]
        return Loss(*(torch.stack(sums).sum() for sums in zip(*found)))
    return Loss(*LinearCrossEntropy.apply(states, output, bias, words, pad, smoothing, kernel, taught_by))
