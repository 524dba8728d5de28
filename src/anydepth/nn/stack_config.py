"""What a recipe says about a stack: how many layers it owns, and how they are chosen."""

from typing import Literal

from anydepth.config_class import config
from anydepth.depth import DepthConfig
from anydepth.depth.full import FullConfig
from anydepth.nn.layers import LayerConfig


@config
class StackConfig:
    """One stack: how many layers it owns and how they are chosen."""

    layers: int = 6
    """Layers the stack owns."""
    depth: DepthConfig = FullConfig()
    """Which of them run: see the depth policies."""
    mix: Literal["residual", "dlcl"] = "residual"
    """What a layer reads: the state before it, or (`dlcl`) a learned linear combination of all earlier states."""
    initialisation: Literal["xavier", "depth-scaled"] = "xavier"
    """How weights start; `depth-scaled` divides those of layer l by √l (Zhang et al. 2019)."""

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise ValueError("layers must be at least 1")
        if self.depth.type == "recurrent" and self.depth.depth < self.layers:
            raise ValueError(
                f"depth.depth: recurrent runs {self.depth.depth} steps at most, so that only the first "
                f"{self.depth.depth} of the {self.layers} layers would ever run; use fewer layers or more steps"
            )
        if self.depth.type in ("per-word", "prefix"):
            self.depth.check(self.layers)
        if self.mix == "dlcl" and self.depth.type != "full":
            raise ValueError(f"mix: dlcl combines the states of all layers, and {self.depth.type} may leave some out")


def check_norm(layer: LayerConfig, name: str, stack: StackConfig) -> None:
    if layer.norm == "post" and stack.depth.gated:
        raise ValueError(
            f"{name}.depth: {stack.depth.type} scales the residual branches, which post-norm layers undo; "
            'use layer.norm = "pre" or "none"'
        )
