"""Optimizers and learning-rate schedules."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from anydepth.config_class import config


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


def build_optimizer(config: OptimizerConfig, model: nn.Module) -> torch.optim.Optimizer:
    """Adam or AdamW, fused into few kernels."""
    named = dict(model.named_parameters())
    matrices = [p for p in named.values() if p.ndim >= 2]
    others = [p for p in named.values() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    kind = torch.optim.AdamW if config.type == "adamw" else torch.optim.Adam
    return kind(groups, lr=config.learning_rate, betas=config.betas, eps=config.epsilon, fused=True)


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


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Moments and step counts by parameter name: `exp_avg.encoder.layers.0…`."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for moment, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{moment}.{name}"] = value
    return tensors


def restore_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Undoes `optimizer_tensors`. A parameter that had no gradient yet has no moments, then as now."""
    by_name: dict[str, dict[str, Tensor]] = {}
    for full, value in tensors.items():
        moment, name = full.split(".", 1)
        by_name.setdefault(name, {})[moment] = value
    for name, parameter in model.named_parameters():
        if name in by_name:
            optimizer.state[parameter] = {moment: value.to(parameter.device) for moment, value in by_name[name].items()}
