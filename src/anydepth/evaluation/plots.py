"""The figures of the report: SVG that takes its colours and fonts from the page, and so follows its theme."""

import hashlib
import html
import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import pairwise
from typing import Any, ParamSpec

from anydepth.evaluation.cells import Cell, depth_name, pareto_front

# matplotlib wants numbers for colours, the page wants names: these are exchanged when the SVG is written
INK, MUTED, RULE, PAPER, ACCENT = "#010101", "#020202", "#030303", "#040404", "#050505"
SERIES = tuple(f"#0601{i:02}" for i in range(1, 7))
THEME = {INK: "--ink", MUTED: "--muted", RULE: "--rule", PAPER: "--paper", ACCENT: "--accent"} | {
    color: f"--series-{i}" for i, color in enumerate(SERIES, 1)
}
MARKERS = "osD^vP"
FONT = 12
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "anydepth",  # the same figure is the same SVG
    "text.parse_math": False,  # a run may be called $1
    "font.size": FONT,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": RULE,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "grid.color": RULE,
    "grid.linewidth": 0.8,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "lines.solid_capstyle": "round",
}

P = ParamSpec("P")


def styled(plot: Callable[P, str]) -> Callable[P, str]:
    """Run a plotting function under our style, wherever matplotlib looks it up."""

    @wraps(plot)
    def under_style(*args: P.args, **kwargs: P.kwargs) -> str:
        import matplotlib

        with matplotlib.rc_context(STYLE):
            return plot(*args, **kwargs)

    return under_style


@styled
def heat_map(
    cells: Sequence[Cell],
    value: str,
    label: str,
    *,
    low_is_good: bool = False,
    rings: dict[str, str] | None = None,
) -> str:
    """Encoder depths down, decoder depths across, whatever depths there are. `rings` maps depths to the line
    style ("solid", "dashed") of a ring around them."""
    import matplotlib
    from matplotlib.colors import Normalize
    from matplotlib.patches import FancyBboxPatch

    encoders = sorted({cell["encoder"] for cell in cells})
    decoders = sorted({cell["decoder"] for cell in cells})
    here = {(cell["encoder"], cell["decoder"]): cell for cell in cells}
    colors = matplotlib.colormaps["viridis_r" if low_is_good else "viridis"]
    norm = Normalize(*_span([cell[value] for cell in cells]))
    cell_width, cell_height = min(80, max(34, 300 / len(decoders))), 38
    figure, axes = _figure(40 + cell_width * len(decoders), max(120, 40 + cell_height * len(encoders)))
    axes.grid(False)
    axes.set(xlim=(-0.5, len(decoders) - 0.5), ylim=(len(encoders) - 0.5, -0.5))
    axes.set_xticks(range(len(decoders)), [str(depth) for depth in decoders])
    axes.set_yticks(range(len(encoders)), [str(depth) for depth in encoders])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set(xlabel="decoder layers", ylabel="encoder layers")

    def rounded_box(column: int, row: int, margin: float) -> Any:
        x, y = 0.5 - margin / cell_width, 0.5 - margin / cell_height
        box = FancyBboxPatch((column - x, row - y), 2 * x, 2 * y, mutation_aspect=cell_width / cell_height)
        box.set_boxstyle("round", pad=0, rounding_size=5 / cell_width)
        return axes.add_patch(box)

    titles = {}
    for row, encoder in enumerate(encoders):
        for column, decoder in enumerate(decoders):
            cell = here.get((encoder, decoder))
            fill = colors(norm(cell[value])) if cell else "none"
            box = rounded_box(column, row, 3)
            box.set(facecolor=fill, edgecolor="none" if cell else RULE, linewidth=0.8)
            if not cell:
                continue
            name = depth_name(cell)
            text = number(cell[value])
            box.set_gid(f"cell-{name}")
            titles[f"cell-{name}"] = f"{name}: {text} {label}"
            weight = "bold" if rings and name in rings else "normal"
            axes.text(column, row, text, ha="center", va="center", color=_readable_on(fill), weight=weight)
            if rings and name in rings:
                ring = rounded_box(column, row, 1)
                ring.set(facecolor="none", edgecolor=INK, linewidth=1.6, linestyle=rings[name], clip_on=False)
    return _svg(figure, f"{label} by encoder and decoder depth", titles)


@dataclass(frozen=True)
class Series:
    """One run's cells in a picture of quality against time."""

    name: str
    cells: Sequence[Cell]
    color: str = ACCENT


@styled
def tradeoff(
    series: Sequence[Series], quality: str, label: str, *, size: tuple[int, int], ring: str | None = None
) -> str:
    """Quality against seconds: every depth a dot, the Pareto front of each run a staircase with its depths
    named: so much quality can be had in so many seconds. `ring` names a depth to draw a ring around."""
    figure, axes = _figure(*size)
    everything = [cell for one in series for cell in one.cells]
    seconds = [cell["seconds"] for cell in everything]
    low, high = _span([cell[quality] for cell in everything])
    axes.set_ylim(low - 0.08 * (high - low), high + 0.12 * (high - low))
    if max(seconds) > 12 * min(seconds):
        axes.set_xscale("log")
        axes.set_xlim(min(seconds) / 1.2, max(seconds) * 1.25)
        axes.xaxis.set_major_formatter(lambda value, _: number(value))
        axes.xaxis.set_minor_formatter(lambda value, _: "")
    else:
        axes.set_xlim(0, max(seconds) * 1.07)
    axes.set(xlabel="seconds to decode the test set", ylabel=label)
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
    if len(series) > 1:
        axes.legend(stairs, [one.name for one in series], loc="lower right", labelcolor=INK)
    _name_dots(figure, axes, [(cell["seconds"], cell[quality]) for cell in everything], stairs, names)
    return _svg(figure, f"{label} against seconds", titles)


@dataclass(frozen=True)
class Line:
    """One curve over training steps."""

    name: str
    steps: Sequence[float]
    values: Sequence[float]
    color: str
    faint: bool = False


@styled
def curves(lines: Sequence[Line], label: str, *, size: tuple[int, int] = (480, 250)) -> str:
    """One panel of training curves."""
    figure, axes = _figure(*size)
    for line in lines:
        points = [(x, y) for x, y in zip(line.steps, line.values, strict=True) if math.isfinite(y)]
        # beyond a few hundred points the eye sees no more: show means
        bundle = math.ceil(len(points) / 300) or 1
        groups = [points[i : i + bundle] for i in range(0, len(points), bundle)]
        means = [[sum(axis) / len(group) for axis in zip(*group, strict=True)] for group in groups]
        style = {"linewidth": 1.1, "alpha": 0.55} if line.faint else {"linewidth": 1.8}
        marker = {"marker": "o", "markersize": 3.2} if not line.faint and len(means) <= 40 else {}
        axes.plot([x for x, _ in means], [y for _, y in means], color=line.color, label=line.name, **style, **marker)
    axes.set(xlabel="step", ylabel=label)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value >= 1000 else f"{value:g}")
    axes.margins(x=0.03, y=0.08)
    if len(lines) > 1:
        axes.legend(labelcolor=INK, fontsize=FONT - 1, handlelength=1.4)
    return _svg(figure, f"{label} over training steps", {})


def number(value: float) -> str:
    """One decimal for scores and long times, two digits that mean something for short times."""
    if abs(value) >= 9.95 or value == 0:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.1g}"


def _figure(width: float, height: float) -> tuple[Any, Any]:
    """A figure of so many pixels, made without pyplot: nothing is global and no display is asked for."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / 72, height / 72), layout="constrained", facecolor="none")
    return figure, figure.add_subplot(facecolor="none")


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _readable_on(color: Any) -> str:
    luminance = 0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2]
    return "#ffffff" if luminance < 0.45 else "#101418"


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


def _svg(figure: Any, description: str, titles: dict[str, str]) -> str:
    """The figure as inline SVG: no header, no namespaces, its own identifiers, the page's colours and font,
    and a tooltip for every group named in `titles`."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = buffer.getvalue()
    body = svg[svg.index("</defs>") + len("</defs>") :]  # the first definition is a style for the whole page
    for name, title in titles.items():
        body = body.replace(f'<g id="{name}">', f"<g><title>{html.escape(title)}</title>")
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    # what is left are definitions, referred to within the figure
    unique = hashlib.sha256(body.encode()).hexdigest()[:8]
    body = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>f{unique}-", body)
    body = re.sub(r"font-family: [^;]*; ", "", body)
    body = re.sub("|".join(THEME), lambda match: f"var({THEME[match[0]]})", body)
    body = re.sub(r"\s+", " ", body)
    width, height = (round(inches * 72) for inches in figure.get_size_inches())
    return (
        f'<svg viewBox="0 0 {width} {height}" style="max-width: {width}px" role="img"'
        f' aria-label="{html.escape(description)}">{body}'
    )
