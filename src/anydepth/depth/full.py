"""The plain Transformer: all layers, always."""

from typing import ClassVar, Literal

from anydepth.config_class import config
from anydepth.depth.policy import Depth
from anydepth.plan import Plan


@config
class FullConfig:
    """All layers, always: the plain Transformer."""

    type: Literal["full"] = "full"
    gated: ClassVar[bool] = False

    def build(self, layers: int) -> "Full":
        return Full(layers)


class Full(Depth):
    def plans(self, key: str = "") -> dict[int, Plan]:
        return {self.layers: Plan(tuple(range(self.layers)))}
