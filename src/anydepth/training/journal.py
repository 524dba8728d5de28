"""What happened in a training: metrics.jsonl, TensorBoard, and a progress bar for people."""

import json
import math
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from anydepth.errors import UserError
from anydepth.evaluation.metrics import METRICS
from anydepth.training.settings import TrainingConfig

SECONDS_OF_SILENCE = 20
"""At most where there is no bar, as in a log file."""


class Journal:
    """Appends one JSON object a line. On resume, what came after the checkpoint is taken back.

    Of several ranks only the first writes.
    """

    def __init__(self, folder: Path, settings: TrainingConfig, quiet: bool, first: bool = True) -> None:
        self.folder, self.first = folder, first
        self.path = folder / "metrics.jsonl"
        self.console = Console(stderr=True, quiet=quiet or not first)
        self.bar = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[news]}"),
            TimeRemainingColumn(),
            console=self.console,
            disable=quiet or not first or not self.console.is_terminal,
        )
        self.task = self.bar.add_task("training", total=settings.steps, news="")
        self.open_board = board_class() if settings.tensorboard and first else None
        self.board: Any = None
        self.forgotten_from: int | None = None
        self.said = -math.inf

    def __enter__(self) -> "Journal":
        self.bar.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.bar.stop()
        if self.board is not None:
            self.board.close()

    @property
    def length(self) -> int:
        """Bytes written so far: the place to rewind to."""
        return self.path.stat().st_size if self.path.exists() else 0

    def rewind(self, length: int, step: int) -> None:
        """Forgets what was written after a step; a line cut short by a kill is dropped as well."""
        if self.first and self.path.exists():
            kept = self.path.read_bytes()[:length]
            os.truncate(self.path, kept.rfind(b"\n") + 1)
        self.forgotten_from = step + 1
        self.advance(step)

    def write(self, line: dict[str, Any]) -> None:
        if not self.first:
            return
        with self.path.open("a") as stream:
            stream.write(json.dumps(line) + "\n")
        if self.open_board is not None:
            self.draw(line)
        if line["kind"] == "train":
            self.bar.update(self.task, news=headline(line))
        late = self.bar.disable and "loss" in line and time.monotonic() - self.said > SECONDS_OF_SILENCE
        if line["kind"] == "valid" or late:
            self.say(f"step {line['step']}: {headline(line)}")

    def draw(self, line: dict[str, Any]) -> None:
        """The numbers of a line, for TensorBoard."""
        if self.board is None:
            assert self.open_board is not None
            self.board = self.open_board(str(self.folder / "tensorboard"), purge_step=self.forgotten_from)
        kind = "-".join(line[name] for name in ("kind", "depth", "language") if name in line)
        for name, value in line.items():
            if isinstance(value, float):
                self.board.add_scalar(f"{kind}/{name}", value, line["step"])

    def advance(self, step: int) -> None:
        self.bar.update(self.task, completed=step)

    def say(self, text: str) -> None:
        self.said = time.monotonic()
        self.console.print(text, highlight=False, soft_wrap=True)


def headline(line: dict[str, Any]) -> str:
    if line["kind"] == "train":
        return f"loss {line['loss']:.3f} · {line['tokens_per_second']:,.0f} tokens/s"
    scores = "".join(f" · {name} {line[name]:.1f}" for name in METRICS if name in line)
    where = " ".join(line[name] for name in ("language", "depth") if name in line)
    return f"valid {where} · loss {line['loss']:.3f}{scores}"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def board_class() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("training.tensorboard: not installed; pip install 'anydepth[tensorboard]'") from None
    return SummaryWriter
