"""What happened in a training: metrics.jsonl, TensorBoard, and a progress bar for people."""

import json
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Journal:
    """Appends one JSON object a line. On resume, lines after the restored step are taken back."""

    def __init__(self, folder: Path, steps: int, tensorboard: bool, quiet: bool) -> None:
        self.path = folder / "metrics.jsonl"
        self.console = Console(stderr=True, quiet=quiet)
        self.bar = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[news]}"),
            TimeRemainingColumn(),
            console=self.console,
            disable=quiet or not self.console.is_terminal,
        )
        self.task = self.bar.add_task("training", total=steps, news="")
        self.board = open_board(folder) if tensorboard else None

    def __enter__(self) -> "Journal":
        self.bar.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.bar.stop()
        if self.board is not None:
            self.board.close()

    def rewind(self, step: int) -> None:
        """Forgets what came after a step; a line cut short by a kill is dropped as well."""
        kept = [line for line in read_metrics(self.path) if line["step"] <= step]
        self.path.write_text("".join(json.dumps(line) + "\n" for line in kept))
        self.bar.update(self.task, completed=step)

    def write(self, line: dict[str, Any]) -> None:
        with self.path.open("a") as stream:
            stream.write(json.dumps(line) + "\n")
        if self.board is not None:
            for name, value in line.items():
                if isinstance(value, float):
                    self.board.add_scalar(f"{line['kind']}/{name}", value, line["step"])
        if not self.bar.disable:
            return
        if line["kind"] == "valid" or line["step"] % 500 == 0:
            self.console.print(f"step {line['step']}: {headline(line)}", highlight=False)

    def advance(self, step: int) -> None:
        self.bar.update(self.task, completed=step)

    def show(self, line: dict[str, Any]) -> None:
        self.bar.update(self.task, news=headline(line))

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False)


def headline(line: dict[str, Any]) -> str:
    if line["kind"] == "train":
        return f"loss {line['loss']:.3f} · {line['tokens_per_second']:,.0f} tokens/s"
    scores = "".join(f" · {name} {line[name]:.1f}" for name in ("bleu", "chrf") if name in line)
    return f"valid {line['depth']} · loss {line['loss']:.3f}{scores}"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a metrics.jsonl."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def open_board(folder: Path) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder / "tensorboard"))
