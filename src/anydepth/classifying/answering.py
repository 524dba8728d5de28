"""What a classifier says about a batch of texts; on a GPU in fixed places, as CUDA graphs (places.py)."""

import copy
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np
import torch

from anydepth.classifying.awaiting import Answer, Awaited, Coming, in_order
from anydepth.classifying.lanes import Lane, Lanes
from anydepth.classifying.leaving import Rule, leave_early
from anydepth.classifying.leaving_places import Leaving
from anydepth.data.labelled_batch import LabelledBatch
from anydepth.depth.perword import PerWord
from anydepth.encoder_models import Classifier
from anydepth.nn.packed_attention import KERNEL_HEADS, available
from anydepth.plan import Plans

Array = np.ndarray

RECORD = True
"""Whether texts on a GPU are read in fixed places. Whether the answers are the same there is for
tests/parity/test_recorded_words.py to tell."""
FLASH_HEADS = 256
"""The size of the largest heads that flash attention takes; all are multiples of 8."""
LANES = 3
"""Batches that a GPU reads at the same time, at most."""


class Answering:
    """Of one classifier, with weights in bfloat16 on a GPU if `half`, as they were trained there. They must stay as
    they are from the first batch on."""

    def __init__(self, model: Classifier, half: bool) -> None:
        self.model, self.half, self.device = model, half, model.output.weight.device
        self.under_way: deque[Leaving] = deque()

    @cached_property
    def lanes(self) -> Lanes:
        model = copy.deepcopy(self.model).bfloat16() if self.half else self.model
        return Lanes(model, LANES if self.device.type == "cuda" else 1)

    def __call__(self, batch: LabelledBatch, plans: Plans, rule: Rule | None = None) -> Answer:
        """Of a padded batch on the host."""
        return self.ask(batch, plans, rule).get()

    def all(self, batches: Iterable[LabelledBatch], plans: Plans, rule: Rule | None = None) -> Iterator[Answer]:
        """Of several, the next one asked about before the last one's answer is there."""
        for _, found in in_order((None, self.ask(batch, plans, rule)) for batch in batches):
            yield found

    @torch.no_grad()
    def ask(self, batch: LabelledBatch, plans: Plans, rule: Rule | None = None) -> Awaited:
        if self.records():
            return self.read(batch, plans, rule, self.lanes.next())
        batch = batch.to(self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half and self.device.type == "cuda"):
            return Coming(answer(self.model, batch, plans, rule))

    def prepare(self, batch: LabelledBatch, plans: Plans, rule: Rule | None = None) -> None:
        """Takes the time now that a batch takes only once; where it is recorded, in all lanes."""
        if not self.records():
            self(batch, plans, rule)
            return
        for lane in self.lanes.all:
            self.read(batch, plans, rule, lane).get()

    def records(self) -> bool:
        known = self.attends_in_places() and self.model.depths_are_known
        return RECORD and self.device.type == "cuda" and available() and known

    def attends_in_places(self) -> bool:
        """Whether a kernel takes heads of this size. Flash attention takes more of them, but only in bfloat16 and where
        words stand text by text."""
        head = self.model.config.layer.width // self.model.config.layer.heads
        flash = self.half and not isinstance(self.model.encoder_depth, PerWord)
        return head in KERNEL_HEADS or (flash and head % 8 == 0 and head <= FLASH_HEADS)

    @torch.no_grad()
    def read(self, batch: LabelledBatch, plans: Plans, rule: Rule | None, lane: Lane) -> Awaited:
        source, words = batch.source.numpy(), batch.words
        if words is not None:
            tokens, lengths = source.ravel()[words.places.numpy()], np.diff(words.starts.numpy())
            logits = lane.read(plans.encoder, self.model.refresh, tokens, words.depths.numpy(), lengths)
            return Coming(Answer(logits, words.depths))
        seen = source != self.model.pad
        tokens, lengths = source[seen], seen.sum(1)
        if rule is not None:
            return self.leave(lane, plans, rule, tokens, lengths)
        return Coming(Answer(lane.read_texts(plans.encoder, tokens, lengths), None))

    def leave(self, lane: Lane, plans: Plans, rule: Rule, tokens: Array, lengths: Array) -> Leaving:
        if lane.returning:  # has the room
            lane.returning.get()
        lane.returning = leaving = Leaving(lane, plans.encoder, rule, tokens, lengths, self.under_way)
        return leaving


def answer(model: Classifier, batch: LabelledBatch, plans: Plans, rule: Rule | None = None) -> Answer:
    if rule is not None:
        lengths = (batch.source != model.pad).sum(1).cpu().numpy()
        return leave_early(model, batch, plans.encoder, rule).answer(lengths)
    if isinstance(model.encoder_depth, PerWord):
        pooled, words = model.read_words(batch, plans.encoder)
        return Answer(model.logits(pooled), words.depths)
    return Answer(model.logits(model(batch, plans)), None)
