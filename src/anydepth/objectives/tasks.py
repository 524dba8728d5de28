"""Several depths trained at once: which plans, with which weight, and how their computation is shared.

A task is a pair of plans with a weight. Tied-multi's N×M exits (Algorithm 1), flexible depth's 24 sub-networks
(Algorithm 1) and a plain Transformer differ only in their tasks. Plans that begin with the same layers share them: the
exits of tied-multi are prefixes of one another, so that the encoder runs once and the decoder once per encoder exit.
"""

from collections.abc import Iterable
from typing import NamedTuple

from anydepth.plan import Plan, Plans


class Task(NamedTuple):
    plans: Plans
    weight: float


Tasks = tuple[Task, ...]
"""Plain hashable data, like plans: CUDA graphs are kept by it."""


class Node(NamedTuple):
    """A layer that runs after its parent's; the root runs none. Plans that share a beginning share nodes."""

    layer: int
    children: "list[Node]"
    plans: list[Plan]
    """Plans that end here: empty for a layer that only leads on."""


def tree(plans: Iterable[Plan]) -> Node:
    """The plans as one tree of layers, so that each shared beginning is computed once."""
    root = Node(-1, [], [])
    for plan in plans:
        node = root
        for layer in plan.layers:
            known = [child for child in node.children if child.layer == layer]
            if not known:
                node.children.append(Node(layer, [], []))
            node = known[0] if known else node.children[-1]
        if plan not in node.plans:
            node.plans.append(plan)
    return root


def by_encoder(tasks: Tasks) -> dict[Plan, list[tuple[Plan, float]]]:
    """For every encoder plan, the decoder plans that read it and their weights."""
    grouped: dict[Plan, list[tuple[Plan, float]]] = {}
    for (encoder, decoder), weight in tasks:
        grouped.setdefault(encoder, []).append((decoder, weight))
    return grouped
