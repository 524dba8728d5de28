"""The report's part about choosing a depth for every sentence: what each way gives, in what time, at which depths."""

from typing import NamedTuple

from anydepth.evaluation.records import Record
from anydepth.reporting.figures import INK, MUTED, SERIES, as_svg, empty_figure, number, styled
from anydepth.selecting.verdict import Judgement, read_judgement

FOLDER = "selector"
"""In a run's own."""
MARKERS = {"selector": "D", "selector, fine-tuned": "s", "budget-aware selector": "^", "oracle": "*"}
"""Of the ways to choose that are drawn."""


class ChoosingPart(NamedTuple):
    run: str
    judgement: Judgement
    tradeoff: str
    distribution: str


def choosing_part(records: list[Record]) -> list[ChoosingPart]:
    """Of every run whose selector was judged."""
    found = [(record.name, read_judgement(record.main.path / FOLDER)) for record in records]
    return [ChoosingPart(name, one, tradeoff(one), distribution(one)) for name, one in found if one]


@styled
def tradeoff(judgement: Judgement) -> str:
    """chrF against the mean time of a sentence: fixed depths, predictors at prices of time, and the ways to choose."""
    figure, axes = empty_figure(740, 380)
    titles = {}
    for place, (name, points) in enumerate(judgement.curves.items()):
        xs, ys = zip(*points)
        if name == "fixed depths":
            axes.scatter(xs, ys, s=18, color=MUTED, label=name)
        else:
            axes.plot(xs, ys, color=SERIES[place % len(SERIES)], marker="o", markersize=3, linewidth=1.5, label=name)
    for place, row in enumerate(row for row in judgement.rows if row.name in MARKERS):
        x, y = row.ms[0], row.scores["chrf"][0]
        axes.scatter(x, y, s=60, marker=MARKERS[row.name], color=INK, label=row.name, gid=f"way-{place}")
        titles[f"way-{place}"] = f"{row.name}: {number(y)} chrF in {number(x)} ms"
    axes.set(xlabel="milliseconds a sentence", ylabel="chrF")
    axes.margins(x=0.05, y=0.08)
    axes.legend(labelcolor=INK, loc="upper left", bbox_to_anchor=(1, 1))
    return as_svg(figure, "chrF against the time of a sentence", titles)


@styled
def distribution(judgement: Judgement) -> str:
    """The share of the sentences that each way decodes at each depth."""
    rows = [row for row in judgement.rows if row.name in MARKERS]
    depths = list(dict.fromkeys(depth for row in rows for depth in row.shares))
    depths.sort(key=lambda depth: [int(side) for side in reversed(depth.split("-"))])
    figure, axes = empty_figure(740, 300)
    width, titles = 0.8 / len(rows), {}
    for column, row in enumerate(rows):
        xs = [place - 0.4 + width * (column + 0.5) for place in range(len(depths))]
        shares = [100 * row.shares.get(depth, 0.0) for depth in depths]
        bars = axes.bar(xs, shares, width=0.92 * width, color=SERIES[column % len(SERIES)], label=row.name)
        for depth, bar, share in zip(depths, bars, shares):
            bar.set_gid(f"share-{column}-{depth}")
            titles[f"share-{column}-{depth}"] = f"{row.name}: {share:.1f} % at {depth}"
    axes.set_xticks(range(len(depths)), depths, rotation=90 if len(depths) > 12 else 0)
    axes.set(ylabel="percent of the sentences")
    axes.grid(axis="x", visible=False)
    axes.legend(labelcolor=INK, loc="upper left", bbox_to_anchor=(1, 1))
    return as_svg(figure, "Depths chosen", titles)
