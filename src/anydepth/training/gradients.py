"""How large the gradient of every layer is: where deep models fail, it vanishes or explodes from layer to layer."""

import torch
from torch import Tensor

from anydepth.planned import Planned

LayerNorms = dict[str, list[Tensor | None]]
"""By stack: the norm of each layer's gradient, still on the device; None for a layer that no plan of the step ran."""


def layer_norms(model: Planned) -> LayerNorms:
    """Of the gradients as they are now."""
    norms: LayerNorms = {}
    for name in model.policies:
        layers = getattr(model, name).layers
        each = [[p.grad for p in layer.parameters() if p.grad is not None] for layer in layers]
        norms[name] = [torch.nn.utils.get_total_norm(gradients) if gradients else None for gradients in each]
    return norms


def read_norms(norms: list[Tensor | None]) -> list[float | None]:
    """As numbers, in one look at the device."""
    found = [norm for norm in norms if norm is not None]
    numbers = iter(torch.stack(found).tolist() if found else [])
    return [None if norm is None else next(numbers) for norm in norms]
