"""Depth per word (depth-adaptive Transformers, Liu et al. 2020): word t runs the first d(t) layers and is then copied.

The depths are known before the first layer and travel beside the plan, with the batch (`nn/perword.py` computes them).
Where a batch has none, all words run all layers: the plain encoder.
"""

from typing import ClassVar, Literal

from anydepth.config_class import config
from anydepth.depth.policy import Depth
from anydepth.plan import Plan


@config
class PerWordConfig:
    """The first d layers, with a d for every word. For encoders alone."""

    type: Literal["per-word"] = "per-word"
    gated: ClassVar[bool] = False
    stopped: Literal["refresh", "keep"] = "refresh"
    """Keys and values of a word that has stopped: made of its last state by every later layer (the paper), or those of
    the last layer it ran, which costs nothing."""

    def build(self, layers: int) -> "PerWord":
        return PerWord(layers, self.stopped == "refresh")


class PerWord(Depth):
    def __init__(self, layers: int, refresh: bool = True) -> None:
        super().__init__()
        self.layers, self.refresh = layers, refresh

    def plans(self, key: str = "") -> dict[int, Plan]:
        return {self.layers: Plan(tuple(range(self.layers)))}
