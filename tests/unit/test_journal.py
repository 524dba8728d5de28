"""What a training tells where there is no progress bar."""

from pathlib import Path

import pytest

from anydepth.training import journal
from anydepth.training.journal import Journal
from anydepth.training.settings import TrainingConfig


def test_a_log_is_never_silent_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter(range(0, 1000, 7))  # every look at it takes 7 seconds
    monkeypatch.setattr(journal.time, "monotonic", lambda: next(clock))
    with Journal(tmp_path, TrainingConfig(), quiet=False) as book:
        for step in range(1, 13):
            book.write({"step": step, "kind": "train", "loss": 1.0, "tokens_per_second": 5.0})
        book.write({"step": 12, "kind": "valid", "depth": "2-2", "loss": 1.0})
    told = [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()]
    assert told == ["step 1", "step 4", "step 7", "step 10", "step 12"]
