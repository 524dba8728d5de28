"""Recurrent stacking (tied-multi §5): the same few layers, applied again and again."""

from typing import ClassVar, Literal

from anydepth.config_class import config
from anydepth.depth.policy import Alone, Depth
from anydepth.plan import Plan


@config
class RecurrentConfig:
    """The stack's own layers, applied in turn until the depth is reached."""

    type: Literal["recurrent"] = "recurrent"
    gated: ClassVar[bool] = False
    depth: int = 6
    """Steps of the deepest plan; with one layer that layer runs so many times."""
    sample: Literal["uniform", "full"] = "full"
    """How training draws the number of steps: `uniform` over 1 … depth, or always `full`."""

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ValueError("depth must be at least 1")

    def build(self, layers: int) -> "Recurrent":
        return Recurrent(layers, self.depth, self.sample)


class Recurrent(Depth):
    def __init__(self, layers: int, depth: int, sample: str) -> None:
        super().__init__(layers)
        self.depth = depth
        self.uniform = sample == "uniform"

    def plans(self, key: str = "") -> dict[int, Plan]:
        return {depth: Plan(tuple(step % self.layers for step in range(depth))) for depth in range(1, self.depth + 1)}

    def alone(self, plan: Plan, key: str = "") -> Alone:
        return Alone(RecurrentConfig(depth=len(plan)), tuple(dict.fromkeys(plan.layers)), {})
