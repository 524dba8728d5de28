"""Calibrations in the terminal."""

from rich import box
from rich.console import Console
from rich.table import Table

from anydepth.choosing.calibration import Calibration


def print_calibration(console: Console, found: Calibration) -> None:
    """Milliseconds for a sentence of usual length at every depth and batch size."""
    tokens = found.usual_tokens
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("depth")
    for batch in found.batches:
        table.add_column(f"batch {batch}\np50", justify="right")
        table.add_column("\np95", justify="right")
        table.add_column("\nfit", justify="right", style="dim")
    timings = {(one.depth, one.batch): one for one in found.timings}
    for depth in found.depths:
        row = []
        for batch in found.batches:
            one = timings[depth, batch]
            row += [f"{one.typical(tokens) / batch:.2f}", f"{one.safe(tokens) / batch:.2f}", f"{100 * one.error:.0f} %"]
        table.add_row(depth, *row)
    console.print(table)
    console.print(f"ms a sentence of {tokens:.0f} source tokens: half (p50) and 19 of 20 (p95) take no longer")
    console.print("fit: how far a line in the source length is from the medians, on average")
    for tried in found.speculation:
        draft = tried.best or min(tried.drafts, key=lambda each: each.ms)
        setting = f"{draft.draft} layers draft {draft.draft_words} words, {tried.plain / draft.ms:.2f} times as fast"
        verdict = setting if tried.best else f"off (at best {setting})"
        console.print(f"speculation at {tried.depth}, batch {tried.batch}: {verdict}")
