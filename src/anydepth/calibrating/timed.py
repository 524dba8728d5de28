"""A test set decoded one sentence at a time at every depth, each sentence timed (as in tied-multi, Table 2).

Then any choice of depths has its outputs and its time, without decoding again. `outputs/6-2.txt` and `seconds/6-2.npy`
are kept for every finished depth, and used again as long as `timed.json` beside them says the same.
"""

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from anydepth.evaluation.grid import hash_of, machine
from anydepth.evaluation.metrics import Array, Scorer, Statistics
from anydepth.files import read_lines, write_atomically, write_lines
from anydepth.run import Progress, Run

T = TypeVar("T")

WARM_UP = 3
"""Sentences decoded before the clock runs: a short, a middling and a long one."""


class Timed(NamedTuple):
    depths: list[str]
    statistics: list[Statistics]
    """What the scores at each depth are computed from."""
    seconds: Array
    """(sentences, depths)"""
    settings: dict[str, Any]
    """How it was decoded, and where."""

    def chosen(self, places: Array) -> tuple[Statistics, Array]:
        """Statistics and seconds of sentences decoded at these depths."""
        rows = np.arange(len(places))
        picked = (np.stack([getattr(one, name) for one in self.statistics]) for name in Statistics._fields)
        return Statistics(*(columns[places, rows] for columns in picked)), self.seconds[rows, places]

    def chrf(self) -> Array:
        """(sentences, depths) of each sentence by itself."""
        return np.stack([one.sentence_chrf() for one in self.statistics], axis=1)


def decode_timed(
    run: Run,
    depths: Sequence[str],
    source: list[str],
    reference: list[str],
    folder: Path,
    beam: int,
    progress: Progress | None = None,
) -> Timed:
    """Depths that were finished before in the same way are kept. `progress` counts sentences times depths."""
    device = str(run.device)
    settings = {"beam": beam, "batch": 1, "device": device, "machine": machine(device), "sentences": len(source)}
    settings["precision"] = run.config.decoding.precision
    made = {"test_set": hash_of(source, reference), "weights": run.weights_hash, "key": run.key, **settings}
    begin(folder, made)
    scorer = Scorer(reference, run.config.tokenizer.lowercase)
    statistics, seconds = [], []
    for number, depth in enumerate(depths):
        output, times = folder / "outputs" / f"{depth}.txt", folder / "seconds" / f"{depth}.npy"
        if not times.exists():

            def show(done: int, number: int = number) -> None:
                if progress:
                    progress(number * len(source) + done, len(depths) * len(source))

            hypotheses, taken = decode_one_by_one(run, source, depth, beam, show)
            write_lines(output, hypotheses)
            scratch = times.with_name(f".{depth}.npy")
            np.save(scratch, taken)
            scratch.replace(times)
        statistics.append(scorer.statistics(read_lines(output)))
        seconds.append(np.load(times))
    return Timed(list(depths), statistics, np.stack(seconds, axis=1), made)


def begin(folder: Path, made: dict[str, Any]) -> None:
    """Forgets what was decoded otherwise."""
    journal = folder / "timed.json"
    for name in ("outputs", "seconds"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    try:
        before = json.loads(journal.read_text(encoding="utf-8"))
        same = {"precision": made["precision"]} | before == made  # older ones say nothing of it
    except (FileNotFoundError, ValueError, TypeError):
        same = False
    if not same:
        journal.unlink(missing_ok=True)
        for file in (folder / "seconds").glob("*.npy"):
            file.unlink()
        write_atomically(journal, json.dumps(made, indent=1) + "\n")


def decode_one_by_one(run: Run, source: list[str], depth: str, beam: int, show: Any = None) -> tuple[list[str], Array]:
    """Outputs, and the seconds that each took."""
    by_length = sorted(source, key=len)
    for text in (by_length[i * (len(source) - 1) // (WARM_UP - 1)] for i in range(WARM_UP)):
        run.translate([text], depth, beam=beam)
    outputs, taken = [], np.empty(len(source))
    for number, text in enumerate(source):
        (output,), taken[number] = timed(run, partial(run.translate, [text], depth, beam=beam))
        outputs.append(output.replace("\n", " "))
        if show:
            show(number + 1)
    return outputs, taken


def timed(run: Run, work: Callable[[], T], clock: Callable[[], float] = time.perf_counter) -> tuple[T, float]:
    """What a decoding gives, and its seconds; those of the second time where the first has prepared it."""
    while True:
        if run.device.type == "cuda":  # the last search may have left a step that nobody waits for
            torch.cuda.synchronize(run.device)
        before, start = run.preparations, clock()
        found = work()
        seconds = clock() - start
        if run.preparations <= before:  # fewer: it has forgotten some, for want of memory, and would do so again
            return found, seconds
