"""Flexible depth: one task for every pair of depths, gradients summed (flexible-depth Algorithm 1)."""

from itertools import combinations
from typing import Literal

import torch
from torch import Generator

from anydepth.config_class import config
from anydepth.errors import UserError
from anydepth.objectives.tasks import Task, Tasks
from anydepth.plan import Plan, Plans
from anydepth.planned import Planned

Side = tuple[tuple[Plan, float], ...]
"""Plans of one side, each with its weight."""


@config
class MultitaskConfig:
    """The sum of the losses of all pairs of depths, or of some encoder and some decoder depths a step (Table 5)."""

    type: Literal["multitask"] = "multitask"
    encoder_depths: int = 0
    """Encoder depths drawn each step; 0 takes all."""
    decoder_depths: int = 0
    """Decoder depths drawn each step; 0 takes all."""
    encoder_weights: tuple[float, ...] = ()
    """What the loss of each encoder depth counts, the shallowest first, as in [1, 1, 2]; empty: all the same."""
    decoder_weights: tuple[float, ...] = ()
    """What the loss of each decoder depth counts, the shallowest first; times the encoder's."""
    together: int = 1
    """Encoder exits whose decoders run as one batch: faster on a GPU, for as many times the decoder's activations."""

    def __post_init__(self) -> None:
        for name in ("encoder_depths", "decoder_depths"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
        for name in ("encoder_weights", "decoder_weights"):
            if not all(weight > 0 for weight in getattr(self, name)):
                raise ValueError(f"{name} must be above 0")
        if self.together < 1:
            raise ValueError("together must be at least 1")

    def draw(self, model: Planned, key: str, encoder: Generator, decoder: Generator) -> Tasks:
        encoders, decoders = self.sides(model)
        return crossed(some(encoders, self.encoder_depths, encoder), some(decoders, self.decoder_depths, decoder))

    def choices(self, model: Planned) -> list[Tasks]:
        """The sets of tasks a step may draw, all equally likely; the mean over them is the sum over all tasks."""
        encoders, decoders = self.sides(model)
        return [
            crossed(chosen, others)
            for chosen in subsets(encoders, self.encoder_depths)
            for others in subsets(decoders, self.decoder_depths)
        ]

    def sides(self, model: Planned) -> tuple[Side, Side]:
        """The plans of both sides, the shallowest first, with their weights, which are 1 on average."""
        return (
            with_weights(model.encoder_depth.plans(), self.encoder_weights, "encoder_weights"),
            with_weights(model.decoder_depth.plans(), self.decoder_weights, "decoder_weights"),
        )


def with_weights(plans: dict[int, Plan], weights: tuple[float, ...], setting: str) -> Side:
    if weights and len(weights) != len(plans):
        raise UserError(
            f"training.objective.{setting}: {len(weights)} weights for {len(plans)} depths"
            f" ({', '.join(map(str, sorted(plans)))}); give one for each, the shallowest first"
        )
    scale = len(weights) / sum(weights) if weights else 1.0
    return tuple((plans[depth], weight * scale) for depth, weight in zip(sorted(plans), weights or [1.0] * len(plans)))


def some(side: Side, size: int, generator: Generator) -> Side:
    """One of the `subsets`, each as likely as the other."""
    size = size or len(side)
    chosen = torch.randperm(len(side), generator=generator)[:size].sort().values.tolist()
    return scaled(tuple(side[place] for place in chosen), len(side))


def subsets(side: Side, size: int) -> list[Side]:
    chosen = combinations(side, size) if 0 < size < len(side) else [side]
    return [scaled(each, len(side)) for each in chosen]


def scaled(side: Side, depths: int) -> Side:
    """Makes up for depths that were not drawn, so that the expectation over draws is the sum over all."""
    return tuple((plan, weight * depths / len(side)) for plan, weight in side)


def crossed(encoders: Side, decoders: Side) -> Tasks:
    return tuple(Task(Plans(encoder, decoder), a * b) for encoder, a in encoders for decoder, b in decoders)
