"""Flexible depth: a fixed sub-network SN(d) of the layers for every divisor d (flexible-depth §3).

A strategy assigns layers to depths. Two figures judge it: task balance, how evenly the layers are shared over the
sub-networks (Eq. 5), and average layer distance, how far apart the neighbours of a sub-network are (Eq. 6).
"""

import statistics
from collections.abc import Callable
from itertools import pairwise
from typing import ClassVar, Literal

from anydepth.config_class import config
from anydepth.depth.policy import Depth
from anydepth.errors import UserError
from anydepth.plan import Plan

Assignment = dict[int, tuple[int, ...]]
"""Depth → its layers, counted from 0."""


@config
class SubnetworkConfig:
    """A fixed sub-network of the layers for every depth of a set."""

    type: Literal["subnetwork"] = "subnetwork"
    gated: ClassVar[bool] = False
    strategy: Literal["head", "seq", "left", "middle-left", "optimal"] = "optimal"
    """How layers are assigned to depths (flexible-depth §3.3)."""
    depths: tuple[int, ...] = ()
    """The depths offered, divisors of the number of layers; empty means all divisors."""
    sample: Literal["uniform", "full"] = "uniform"
    """How training draws the depth each step: `uniform` over the depths, or always the deepest of them (`full`)."""

    def build(self, layers: int) -> "Subnetwork":
        return Subnetwork(layers, self.strategy, self.depths, self.sample)


class Subnetwork(Depth):
    def __init__(self, layers: int, strategy: str, depths: tuple[int, ...], sample: str) -> None:
        super().__init__(layers)
        self.uniform = sample == "uniform"
        self.assignment = assign(layers, strategy, depths)

    def plans(self, key: str = "") -> dict[int, Plan]:
        return {depth: Plan(chosen) for depth, chosen in self.assignment.items()}


def assign(layers: int, strategy: str = "optimal", depths: tuple[int, ...] = ()) -> Assignment:
    """The sub-network of every depth (all divisors by default), shallowest first."""
    if strategy not in STRATEGIES:
        raise UserError(f"strategy {strategy!r}: expected one of {', '.join(STRATEGIES)}")
    chosen = sorted(set(depths)) if depths else divisors(layers)
    for depth in chosen:
        if depth < 1 or layers % depth:
            raise UserError(f"depths: {depth} does not divide the {layers} layers into equal chunks")
    return dict(sorted(STRATEGIES[strategy](layers, chosen).items()))


def divisors(number: int) -> list[int]:
    if number < 1:
        raise UserError(f"{number} layers: expected at least 1")
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def head(layers: int, depths: list[int]) -> Assignment:
    """The first d layers."""
    return {depth: tuple(range(depth)) for depth in depths}


def left(layers: int, depths: list[int]) -> Assignment:
    """The first layer of each of d equal chunks."""
    return {depth: tuple(range(0, layers, layers // depth)) for depth in depths}


def middle_left(layers: int, depths: list[int]) -> Assignment:
    """The middle layer of each chunk, the left one of two."""
    return {depth: tuple(chunk[middle(chunk)] for chunk in chunks(layers, depth)) for depth in depths}


def seq(layers: int, depths: list[int]) -> Assignment:
    """Contiguous blocks, each after the one before, shallowest first.

    The paper does not say what happens where a block does not fit (D = 12, d = 6 has two layers left). Sliding the
    block back to the last d layers gives its printed figures; when the layers are used up we start at the first again.
    """
    assignment, start = {}, 0
    for depth in sorted(depths):
        if start == layers:
            start = 0
        start = min(start, layers - depth)
        assignment[depth] = tuple(range(start, start + depth))
        start += depth
    return assignment


def optimal(layers: int, depths: list[int]) -> Assignment:
    """Share the layers evenly, and keep the layers of a sub-network far apart (flexible-depth Algorithm 2).

    Deepest first, every layer serves once before any serves again: a depth that does not find a free layer in each
    chunk waits. In a chunk the free layer nearest to the middle-left one serves; of two at the same distance the right
    one, which is what gives the printed distance of 2.05 at D = 12 (left would give 1.95).
    """
    assignment: Assignment = {}
    pending, free = sorted(depths, reverse=True), set(range(layers))
    while pending:
        fitting = [d for d in pending if all(free.intersection(chunk) for chunk in chunks(layers, d))]
        if not fitting:
            free = set(range(layers))
            continue
        depth = fitting[0]
        assignment[depth] = tuple(nearest(free, chunk) for chunk in chunks(layers, depth))
        free -= set(assignment[depth])
        pending.remove(depth)
    return assignment


def chunks(layers: int, depth: int) -> list[range]:
    size = layers // depth
    return [range(start, start + size) for start in range(0, layers, size)]


def middle(chunk: range) -> int:
    """Offset of the middle-left layer, ⌈c/2⌉ − 1 counted from 0."""
    return (len(chunk) + 1) // 2 - 1


def nearest(free: set[int], chunk: range) -> int:
    target = chunk[middle(chunk)]
    return min(free.intersection(chunk), key=lambda layer: (abs(layer - target), -layer))


STRATEGIES: dict[str, Callable[[int, list[int]], Assignment]] = {
    "head": head,
    "seq": seq,
    "left": left,
    "middle-left": middle_left,
    "optimal": optimal,
}


def task_balance(assignment: Assignment, layers: int) -> float:
    """Standard deviation of how many sub-networks use each layer (Eq. 5).

    Divides by D − 1: that is what the paper's Table 3 prints, although its equation divides by D.
    """
    uses = [sum(layer in chosen for chosen in assignment.values()) for layer in range(layers)]
    return statistics.stdev(uses) if layers > 1 else 0.0


def average_layer_distance(assignment: Assignment) -> float:
    """Mean distance of neighbouring layers, over all neighbours of all sub-networks (Eq. 6)."""
    gaps = [b - a for chosen in assignment.values() for a, b in pairwise(chosen)]
    return sum(gaps) / len(gaps) if gaps else 0.0
