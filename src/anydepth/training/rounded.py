"""The projections of a model in bfloat16, rounded once a step.

Autocast rounds the weights of an operation where it stands, and their gradients back: in compiled layers a kernel for
each. Here all weights are rounded together, and all gradients come back together. The numbers are the same.
"""

from types import TracebackType

import torch
from torch import Tensor, nn

from anydepth.nn.layers import Layer


class Rounded:
    """A context in which the layers of a model have rounded weights. Leaving it adds the gradients of these to those of
    the weights themselves."""

    def __init__(self, model: nn.Module, wanted: bool = True) -> None:
        layers = [part for part in model.modules() if wanted and isinstance(part, Layer)]
        linears = [linear for layer in layers for linear in layer.projections()]
        self.places = [(linear, name) for linear in linears for name, _ in linear.named_parameters(recurse=False)]
        self.weights = [linear.get_parameter(name) for linear, name in self.places]
        self.copies = [nn.Parameter(weight.detach().bfloat16()) for weight in self.weights]

    @torch.no_grad()
    def refresh(self) -> None:
        """The weights have moved since."""
        if self.copies:
            torch._foreach_copy_(tuple(self.copies), tuple(self.weights))

    def __enter__(self) -> None:
        self.put(self.copies)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.put(self.weights)
        self.hand_over()

    def put(self, parameters: list[nn.Parameter]) -> None:
        for (linear, name), parameter in zip(self.places, parameters):
            linear._parameters[name] = parameter

    @torch.no_grad()
    def hand_over(self) -> None:
        """Gradients of the copies become those of the weights."""
        found: list[tuple[nn.Parameter, Tensor]] = []
        for weight, copy in zip(self.weights, self.copies):
            if copy.grad is not None:
                found.append((weight, copy.grad))
                copy.grad = None
        if not found:
            return
        exact = [torch.empty_like(weight) for weight, _ in found]
        torch._foreach_copy_(exact, [gradient for _, gradient in found])
        more = [(weight.grad, gradient) for (weight, _), gradient in zip(found, exact) if weight.grad is not None]
        for (weight, _), gradient in zip(found, exact):
            weight.grad = gradient if weight.grad is None else weight.grad
        if more:
            torch._foreach_add_([before for before, _ in more], [gradient for _, gradient in more])
