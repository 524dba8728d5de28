"""What a classifier says about a batch of texts; on a GPU in fixed places, as CUDA graphs (word_places.py)."""

import copy
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from anydepth.classifying.leaving import Rule, leave_early
from anydepth.classifying.word_places import PlacesByShape
from anydepth.data.labelled_batch import LabelledBatch
from anydepth.depth.perword import PerWord
from anydepth.encoder_models import Classifier
from anydepth.nn.packed_attention import KERNEL_HEADS, available
from anydepth.plan import Plans

RECORD = True
"""Whether texts on a GPU are read in fixed places. Whether the answers are the same there is for
tests/parity/test_recorded_words.py to tell."""


class Answer(NamedTuple):
    logits: Tensor
    depths: Tensor | None
    """Of the words, where they differ."""


class Answering:
    """Of one classifier, with weights in bfloat16 on a GPU if `half`, as they were trained there."""

    def __init__(self, model: Classifier, half: bool) -> None:
        self.model, self.half, self.device = model, half, model.output.weight.device

    @cached_property
    def places(self) -> PlacesByShape:
        return PlacesByShape(copy.deepcopy(self.model).bfloat16() if self.half else self.model)

    @torch.no_grad()
    def __call__(self, batch: LabelledBatch, plans: Plans, rule: Rule | None = None) -> Answer:
        """Of a padded batch on the host."""
        if self.records(rule):
            return self.replay(batch, plans)
        batch = batch.to(self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half and self.device.type == "cuda"):
            return answer(self.model, batch, plans, rule)

    def records(self, rule: Rule | None) -> bool:
        layer = self.model.config.layer
        # flash attention takes other heads too, but only in bfloat16 and where words stand text by text
        flash = self.half and not isinstance(self.model.encoder_depth, PerWord)
        attends = flash or layer.width // layer.heads in KERNEL_HEADS
        known = rule is None and self.model.depths_are_known
        return RECORD and self.device.type == "cuda" and available() and attends and known

    def replay(self, batch: LabelledBatch, plans: Plans) -> Answer:
        source, policy = batch.source.numpy(), self.model.encoder_depth
        seen = source != self.model.pad
        tokens, lengths = source[seen], seen.sum(1)
        refresh = policy.refresh if isinstance(policy, PerWord) else True
        depths = batch.words.depths if batch.words is not None else None
        deep = np.full(len(tokens), len(plans.encoder)) if depths is None else depths.numpy()
        return Answer(self.places.read(plans.encoder, refresh, tokens, deep, lengths), depths)


def answer(model: Classifier, batch: LabelledBatch, plans: Plans, rule: Rule | None = None) -> Answer:
    if rule is not None:
        left = leave_early(model, batch, plans.encoder, rule)
        return Answer(left.logits, left.layers.repeat_interleave((batch.source != model.pad).sum(1)))
    if isinstance(model.encoder_depth, PerWord):
        pooled, words = model.read_words(batch, plans.encoder)
        return Answer(model.logits(pooled), words.depths)
    return Answer(model.logits(model(batch, plans)), None)
