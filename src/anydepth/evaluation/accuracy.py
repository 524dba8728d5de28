"""The depth grid of a classifier: accuracy and macro-F1 on a labelled test set at every depth.

A depth is one number, so that cells have an `encoder` and no `decoder`. Every depth leaves its labels in
`outputs/DEPTH.txt`, every way of leaving early in `outputs/RULE.txt`, line by line with the right ones in
`outputs/reference.txt`, in the order of the test set.
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

from anydepth.classifying.answering import Answering
from anydepth.classifying.awaiting import Answer
from anydepth.classifying.leaving import Rule, check_exits
from anydepth.data.corpora import CorpusConfig
from anydepth.data.labelled_batch import LabelledBatch
from anydepth.data.store import Store, tokenize
from anydepth.depth.perword import PerWord
from anydepth.encoder_models import Classifier
from anydepth.errors import UserError
from anydepth.evaluation.cells import Cell, depth_name
from anydepth.evaluation.grid import Progress, machine, set_aside
from anydepth.evaluation.labels import accuracy, interval, macro_f1
from anydepth.evaluation.texts import say_skipped
from anydepth.files import write_atomically
from anydepth.plan import Plans
from anydepth.run import Run
from anydepth.tasks.classification import Classification, in_place

Array = np.ndarray
EXITS = "exits"
"""Of a grid: cells of texts that leave early, beside the depths."""
SAMPLES, SAMPLE_WORDS = 6, 80
"""Texts of a grid that are shown word by word, and how much of them."""


def evaluate_labels(
    run: Run,
    corpora: Sequence[CorpusConfig],
    depths: Sequence[str],
    *,
    out: Path,
    batch: int = 0,
    exits: Sequence[Rule] = (),
    texts: Sequence[str] = (),
    notes: dict[str, Any] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure every depth on labelled text; returns what it leaves in `out/grid.json`. Depths measured before with the
    same weights, text and machine stay there. `batch` texts are classified together; 0 means as many as are good.
    `exits` are ways of leaving early, measured at the deepest depth. The depths of the words of these `texts`, and of
    some of the test set, are noted."""
    if exits:
        check_exits(run.classifier)
    per_word = isinstance(run.classifier.encoder_depth, PerWord)
    if texts and not per_word:
        raise UserError("--text: all words of this run are equally deep")
    task = Classification(run.config, run.tokenizers).take_depths(run.folder, str(run.device))
    with TemporaryDirectory() as scratch:
        stores = [
            tokenize(corpus, "test", run.tokenizers, Path(scratch) / str(number), run.config.data)
            for number, corpus in enumerate(corpora)
        ]
        settings = settings_of(run, stores, batch) | (notes or {})
        asked = task.in_batches(stores, batch)
    say_skipped(store.skips for store in stores)
    cells, left = measured_before(out / "grid.json", settings)
    others = not cells
    labels = {"reference": in_place([texts.target_out for _, texts in asked], [where for where, _ in asked])}
    for done, depth in enumerate(dict.fromkeys(depths)):
        if progress:
            progress(done, len(depths), depth)
        plans = run.plan(depth)
        if plans.name not in cells:
            labels[plans.name], cells[plans.name] = measure(run, asked, plans)
    words = [*given_samples(run, texts), *samples(run, asked)] if per_word else []
    for rule in exits:
        labels[rule.name], left[rule.name] = measure(run, asked, run.plan(), rule)
    grid = settings | {"cells": sorted(cells.values(), key=lambda cell: cell["encoder"]), EXITS: list(left.values())}
    grid |= {"samples": words} if words else {}
    if others:
        set_aside(out)
    for name, answers in labels.items():
        write_labels(out / "outputs" / f"{name}.txt", answers, run.classifier)
    write_atomically(out / "grid.json", json.dumps(grid, ensure_ascii=False, indent=1) + "\n")
    return grid


def measured_before(file: Path, settings: dict[str, Any]) -> tuple[dict[str, Cell], dict[str, Cell]]:
    """Depths and early exits that need not be measured again."""
    try:
        grid = json.loads(file.read_text(encoding="utf-8"))
        if all(grid[name] == value for name, value in settings.items()):
            return {depth_name(cell): cell for cell in grid["cells"]}, {cell["exit"]: cell for cell in grid[EXITS]}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        pass  # no earlier evaluation, or one we cannot build on
    return {}, {}


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


def timed(
    answering: Answering, batches: Sequence[LabelledBatch], plans: Plans, rule: Rule | None = None
) -> tuple[list[Answer], float]:
    """The answers, and the seconds they took after one batch to warm up; where batches are recorded, after all."""
    for batch in batches if answering.records() else batches[:1]:
        answering.prepare(batch, plans, rule)
    start = time.perf_counter()
    found = list(answering.all(batches, plans, rule))
    return found, time.perf_counter() - start


def measure(
    run: Run, asked: list[tuple[Array, LabelledBatch]], plans: Plans, rule: Rule | None = None
) -> tuple[Array, Cell]:
    """The labels found at a depth, and how good they are."""
    places, batches = [where for where, _ in asked], [batch for _, batch in asked]
    right = in_place([batch.target_out for batch in batches], places)
    found, seconds = timed(run.answering, batches, plans, rule)
    labels = in_place([each.logits.argmax(-1) for each in found], places)
    return labels, {
        "encoder": len(plans.encoder),
        **({"exit": rule.name} if rule else {}),
        **depth_of_words(found, len(plans.encoder)),
        "accuracy": accuracy(labels, right),
        "interval": list(interval(labels, right)),
        "macro_f1": macro_f1(labels, right),
        "loss": mean_loss(found, batches),
        "seconds": seconds,
        "parameters": run.describe(plans.name)["parameters"],
    }


def given_samples(run: Run, texts: Sequence[str]) -> list[dict[str, Any]]:
    """Texts whose label nobody knows, with the depths of their words."""
    found = run.classify([text for text in texts if text.strip()])
    return [{"words": one.words[:SAMPLE_WORDS], "found": one.label, "right": ""} for one in found]


def samples(run: Run, asked: list[tuple[Array, LabelledBatch]]) -> list[dict[str, Any]]:
    """A few texts, the first of the test set, with the depths of their words."""
    model, names, shown = run.classifier, run.tokenizers.source.tokens, {}
    for places, batch in asked:
        if places.min() >= SAMPLES:
            continue
        logits, depths = run.answering(batch, run.plan())
        assert depths is not None
        labels, lengths = logits.argmax(-1).tolist(), (batch.source != model.pad).sum(1).tolist()
        for row, (place, mine) in enumerate(zip(places.tolist(), depths.cpu().split(lengths))):
            pieces = [names[number] for number in batch.source[row, : lengths[row]].tolist()]
            shown[place] = {
                "words": list(zip(pieces, mine.tolist()))[:SAMPLE_WORDS],
                "found": model.config.labels[labels[row]],
                "right": model.config.labels[int(batch.target_out[row])],
            }
    return [shown[place] for place in sorted(shown)[:SAMPLES]]


def depth_of_words(found: Sequence[Answer], layers: int) -> dict[str, Any]:
    """Of words with depths of their own: the mean, and how many have each depth from 1 on."""
    words = [each.depths for each in found if each.depths is not None]
    if not words:
        return {}
    counts = torch.bincount(torch.cat(words).long(), minlength=layers + 1)[1:].tolist()
    mean = sum(depth * count for depth, count in enumerate(counts, start=1)) / sum(counts)
    return {"mean_depth": mean, "depths": counts}


def mean_loss(found: Sequence[Answer], batches: Sequence[LabelledBatch]) -> float:
    losses = [
        F.cross_entropy(each.logits.double().cpu(), batch.target_out, reduction="sum")
        for each, batch in zip(found, batches)
    ]
    return float(sum(losses)) / sum(batch.sentences for batch in batches)


def write_labels(file: Path, labels: Array, model: Classifier) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, "".join(f"{model.config.labels[label]}\n" for label in labels))


def is_accuracy(grid: dict[str, Any]) -> bool:
    """Whether a grid is a classifier's."""
    return "accuracy" in grid["cells"][0]
