"""Gates as a part of the projections that end a layer's branches: z · (W h + b) = (z W) h + z b.

A gate's gradient is then a sum over a matrix. Where the gate multiplies the branch itself, it is a sum over all words,
with kernels of its own for every branch: 6.1 % of a training step of 24 decoder layers on an H200, instead of 4.5 %.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Projection = tuple[Tensor, Tensor | None]
"""Weight and bias."""


class Ends(NamedTuple):
    """The last projections of one layer's branches, times its gate."""

    attention: Projection
    ffn: Projection
    cross: Projection | None = None


def scale_ends(layers: Sequence[Sequence[nn.Linear]], gates: Tensor) -> list[Ends]:
    """By (K,) gates, for all K layers at once: one by one these are small kernels. Each layer gives its projections in
    the order of `Ends`."""
    return [Ends(*ends) for ends in zip(*(scale(alike, gates) for alike in zip(*layers)))]


def scale(projections: Sequence[nn.Linear], gates: Tensor) -> list[Projection]:
    weights = torch.stack(tuple(part.weight for part in projections))
    gates = gates.to(weights.dtype)
    scaled = (weights * gates[:, None, None]).unbind()
    biases = tuple(part.bias for part in projections if part.bias is not None)
    shifts = (torch.stack(biases) * gates[:, None]).unbind() if biases else [None] * len(projections)
    return list(zip(scaled, shifts))


def project(x: Tensor, own: nn.Module, instead: Projection | None) -> Tensor:
    return own(x) if instead is None else F.linear(x, *instead)
