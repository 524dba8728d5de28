"""The first d layers, for every d or for some (tied-multi, Algorithm 1: every layer is an exit)."""

from typing import ClassVar, Literal

from anydepth.config_class import config
from anydepth.depth.policy import Depth, every_depth
from anydepth.plan import Plan


@config
class PrefixConfig:
    """The first d layers, for every d."""

    type: Literal["prefix"] = "prefix"
    gated: ClassVar[bool] = False
    exits: tuple[int, ...] = ()
    """The d there are, beside all layers; empty means every one. Fewer are easier to train, and texts or words that
    leave early are looked at less often."""
    sample: Literal["uniform", "full"] = "uniform"
    """How training draws d each step: `uniform` over the exits, or always the `full` stack."""

    def __post_init__(self) -> None:
        if list(self.exits) != sorted(set(self.exits)) or (self.exits and self.exits[0] < 1):
            raise ValueError("exits: expected depths of at least 1, each once, the shallowest first")

    def check(self, layers: int) -> None:
        if self.exits and self.exits[-1] > layers:
            raise ValueError(f"depth.exits: {self.exits[-1]}, but there are {layers} layers")

    def build(self, layers: int) -> "Prefix":
        return Prefix(layers, self)


class Prefix(Depth):
    def __init__(self, layers: int, config: PrefixConfig) -> None:
        super().__init__(layers)
        self.uniform, self.exits = config.sample == "uniform", {*config.exits, layers}
        self.everywhere = not config.exits

    def plans(self, key: str = "") -> dict[int, Plan]:
        plans = every_depth(self.layers)
        return plans if self.everywhere else {depth: plans[depth] for depth in plans if depth in self.exits}
