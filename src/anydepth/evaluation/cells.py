"""Reading a depth grid: a cell is one depth with its scores and seconds, as in `grid.json`."""

from collections.abc import Sequence
from typing import Any

from anydepth import plan
from anydepth.evaluation.metrics import main_metric

Cell = dict[str, Any]
"""`encoder`, `decoder` (layers), `bleu`, `chrf` or `rouge1`, `rouge2`, `rougeL`, `seconds`, perhaps `parameters`. Of a
model without a decoder: `encoder`, `loss`, `perplexity`, `seconds`, `parameters`."""


def depth_name(cell: Cell) -> str:
    return plan.depth_name(cell["encoder"], cell.get("decoder", 0))


def layers(cell: Cell) -> tuple[int, int]:
    """Orders depths from shallow to deep; of two with as many layers, more encoder layers count as deeper."""
    return cell["encoder"] + cell.get("decoder", 0), cell["encoder"]


def deepest(cells: Sequence[Cell]) -> Cell:
    return max(cells, key=layers)


def best(cells: Sequence[Cell], quality: str = "") -> Cell:
    """The highest score, by BLEU or ROUGE-1 unless told; of equal ones the fastest."""
    quality = quality or main_metric(cells[0])
    return max(cells, key=lambda cell: (cell[quality], -cell["seconds"]))


def fastest(cells: Sequence[Cell]) -> Cell:
    return min(cells, key=lambda cell: cell["seconds"])


def fastest_within(cells: Sequence[Cell], loss: float) -> Cell:
    """The fastest depth that loses at most `loss` points against the best one."""
    quality = main_metric(cells[0])
    floor = best(cells, quality)[quality] - loss
    return fastest([cell for cell in cells if cell[quality] >= floor])


def pareto_front(cells: Sequence[Cell], quality: str = "") -> list[Cell]:
    """The depths that no other depth beats on quality without taking longer, fastest first."""
    quality = quality or main_metric(cells[0])
    front: list[Cell] = []
    for cell in sorted(cells, key=lambda cell: (cell["seconds"], -cell[quality])):
        if not front or cell[quality] > front[-1][quality]:
            front.append(cell)
    return front


def telling_depths(cells: Sequence[Cell]) -> list[str]:
    """A handful of depths that show the range, shallow ones first: the ends, the fastest within 1 point of the
    best, and those a third and two thirds along the Pareto front."""
    front = pareto_front(cells)
    chosen = [min(cells, key=layers), front[len(front) // 3], front[2 * len(front) // 3]]
    chosen += [fastest_within(cells, 1.0), deepest(cells)]
    return list(dict.fromkeys(depth_name(cell) for cell in sorted(chosen, key=layers)))
