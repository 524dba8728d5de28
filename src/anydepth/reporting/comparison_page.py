"""The report's part that compares several runs."""

from statistics import median
from typing import Any

from anydepth.evaluation.cells import Cell
from anydepth.evaluation.comparison import Comparison
from anydepth.evaluation.differences import Differences
from anydepth.evaluation.metrics import METRICS
from anydepth.evaluation.records import Record
from anydepth.evaluation.samples import choose_samples
from anydepth.reporting import figures, heat_maps, plots
from anydepth.reporting import page as parts
from anydepth.reporting.depth_curves import depth_curves
from anydepth.reporting.page import Page


def show_comparison(page: Page, comparison: Comparison) -> None:
    """Fill the page with what its runs have in common and what tells them apart."""
    page.comparison, page.languages = comparison, comparison.languages
    measured = comparison.measured
    if len(measured) < 2:
        return
    colors = {record.name: figures.SERIES[i % len(figures.SERIES)] for i, record in enumerate(page.records)}
    page.tradeoffs = parts.tradeoffs(
        [plots.Series(record.name, record.cells, colors[record.name]) for record in measured]
    )
    axes = heat_maps.Axes.of(cell for record in measured for cell in record.cells)
    metrics = comparison.metrics
    page.score_maps = [_score_maps(measured, axes, metric) for metric in metrics]
    page.difference_maps = [maps for metric in metrics if (maps := _difference_maps(comparison, axes, metric))]
    if comparison.test_set:
        page.samples = _samples(measured, *comparison.test_set)


def _score_maps(records: list[Record], axes: heat_maps.Axes, metric: str) -> dict[str, Any]:
    """A heat map for each run, all with the same depths and colours, and scores against depth."""
    label, span = METRICS[metric], common_span([cell[metric] for record in records for cell in record.cells])
    maps = [(record, heat_maps.heat_map(record.cells, metric, label, axes=axes, span=span)) for record in records]
    return {"metric": metric, "label": label, "maps": maps, "curves": depth_curves(records, metric, label)}


def common_span(values: list[float]) -> tuple[float, float]:
    """The colours of several maps. A few scores far below the others, as of a model cut to depths it was not trained
    for, must not take all of them: what lies four times as far below the best as the median does is darkest."""
    high, middle = max(values), median(values)
    low = max(min(values), high - 4 * (high - middle))
    return (low, high) if high > low else (high - 1, high)


def _difference_maps(comparison: Comparison, axes: heat_maps.Axes, metric: str) -> dict[str, Any] | None:
    """A map for every run that shares depths with the baseline, all with the same depths and colours."""
    label = METRICS[metric]
    found = [one for one in comparison.differences if one.metric == metric]
    most = max((abs(one.difference) for run in found for one in run.depths), default=0.0)
    records = {record.name: record for record in comparison.measured}
    cells = [(one, _difference_cells(records[one.run], one)) for one in found]
    maps = [(one, heat_maps.difference_map(here, label, axes=axes, most=most) if here else "") for one, here in cells]
    return {"metric": metric, "label": label, "maps": maps} if maps else None


def _difference_cells(record: Record, found: Differences) -> list[Cell]:
    named = {depth: found.at(depth) for depth in record.depths}
    return [
        cell | {"difference": one.difference, "verdict": one.verdict}
        for cell, one in zip(record.cells, named.values(), strict=True)
        if one
    ]


def _samples(records: list[Record], source: list[str], reference: list[str]) -> list[dict[str, object]]:
    """Sentences at the deepest depth of every run; the others are held against the first."""
    found = {record.name: record.outputs([record.deepest]).get(record.deepest) for record in records}
    outputs = {name: texts for name, texts in found.items() if texts}
    if len(outputs) < 2:
        return []
    names = list(outputs)
    return [parts.sample(chosen, names, names[0], names) for chosen in choose_samples(source, reference, outputs)]
