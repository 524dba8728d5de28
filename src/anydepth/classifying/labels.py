"""Texts to labels with a trained run: `anydepth.load(folder).classify(texts)`."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from anydepth.classifying.awaiting import Awaited, in_order
from anydepth.classifying.leaving import Rule, check_exits
from anydepth.data.collate import collate_sources
from anydepth.data.labelled_batch import NO_LABEL, LabelledBatch
from anydepth.data.sources import batches
from anydepth.depth.perword import PerWord
from anydepth.encoder_models import Classifier
from anydepth.estimating.sources import DepthSource
from anydepth.nn.perword import lay_out
from anydepth.run import Progress, Run

TOKENS = 8192
"""Classified together at most, padding included."""
MANY = 1 << 20
ADAPTIVE = "adaptive"
"""In the place of a depth."""


class Labelling(NamedTuple):
    """What a classifier says about a text."""

    label: str | None
    """None of an empty text, which has no probabilities either."""
    probability: float | None
    probabilities: dict[str, float]
    """Of all labels."""
    words: list[tuple[str, int]]
    """The pieces of the text and their depths, where these differ."""


@torch.no_grad()
def classify(
    run: Run,
    texts: Sequence[str],
    depth: str | None = None,
    batch: int = 0,
    leave: str = "0.9",
    progress: Progress | None = None,
) -> list[Labelling]:
    """The labels of texts. An over-long text is cut if the run was trained so, and refused otherwise; one with nothing
    in it has no label."""
    model, rule = run.classifier, None
    if depth == ADAPTIVE:
        rule, depth = adaptive(model, leave), None
    plans = run.plan(depth)
    ids, source = encoded(run, texts), run.word_depths
    results, names = [Labelling(None, None, {}, [])] * len(texts), model.config.labels
    todo = [number for number, text in enumerate(texts) if text.strip()]
    done = len(texts) - len(todo)

    def ask(places: list[int]) -> tuple[list[int], Awaited]:
        numbers = [todo[place] for place in places]
        given = labelled([ids[number] for number in numbers], model.pad, run.key, source)
        return numbers, run.answering.ask(given, plans, rule)

    together = batches([len(ids[number]) for number in todo], batch or MANY, MANY if batch else TOKENS)
    for numbers, found in in_order(map(ask, together)):
        rows, read = found.logits.float().softmax(-1).tolist(), words_of(run, [ids[n] for n in numbers], found.depths)
        for number, row, words in zip(numbers, rows, read):
            best = max(range(len(row)), key=row.__getitem__)
            results[number] = Labelling(names[best], row[best], dict(zip(names, row)), words)
        done += len(numbers)
        if progress:
            progress(done, len(texts))
    return results


def adaptive(model: Classifier, leave: str = "0.9") -> Rule | None:
    """When texts leave; none for a model whose words have depths of their own, which is adaptive in any case."""
    if isinstance(model.encoder_depth, PerWord):
        return None
    check_exits(model)
    return Rule.parse(leave)


def encoded(run: Run, texts: Sequence[str]) -> list[list[int]]:
    """Token ids, with what stands in front and behind."""
    ids = run.sources(texts, run.key)
    run.check_lengths(ids)
    return [run.ended(one) for one in ids]


def words_of(run: Run, ids: Sequence[Sequence[int]], depths: Tensor | None) -> list[list[tuple[str, int]]]:
    """Of each text, its pieces and their depths; nothing where these are all alike."""
    if depths is None:
        return [[] for _ in ids]
    names, left = run.tokenizers.source.tokens, iter(depths.tolist())
    return [[(names[number], next(left)) for number in one] for one in ids]


def labelled(ids: Sequence[Sequence[int]], pad: int, key: str, source: DepthSource | None = None) -> LabelledBatch:
    """A batch whose labels nobody knows, with the depths of its words if there is a source of them."""
    rows, words = collate_sources(ids, pad), None
    if source is not None:
        lengths = np.array([len(one) for one in ids])
        words = lay_out(source.of(np.concatenate([np.array(one) for one in ids]), lengths), lengths, rows.shape[1])
    return LabelledBatch(
        source=rows,
        target_out=torch.full((len(ids),), NO_LABEL),
        packing=None,
        key=key,
        tokens=sum(map(len, ids)),
        sentences=len(ids),
        words=words,
    )
