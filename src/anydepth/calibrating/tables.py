"""Calibrations and margins in the terminal."""

from rich import box
from rich.console import Console
from rich.table import Table

from anydepth.calibrating.calibration import Calibration
from anydepth.calibrating.confidence import Confidence
from anydepth.plan import parse_depth

ABREAST = 3
"""Batch sizes that a terminal of 80 columns has room for."""


def print_calibration(console: Console, found: Calibration) -> None:
    """Milliseconds for a sentence of usual length at every depth and batch size."""
    tokens = found.usual_tokens
    for start in range(0, len(found.batches), ABREAST):
        console.print(table_of_times(found, found.batches[start : start + ABREAST]))
    console.print(f"ms a sentence of {tokens:.0f} source tokens: half (p50) and 19 of 20 (p95) take no longer")
    console.print("fit: how far a line in the source length is from the medians, on average")
    for tried in found.speculation:
        draft = tried.best or min(tried.drafts, key=lambda each: each.ms)
        drafts = f"{draft.draft} of {parse_depth(tried.depth)[1]} decoder layers draft {draft.draft_words} words"
        setting = f"{drafts}, {tried.plain / draft.ms:.2f} times as fast"
        verdict = setting if tried.best else f"off (at best {setting})"
        console.print(f"speculation at {tried.depth}, batch {tried.batch}: {verdict}")


def table_of_times(found: Calibration, batches: list[int]) -> Table:
    tokens = found.usual_tokens
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("depth")
    for batch in batches:
        table.add_column(f"batch {batch}\np50", justify="right")
        table.add_column("\np95", justify="right")
        table.add_column("\nfit", justify="right", style="dim")
    timings = {(one.depth, one.batch): one for one in found.timings}
    for depth in found.depths:
        row = []
        for batch in batches:
            one = timings[depth, batch]
            row += [short(one.typical(tokens) / batch), short(one.safe(tokens) / batch), f"{100 * one.error:.0f} %"]
        table.add_row(depth, *row)
    return table


def short(ms: float) -> str:
    """Three digits, or all before the point."""
    return f"{ms:.{2 if ms < 10 else 1 if ms < 100 else 0}f}"


def print_confidence(console: Console, found: Confidence) -> None:
    """What was tried, and which margin is to be taken."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("margin", "layers a word", "loss", "p"):
        table.add_column(heading, justify="right")
    for one in found.trials:
        style = "bold green" if one.margin == found.margin else ""
        table.add_row(f"{one.margin:g}", f"{one.layers:.2f}", f"{one.loss:.4f}", f"{one.p_value:.2g}", style=style)
    console.print(table)
    sure = f"{found.confidence:.0%} sure that the loss stays below {found.risk:g} ({found.sentences} sentences)"
    if found.margin < 1:
        return console.print(f"exit {found.exit} of {found.depth}: margin {found.margin:g}; {sure}")
    console.print(f"exit {found.exit} of {found.depth}: no margin tried makes {sure}; none will stop there")
