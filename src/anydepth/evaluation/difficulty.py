"""How difficult the sentences of a test set are, judged by a model's own losses (multiscale collaboration, §4.3).

    s(x, y) = mean + standard deviation of −log P(y | x) over the last K checkpoints        (Eq. 14, 15)

The deviation keeps what oscillates in training from passing for easy. The test set is cut into equal parts by s;
reports then score every run on each part (difficulty_page.py).
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from anydepth.errors import UserError
from anydepth.evaluation.grid import hash_of
from anydepth.evaluation.texts import TestSet, naming
from anydepth.files import checksum, write_atomically
from anydepth.training import checkpoint

FILE = "difficulty.json"
CHECKPOINTS, PARTS = 20, 4
"""Those of the paper."""
NAMES = ("simple", "ordinary", "difficult", "challenging")
"""Its names for four parts."""


class Difficulty(NamedTuple):
    """What `difficulty.json` says."""

    steps: list[int]
    """Of the checkpoints that judged."""
    weights: str
    """Checksum of the last of them."""
    test_set: str
    """As in the grids of the runs that were evaluated on it."""
    mean: list[float]
    """Of the losses of each sentence, in nats."""
    deviation: list[float]
    part: list[int]
    """The part that each sentence is in, from 0, the easiest."""
    language: str = ""
    """Of the test set, if it has one."""

    @property
    def names(self) -> list[str]:
        parts = max(self.part) + 1
        return list(NAMES) if parts == len(NAMES) else [f"part {number}" for number in range(1, parts + 1)]


def judge(
    run: Path,
    test_set: TestSet,
    *,
    checkpoints: int = CHECKPOINTS,
    parts: int = PARTS,
    language: str | None = None,
    device: str = "auto",
    progress: Callable[[int, int], None] | None = None,
) -> Difficulty:
    """Scores every sentence with the last checkpoints of a run, as many as there are up to `checkpoints`; leaves
    difficulty.json in its folder."""
    from anydepth.run import load

    if not 1 < parts <= len(test_set.source):
        raise UserError(f"--parts {parts}: expected 2 to {len(test_set.source)}, the sentences of the test set")
    paths = last_checkpoints(run, checkpoints)
    losses = []
    for done, path in enumerate(paths):
        if progress:
            progress(done, len(paths))
        one = load(run, device, checkpoint=str(checkpoint.step_of(path))).in_language(language)
        with naming(test_set.place):
            losses.append([-total for total in one.score(test_set.source, test_set.reference)])
    mean, deviation, part = by_losses(np.array(losses), parts)
    found = Difficulty(
        steps=[checkpoint.step_of(path) for path in paths],
        weights=checksum(paths[-1] / "model.safetensors"),
        test_set=hash_of(test_set.source, test_set.reference),
        mean=mean.tolist(),
        deviation=deviation.tolist(),
        part=part,
        language=one.key,
    )
    write_atomically(run / FILE, json.dumps(found._asdict()) + "\n")
    return found


def last_checkpoints(run: Path, most: int) -> list[Path]:
    found = checkpoint.steps(run / "checkpoints")
    if most < 2 or len(found) < 2:
        raise UserError(
            f"{run}: {min(most, len(found))} checkpoints cannot tell how losses vary; expected 2 or more "
            "(--checkpoints, and training.keep and save_every of its recipe)"
        )
    return found[-most:]


def by_losses(losses: np.ndarray, parts: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """(checkpoints, sentences) → the mean and the deviation of each sentence's losses, and its part."""
    mean, deviation = losses.mean(0), losses.std(0)
    return mean, deviation, cut(mean + deviation, parts)


def cut(scores: np.ndarray, parts: int) -> list[int]:
    """The part of every sentence: as many in each, those with the lowest scores in part 0."""
    part = np.empty(len(scores), dtype=int)
    for number, places in enumerate(np.array_split(np.argsort(scores, kind="stable"), parts)):
        part[places] = number
    return part.tolist()


def read_difficulty(run: Path) -> Difficulty | None:
    try:
        values: dict[str, Any] = json.loads((run / FILE).read_text(encoding="utf-8"))
        return Difficulty(**values)
    except (OSError, ValueError, TypeError):
        return None  # never judged, or by another version
