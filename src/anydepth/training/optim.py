"""Optimizers and learning-rate schedules."""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from anydepth.config_class import config
from anydepth.depth import Depth


@config
class OptimizerConfig:
    """How weights move."""

    type: Literal["adam", "adamw"] = "adam"
    """`adam` couples weight decay with the gradient (L2), `adamw` decouples it."""
    learning_rate: float = 1e-3
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.98)
    """Decay of the first and second moment."""
    epsilon: float = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = 0.0
    """Strength of weight decay on matrices; biases, norms and gates have none."""
    decays: Literal["all", "encoder"] = "all"
    """Which matrices: all, or those of the encoder's layers alone (multiscale, for very deep encoders)."""
    schedule: Literal["inverse-sqrt", "cosine", "linear", "constant"] = "inverse-sqrt"
    """Learning rate after the warm-up; `cosine` and `linear` end at 0 with the last step."""
    warmup: int = 4000
    """Steps in which the learning rate grows linearly to its peak."""
    clip: float = 0.0
    """Largest norm of the gradient; 0 does not clip."""

    def __post_init__(self) -> None:
        if not self.learning_rate > 0:
            raise ValueError("learning_rate must be above 0")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError("betas must be at least 0 and below 1")
        for name in ("epsilon", "weight_decay", "warmup", "clip"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")


class Part(NamedTuple):
    """An optimizer and what it moves."""

    config: OptimizerConfig
    parameters: list[nn.Parameter]
    optimizer: torch.optim.Optimizer


class Optimizers:
    """One for all parameters, or one for the weights Θ and another for φ, what the depth policies learn."""

    def __init__(self, model: nn.Module, weights: OptimizerConfig, depth: OptimizerConfig | None = None) -> None:
        self.named = dict(model.named_parameters())
        self.learnt_by_depth = [p for part in model.modules() if isinstance(part, Depth) for p in part.parameters()]
        apart = set() if depth is None else set(self.learnt_by_depth)
        self.parts = [make_part(weights, {name: p for name, p in self.named.items() if p not in apart})]
        if depth is not None:
            self.parts.append(make_part(depth, {name: p for name, p in self.named.items() if p in apart}))

    def update(self, step: int, steps: int) -> Tensor:
        """Clips gradients, moves what has one, forgets them. The norm is that of the first part's gradients."""
        norms = []
        for settings, parameters, optimizer in self.parts:
            norms.append(nn.utils.clip_grad_norm_(parameters, settings.clip if settings.clip else math.inf))
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(settings, step, steps)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return norms[0]

    def tensors(self) -> dict[str, Tensor]:
        """Moments and step counts by parameter name: `exp_avg.encoder.layers.0…`."""
        return {
            f"{moment}.{name}": value
            for name, parameter in self.named.items()
            for part in self.parts
            for moment, value in part.optimizer.state.get(parameter, {}).items()
        }

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Undoes `tensors`. A parameter that had no gradient yet has no moments, then as now."""
        of = {parameter: part.optimizer for part in self.parts for parameter in part.parameters}
        for full, value in tensors.items():
            moment, name = full.split(".", 1)
            parameter = self.named[name]
            of[parameter].state[parameter][moment] = value.to(parameter.device)


def make_part(config: OptimizerConfig, named: dict[str, nn.Parameter]) -> Part:
    """Adam or AdamW, fused into few kernels."""
    parameters = list(named.values())
    place = "encoder." if config.decays == "encoder" else ""
    decayed = {parameter for name, parameter in named.items() if name.startswith(place) and parameter.ndim >= 2}
    matrices = [p for p in parameters if p in decayed]
    others = [p for p in parameters if p not in decayed]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    kind = torch.optim.AdamW if config.type == "adamw" else torch.optim.Adam
    optimizer = kind(groups, lr=config.learning_rate, betas=config.betas, eps=config.epsilon, fused=True)
    return Part(config, parameters, optimizer)


def learning_rate(config: OptimizerConfig, step: int, steps: int) -> float:
    """The rate of a step, counted from 1."""
    if step < config.warmup:
        return config.learning_rate * step / config.warmup
    done = min(1.0, (step - config.warmup) / max(1, steps - config.warmup))
    match config.schedule:
        case "inverse-sqrt":
            return config.learning_rate * math.sqrt(max(1, config.warmup) / max(1, step))
        case "cosine":
            return config.learning_rate * 0.5 * (1 + math.cos(math.pi * done))
        case "linear":
            return config.learning_rate * (1 - done)
        case "constant":
            return config.learning_rate
