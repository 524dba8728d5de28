"""Classifiers on the report: accuracy against depth, of one run or of several, and which differences are real."""

from typing import Any

import numpy as np

from anydepth.evaluation.accuracy import EXITS
from anydepth.evaluation.cells import depth_name
from anydepth.evaluation.coloured import for_page
from anydepth.evaluation.figures import INK, SERIES, as_svg, empty_figure, styled
from anydepth.evaluation.labels import sign_test
from anydepth.evaluation.page import Page
from anydepth.evaluation.records import Record


def show_accuracies(page: Page) -> None:
    measured = [record for record in page.records if record.grid]
    sets = {record.grid["test_set"] for record in measured if record.grid}
    reference = best_of(measured[0]) if measured else None
    rows = [
        {
            "run": record.name,
            "depth": cell.get("exit") or depth_name(cell),
            "p": None if len(sets) > 1 else difference(measured[0], reference, record, cell),
            "mean_depth": cell.get("mean_depth"),
            "deviation": cell.get("deviation"),
            **cell,
        }
        for record in measured
        for cell in [*record.cells, *(record.grid or {}).get(EXITS, ())]
    ]
    page.accuracies = {
        "rows": rows,
        "words": any(row["mean_depth"] is not None for row in rows),
        "repeated": any(row["deviation"] is not None for row in rows),
        "samples": [sample for record in measured for sample in samples(record)],
        "against": f"{measured[0].name} at depth {depth_name(reference)}" if reference and len(sets) == 1 else "",
        "unlike": len(sets) > 1,
        "picture": picture(measured) if any(len(record.cells) > 1 for record in measured) else "",
    }


def samples(record: Record) -> list[dict[str, Any]]:
    """Texts whose words have depths of their own, each word with its colours."""
    layers = max((int(cell["encoder"]) for cell in record.cells), default=1)
    given = (record.grid or {}).get("samples", ())
    return [{"run": record.name, **one, "words": for_page(one["words"], layers)} for one in given]


def best_of(record: Record) -> dict[str, Any]:
    """The deepest cell: what the others are held against."""
    return max(record.cells, key=lambda cell: int(cell["encoder"]))


def difference(first: Record, reference: Any, record: Record, cell: dict[str, Any]) -> float | None:
    """How likely the difference from the first run's deepest depth is chance; None of itself, or without outputs."""
    if (record is first and cell is reference) or {"exit", "runs"} & {*cell, *(reference or ())}:
        return None
    labels = first.outputs([depth_name(reference)]), record.outputs([depth_name(cell)])
    folder = first.folder_of(depth_name(reference)).path / "outputs" / "reference.txt"
    if not (all(labels) and folder.exists()):
        return None
    right = np.array(folder.read_text(encoding="utf-8").splitlines())
    one, other = (np.array(next(iter(each.values()))) for each in labels)
    return sign_test(other, one, right) if len(one) == len(other) == len(right) else None


@styled
def picture(records: list[Record]) -> str:
    """Accuracy over the layers that run, a line with its 95 % interval for each run."""
    figure, axes = empty_figure(740, 330)
    for place, record in enumerate(records):
        points = sorted(record.cells, key=lambda cell: int(cell["encoder"]))
        xs, color = [cell["encoder"] for cell in points], SERIES[place % len(SERIES)]
        low, high = zip(*(cell["interval"] for cell in points))
        axes.fill_between(xs, low, high, color=color, alpha=0.12, linewidth=0)
        ys = [cell["accuracy"] for cell in points]
        axes.plot(xs, ys, color=color, linewidth=1.8, marker="o", markersize=4, label=record.name)
    axes.set(xlabel="layers", ylabel="accuracy, %")
    axes.xaxis.get_major_locator().set_params(integer=True)
    if len(records) > 1:
        axes.legend(labelcolor=INK)
    return as_svg(figure, "accuracy by depth", {})
