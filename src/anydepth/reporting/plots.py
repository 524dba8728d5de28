"""Curves of the report: quality against time, and what happened in training."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from anydepth.evaluation.cells import Cell, depth_name, pareto_front
from anydepth.reporting.figures import ACCENT, FONT, INK, PAPER, as_svg, empty_figure, number, span_of, styled

MARKERS = "osD^vP"


@dataclass(frozen=True)
class Series:
    """One run's cells in a picture of quality against time."""

    name: str
    cells: Sequence[Cell]
    color: str = ACCENT


@styled
def tradeoff(
    series: Sequence[Series],
    quality: str,
    label: str,
    *,
    size: tuple[int, int],
    ring: str | None = None,
    time: str = "seconds to decode the test set",
) -> str:
    """Quality against seconds: every depth a dot, the Pareto front of each run a staircase with its depths
    named: so much quality can be had in so many seconds. `ring` names a depth to draw a ring around."""
    figure, axes = empty_figure(*size)
    everything = [cell for one in series for cell in one.cells]
    seconds = [cell["seconds"] for cell in everything]
    low, high = span_of([cell[quality] for cell in everything])
    axes.set_ylim(low - 0.08 * (high - low), high + 0.12 * (high - low))
    if max(seconds) > 12 * min(seconds):
        axes.set_xscale("log")
        axes.set_xlim(min(seconds) / 1.2, max(seconds) * 1.25)
        axes.xaxis.set_major_formatter(lambda value, _: number(value))
        axes.xaxis.set_minor_formatter(lambda value, _: "")
    else:
        axes.set_xlim(0, max(seconds) * 1.07)
    axes.set(xlabel=time, ylabel=label)
    titles, names, stairs = {}, [], []
    for i, one in enumerate(series):
        front = pareto_front(one.cells, quality)
        xs, ys = [cell["seconds"] for cell in front], [cell[quality] for cell in front]
        stairs += axes.plot(xs, ys, color=one.color, linewidth=1.6, drawstyle="steps-post", zorder=2)
        for cell in sorted(one.cells, key=lambda cell: cell in front):
            x, y, name, at_front = cell["seconds"], cell[quality], depth_name(cell), cell in front
            dot = axes.scatter(
                x, y, s=46 if at_front else 26, color=one.color, marker=MARKERS[i % len(MARKERS)], zorder=3
            )
            dot.set(alpha=1 if at_front else 0.55, linewidth=1.2, edgecolor=PAPER)
            dot.set_gid(f"dot-{i}-{name}")
            whose = f"{one.name} " if len(series) > 1 else ""
            titles[f"dot-{i}-{name}"] = f"{whose}{name}: {number(y)} {label} in {number(x)} s"
            if name == ring:
                axes.scatter(x, y, s=150, facecolor="none", edgecolor=one.color, linewidth=1.5, zorder=3)
            if at_front or len(everything) <= 8:
                names.append((x, y, name, one.color if len(series) > 1 else INK))
    _name_dots(figure, axes, [(cell["seconds"], cell[quality]) for cell in everything], stairs, names)
    return as_svg(figure, f"{label} against seconds", titles)


MOST_NAMES_INSIDE = 8
"""Of a panel's lines: the names of more are written beside it, where they hide none."""


@dataclass(frozen=True)
class Line:
    """One curve over training steps."""

    name: str
    steps: Sequence[float]
    values: Sequence[float]
    color: str
    faint: bool = False


@styled
def curves(lines: Sequence[Line], label: str, *, log: bool = False, whole: bool = False) -> str:
    """One panel of training curves: of numbers on a logarithmic scale, of whole numbers, or of any."""
    named = sum(bool(line.name) for line in lines)
    beside = named > MOST_NAMES_INSIDE
    figure, axes = empty_figure(740, max(250, 40 + 17 * named)) if beside else empty_figure(480, 250)
    for line in lines:
        points = [(x, y) for x, y in zip(line.steps, line.values, strict=True) if math.isfinite(y)]
        # beyond a few hundred points the eye sees no more: show means
        bundle = math.ceil(len(points) / 300) or 1
        groups = [points[i : i + bundle] for i in range(0, len(points), bundle)]
        means = [[sum(axis) / len(group) for axis in zip(*group, strict=True)] for group in groups]
        style = {"linewidth": 1.1, "alpha": 0.55} if line.faint else {"linewidth": 1.8}
        marker = {"marker": "o", "markersize": 3.2} if not line.faint and len(means) <= 40 else {}
        axes.plot([x for x, _ in means], [y for _, y in means], color=line.color, label=line.name, **style, **marker)
    axes.set(xlabel="step", ylabel=label, yscale="log" if log else "linear")
    axes.yaxis.set_minor_formatter(lambda value, _: "")
    if whole:
        axes.yaxis.get_major_locator().set_params(integer=True)
    if log:
        _mark_decades(axes)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value >= 1000 else f"{value:g}")
    axes.margins(x=0.03, y=0.08)
    if named > 1 or any(line.faint and not line.name for line in lines):
        place = {"loc": "upper left", "bbox_to_anchor": (1, 1)} if beside else {}
        axes.legend(labelcolor=INK, fontsize=FONT - 1, handlelength=1.4, **place)
    return as_svg(figure, f"{label} over training steps", {})


def _mark_decades(axes: Any) -> None:
    """Numbers on a logarithmic axis: powers of ten, and 2 and 5 between where there are few of them."""
    from matplotlib.ticker import LogLocator

    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * low else (1,)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _name_dots(
    figure: Any,
    axes: Any,
    dots: list[tuple[float, float]],
    stairs: list[Any],
    names: list[tuple[float, float, str, str]],
) -> None:
    """Write names beside dots where they cover no dot, no line and not each other; a name without room is
    left out (its dot still tells it when pointed at)."""
    figure.draw_without_rendering()
    scale = 72 / figure.dpi

    def pixels(x: float, y: float) -> tuple[float, float]:
        across, up = axes.transData.transform((x, y))
        return across * scale, up * scale

    taken = [(x - 3, y - 3, x + 3, y + 3) for x, y in (pixels(*dot) for dot in dots)]
    for stair in stairs:
        corners = [pixels(x, y) for x, y in stair.get_xydata()]
        for (x, y), (next_x, next_y) in pairwise(corners):
            taken += [(x, y - 1, next_x, y + 1), (next_x - 1, y, next_x + 1, next_y)]
    left, bottom, right, top = (edge * scale for edge in axes.get_window_extent().extents)
    for x, y, name, color in sorted(names, key=lambda entry: -entry[1]):
        across, up = pixels(x, y)
        width, height = 0.58 * FONT * len(name) + 2, FONT
        # the upper left of a front is empty by definition: try there first
        for dx, dy in ((-1, 0.9), (-1, 0), (0, 1), (1, -0.9), (1, 0), (0, -1), (1, 0.9), (-1, -0.9)):
            offset = dx * (width / 2 + 6), dy * (height / 2 + 6)
            x0, y0 = across + offset[0] - width / 2, up + offset[1] - height / 2
            x1, y1 = x0 + width, y0 + height
            inside = left <= x0 and bottom <= y0 and x1 <= right + 4 and y1 <= top + 4
            if inside and not any(x0 < b[2] and b[0] < x1 and y0 < b[3] and b[1] < y1 for b in taken):
                taken.append((x0, y0, x1, y1))
                axes.annotate(name, (x, y), offset, textcoords="offset points", ha="center", va="center", color=color)
                break
