"""Texts to labels with a trained run: `anydepth.load(folder).classify(texts)`."""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from anydepth.data.collate import collate_sources
from anydepth.data.labelled_batch import NO_LABEL, LabelledBatch
from anydepth.run import Progress, Run, batches

TOKENS = 8192
"""Classified together at most, padding included."""
MANY = 1 << 20


class Labelling(NamedTuple):
    """What a classifier says about a text."""

    label: str
    probability: float
    probabilities: dict[str, float]
    """Of all labels."""


@torch.no_grad()
def classify(
    run: Run, texts: Sequence[str], depth: str | None = None, batch: int = 0, progress: Progress | None = None
) -> list[Labelling]:
    """The labels of texts. An over-long text is cut if the run was trained so, and refused otherwise."""
    model, plans = run.classifier, run.plan(depth)
    ids = encoded(run, texts)
    results: list[Labelling | None] = [None] * len(texts)
    done, names = 0, model.config.labels
    for numbers in batches([len(one) for one in ids], batch or MANY, MANY if batch else TOKENS):
        given = labelled([ids[number] for number in numbers], model.pad, run.key).to(run.device)
        rows = model.logits(model(given, plans)).softmax(-1).tolist()
        for number, row in zip(numbers, rows):
            best = max(range(len(row)), key=row.__getitem__)
            results[number] = Labelling(names[best], row[best], dict(zip(names, row)))
        done += len(numbers)
        if progress:
            progress(done, len(texts))
    return [found for found in results if found is not None]


def encoded(run: Run, texts: Sequence[str]) -> list[list[int]]:
    """Token ids, with what stands in front and behind."""
    ids = run.sources(texts, run.key)
    if run.config.data.over_long == "cut":
        ids = [one[: run.config.data.max_length] for one in ids]
    run.check_lengths(ids, "line")
    return [run.ended(one) for one in ids]


def labelled(ids: Sequence[Sequence[int]], pad: int, key: str) -> LabelledBatch:
    """A batch whose labels nobody knows."""
    return LabelledBatch(
        source=collate_sources(ids, pad),
        target_out=torch.full((len(ids),), NO_LABEL),
        packing=None,
        key=key,
        tokens=sum(map(len, ids)),
        sentences=len(ids),
    )
