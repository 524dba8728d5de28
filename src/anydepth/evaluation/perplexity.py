"""The depth grid of a masked language model: perplexity on held-out text at every depth.

The words hidden are the same for every depth and every run (`data/masking.py`). A depth is one number, so that cells
have an `encoder` and no `decoder`.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from anydepth.data.corpora import CorpusConfig
from anydepth.data.store import Store, tokenize
from anydepth.encoder_models import AnyBatch, MaskedLMConfig
from anydepth.errors import UserError
from anydepth.evaluation.cells import Cell, depth_name
from anydepth.evaluation.files import write_atomically
from anydepth.evaluation.grid import Progress, machine
from anydepth.plan import Plans
from anydepth.run import Run
from anydepth.tasks import MaskedText
from anydepth.training.validation import HeldOut, held_out_batches, held_out_loss


def evaluate_text(
    run: Run,
    corpus: CorpusConfig,
    depths: Sequence[str],
    *,
    out: Path,
    notes: dict[str, Any] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure every depth on a corpus; returns what it leaves in `out/grid.json`. Depths measured before with the same
    weights, text and machine stay there."""
    with TemporaryDirectory() as scratch:
        store = tokenize(corpus, "test", run.tokenizers, scratch, run.config.data)
        batches = list(held_out_batches(MaskedText(run.config, run.tokenizers), store))
        settings = settings_of(run, store, batches) | (notes or {})
    cells = measured_before(out / "grid.json", settings)
    for done, depth in enumerate(dict.fromkeys(depths)):
        if progress:
            progress(done, len(depths), depth)
        plans = run.plan(depth)
        if plans.name not in cells:
            cells[plans.name] = measure(run, batches, plans)
    grid = settings | {"cells": sorted(cells.values(), key=lambda cell: cell["encoder"])}
    write_atomically(out / "grid.json", json.dumps(grid, ensure_ascii=False, indent=1) + "\n")
    return grid


def settings_of(run: Run, store: Store, batches: list[AnyBatch]) -> dict[str, Any]:
    """How a grid is made: it is kept as long as this is the same."""
    assert isinstance(run.config.model, MaskedLMConfig)
    words, _ = store.target(np.arange(len(store)))
    signature = f"{run.config.model.masking.signature}|tok:{run.tokenizers.hash[:12]}"
    return {
        "signatures": {"perplexity": signature},
        "device": str(run.device),
        "machine": machine(str(run.device)),
        "sentences": len(store),
        "predictions": sum(batch.predictions for batch in batches),
        "test_set": hashlib.sha256(words.tobytes()).hexdigest(),
        "weights": run.weights_hash,
    }


def measured_before(file: Path, settings: dict[str, Any]) -> dict[str, Cell]:
    try:
        grid = json.loads(file.read_text(encoding="utf-8"))
        same = all(grid[name] == value for name, value in settings.items())
        return {depth_name(cell): cell for cell in grid["cells"]} if same else {}
    except (FileNotFoundError, ValueError, KeyError):
        return {}  # no earlier evaluation, or one we cannot build on


def measure(run: Run, batches: list[AnyBatch], plans: Plans) -> Cell:
    """One depth; its seconds are those of the passes alone, after one to warm up."""

    def seconds_and_loss(batches: list[AnyBatch]) -> tuple[float, HeldOut]:
        start = time.perf_counter()
        found = held_out_loss(run.model, batches, plans, run.device)
        return time.perf_counter() - start, found

    hidden = [batch for batch in batches if batch.predictions]
    if not hidden:
        raise UserError("too little held-out text: no word of it is hidden")
    seconds_and_loss(hidden[:1])
    seconds, found = seconds_and_loss(batches)
    parameters = run.describe(plans.name)["parameters"]
    cell = {"encoder": len(plans.encoder), "loss": found.nll, "perplexity": found.perplexity}
    return cell | {"seconds": seconds, "parameters": parameters}


def is_perplexity(grid: dict[str, Any] | None) -> bool:
    return bool(grid) and "perplexity" in grid["cells"][0]  # type: ignore[index]


def print_perplexities(console: Console, grid: dict[str, Any]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    for heading in ("depth", "perplexity", "loss", "seconds", "parameters"):
        table.add_column(heading, justify="right")
    for cell in grid["cells"]:
        numbers = (f"{cell['perplexity']:.3f}", f"{cell['loss']:.4f}", f"{cell['seconds']:.2f}")
        table.add_row(depth_name(cell), *numbers, f"{cell['parameters'] / 1e6:.2f} M")
    table.caption = f"of {grid['predictions']:,} hidden words in {grid['sentences']:,} sentences"
    console.print(table)
