"""LayerDrop: each layer is left out of a training step with probability p; pruned without re-training afterwards."""

from typing import ClassVar, Literal

import torch
from torch import Generator

from anydepth.config_class import config
from anydepth.depth.policy import Depth
from anydepth.plan import Plan, Request


@config
class LayerDropConfig:
    """Random subsets of the layers in training, evenly pruned ones at inference."""

    type: Literal["layerdrop"] = "layerdrop"
    gated: ClassVar[bool] = False
    drop: float = 0.2
    """Probability that a layer is left out of a training step."""

    def __post_init__(self) -> None:
        if not 0 <= self.drop < 1:
            raise ValueError("drop must be at least 0 and below 1")

    def build(self, layers: int) -> "LayerDrop":
        return LayerDrop(layers, self.drop)


class LayerDrop(Depth):
    def __init__(self, layers: int, drop: float) -> None:
        super().__init__(layers)
        self.drop = drop

    def plans(self, key: str = "") -> dict[int, Plan]:
        return {depth: Plan(pruned(self.layers, depth)) for depth in range(1, self.layers + 1)}

    def sample(self, request: Request, generator: Generator) -> Plan:
        # one Bernoulli a layer and step, no rescaling (flexible-depth §2.2)
        kept = torch.rand(self.layers, generator=generator) >= self.drop
        return Plan(tuple(layer for layer in range(self.layers) if kept[layer]))

    def mean_steps(self) -> float:
        return (1 - self.drop) * self.layers


def pruned(layers: int, depth: int) -> tuple[int, ...]:
    """The layers kept at a depth, counted from 0.

    Flexible-depth Eq. 3 removes every (D / (D − d))-th layer, which keeps d of them only where D − d divides D (its
    floating-point form is wrong even there at D = 12, d = 8). Where more than half must go it would delete every
    layer; the paper then uses Left, the first of each of d equal chunks. Elsewhere: evenly spaced layers.
    """
    removed = layers - depth
    if removed == 0:
        return tuple(range(layers))
    if layers % removed == 0 and depth >= removed:
        every = layers // removed
        return tuple(layer for layer in range(layers) if (layer + 1) % every)
    if layers % depth == 0:
        return tuple(range(0, layers, layers // depth))
    return tuple(chunk * layers // depth for chunk in range(depth))
