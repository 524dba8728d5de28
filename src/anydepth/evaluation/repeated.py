"""The grids of a classifier trained several times, with other seeds or on other parts of the data, as one.

Scores are means; `deviation` is the standard deviation of the accuracy between runs, `runs` how many there were. Where
every run has a test set of its own (cross-validation), the interval is that of all texts together; where they share it,
it is the mean of their intervals, and says how well the test set knows.
"""

import hashlib
from collections.abc import Callable, Sequence
from statistics import fmean, stdev
from typing import Any

import numpy as np

from anydepth.errors import UserError
from anydepth.evaluation.cells import Cell, depth_name
from anydepth.evaluation.labels import wilson

MEANS = ("accuracy", "macro_f1", "loss", "seconds", "mean_depth")
EXITS = "exits"


def repeated(name: str, grids: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One grid; depths and early exits that only some runs have are means of these."""
    if any(grid["labels"] != grids[0]["labels"] for grid in grids):
        raise UserError(f"{name}: its runs have other labels: not one grid")
    sets = {grid["test_set"]: int(grid["sentences"]) for grid in grids}
    common = {key: value for key, value in grids[0].items() if all(grid.get(key) == value for grid in grids)}
    return common | {
        "signatures": grids[0]["signatures"],
        "sentences": sum(sets.values()),
        "test_set": next(iter(sets)) if len(sets) == 1 else hashlib.sha256(" ".join(sets).encode()).hexdigest(),
        "cells": sorted(means_of(grids, "cells", depth_name), key=lambda cell: int(cell["encoder"])),
        EXITS: means_of(grids, EXITS, lambda cell: str(cell["exit"])),
    }


def means_of(grids: Sequence[dict[str, Any]], part: str, name: Callable[[Cell], str]) -> list[Cell]:
    groups: dict[str, list[tuple[Cell, dict[str, Any]]]] = {}
    for grid in grids:
        for cell in grid.get(part, ()):
            groups.setdefault(name(cell), []).append((cell, grid))
    return [mean_cell([cell for cell, _ in group], [grid for _, grid in group]) for group in groups.values()]


def mean_cell(cells: list[Cell], grids: list[dict[str, Any]]) -> Cell:
    """Of the same depth in several runs, each with its grid."""
    if len(cells) == 1:
        return cells[0]
    means = {key: fmean(cell[key] for cell in cells) for key in MEANS if key in cells[0]}
    interval = [fmean(cell["interval"][side] for cell in cells) for side in (0, 1)]
    sets = {grid["test_set"]: int(grid["sentences"]) for grid in grids}
    if len(sets) > 1:  # every text counts alike
        counts = [int(grid["sentences"]) for grid in grids]
        means["accuracy"] = sum(cell["accuracy"] * count for cell, count in zip(cells, counts)) / sum(counts)
        interval = list(wilson(means["accuracy"] / 100, sum(sets.values())))
    depths = [cell["depths"] for cell in cells if "depths" in cell]
    together = {"depths": np.sum(depths, 0).tolist()} if depths else {}
    spread = {"deviation": stdev(cell["accuracy"] for cell in cells), "runs": len(cells)}
    return cells[0] | means | together | {"interval": interval} | spread
