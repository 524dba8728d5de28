"""Depth grids of models without a decoder in the terminal: of classifiers and of masked language models."""

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from anydepth.evaluation.accuracy import EXITS
from anydepth.evaluation.cells import Cell, deepest, depth_name
from anydepth.reporting.figures import plain


def print_accuracies(console: Console, grid: dict[str, Any]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    words = any("mean_depth" in cell for cell in [*grid["cells"], *grid.get(EXITS, ())])
    for heading in ("depth", *(("words",) if words else ()), "accuracy", "95 %", "F1", "seconds", "size"):
        table.add_column(heading, justify="right", no_wrap=True)
    for cell in [*grid["cells"], *grid.get(EXITS, ())]:
        low, high = cell["interval"]
        mean = (f"{cell['mean_depth']:.2f}" if "mean_depth" in cell else "",) if words else ()
        spread = f" ± {cell['deviation']:.2f}" if "deviation" in cell else ""
        quality = (f"{cell['accuracy']:.2f}{spread}", f"{low:.1f}–{high:.1f}", f"{cell['macro_f1']:.2f}")
        cost = (f"{cell['seconds']:.2f}", f"{cell['parameters'] / 1e6:.2f} M")
        table.add_row(cell.get("exit") or depth_name(cell), *mean, *quality, *cost)
    table.caption = f"of {grid['sentences']:,} texts and {len(grid['labels'])} labels; macro-F1"
    if words:
        table.caption += "; words: their mean depth"
    console.print(table)


def print_perplexities(console: Console, grid: dict[str, Any]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    for heading in ("depth", "perplexity", "loss", "seconds", "parameters"):
        table.add_column(heading, justify="right")
    for cell in grid["cells"]:
        numbers = (f"{cell['perplexity']:.3f}", f"{cell['loss']:.4f}", f"{cell['seconds']:.2f}")
        table.add_row(depth_name(cell), *numbers, f"{cell['parameters'] / 1e6:.2f} M")
    table.caption = f"of {grid['predictions']:,} hidden words in {grid['sentences']:,} sentences"
    console.print(table)
    if "languages" in (cell := deepest(grid["cells"])):
        print_languages(console, cell)


def print_languages(console: Console, cell: Cell) -> None:
    """The perplexity of each language at one depth, or at its own."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("language")
    for heading in ("depth", "perplexity"):
        table.add_column(heading, justify="right")
    for language, perplexity in cell["languages"].items():
        layers = cell.get("layers", {}).get(language, cell["encoder"])
        table.add_row(language, plain(layers), f"{perplexity:.3f}")
    console.print(table)
