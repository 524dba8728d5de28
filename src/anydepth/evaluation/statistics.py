"""The counts behind the scores of a depth grid, kept beside its outputs so that they are counted once.

`statistics/6-2.npz` belongs to `outputs/6-2.txt`. It names what it was counted from: counts of another output, another
reference or another library are counted again, never taken.
"""

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from anydepth.errors import UserError
from anydepth.evaluation.metrics import AnyStatistics, Statistics
from anydepth.files import read_lines, write_atomically

STATISTICS = "statistics"

Progress = Callable[[int, int], None]
"""Called with the number of depths done and their total."""


def read_statistics(
    folder: Path,
    depths: Sequence[str],
    lowercase: bool,
    progress: Progress | None = None,
    kind: type[AnyStatistics] = Statistics,
) -> dict[str, AnyStatistics]:
    """Of those depths whose outputs were kept, as far as possible from files; the others are counted and kept."""
    references = read_lines(folder / "outputs" / "reference.txt")
    scorer: Any = None
    found: dict[str, AnyStatistics] = {}
    for done, depth in enumerate(depths):
        if progress:
            progress(done, len(depths))
        output = folder / "outputs" / f"{depth}.txt"
        if not output.exists():
            continue
        hypotheses = read_lines(output)
        if len(hypotheses) != len(references) or not references:
            counts = f"{len(hypotheses)} lines, reference.txt beside it {len(references)}"
            raise UserError(f"{output} is damaged: it has {counts}; write it again with anydepth evaluate")
        statistics = _read(folder, depth, kind, _origin(kind, hypotheses, references, lowercase))
        if statistics is None:
            scorer = scorer or kind.scorer(references, lowercase)
            statistics = scorer.statistics(hypotheses)
            assert statistics is not None
            keep_statistics(folder, depth, statistics, hypotheses, references, lowercase)
        found[depth] = statistics
    if progress:
        progress(len(depths), len(depths))
    return found


def keep_statistics(
    folder: Path, depth: str, statistics: AnyStatistics, hypotheses: list[str], references: list[str], lowercase: bool
) -> None:
    """Where the folder cannot be written they are counted again next time."""
    file = folder / STATISTICS / f"{depth}.npz"
    try:
        file.parent.mkdir(exist_ok=True)
        buffer, origin = io.BytesIO(), _origin(type(statistics), hypotheses, references, lowercase)
        np.savez_compressed(buffer, origin=np.array(origin), **statistics._asdict())
        write_atomically(file, buffer.getvalue())
    except OSError:
        pass


def _read(folder: Path, depth: str, kind: type[AnyStatistics], origin: str) -> AnyStatistics | None:
    try:
        with np.load(folder / STATISTICS / f"{depth}.npz") as kept:
            return kind(*(kept[metric] for metric in kind._fields)) if kept["origin"] == origin else None
    except (OSError, ValueError, KeyError, BadZipFile):
        return None


def _origin(kind: type[AnyStatistics], hypotheses: list[str], references: list[str], lowercase: bool) -> str:
    return hashlib.sha256(json.dumps([*kind.made_with(lowercase), references, hypotheses]).encode()).hexdigest()
