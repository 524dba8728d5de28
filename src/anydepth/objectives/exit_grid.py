"""Tied-multi: every pair of an encoder exit and a decoder exit is trained (Algorithm 1)."""

import math
import random
from typing import Literal

import torch
from torch import Generator

from anydepth.config_class import config
from anydepth.objectives.tasks import Task, Tasks
from anydepth.plan import Plan, Plans
from anydepth.planned import Planned


@config
class ExitGridConfig:
    """The mean of the losses of all N×M pairs of exits, or an unbiased estimate of it from a few pairs a step."""

    type: Literal["exit-grid"] = "exit-grid"
    pairs: int = 0
    """Pairs drawn each step; 0 trains all of them."""
    deepest: float = 1.0
    """Weight of the deepest pair, where every other one has 1."""
    decay: bool = False
    """Lets deeper encoder exits weigh less: N parts for the first, one for the N-th (depth-adaptive, footnote 3)."""
    always_deepest: bool = False
    """Takes the deepest pair in every step and draws the others; the weights make up for it."""
    taught_by: Literal["labels", "deepest"] = "labels"
    """What shallower exits learn: the labels or words, or the probabilities that the deepest exit gives them. It alone
    learns from labels then, so that a model that begins with nothing needs `deepest` to be as much as all others."""
    together: int = 1
    """Encoder exits whose decoders run as one batch: faster on a GPU, for as many times the decoder's activations."""

    def __post_init__(self) -> None:
        if self.pairs < 0:
            raise ValueError("pairs must not be negative")
        if self.together < 1:
            raise ValueError("together must be at least 1")
        if self.always_deepest and self.pairs == 1:
            raise ValueError("pairs: with always_deepest at least 2 are needed, or the others would never be trained")
        if self.taught_by == "deepest" and self.pairs and not self.always_deepest:
            raise ValueError("taught_by: the deepest exit has to be in every step to teach; set always_deepest")
        if not self.deepest > 0:
            raise ValueError("deepest must be above 0")

    def draw(self, model: Planned, key: str, encoder: Generator, decoder: Generator) -> Tasks:
        choices = self.choices(model)
        return choices[int(torch.randint(len(choices), (), generator=encoder))]

    def choices(self, model: Planned) -> list[Tasks]:
        """The sets of tasks a step may draw, all equally likely; the mean over them is the full grid.

        Few sets rather than all subsets, so that each can be recorded as a CUDA graph: the pairs are put in a random
        but fixed circle, and a draw takes neighbours. Every pair is in equally many sets.
        """
        grid = self.grid(model)
        fixed = [grid.pop()] if self.always_deepest else []
        size = self.pairs - len(fixed)
        if not self.pairs or size >= len(grid):
            return [(*grid, *fixed)]
        random.Random(0).shuffle(grid)
        scaled = [Task(plans, weight * len(grid) / size) for plans, weight in grid]
        starts = range(0, len(grid), math.gcd(size, len(grid)))
        return [(*(scaled[(start + k) % len(grid)] for k in range(size)), *fixed) for start in starts]

    def grid(self, model: Planned) -> list[Task]:
        """All pairs, the deepest last; the weights add up to 1."""
        encoders, decoders = (in_order(policy.plans()) for policy in (model.encoder_depth, model.decoder_depth))
        pairs = [Plans(encoder, decoder) for encoder in encoders for decoder in decoders]
        parts = [len(encoders) - place if self.decay else 1 for place in range(len(encoders))]
        weights = [float(part) for part in parts for _ in decoders]
        weights[-1] *= self.deepest
        return [Task(plans, weight / sum(weights)) for plans, weight in zip(pairs, weights)]


def in_order(plans: dict[int, Plan]) -> list[Plan]:
    """The shallowest first."""
    return [plans[depth] for depth in sorted(plans)]
