"""Pictures with the layers of a stack on one axis: what happened to them in training, and which are used."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anydepth.reporting.figures import ACCENT, FONT, INK, RULE, as_svg, empty_figure, styled

COLUMNS = 240
"""Columns of a picture over steps: more could not be told apart."""


@styled
def over_steps(
    steps: Sequence[int],
    values: Sequence[Sequence[float | None]],
    description: str,
    *,
    span: tuple[float, float],
) -> str:
    """A colour for every layer (up) and step (across); `values` has a row of layers for each step, None stays empty."""
    layers = len(values[0])
    figure, axes = empty_figure(330, min(330, 74 + max(7, 40 - layers) * layers))
    numbers = np.array(values, dtype=float).T
    # steps need not be evenly spaced: every column shows the nearest
    middles = (np.arange(COLUMNS) + 0.5) / COLUMNS * steps[-1]
    places = np.abs(np.array(steps)[:, None] - middles).argmin(0)
    axes.imshow(
        np.ma.masked_invalid(numbers[:, places]),
        cmap="viridis",
        vmin=span[0],
        vmax=span[1],
        origin="lower",
        aspect="auto",
        interpolation="none",  # the page enlarges it
        extent=(0, steps[-1], 0.5, layers + 0.5),
    )
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.set(xlabel="step", ylabel="layer")
    axes.set_yticks(layer_ticks(layers))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value >= 1000 else f"{value:g}")
    axes.locator_params(axis="x", nbins=5)
    return as_svg(figure, description, {})


@styled
def selection_map(rows: Mapping[str, Sequence[float]], undecided: float, description: str) -> str:
    """A tile for every language (down) and layer (across): full where the layer is used, a question mark where its
    logit is closer to 0 than `undecided`. `rows` has the logits of each language."""
    from matplotlib.patches import FancyBboxPatch

    layers = len(next(iter(rows.values())))
    width, height = max(13, min(38, 900 / layers)), 26
    margin = 26 + 7 * max(map(len, rows))
    figure, axes = empty_figure(margin + width * layers, 52 + height * len(rows))
    axes.grid(False)
    axes.set(xlim=(0.5, layers + 0.5), ylim=(len(rows) - 0.5, -0.5), xlabel="layer")
    axes.set_xticks(range(1, layers + 1) if width >= 20 else layer_ticks(layers))
    axes.set_yticks(range(len(rows)), list(rows))
    axes.tick_params(length=0, labelcolor=INK)
    axes.spines[:].set_visible(False)
    titles = {}
    for row, (name, logits) in enumerate(rows.items()):
        used = used_layers(logits)
        for layer, alpha in enumerate(logits, start=1):
            inset = 0.5 - 1.6 / width, 0.5 - 1.6 / height
            box = FancyBboxPatch((layer - inset[0], row - inset[1]), 2 * inset[0], 2 * inset[1])
            box.set_boxstyle("round", pad=0, rounding_size=min(3 / width, 0.12))
            box.set_mutation_aspect(width / height)
            full = layer - 1 in used
            box.set(facecolor=ACCENT if full else "none", edgecolor=ACCENT if full else RULE, linewidth=1)
            box.set_alpha(0.75 if full else None)
            axes.add_patch(box).set_gid(f"tile-{row}-{layer}")
            unsure = abs(alpha) < undecided
            if unsure:
                axes.text(layer, row, "?", ha="center", va="center", color=INK, weight="bold", fontsize=FONT)
            titles[f"tile-{row}-{layer}"] = (
                f"{name}, layer {layer}: {'used' if full else 'left out'}{', undecided' if unsure else ''}"
                f" (probability {sigmoid(alpha):.2f}, logit {alpha:+.2f})"
            )
    return as_svg(figure, description, titles)


@styled
def similarity_map(rows: Mapping[str, Sequence[float]], description: str) -> str:
    """How alike the choices of every two languages are: of the layers that either uses, the share that both use."""
    import matplotlib

    names, side, margin = list(rows), 40, 26 + 7 * max(map(len, rows))
    figure, axes = empty_figure(margin + side * len(rows), 34 + side * len(rows))
    axes.grid(False)
    axes.set(xlim=(-0.5, len(rows) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    axes.set_xticks(range(len(rows)), names, rotation=30 if margin > 60 else 0)
    axes.set_yticks(range(len(rows)), names)
    axes.tick_params(length=0, labelcolor=INK)
    axes.spines[:].set_visible(False)
    titles, colors = {}, matplotlib.colormaps["viridis"]
    for row, first in enumerate(names):
        for column, second in enumerate(names):
            alike = jaccard(rows[first], rows[second])
            tile = axes.add_patch(_tile(column, row, colors(alike)))
            tile.set_gid(f"pair-{row}-{column}")
            ink = "white" if alike < 0.6 else "black"
            axes.text(column, row, f"{alike:.2f}", ha="center", va="center", color=ink, fontsize=FONT)
            both = len(used_layers(rows[first]) & used_layers(rows[second]))
            titles[f"pair-{row}-{column}"] = f"{first} and {second}: {both} layers in common, similarity {alike:.2f}"
    return as_svg(figure, description, titles)


def _tile(column: int, row: int, color: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=color, edgecolor="none")


def jaccard(first: Sequence[float], second: Sequence[float]) -> float:
    """|A ∩ B| / |A ∪ B| of the layers that two rows of logits use."""
    one, other = used_layers(first), used_layers(second)
    return len(one & other) / len(one | other)


def jaccard_by_chance(first: Sequence[float], second: Sequence[float]) -> float:
    """About what two choices of these sizes would have in common if they were drawn at random."""
    one, other = len(used_layers(first)), len(used_layers(second))
    common = one * other / len(first)
    return common / (one + other - common)


@styled
def utilisation(rows: Mapping[str, Sequence[float]], description: str) -> str:
    """How many languages use each layer, and how likely it is used on average."""
    layers = range(1, len(next(iter(rows.values()))) + 1)
    used = [sum(layer - 1 in used_layers(logits) for logits in rows.values()) / len(rows) for layer in layers]
    likely = [sum(sigmoid(logits[layer - 1]) for logits in rows.values()) / len(rows) for layer in layers]
    figure, axes = empty_figure(max(300, min(480, 70 + 28 * len(layers))), 210)
    titles = {}
    for layer, share, mean in zip(layers, used, likely):
        (bar,) = axes.bar(layer, share, width=0.72, color=ACCENT, alpha=0.55)
        bar.set_gid(f"bar-{layer}")
        titles[f"bar-{layer}"] = f"layer {layer}: used by {share:.0%} of the languages, mean probability {mean:.2f}"
    axes.plot(layers, likely, "o", color=INK, markersize=4 if len(layers) <= 40 else 2)
    axes.set(xlabel="layer", ylabel="share of the languages", ylim=(0, 1.04))
    axes.grid(axis="x", visible=False)
    axes.set_xticks(list(layers) if len(layers) <= 16 else layer_ticks(len(layers)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    return as_svg(figure, description, titles)


def used_layers(logits: Sequence[float]) -> set[int]:
    """Counted from 0, as `Latent.selected` has them."""
    return {layer for layer, alpha in enumerate(logits) if alpha > 0} or {int(np.argmax(logits))}


def sigmoid(alpha: float) -> float:
    return float(0.5 * (1 + np.tanh(alpha / 2)))


def layer_ticks(layers: int) -> list[int]:
    """The first, the last, and some between."""
    every = next(step for step in (1, 2, 4, 5, 10, 20, 50, 100, 1000) if layers / step <= 9)
    inner: list[Any] = [layer for layer in range(every, layers, every) if layers - layer > every / 2]
    return sorted({1, *inner, layers}) if every > 1 else list(range(1, layers + 1))
