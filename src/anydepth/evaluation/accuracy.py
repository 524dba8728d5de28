"""The depth grid of a classifier: accuracy and macro-F1 on a labelled test set at every depth.

A depth is one number, so that cells have an `encoder` and no `decoder`. Every depth leaves its labels in
`outputs/DEPTH.txt`, line by line with the right ones in `outputs/reference.txt`, in the order of the test set.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from anydepth.data.batching import BatchingConfig, Limits, one_pass
from anydepth.data.corpora import CorpusConfig
from anydepth.data.labelled_batch import LabelledBatch
from anydepth.data.store import Store, tokenize
from anydepth.encoder_models import Classifier
from anydepth.evaluation.cells import depth_name
from anydepth.evaluation.files import write_atomically
from anydepth.evaluation.grid import Progress, machine
from anydepth.evaluation.labels import accuracy, interval, macro_f1
from anydepth.evaluation.perplexity import measured_before
from anydepth.plan import Plans
from anydepth.run import Run
from anydepth.tasks.classification import Classification

Array = np.ndarray
TOKENS = 8192
"""Of a batch, padding included, where nobody asks for a number of texts."""


def evaluate_labels(
    run: Run,
    corpora: Sequence[CorpusConfig],
    depths: Sequence[str],
    *,
    out: Path,
    batch: int = 0,
    notes: dict[str, Any] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure every depth on labelled text; returns what it leaves in `out/grid.json`. Depths measured before with the
    same weights, text and machine stay there. `batch` texts are classified together; 0 means as many as are good."""
    model = run.classifier
    task = Classification(run.config, run.tokenizers).take_depths(run.folder, str(run.device))
    with TemporaryDirectory() as scratch:
        stores = [
            tokenize(corpus, "test", run.tokenizers, Path(scratch) / str(number), run.config.data)
            for number, corpus in enumerate(corpora)
        ]
        settings = settings_of(run, stores, batch) | (notes or {})
        asked = in_batches(task, stores, batch)
    places, batches = [where for where, _ in asked], [texts for _, texts in asked]
    cells = measured_before(out / "grid.json", settings)
    right = in_place([texts.target_out for texts in batches], places)
    write_labels(out / "outputs" / "reference.txt", right, model)
    for done, depth in enumerate(dict.fromkeys(depths)):
        if progress:
            progress(done, len(depths), depth)
        plans = run.plan(depth)
        if plans.name not in cells:
            found, seconds = timed(model, batches, plans)
            labels = in_place([logits.argmax(-1) for logits in found], places)
            cells[plans.name] = {
                "encoder": len(plans.encoder),
                **depth_of_words(batches, len(plans.encoder)),
                "accuracy": accuracy(labels, right),
                "interval": list(interval(labels, right)),
                "macro_f1": macro_f1(labels, right),
                "loss": mean_loss(found, batches),
                "seconds": seconds,
                "parameters": run.describe(plans.name)["parameters"],
            }
            write_labels(out / "outputs" / f"{plans.name}.txt", labels, model)
    grid = settings | {"cells": sorted(cells.values(), key=lambda cell: cell["encoder"])}
    write_atomically(out / "grid.json", json.dumps(grid, ensure_ascii=False, indent=1) + "\n")
    return grid


def settings_of(run: Run, stores: list[Store], batch: int) -> dict[str, Any]:
    """How a grid is made: it is kept as long as this is the same."""
    words, texts = hashlib.sha256(), sum(map(len, stores))
    for store in stores:
        every = np.arange(len(store))
        words.update(store.source(every)[0].tobytes())
        words.update("\n".join(store.label_names[number] for number in store.labels(every)).encode())
    return {
        "signatures": {"accuracy": f"texts:{texts}|interval:wilson-95|f1:macro|tok:{run.tokenizers.hash[:12]}"},
        "device": str(run.device),
        "machine": machine(str(run.device)),
        "sentences": texts,
        "batch": batch,
        "labels": list(run.classifier.config.labels),
        "test_set": words.hexdigest(),
        "weights": run.weights_hash,
    }


def in_batches(task: Classification, stores: Sequence[Store], batch: int = 0) -> list[tuple[Array, LabelledBatch]]:
    """All texts, those of similar length together, each batch with the places of its texts among all."""
    found, before = [], 0
    for store in stores:
        config = BatchingConfig(tokens=max(TOKENS, store.longest_source), layout="padded", lengths=1)
        limits = Limits.of([store], config)
        order = np.argsort(store.source_lengths, kind="stable")
        cuts = [order[start : start + batch] for start in range(0, len(order), batch)] if batch else None
        for texts in cuts or one_pass(store, config, limits):
            found.append((before + texts, task.held_out(store, texts, limits)))
        before += len(store)
    return found


def in_place(each: Sequence[Tensor], places: Sequence[Array]) -> Array:
    """One number a text, batch by batch, in the order of the test set."""
    result = np.empty(sum(map(len, places)), dtype=np.int64)
    for numbers, where in zip(each, places):
        result[where] = numbers.cpu().numpy()
    return result


@torch.no_grad()
def run_batches(model: Classifier, batches: Sequence[LabelledBatch], plans: Plans) -> list[Tensor]:
    """The logits of every text."""
    device = model.output.weight.device
    return [model.logits(model(batch.to(device), plans)) for batch in batches]


def timed(model: Classifier, batches: Sequence[LabelledBatch], plans: Plans) -> tuple[list[Tensor], float]:
    """The logits, and the seconds they took after one batch to warm up."""
    run_batches(model, batches[:1], plans)
    start = time.perf_counter()
    found = run_batches(model, batches, plans)
    if found[-1].is_cuda:
        torch.cuda.synchronize()
    return found, time.perf_counter() - start


def predict(model: Classifier, task: Classification, stores: Sequence[Store], plans: Plans) -> tuple[Array, Array]:
    """The labels found for all texts, and the right ones."""
    batches = in_batches(task, stores)
    places = [where for where, _ in batches]
    found = run_batches(model, [batch for _, batch in batches], plans)
    right = in_place([batch.target_out for _, batch in batches], places)
    return in_place([logits.argmax(-1) for logits in found], places), right


def depth_of_words(batches: Sequence[LabelledBatch], layers: int) -> dict[str, Any]:
    """Of words with depths of their own: the mean, and how many have each depth from 1 on."""
    words = [batch.words.depths for batch in batches if batch.words]
    if not words:
        return {}
    counts = torch.bincount(torch.cat(words).long(), minlength=layers + 1)[1:].tolist()
    mean = sum(depth * count for depth, count in enumerate(counts, start=1)) / sum(counts)
    return {"mean_depth": mean, "depths": counts}


def mean_loss(found: Sequence[Tensor], batches: Sequence[LabelledBatch]) -> float:
    losses = [F.cross_entropy(x.double().cpu(), batch.target_out, reduction="sum") for x, batch in zip(found, batches)]
    return float(sum(losses)) / sum(batch.sentences for batch in batches)


def write_labels(file: Path, labels: Array, model: Classifier) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, "".join(f"{model.config.labels[label]}\n" for label in labels))


def is_accuracy(grid: dict[str, Any]) -> bool:
    """Whether a grid is a classifier's."""
    return "accuracy" in grid["cells"][0]


def print_accuracies(console: Console, grid: dict[str, Any]) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    words = any("mean_depth" in cell for cell in grid["cells"])
    scores = ("accuracy", "95 % interval", "macro-F1", "loss", "seconds", "parameters")
    for heading in ("depth", *(("of a word",) if words else ()), *scores):
        table.add_column(heading, justify="right")
    for cell in grid["cells"]:
        low, high = cell["interval"]
        mean = (f"{cell['mean_depth']:.2f}" if "mean_depth" in cell else "",) if words else ()
        quality = (f"{cell['accuracy']:.2f}", f"{low:.2f} – {high:.2f}", f"{cell['macro_f1']:.2f}")
        cost = (f"{cell['loss']:.4f}", f"{cell['seconds']:.2f}", f"{cell['parameters'] / 1e6:.2f} M")
        table.add_row(depth_name(cell), *mean, *quality, *cost)
    table.caption = f"of {grid['sentences']:,} texts and {len(grid['labels'])} labels"
    console.print(table)
