"""Progress of long work: bars for people, lines for logs."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LOG_SECONDS = 30.0
"""Between two lines about long work where there is no terminal for a progress bar."""


def progress_bar(title: str, visible: bool = True) -> Progress:
    """On stderr, gone when it is done, and only for people."""
    console = Console(stderr=True)
    return Progress(
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not (visible and console.is_terminal),
    )


@contextmanager
def depths_shown() -> Iterator[Callable[[int, int, str], None]]:
    """To be told how many depths are done, of how many, and which is next."""
    with progress_bar("evaluating") as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total, depth: bar.update(task, completed=done, total=total, description=depth)


@contextmanager
def progress_for(title: str, things: str, visible: bool = True) -> Iterator[Callable[[int, int], None]]:
    """To be told how many things are done, of how many: a bar for people; for logs, a line every half minute."""
    with progress_bar(title, visible) as bar:
        last = time.monotonic()

        def show(done: int, total: int) -> None:
            nonlocal last
            task = bar.tasks[0].id if bar.tasks else bar.add_task("", total=total, completed=done)
            bar.update(task, completed=done, description=f"{bar.tasks[0].speed or 0:.1f} {things}/s")
            if visible and bar.disable and time.monotonic() - last >= LOG_SECONDS:
                last = time.monotonic()
                print(f"{title}: {done} of {total} {things}", file=sys.stderr, flush=True)

        yield show
