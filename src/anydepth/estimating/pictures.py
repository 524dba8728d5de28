"""What depths look like: by word (depth-adaptive Fig. 1), over a corpus, and in one text (Fig. 5)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

Array = np.ndarray
BLUE, ORANGE, GREY = "#3b6fb6", "#d9822b", "#9aa0a6"


def draw(
    out: Path, words: Sequence[tuple[str, float, float]], measure: str, counts: Array, text: Sequence[tuple[str, int]]
) -> None:
    """Some words with what was measured of them and their depth; how many have each depth; the words of a text."""
    from matplotlib.figure import Figure

    rows = 2 + bool(text)
    figure = Figure(figsize=(11, 2.9 * rows), layout="constrained")
    axes = figure.subplots(rows, 1)
    draw_words(axes[0], words, measure)
    draw_counts(axes[1], counts)
    if text:
        draw_text(axes[2], text)
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
    part = out.with_name(f".part-{out.name}")
    figure.savefig(part, format=out.suffix.removeprefix("."), dpi=110)
    part.replace(out)


def draw_words(axes, words: Sequence[tuple[str, float, float]], measure: str) -> None:  # type: ignore[no-untyped-def]
    places = np.arange(len(words))
    axes.bar(places, [value for _, value, _ in words], color=BLUE)
    axes.set(ylabel=measure, xlim=(-0.7, len(words) - 0.3))
    axes.set_xticks(places, [name for name, _, _ in words], rotation=60, ha="right", parse_math=False)
    beside = axes.twinx()
    beside.plot(places, [depth for _, _, depth in words], color=ORANGE, marker="o", markersize=3, linewidth=1)
    beside.set_ylabel("depth", color=ORANGE)
    beside.spines["top"].set_visible(False)


def draw_counts(axes, counts: Array) -> None:  # type: ignore[no-untyped-def]
    depths = np.arange(1, len(counts) + 1)
    axes.bar(depths, 100 * counts / max(1, counts.sum()), color=GREY)
    mean = float((depths * counts).sum() / max(1, counts.sum()))
    axes.axvline(mean, color=ORANGE, linewidth=1.2)
    axes.set(xlabel=f"depth of a word, {mean:.2f} on average", ylabel="% of the words in texts", xticks=depths)


def draw_text(axes, text: Sequence[tuple[str, int]]) -> None:  # type: ignore[no-untyped-def]
    places = np.arange(len(text))
    axes.bar(places, [depth for _, depth in text], color=BLUE)
    axes.set(ylabel="depth", xlim=(-0.7, len(text) - 0.3))
    axes.set_xticks(places, [name for name, _ in text], rotation=60, ha="right", parse_math=False)


def some_of(words: Sequence[tuple[str, float, float]], most: int = 40) -> list[tuple[str, float, float]]:
    """Evenly spaced ones."""
    chosen = np.unique(np.linspace(0, len(words) - 1, min(most, len(words))).round().astype(int))
    return [words[place] for place in chosen]
