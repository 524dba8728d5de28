"""The first d layers, for every d or for some (tied-multi, Algorithm 1: every layer is an exit)."""

from typing import ClassVar, Literal

from anydepth.config_class import config
from anydepth.depth.policy import Depth, every_depth
from anydepth.plan import Plan


@config
class PrefixConfig:
    """The first d layers, for every d or for some."""

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
        self.uniform = config.sample == "uniform"
        exits = {*config.exits, layers} if config.exits else set(range(1, layers + 1))
        # once: every sentence that is decoded asks for its plan
        self.known = {depth: plan for depth, plan in every_depth(layers).items() if depth in exits}

    def plans(self, key: str = "") -> dict[int, Plan]:
        return self.known
