"""Classifiers side by side: how accurate they are at every depth and early exit, and which differences are real."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from anydepth.errors import UserError
from anydepth.evaluation.accuracy import EXITS
from anydepth.evaluation.cells import Cell, depth_name
from anydepth.evaluation.labels import Paired, paired
from anydepth.evaluation.records import Record


class Accuracies(NamedTuple):
    rows: list[dict[str, Any]]
    """A cell each, with the name of its run, its depth or exit, and the difference to what all are held against."""
    against: str
    """The deepest depth of the first run, or of another; empty where runs were measured on other texts."""


def accuracies(records: Sequence[Record], baseline: str = "") -> Accuracies:
    """Of all runs that were evaluated."""
    measured = [record for record in records if record.grid]
    first = next((record for record in measured if record.name == baseline), None) if baseline else None
    if baseline and first is None:
        names = ", ".join(record.name for record in measured)
        raise UserError(f"--baseline {baseline}: not one of the runs compared: {names}")
    if not measured:
        return Accuracies([], "")
    first = first or measured[0]
    reference = max(first.cells, key=lambda cell: int(cell["encoder"]))
    comparable = len({record.grid["test_set"] for record in measured if record.grid}) == 1
    rows = []
    for record in measured:
        for cell in [*record.cells, *(record.grid or {}).get(EXITS, ())]:
            itself = record is first and cell is reference
            apart = None if itself or not comparable else difference(first, reference, record, cell)
            depth = cell.get("exit") or depth_name(cell)
            rows.append({"run": record.name, "depth": depth, **cell, "apart": apart})
    return Accuracies(rows, f"{first.name} at depth {depth_name(reference)}" if comparable else "")


def difference(first: Record, reference: Cell, record: Record, cell: Cell) -> Paired | None:
    """None without outputs."""
    one, other, right = outputs(first, reference), outputs(record, cell), outputs(first, reference, "reference")
    if one is None or other is None or right is None:
        return None
    return paired(other, one, right) if len(one) == len(other) == len(right) else None


def outputs(record: Record, cell: Cell, name: str = "") -> np.ndarray | None:
    """The labels that a cell counts, where they were kept; of several runs together there are none."""
    if "runs" in cell or ("exit" in cell and len(record.folders) > 1):
        return None
    folder = record.folders[0] if "exit" in cell else record.folder_of(depth_name(cell))
    file = folder.path / "outputs" / f"{name or cell.get('exit') or depth_name(cell)}.txt"
    return np.array(file.read_text(encoding="utf-8").splitlines()) if file.exists() else None
