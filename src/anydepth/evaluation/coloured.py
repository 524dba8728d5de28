"""Words in the colour of their depth, on the terminal and on the report."""

from collections.abc import Sequence
from typing import Any

from rich.style import Style
from rich.text import Text

Words = Sequence[tuple[str, int]]
"""Pieces and their depths."""

SHALLOW, DEEP = (255, 247, 188), (140, 20, 70)
"""Red, green, blue of one layer and of all."""


def colours(depth: int, layers: int) -> tuple[str, str]:
    """Background and ink."""
    share = (depth - 1) / max(1, layers - 1)
    mixed = [round(low + share * (high - low)) for low, high in zip(SHALLOW, DEEP)]
    return "#{:02x}{:02x}{:02x}".format(*mixed), "#ffffff" if share > 0.55 else "#1c1c1c"


def for_terminal(words: Words, layers: int) -> Text:
    """The words in colour, each followed by its depth."""
    line = Text()
    for piece, depth in words:
        background, ink = colours(depth, layers)
        line.append(spoken(piece), Style(color=ink, bgcolor=background))
        line.append(f"{depth} ", Style(dim=True))
    return line


def for_page(words: Words, layers: int) -> list[dict[str, Any]]:
    """What the template shows of each word."""
    looks = [colours(depth, layers) for _, depth in words]
    return [
        {"piece": spoken(piece), "depth": depth, "background": background, "ink": ink}
        for (piece, depth), (background, ink) in zip(words, looks)
    ]


def spoken(piece: str) -> str:
    """A piece as it stands in a text; a mark in front of a word becomes a space."""
    return piece.replace("▁", " ") if piece != "▁" else "␣"
