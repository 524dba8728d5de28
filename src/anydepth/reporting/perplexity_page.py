"""Masked language models on the report: perplexity against depth and by language, of one run or of several."""

from typing import Any

from anydepth.evaluation.cells import deepest, depth_name
from anydepth.evaluation.records import Record
from anydepth.reporting.figures import INK, SERIES, as_svg, empty_figure, styled
from anydepth.reporting.page import Page


def show_perplexities(page: Page) -> None:
    measured = [record for record in page.records if record.grid]
    ways = {(grid["signatures"]["perplexity"], grid["test_set"]) for record in measured if (grid := record.grid)}
    cells = {record.name: {depth_name(cell): cell for cell in record.cells} for record in measured}
    depths = sorted({depth for each in cells.values() for depth in each}, key=float)
    of_languages = [deepest(record.cells).get("languages", {}) for record in measured]
    page.perplexities = {
        "runs": list(cells),
        "rows": [(depth, [each.get(depth) for each in cells.values()]) for depth in depths],
        "languages": {
            language: [each.get(language) for each in of_languages]
            for language in dict.fromkeys(language for each in of_languages for language in each)
        },
        "unlike": len(ways) > 1,
        "picture": picture(measured) if len(depths) > 1 else "",
    }


@styled
def picture(records: list[Record]) -> str:
    """Perplexity over the layers that run, a line for each run."""
    figure, axes = empty_figure(740, 330)
    for place, record in enumerate(records):
        points: list[dict[str, Any]] = sorted(record.cells, key=lambda cell: cell["encoder"])
        xs, ys = [cell["encoder"] for cell in points], [cell["perplexity"] for cell in points]
        axes.plot(xs, ys, color=SERIES[place % len(SERIES)], linewidth=1.8, marker="o", markersize=4, label=record.name)
    axes.set(xlabel="layers", ylabel="perplexity")
    axes.xaxis.get_major_locator().set_params(integer=True)
    if len(records) > 1:
        axes.legend(labelcolor=INK)
    return as_svg(figure, "perplexity by depth", {})
