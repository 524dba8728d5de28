"""The depth grid and sample translations in the terminal."""

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from anydepth.evaluation.cells import Cell, best, deepest, depth_name, fastest_within, telling_depths
from anydepth.evaluation.samples import differences


def print_grid(console: Console, grid: dict[str, Any]) -> None:
    """BLEU, chrF and seconds by encoder depth (down) and decoder depth (across); a list where the terminal is
    too narrow for that."""
    cells = grid["cells"]
    top, near = best(cells), fastest_within(cells, 1.0)
    decoders = sorted({cell["decoder"] for cell in cells})
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    if 10 + 9 * len(decoders) <= console.width:
        _fill_grid(table, cells, decoders, top, near)
    else:
        _fill_list(table, cells, top, near)
    console.print(table)
    legend = Text.assemble(("best BLEU ", ""), (depth_name(top), "bold green"))
    if near is not top:
        legend.append(f", fastest within 1 BLEU of it {depth_name(near)}", "")
        legend.stylize("bold cyan", legend.plain.rindex(" ") + 1)
        legend.append(f" ({top['seconds'] / near['seconds']:.1f} times as fast)")
    console.print(legend)


def print_samples(console: Console, grid: dict[str, Any], count: int = 3) -> None:
    """A few sentences at several depths; words that the deepest output does not have are coloured."""
    depths, full = telling_depths(grid["cells"]), depth_name(deepest(grid["cells"]))
    for sample in grid.get("samples", [])[:count]:
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="dim", justify="right")
        table.add_column()
        table.add_row("source", Text(sample["source"]))
        table.add_row("reference", Text(sample["reference"]))
        for depth in (depth for depth in depths if depth in sample["outputs"]):
            pieces = differences(sample["outputs"][depth], sample["outputs"].get(full, ""))
            text = Text()
            for piece in pieces:
                if piece.kind != "missing":
                    text.append(piece.text, "" if piece.kind == "same" else "yellow")
            table.add_row(depth, text)
        console.print(table)
        console.print()


def _fill_grid(table: Table, cells: list[Cell], decoders: list[int], top: Cell, near: Cell) -> None:
    here = {(cell["encoder"], cell["decoder"]): cell for cell in cells}
    table.add_column("encoder ↓\ndecoder →", style="bold", justify="right")
    for decoder in decoders:
        table.add_column(f"\n{decoder}", justify="right")
    for encoder in sorted({cell["encoder"] for cell in cells}):
        row = [here.get((encoder, decoder)) for decoder in decoders]
        table.add_row(str(encoder), *(_entry(cell, top, near) if cell else Text("·", "dim") for cell in row))
    table.caption = "BLEU, chrF, seconds"
    table.caption_justify = "left"


def _fill_list(table: Table, cells: list[Cell], top: Cell, near: Cell) -> None:
    for heading in ("depth", "BLEU", "chrF", "seconds"):
        table.add_column(heading, justify="right")
    for cell in cells:
        numbers = (f"{cell['bleu']:.1f}", f"{cell['chrf']:.1f}", f"{cell['seconds']:.2f}")
        table.add_row(depth_name(cell), *numbers, style=_style(cell, top, near))


def _entry(cell: Cell, top: Cell, near: Cell) -> Text:
    score = (f"{cell['bleu']:.1f}\n", _style(cell, top, near) or "bold")
    return Text.assemble(score, (f"{cell['chrf']:.1f}\n{cell['seconds']:.2f} s", "dim"))


def _style(cell: Cell, top: Cell, near: Cell) -> str:
    return "bold green" if cell is top else "bold cyan" if cell is near else ""
