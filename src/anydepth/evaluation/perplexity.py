"""The depth grid of a masked language model: perplexity on held-out text at every depth.

The words hidden are the same for every depth and every run (`data/masking.py`). A depth is one number, so that cells
have an `encoder` and no `decoder`. Of several test sets all hidden words count alike, and `languages` has the
perplexity of each. Languages that have learnt layers of their own run those: then there is one cell, whose `encoder` is
the mean over languages, and `layers` has the number of each.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from anydepth import plan
from anydepth.data.any_batch import AnyBatch
from anydepth.data.corpora import CorpusConfig
from anydepth.data.store import Store, tokenize
from anydepth.describe import describe_plan
from anydepth.encoder_models import MaskedLMConfig
from anydepth.errors import UserError
from anydepth.evaluation.cells import Cell, depth_name
from anydepth.evaluation.grid import Progress, machine, set_aside
from anydepth.evaluation.texts import say_skipped
from anydepth.files import write_atomically
from anydepth.plan import Plan, Plans
from anydepth.run import Run
from anydepth.tasks import MaskedText
from anydepth.training.validation import HeldOut, held_out_batches, held_out_loss


def evaluate_text(
    run: Run,
    corpora: Sequence[CorpusConfig],
    depths: Sequence[str] | None = None,
    *,
    out: Path,
    notes: dict[str, Any] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure every depth, or those asked for, on some text; returns what it leaves in `out/grid.json`. Depths measured
    before with the same weights, text and machine stay there."""
    task = MaskedText(run.config, run.tokenizers)
    with TemporaryDirectory() as scratch:
        places = [(corpus, Path(scratch) / str(number)) for number, corpus in enumerate(corpora)]
        stores = [tokenize(corpus, "test", run.tokenizers, place, run.config.data) for corpus, place in places]
        batches = [batch for store in stores for batch in held_out_batches(task, store) if batch.predictions]
        settings = settings_of(run, stores, batches) | (notes or {})
    if not batches:
        raise UserError("too little held-out text: no word of it is hidden")
    say_skipped(store.skips for store in stores)
    cells = measured_before(out / "grid.json", settings)
    others = not cells
    asked = [*dict.fromkeys(depths or all_depths(run))]
    for done, depth in enumerate(asked):
        plans = {key: run.plan(depth, key) for key in dict.fromkeys(batch.key for batch in batches)}
        name = plan.depth_name(mean_layers(plans))
        if progress:
            progress(done, len(asked), name)
        if name not in cells:
            cells[name] = measure(run, batches, plans)
    grid = settings | {"cells": sorted(cells.values(), key=lambda cell: cell["encoder"])}
    if others:
        set_aside(out)
    write_atomically(out / "grid.json", json.dumps(grid, ensure_ascii=False, indent=1) + "\n")
    return grid


def all_depths(run: Run) -> list[str] | list[None]:
    """Those to measure; None is the one depth of each language, where these have learnt it."""
    return [None] if learns_by_language(run) else run.depths()


def learns_by_language(run: Run) -> bool:
    """Whether languages have learnt layers of their own."""
    return any(policy.keys for policy in run.model.policies.values())


def mean_layers(plans: dict[str, Plans]) -> float:
    """Over languages; a whole number where it is one."""
    mean = fmean(len(each.encoder) for each in plans.values())
    return int(mean) if mean.is_integer() else round(mean, 2)


def settings_of(run: Run, stores: list[Store], batches: list[AnyBatch]) -> dict[str, Any]:
    """How a grid is made: it is kept as long as this is the same."""
    assert isinstance(run.config.model, MaskedLMConfig)
    words = hashlib.sha256()
    for store in stores:
        words.update(store.target(np.arange(len(store)))[0].tobytes())
    signature = f"{run.config.model.masking.signature}|tok:{run.tokenizers.hash[:12]}"
    return {
        **({"language": run.key} if learns_by_language(run) else {}),
        "signatures": {"perplexity": signature},
        "device": str(run.device),
        "machine": machine(str(run.device)),
        "sentences": sum(map(len, stores)),
        "predictions": sum(batch.predictions for batch in batches),
        "test_set": words.hexdigest(),
        "weights": run.weights_hash,
    }


def measured_before(file: Path, settings: dict[str, Any]) -> dict[str, Cell]:
    try:
        grid = json.loads(file.read_text(encoding="utf-8"))
        same = all(grid[name] == value for name, value in settings.items())
        return {depth_name(cell): cell for cell in grid["cells"]} if same else {}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return {}  # no earlier evaluation, or one we cannot build on


def measure(run: Run, batches: list[AnyBatch], plans: dict[str, Plans]) -> Cell:
    """One depth, by the plan of each language; its seconds are those of the passes alone, after one to warm up."""
    held_out_loss(run.model, batches[:1], plans[batches[0].key], run.device)
    start, found = time.perf_counter(), {}
    for key, own in plans.items():
        found[key] = held_out_loss(run.model, [batch for batch in batches if batch.key == key], own, run.device)
    seconds = time.perf_counter() - start
    words = sum(each.predictions for each in found.values())
    whole = HeldOut(sum(each.nll * each.predictions for each in found.values()) / words, words)
    cell: Cell = {"encoder": mean_layers(plans), "loss": whole.nll, "perplexity": whole.perplexity}
    if len(found) > 1:
        cell["languages"] = {key: each.perplexity for key, each in found.items()}
    if len(set(plans.values())) > 1:
        cell["layers"] = {key: len(own.encoder) for key, own in plans.items()}
    used = sorted({layer for own in plans.values() for layer in own.encoder.layers})
    parameters = describe_plan(run.model, Plans(Plan(tuple(used))))["parameters"]
    return cell | {"seconds": seconds, "parameters": parameters}


def is_perplexity(grid: dict[str, Any]) -> bool:
    """Whether a grid is a masked language model's."""
    return "perplexity" in grid["cells"][0]
