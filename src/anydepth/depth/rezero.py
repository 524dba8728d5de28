"""ReZero: each layer's branches are scaled by one learned number that starts at 0, so that any depth trains."""

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from anydepth.config_class import config
from anydepth.depth.policy import Alone, Depth
from anydepth.plan import Noise, Plan, Request


@config
class ReZeroConfig:
    """All layers, each scaled by a learned number that starts at 0. Needs `norm` "none" or "pre"."""

    type: Literal["rezero"] = "rezero"
    gated: ClassVar[bool] = True

    def build(self, layers: int) -> "ReZero":
        return ReZero(layers)


class ReZero(Depth):
    def __init__(self, layers: int) -> None:
        super().__init__(layers)
        self.scale = nn.Parameter(torch.zeros(layers))

    def plans(self, key: str = "") -> dict[int, Plan]:
        return {self.layers: Plan(tuple(range(self.layers)))}

    def alone(self, plan: Plan, key: str = "") -> Alone:
        return Alone(ReZeroConfig(), plan.layers, {"scale": self.scale[list(plan.layers)]})

    def gates(self, plan: Plan, request: Request, noise: Noise | None = None) -> Tensor:
        scale = self.scale.unbind()  # an index would be copied to the GPU, which a CUDA graph cannot do
        return torch.stack([scale[layer] for layer in plan.layers])
