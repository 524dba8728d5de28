"""Classifiers on the report: accuracy against depth, of one run or of several, and which differences are real."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from anydepth.evaluation.accuracies import accuracies
from anydepth.evaluation.accuracy import EXITS
from anydepth.evaluation.cells import depth_name
from anydepth.evaluation.records import Record
from anydepth.evaluation.repeated import MEANS
from anydepth.reporting.coloured import for_page
from anydepth.reporting.figures import ACCENT, INK, SERIES, as_svg, empty_figure, styled
from anydepth.reporting.page import Page


def show_accuracies(page: Page, means: Mapping[str, Sequence[str]], baseline: str = "") -> None:
    """`means` names the runs whose mean is shown, too."""
    measured, (rows, against) = [record for record in page.records if record.grid], accuracies(page.records, baseline)
    page.accuracies = {
        "rows": rows,
        "means": [row for name, runs in means.items() for row in mean_rows(name, runs, measured)],
        "words": any("mean_depth" in row for row in rows),
        "repeated": any("deviation" in row for row in rows),
        "samples": [sample for record in measured for sample in samples(record)],
        "against": against,
        "compared": any(row["apart"] for row in rows),
        "picture": picture(measured) if len(rows) > 1 else "",
        "by_layers": by_layers(measured) if against else [],
        "histogram": histogram([row for row in rows if "depths" in row]),
    }


def mean_rows(name: str, runs: Sequence[str], measured: list[Record]) -> list[dict[str, Any]]:
    """The mean over data sets of one kind of classifier, for every depth and early exit that it has on all of them."""
    records = [record for record in measured if record.name in runs]
    cells: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        for cell in [*record.cells, *(record.grid or {}).get(EXITS, ())]:
            cells.setdefault(cell.get("exit") or depth_name(cell), []).append(cell)
    sets = len({(record.grid or {})["test_set"] for record in records})
    return [
        {"run": name, "depth": depth, "sets": sets}
        | {key: fmean(cell[key] for cell in each) for key in MEANS if all(key in cell for cell in each)}
        for depth, each in cells.items()
        if len(each) == len(records) > 1
    ]


def samples(record: Record) -> list[dict[str, Any]]:
    """Texts whose words have depths of their own, each word with its colours."""
    layers = max((int(cell["encoder"]) for cell in record.cells), default=1)
    given = (record.grid or {}).get("samples", ())
    return [{"run": record.name, **one, "words": for_page(one["words"], layers)} for one in given]


MARKERS = "os^Dv"
"""Of runs that have the same colour, there being more of them than colours."""


@styled
def picture(records: list[Record]) -> str:
    """Accuracy over the layers that a word runs on average, a line with its 95 % interval for each run; crosses are
    texts that leave early."""
    figure, axes = empty_figure(740, max(330, 30 + 19 * len(records)))  # the legend has a row for each
    for place, record in enumerate(records):
        points, color = sorted(map(point, record.cells)), SERIES[place % len(SERIES)]
        xs, ys, low, high = zip(*points)
        axes.fill_between(xs, low, high, color=color, alpha=0.12, linewidth=0)
        axes.vlines(xs, low, high, color=color, alpha=0.35, linewidth=1.2)
        shape = MARKERS[place // len(SERIES) % len(MARKERS)]
        axes.plot(xs, ys, color=color, linewidth=1.8, marker=shape, markersize=4, label=record.name)
        left = [point(cell) for cell in (record.grid or {}).get(EXITS, ())]
        axes.plot([one[0] for one in left], [one[1] for one in left], color=color, linestyle="", marker="x")
    axes.set(xlabel="layers of a word, on average", ylabel="accuracy, %")
    axes.xaxis.get_major_locator().set_params(integer=True)
    if len(records) > 1:
        axes.legend(labelcolor=INK, loc="upper left", bbox_to_anchor=(1, 1))
    return as_svg(figure, "accuracy by depth", {})


def point(cell: dict[str, Any]) -> tuple[float, float, float, float]:
    """Layers, accuracy and its interval."""
    return float(cell.get("mean_depth", cell["encoder"])), cell["accuracy"], *cell["interval"]


def by_layers(records: list[Record]) -> list[str]:
    """Models whose words have depths of their own, by the layers there are at most (depth-adaptive Fig. 3)."""
    if not any("mean_depth" in cell for record in records if len(record.cells) > 1 for cell in record.cells):
        return []
    accuracies = [[(cell["accuracy"], cell.get("deviation", 0.0)) for cell in record.cells] for record in records]
    texts = [int((record.grid or {})["sentences"]) for record in records]
    speeds = [[(count / cell["seconds"], 0.0) for cell in record.cells] for record, count in zip(records, texts)]
    return [sweep(records, accuracies, "accuracy, %"), sweep(records, speeds, "texts a second")]


@styled
def sweep(records: list[Record], values: list[list[tuple[float, float]]], label: str) -> str:
    """A line for each of several kinds of model over their numbers of layers; as far as runs deviate, a band."""
    figure, axes = empty_figure(740, 280)
    for place, (record, own) in enumerate(zip(records, values)):
        layers, color = [int(cell["encoder"]) for cell in record.cells], SERIES[place % len(SERIES)]
        means, spreads = np.array(own).T
        axes.fill_between(layers, means - spreads, means + spreads, color=color, alpha=0.15, linewidth=0)
        axes.plot(layers, means, color=color, linewidth=1.8, marker="o", markersize=4, label=record.name)
    axes.set(xlabel="layers of the model", ylabel=label)
    axes.xaxis.get_major_locator().set_params(integer=True)
    if len(records) > 1:
        axes.legend(labelcolor=INK, loc="upper left", bbox_to_anchor=(1, 1))
    return as_svg(figure, f"{label} by layers", {})


@styled
def histogram(rows: list[dict[str, Any]]) -> str:
    """How many words have each depth: a line of bars for every row, the highest as high as the line."""
    if not rows:
        return ""
    figure, axes = empty_figure(740, 60 + 44 * len(rows))
    for place, row in enumerate(reversed(rows)):
        shares = np.array(row["depths"]) / max(1, sum(row["depths"]))
        axes.bar(np.arange(1, len(shares) + 1), 0.8 * shares / shares.max(), bottom=place, width=0.8, color=ACCENT)
    names = [f"{row['run']}, {row['depth']}" if "exit" in row else row["run"] for row in reversed(rows)]
    axes.set_yticks(np.arange(len(rows)) + 0.3, names)
    axes.set(xlabel="layers of a word", ylim=(-0.1, len(rows)))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(visible=False)
    return as_svg(figure, "words by depth", {})
