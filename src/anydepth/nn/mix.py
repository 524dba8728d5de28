"""What a layer reads: the state before it, or a learned mixture of all earlier ones."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import Function, FunctionCtx, once_differentiable
from torch.nn.utils.rnn import pad_sequence

from anydepth.nn.layers import LayerConfig, final_norm

PARTS = 512
"""Most parts of a dot product that are computed side by side."""


class LinearMix(nn.Module):
    """Dynamic linear combination of layers (DLCL, Wang et al. 2019): x_{l+1} = Σ_{k ≤ l} W_k^{l+1} · LN(y_k).

    y_0 is the embedding, which has no norm of its own, and y_k the output of layer k. The weights of each mixture start
    at their average. Every layer so has a direct path to all before it.
    """

    def __init__(self, config: LayerConfig, layers: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.full((k + 1,), 1 / (k + 1))) for k in range(layers + 1))
        self.norms = nn.ModuleList([nn.Identity(), *(final_norm(config) for _ in range(layers))])

    def start(self, x: Tensor, steps: int) -> Callable[[Tensor], Tensor]:
        """Of a pass of so many steps from x: what makes each state in turn, x first, the mixture up to it."""
        return DifferentiableMix(self, x, steps) if torch.is_grad_enabled() else partial(self, [])

    def forward(self, earlier: list[Tensor], state: Tensor) -> Tensor:
        """The mixture of the earlier states, normalised, and the newest, which joins them."""
        earlier.append(self.norms[len(earlier)](state))
        weights = self.weights[len(earlier) - 1].to(state.dtype)
        # one product after the other: stacked, the states of all layers would be copied for each of them
        mixture = weights[0] * earlier[0]
        for weight, other in zip(weights[1:], earlier[1:]):
            mixture = mixture + weight * other
        return mixture


class DifferentiableMix:
    """The mixtures of one pass over states that stand in one buffer: one product each forward and two back, where
    `LinearMix.forward` takes several kernels for each pair of layers."""

    def __init__(self, mix: LinearMix, x: Tensor, steps: int) -> None:
        self.mix = mix
        self.states = x.new_empty(steps + 1, *x.shape)
        # row j has the weights of mixture j, column k those of state k
        self.table = pad_sequence([weights.detach() for weights in mix.weights[: steps + 1]], True).to(x.dtype)
        self.later: dict[int, Tensor] = {}
        self.count, self.last = 0, x

    def __call__(self, state: Tensor) -> Tensor:
        normalised, weights = self.mix.norms[self.count](state), self.mix.weights[self.count]
        self.count += 1
        self.last = Mixture.apply(normalised, weights, self.last, self.states, self.table, self.later)
        return self.last


class Mixture(Function):
    """Mixture j of a pass, which adds state j to the states: Σ_{k ≤ j} W_jk · y_k.

    State k is in all mixtures from k on, so that its gradient is Σ_{j ≥ k} W_jk · d_j. It is computed in the backward
    pass of mixture k. All d_j are there by then: each mixture has the one before as an input (which it does not read;
    the layer between them does), and autograd comes to an operation after all that depend on it.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        state: Tensor,
        weights: Tensor,
        before: Tensor,
        states: Tensor,
        table: Tensor,
        later: dict[int, Tensor],
    ) -> Tensor:
        place = len(weights) - 1
        states.data[place] = state  # as .data, because what the mixtures before have kept of the states stays as it is
        ctx.save_for_backward(states, table)
        ctx.place, ctx.later = place, later  # type: ignore[attr-defined]
        return combined(table[place, : place + 1], states[: place + 1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (states, table), place, later = ctx.saved_tensors, ctx.place, ctx.later
        backward_pass = torch._C._current_graph_task_id()
        if backward_pass not in later:  # the highest mixture with a gradient in this pass; what others left is void
            later.clear()
            later[backward_pass] = gradient.new_empty(place + 1, *gradient.shape)
        gradients = later[backward_pass]
        gradients[place] = gradient
        of_state = of_weights = None
        if ctx.needs_input_grad[0]:
            of_state = combined(table[place : len(gradients), place], gradients[place:])
        if ctx.needs_input_grad[1]:
            of_weights = dot_products(states[: place + 1], gradients[place])
        if place == 0:
            later.clear()
        return of_state, of_weights, None, None, None, None


def combined(weights: Tensor, states: Tensor) -> Tensor:
    """(K,) weights and (K, …) states → (…) Σ_k weight · state."""
    return (weights @ states.flatten(1)).view(states.shape[1:])


def dot_products(states: Tensor, other: Tensor) -> Tensor:
    """(K, …) states and one more → (K,) products, at least in single precision.

    The length is cut into parts, which are added up after: of few long rows a GPU would give each to a single core.
    """
    parts = math.gcd(other.numel(), PARTS)
    found = other.view(parts, 1, -1) @ states.view(len(states), parts, -1).permute(1, 2, 0)
    return found.sum((0, 1), dtype=torch.promote_types(found.dtype, torch.float32))
