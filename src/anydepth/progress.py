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
def steps_shown(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """To be told how many steps of some work are done, of how many, and which is next, such as a depth: a bar for
    people; for logs, a line every half minute at most."""
    log = Log(title)
    with progress_bar(title) as bar:
        task = bar.add_task("", total=None)

        def show(done: int, total: int, step: str) -> None:
            bar.update(task, completed=done, total=total, description=step)
            if bar.disable:
                log.say(f"{done} of {total} done, next {step}")

        yield show


@contextmanager
def progress_for(title: str, things: str, visible: bool = True) -> Iterator[Callable[[int, int], None]]:
    """To be told how many things are done, of how many, in the same way."""
    log = Log(title)
    with progress_bar(title, visible) as bar:

        def show(done: int, total: int) -> None:
            task = bar.tasks[0].id if bar.tasks else bar.add_task("", total=total, completed=done)
            bar.update(task, completed=done, description=f"{bar.tasks[0].speed or 0:.1f} {things}/s")
            if visible and bar.disable:
                log.say(f"{done} of {total} {things}")

        yield show


class Log:
    """Lines on stderr, not too many."""

    def __init__(self, title: str) -> None:
        self.title, self.last = title, time.monotonic()

    def say(self, what: str) -> None:
        if time.monotonic() - self.last >= LOG_SECONDS:
            self.last = time.monotonic()
            print(f"{self.title}: {what}", file=sys.stderr, flush=True)
