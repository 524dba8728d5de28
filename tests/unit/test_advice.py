"""What is said about work that may take long: on busy machines, and to logs."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from anydepth import progress
from anydepth.training.advice import warn_of_busy_machine


@pytest.mark.parametrize(
    ("load", "threads", "device", "warns"),
    [(8.0, 2, "cpu", True), (8.0, 1, "cpu", False), (2.0, 2, "cpu", False), (8.0, 2, "cuda", False)],
)
def test_threads_on_a_busy_machine(
    load: float, threads: int, device: str, warns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    said: list[str] = []
    journal: Any = SimpleNamespace(say=said.append)
    warn_of_busy_machine(torch.device(device), journal)
    assert ["a load of 8.0 on 2 cores" in one and "OMP_NUM_THREADS=1" in one for one in said] == [True] * warns


def test_logs_get_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = iter((0.0, 10.0, 31.0, 31.0, 40.0, 0.0, 31.0, 31.0))
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    monkeypatch.setattr(progress, "progress_bar", lambda *_: NoBar())
    with progress.steps_shown("comparing") as show:
        for step in range(3):
            show(step, 5, f"{step}-1")
    with progress.progress_for("judging", "texts") as count:
        count(2, 9)
    assert capsys.readouterr().err == "comparing: 1 of 5 done, next 1-1\njudging: 2 of 9 texts\n"


class NoBar:
    """A progress bar where there is no terminal."""

    disable = True

    def __init__(self) -> None:
        self.tasks: list[Any] = []

    def __enter__(self) -> "NoBar":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def add_task(self, _: str, **__: object) -> int:
        self.tasks.append(SimpleNamespace(id=0, speed=None))
        return 0

    def update(self, task: int, **_: object) -> None:
        pass
