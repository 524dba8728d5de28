"""The first d layers, for every d (tied-multi, Algorithm 1: every layer is an exit)."""

from typing import ClassVar, Literal

from anydepth.config_class import config
from anydepth.depth.policy import Depth, every_depth
from anydepth.plan import Plan


@config
class PrefixConfig:
    """The first d layers, for every d."""

    type: Literal["prefix"] = "prefix"
    gated: ClassVar[bool] = False
    sample: Literal["uniform", "full"] = "uniform"
    """How training draws d each step: `uniform` over 1 … L, or always the `full` stack."""

    def build(self, layers: int) -> "Prefix":
        return Prefix(layers, self.sample)


class Prefix(Depth):
    def __init__(self, layers: int, sample: str) -> None:
        super().__init__(layers)
        self.uniform = sample == "uniform"

    def plans(self, key: str = "") -> dict[int, Plan]:
        return every_depth(self.layers)
