"""Depth grids as pictures: encoder depths down, decoder depths across, a tile for each."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from anydepth.evaluation.cells import Cell, depth_name
from anydepth.reporting.figures import (
    ACCENT,
    BETTER,
    INK,
    RULE,
    WORSE,
    as_svg,
    empty_figure,
    number,
    signed,
    span_of,
    styled,
)


@dataclass(frozen=True)
class Axes:
    """The depths a grid has room for, so that several grids can have the same shape."""

    encoders: Sequence[int]
    decoders: Sequence[int]

    @classmethod
    def of(cls, cells: Iterable[Cell]) -> "Axes":
        depths = [(cell["encoder"], cell["decoder"]) for cell in cells]
        return cls(sorted({encoder for encoder, _ in depths}), sorted({decoder for _, decoder in depths}))


@dataclass(frozen=True)
class Tile:
    """One depth of a grid."""

    text: str
    title: str
    """Shown when pointed at."""
    color: Any
    strength: float = 1.0
    """How much of the colour covers the page."""
    ink: str = INK
    bold: bool = False
    ring: str | None = None
    """Line style of a ring around the tile."""


def heat_map(
    cells: Sequence[Cell],
    value: str,
    label: str,
    *,
    low_is_good: bool = False,
    rings: dict[str, str] | None = None,
    axes: Axes | None = None,
    span: tuple[float, float] | None = None,
) -> str:
    """A colour for every depth. `rings` maps depths to the line style ("solid", "dashed") of a ring around them;
    `axes` and `span` make several maps comparable."""
    import matplotlib
    from matplotlib.colors import Normalize

    colors = matplotlib.colormaps["viridis_r" if low_is_good else "viridis"]
    norm = Normalize(*(span or span_of([cell[value] for cell in cells])), clip=True)
    tiles = {}
    for cell in cells:
        name, text, color = depth_name(cell), number(cell[value]), colors(norm(cell[value]))
        ring = (rings or {}).get(name)
        tiles[cell["encoder"], cell["decoder"]] = Tile(
            text, f"{name}: {text} {label}", color, ink=_readable_on(color), bold=ring is not None, ring=ring
        )
    return tile_map(tiles, axes or Axes.of(cells), f"{label} by encoder and decoder depth")


def difference_map(cells: Sequence[Cell], label: str, *, axes: Axes, most: float) -> str:
    """Cells with a `difference` and a `verdict`: one colour for better, one for worse, none for equal; significant
    differences are bold and ringed. `most` is the largest difference of all maps; the strength of a colour grows with
    the root, so that one large difference does not hide all others."""
    tiles = {}
    for cell in cells:
        difference, text = cell["difference"], signed(cell["difference"])
        significant = f", significantly {cell['verdict']}" if cell["verdict"] else ""
        tiles[cell["encoder"], cell["decoder"]] = Tile(
            text,
            f"{depth_name(cell)}: {text} {label}{significant}",
            BETTER if difference > 0 else WORSE,
            strength=0.62 * math.sqrt(min(1.0, abs(difference) / most)) if most else 0.0,
            bold=bool(cell["verdict"]),
            ring="solid" if cell["verdict"] else None,
        )
    return tile_map(tiles, axes, f"{label} differences by encoder and decoder depth")


def share_map(cells: Sequence[Cell], label: str) -> str:
    """Cells with a `share`, in percent."""
    most = max(cell["share"] for cell in cells)
    tiles = {
        (cell["encoder"], cell["decoder"]): Tile(
            f"{100 * cell['share']:.1f}" if cell["share"] else "0",
            f"{depth_name(cell)}: {100 * cell['share']:.1f} % {label}",
            ACCENT,
            strength=0.6 * cell["share"] / most,
        )
        for cell in cells
    }
    return tile_map(tiles, Axes.of(cells), f"share {label} by encoder and decoder depth")


@styled
def tile_map(tiles: dict[tuple[int, int], Tile], grid: Axes, description: str) -> str:
    """Encoder depths down, decoder depths across, whatever depths there are."""
    from matplotlib.patches import FancyBboxPatch

    rows, columns = len(grid.encoders), len(grid.decoders)
    width, height = min(80, max(34, 300 / columns)), 38
    figure, axes = empty_figure(40 + width * columns, max(120, 40 + height * rows))
    axes.grid(False)
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5), xlabel="decoder layers", ylabel="encoder layers")
    axes.set_xticks(range(columns), [str(depth) for depth in grid.decoders])
    axes.set_yticks(range(rows), [str(depth) for depth in grid.encoders])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)

    def rounded_box(column: int, row: int, margin: float, **style: Any) -> Any:
        x, y = 0.5 - margin / width, 0.5 - margin / height
        box = FancyBboxPatch((column - x, row - y), 2 * x, 2 * y, mutation_aspect=width / height)
        box.set_boxstyle("round", pad=0, rounding_size=5 / width)
        box.set(**style)
        return axes.add_patch(box)

    titles = {}
    for row, encoder in enumerate(grid.encoders):
        for column, decoder in enumerate(grid.decoders):
            tile = tiles.get((encoder, decoder))
            if not tile or tile.strength < 0.05:
                rounded_box(column, row, 3, facecolor="none", edgecolor=RULE, linewidth=0.8)
            if not tile:
                continue
            box = rounded_box(column, row, 3, facecolor=tile.color, edgecolor="none", alpha=tile.strength)
            box.set_gid(f"tile-{encoder}-{decoder}")
            titles[f"tile-{encoder}-{decoder}"] = tile.title
            weight = "bold" if tile.bold else "normal"
            axes.text(column, row, tile.text, ha="center", va="center", color=tile.ink, weight=weight)
            if tile.ring:
                style = {"linewidth": 1.6, "linestyle": tile.ring, "clip_on": False}
                rounded_box(column, row, 1, facecolor="none", edgecolor=INK, **style)
    return as_svg(figure, description, titles)


def _readable_on(color: Any) -> str:
    luminance = 0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2]
    return "#ffffff" if luminance < 0.45 else "#101418"
