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
    for piece, (_, depth) in zip(spoken(words), words):
        background, ink = colours(depth, layers)
        line.append(piece, Style(color=ink, bgcolor=background))
        line.append(f"{depth} ", Style(dim=True))
    return line


def for_page(words: Words, layers: int) -> list[dict[str, Any]]:
    """What the template shows of each word."""
    looks = [colours(depth, layers) for _, depth in words]
    return [
        {"piece": piece, "depth": depth, "background": background, "ink": ink}
        for piece, (_, depth), (background, ink) in zip(spoken(words), words, looks)
    ]


def spoken(words: Words) -> list[str]:
    """The pieces as they stand in a text: a space in front of each that begins a word, which ours mark with ▁;
    WordPiece marks the others, with ##."""
    pieces = [piece for piece, _ in words]
    if any("▁" in piece for piece in pieces):
        return [piece.replace("▁", " ") if piece != "▁" else "␣" for piece in pieces]
    return [piece[2:] if piece.startswith("##") else f" {piece}" for piece in pieces]
