"""The first d layers, for every d (tied-multi, Algorithm 1: every layer is an exit)."""

from typing import ClassVar, Literal

from torch import Generator

from anydepth.config_class import config
from anydepth.depth.policy import Depth, draw, every_depth
from anydepth.plan import Plan, Request


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
    def __init__(self, layers: int, sample: str = "uniform") -> None:
        super().__init__()
        self.layers = layers
        self.uniform = sample == "uniform"

    def plans(self, key: str = "") -> dict[int, Plan]:
        return every_depth(self.layers)

    def sample(self, request: Request, generator: Generator) -> Plan:
        plans = self.plans()
        return plans[draw(sorted(plans), generator)] if self.uniform else plans[self.layers]
