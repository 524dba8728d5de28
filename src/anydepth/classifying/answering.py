"""What a classifier says about a batch of texts; on a GPU in fixed places, as CUDA graphs (word_places.py).

Nobody waits for a GPU that is asked. Whoever asks about several batches prepares the next one while it is at work, and
it begins with one before it is done with the last.
"""

import copy
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from anydepth.classifying.leaving import Rule, leave_early
from anydepth.classifying.word_places import Lanes, PlacesByShape
from anydepth.data.collate import mapped
from anydepth.data.labelled_batch import LabelledBatch
from anydepth.depth.perword import PerWord
from anydepth.encoder_models import Classifier
from anydepth.nn.packed_attention import KERNEL_HEADS, available
from anydepth.plan import Plans

RECORD = True
"""Whether texts on a GPU are read in fixed places. Whether the answers are the same there is for
tests/parity/test_recorded_words.py to tell."""
AHEAD = 2
"""Batches asked about at most before the answer to an earlier one is read."""
LANES = 2
"""Batches that a GPU reads at the same time, at most."""
Item = TypeVar("Item")


class Answer(NamedTuple):
    logits: Tensor
    depths: Tensor | None
    """Of the words, where they differ."""


class Answering:
    """Of one classifier, with weights in bfloat16 on a GPU if `half`, as they were trained there. They must stay as
    they are from the first batch on."""

    def __init__(self, model: Classifier, half: bool) -> None:
        self.model, self.half, self.device = model, half, model.output.weight.device

    @cached_property
    def lanes(self) -> Lanes:
        model = copy.deepcopy(self.model).bfloat16() if self.half else self.model
        return Lanes(model, LANES if self.device.type == "cuda" else 1)

    @torch.no_grad()
    def __call__(self, batch: LabelledBatch, plans: Plans, rule: Rule | None = None) -> Answer:
        """Of a padded batch on the host."""
        if self.records(rule):
            return self.replay(batch, plans, self.lanes.next())
        batch = batch.to(self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half and self.device.type == "cuda"):
            return answer(self.model, batch, plans, rule)

    def prepare(self, batch: LabelledBatch, plans: Plans, rule: Rule | None = None) -> None:
        """Takes the time now that a batch takes only once; where it is recorded, in all lanes."""
        if not self.records(rule):
            self(batch, plans, rule)
            return
        for lane in self.lanes.all:
            self.replay(batch, plans, lane)

    def records(self, rule: Rule | None) -> bool:
        layer = self.model.config.layer
        # flash attention takes other heads too, but only in bfloat16 and where words stand text by text
        flash = self.half and not isinstance(self.model.encoder_depth, PerWord)
        attends = flash or layer.width // layer.heads in KERNEL_HEADS
        known = rule is None and self.model.depths_are_known
        return RECORD and self.device.type == "cuda" and available() and attends and known

    def replay(self, batch: LabelledBatch, plans: Plans, lane: PlacesByShape) -> Answer:
        source, words, policy = batch.source.numpy(), batch.words, self.model.encoder_depth
        refresh = policy.refresh if isinstance(policy, PerWord) else True
        if words is None:
            seen = source != self.model.pad
            tokens, lengths = source[seen], seen.sum(1)
            depths = np.full(len(tokens), len(plans.encoder))
        else:
            tokens, lengths = source.ravel()[words.places.numpy()], np.diff(words.starts.numpy())
            depths = words.depths.numpy()
        logits = lane.read(plans.encoder, refresh, tokens, depths, lengths)
        return Answer(logits, None if words is None else words.depths)


def answer(model: Classifier, batch: LabelledBatch, plans: Plans, rule: Rule | None = None) -> Answer:
    if rule is not None:
        left = leave_early(model, batch, plans.encoder, rule)
        return Answer(left.logits, left.layers.repeat_interleave((batch.source != model.pad).sum(1)))
    if isinstance(model.encoder_depth, PerWord):
        pooled, words = model.read_words(batch, plans.encoder)
        return Answer(model.logits(pooled), words.depths)
    return Answer(model.logits(model(batch, plans)), None)


class Awaited(Protocol):
    """An answer that may not be there yet."""

    def is_there(self) -> bool: ...

    def get(self) -> Answer:
        """Waits for it."""


class Coming:
    """An answer on its way to the host."""

    def __init__(self, found: Answer) -> None:
        # read at once, it would also wait for all that the GPU is asked from now on
        self.answer = mapped(lambda tensor: tensor.to("cpu", non_blocking=True), found)
        device = found.logits.device
        self.arrival = torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None

    def is_there(self) -> bool:
        return self.arrival is None or self.arrival.query()

    def get(self) -> Answer:
        if self.arrival is not None:
            self.arrival.synchronize()
        return self.answer


def in_order(asked: Iterable[tuple[Item, Awaited]]) -> Iterator[tuple[Item, Answer]]:
    """Answers, and what was asked, as they come. The next batch is asked about before the last one's answer is there,
    but never more than AHEAD of them."""
    waiting: deque[tuple[Item, Awaited]] = deque()
    for one in asked:
        waiting.append(one)
        while waiting and (len(waiting) > AHEAD or waiting[0][1].is_there()):
            item, found = waiting.popleft()
            yield item, found.get()
    for item, found in waiting:
        yield item, found.get()
