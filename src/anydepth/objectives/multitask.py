"""Flexible depth: one task for every pair of depths, gradients summed (flexible-depth Algorithm 1)."""

from itertools import combinations
from typing import Literal

import torch
from torch import Generator

from anydepth.config_class import config
from anydepth.models import Planned
from anydepth.objectives.tasks import Task, Tasks
from anydepth.plan import Plan, Plans


@config
class MultitaskConfig:
    """The sum of the losses of all pairs of depths, or of some encoder and some decoder depths a step (Table 5)."""

    type: Literal["multitask"] = "multitask"
    encoder_depths: int = 0
    """Encoder depths drawn each step; 0 takes all."""
    decoder_depths: int = 0
    """Decoder depths drawn each step; 0 takes all."""
    together: int = 1
    """Encoder exits whose decoders run as one batch: faster on a GPU, for as many times the decoder's activations."""

    def __post_init__(self) -> None:
        for name in ("encoder_depths", "decoder_depths"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
        if self.together < 1:
            raise ValueError("together must be at least 1")

    def draw(self, model: Planned, key: str, encoder: Generator, decoder: Generator) -> Tasks:
        encoders, decoders = model.encoder_depth.plans(), model.decoder_depth.plans()
        return crossed(
            some(encoders, self.encoder_depths, encoder),
            some(decoders, self.decoder_depths, decoder),
            len(encoders) * len(decoders),
        )

    def choices(self, model: Planned) -> list[Tasks]:
        """The sets of tasks a step may draw, all equally likely; the mean over them is the sum over all tasks."""
        encoders, decoders = model.encoder_depth.plans(), model.decoder_depth.plans()
        return [
            crossed(chosen, others, len(encoders) * len(decoders))
            for chosen in subsets(encoders, self.encoder_depths)
            for others in subsets(decoders, self.decoder_depths)
        ]


def some(plans: dict[int, Plan], size: int, generator: Generator) -> tuple[Plan, ...]:
    """One of the `subsets`, each as likely as the other."""
    ordered = sorted(plans)
    chosen = torch.randperm(len(ordered), generator=generator)[: size or None].sort().values.tolist()
    return tuple(plans[ordered[place]] for place in chosen)


def subsets(plans: dict[int, Plan], size: int) -> list[tuple[Plan, ...]]:
    ordered = tuple(plans[depth] for depth in sorted(plans))
    return list(combinations(ordered, size)) if 0 < size < len(ordered) else [ordered]


def crossed(encoders: tuple[Plan, ...], decoders: tuple[Plan, ...], tasks_in_all: int) -> Tasks:
    """Every pair, weighted so that the expectation over draws is the sum over all tasks."""
    weight = tasks_in_all / (len(encoders) * len(decoders))
    return tuple(Task(Plans(encoder, decoder), weight) for encoder in encoders for decoder in decoders)
