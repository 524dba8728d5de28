"""The depth grid: one test set decoded at many depths, each with its scores and its seconds.

What is measured goes into `grid.json`, `outputs/` and `statistics/` after every depth, so that an interrupted
evaluation continues where it stopped.
"""

import hashlib
import json
import platform
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from anydepth.errors import UserError
from anydepth.evaluation.cells import Cell, depth_name, layers
from anydepth.evaluation.lead import lead_scores
from anydepth.evaluation.metrics import AnyStatistics, Statistics
from anydepth.evaluation.rouge import RougeStatistics
from anydepth.evaluation.samples import choose_samples
from anydepth.evaluation.statistics import STATISTICS, keep_statistics
from anydepth.files import read_lines, write_atomically, write_lines
from anydepth.plan import parse_depth

Progress = Callable[[int, int, str], None]
"""Called with the number of depths done, their total and the depth that is decoded next ("" at the end)."""

Decode = Callable[..., list[str]]
"""Texts, depth, beam and batch → outputs."""

WARM_UP_SENTENCES = 8
BEFORE = "evaluated-before"
"""Where an earlier, different evaluation is kept."""


class Run(Protocol):
    """What the grid asks of a trained model."""

    @property
    def device(self) -> Any: ...

    @property
    def weights_hash(self) -> str | None: ...

    def depths(self) -> list[str]: ...

    def describe(self, depth: str) -> dict[str, Any]: ...

    def translate(self, texts: list[str], *, depth: str, beam: int, batch: int) -> list[str]: ...

    def summarize(self, texts: list[str], *, depth: str, beam: int, batch: int) -> list[str]: ...


def evaluate(
    run: Run,
    source: list[str],
    reference: list[str],
    depths: list[str],
    *,
    beam: int,
    batch: int,
    out: Path,
    lowercase: bool = False,
    summaries: bool = False,
    notes: dict[str, Any] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Decode `source` at every depth, score and time it; returns what it leaves in `out/grid.json`.

    Depths measured before with the same weights, test set, settings and machine are kept, not decoded again.
    `summaries` are scored by ROUGE, beside the beginnings of their documents. `notes` is what else the grid should say
    of how it was made; with other notes, too, it is made anew.
    """
    depths = _checked(run, source, reference, depths)
    kind: type[AnyStatistics] = RougeStatistics if summaries else Statistics
    scorer = kind.scorer(reference, lowercase)
    settings = {"signatures": scorer.signatures, "batch": batch, "beam": beam} | _asked(run, source, reference)
    settings |= {"lead": lead_scores(source, reference)} if summaries else {}
    settings |= notes or {}
    decode: Decode = run.summarize if summaries else run.translate
    measured = _measured_before(out, settings, source, reference)
    for done, depth in enumerate(depths):
        if progress:
            progress(done, len(depths), depth)
        if depth in measured:
            continue
        hypotheses, seconds = _timed(decode, source, depth, beam, batch)
        statistics = scorer.statistics(hypotheses)
        encoder, decoder = parse_depth(depth)
        cell = {"encoder": encoder, "decoder": decoder, **statistics.scores()}
        cell |= {"seconds": seconds, "parameters": run.describe(depth)["parameters"]}
        if not measured:
            _begin(out, source, reference)
        measured[depth] = (cell, hypotheses)
        write_lines(out / "outputs" / f"{depth}.txt", hypotheses)
        keep_statistics(out, depth, statistics, hypotheses, reference, lowercase)
        _write_grid(out, settings, measured, source, reference)
    if progress:
        progress(len(depths), len(depths), "")
    grid: dict[str, Any] = json.loads((out / "grid.json").read_text(encoding="utf-8"))
    return grid


def _asked(run: Run, source: list[str], reference: list[str]) -> dict[str, Any]:
    """Which weights were asked about which sentences, and where."""
    return {
        "device": str(run.device),
        "machine": machine(str(run.device)),
        "sentences": len(source),
        "test_set": hash_of(source, reference),
        "weights": run.weights_hash,
    }


def machine(device: str) -> dict[str, Any]:
    """What the seconds were measured on."""
    import torch

    if device.startswith("cuda"):
        return {"name": torch.cuda.get_device_name(torch.device(device)), "torch": torch.__version__}
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists() and (match := re.search(r"model name\s*:\s*(.+)", cpuinfo.read_text())):
        name = match[1]
    return {"name": name, "threads": torch.get_num_threads(), "torch": torch.__version__}


def _checked(run: Run, source: list[str], reference: list[str], depths: list[str]) -> list[str]:
    if len(source) != len(reference):
        raise UserError(f"the source has {len(source)} lines but the reference {len(reference)}: expected as many")
    if not source:
        raise UserError("the test set is empty: expected at least one sentence")
    if not depths:
        raise UserError("no depth to evaluate: expected at least one, such as 6-2")
    known = run.depths()
    for depth in depths:
        parse_depth(depth)
        if depth not in known:
            raise UserError(f"depth {depth}: this run has {', '.join(known)}")
    return list(dict.fromkeys(depths))


def _timed(decode: Decode, source: list[str], depth: str, beam: int, batch: int) -> tuple[list[str], float]:
    """Hypotheses and the seconds of decoding alone: whatever happens once happens in the warm-up, which sees
    short and long sentences."""
    by_length = sorted(source, key=len)
    warm_up = [by_length[i * (len(source) - 1) // (WARM_UP_SENTENCES - 1)] for i in range(WARM_UP_SENTENCES)]
    decode(warm_up, depth=depth, beam=beam, batch=batch)
    start = time.perf_counter()
    hypotheses = decode(source, depth=depth, beam=beam, batch=batch)
    seconds = time.perf_counter() - start
    return [text.replace("\n", " ") for text in hypotheses], seconds


def _measured_before(
    out: Path, settings: dict[str, Any], source: list[str], reference: list[str]
) -> dict[str, tuple[Cell, list[str]]]:
    """Cells and outputs of an earlier evaluation that asked the same question of the same weights."""
    try:
        grid = json.loads((out / "grid.json").read_text(encoding="utf-8"))
        if settings["weights"] is None or any(grid[name] != value for name, value in settings.items()):
            return {}
        outputs = out / "outputs"
        if (read_lines(outputs / "source.txt"), read_lines(outputs / "reference.txt")) != (source, reference):
            return {}  # damaged
        measured = {}
        for cell in grid["cells"]:
            output = outputs / f"{depth_name(cell)}.txt"
            if output.exists() and len(lines := read_lines(output)) == len(source):
                measured[depth_name(cell)] = (cell, lines)
        return measured
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return {}  # no earlier evaluation, or one we cannot build on


def set_aside(out: Path) -> None:
    """An earlier, different evaluation makes room; it is kept until the next such. Stopped anywhere, the next call goes
    on."""
    before, moving = out / BEFORE, out / f"{BEFORE}.part"
    if not (out / "grid.json").exists() and not moving.exists():
        return
    moving.mkdir(exist_ok=True)
    for name in ("outputs", STATISTICS, "grid.json"):
        if (out / name).exists() and not (moving / name).exists():
            (out / name).rename(moving / name)
    shutil.rmtree(before, ignore_errors=True)
    moving.rename(before)
    print(f"anydepth: the scores of before are in {before} now; --out is for several side by side", file=sys.stderr)


def _begin(out: Path, source: list[str], reference: list[str]) -> None:
    """The first depth is measured: only now does an earlier, different evaluation go."""
    set_aside(out)
    folder = out / "outputs"
    folder.mkdir(parents=True, exist_ok=True)
    for stale in (*folder.glob("*.txt"), *(out / STATISTICS).glob("*.npz")):
        stale.unlink()
    write_lines(folder / "source.txt", source)
    write_lines(folder / "reference.txt", reference)


def _write_grid(
    out: Path,
    settings: dict[str, Any],
    measured: dict[str, tuple[Cell, list[str]]],
    source: list[str],
    reference: list[str],
) -> None:
    ordered = sorted(measured.values(), key=lambda both: layers(both[0]))
    outputs = {depth_name(cell): hypotheses for cell, hypotheses in ordered}
    cells = sorted((cell for cell, _ in ordered), key=lambda cell: (cell["encoder"], cell["decoder"]))
    grid = {**settings, "cells": cells, "samples": choose_samples(source, reference, outputs)}
    write_atomically(out / "grid.json", json.dumps(grid, ensure_ascii=False, indent=1) + "\n")


def hash_of(source: list[str], reference: list[str]) -> str:
    """Tells test sets apart."""
    return hashlib.sha256(json.dumps([source, reference]).encode()).hexdigest()
