"""Texts that leave early: the common alternative to depth per word.

A classifier with an exit at every layer answers after each of them. A text leaves at the first whose answer is sure
enough (as in DeeBERT, Xin et al. 2020, with the probability of the label in the place of entropy), or once so many
exits in a row have agreed with the one before (PABEE, Zhou et al. 2020). The rest of the batch goes on without it.
"""

import re
from typing import NamedTuple

import torch
from torch import Tensor

from anydepth.data.labelled_batch import LabelledBatch
from anydepth.encoder_models import Classifier
from anydepth.errors import UserError
from anydepth.nn.attention import Padded
from anydepth.plan import Plan


class Rule(NamedTuple):
    """When to leave."""

    confidence: float | None = None
    """Once a label has at least this probability."""
    patience: int | None = None
    """Once so many exits in a row did not change the label."""

    @property
    def name(self) -> str:
        return f"confidence {self.confidence:g}" if self.confidence is not None else f"patience {self.patience}"

    @classmethod
    def parse(cls, text: str) -> "Rule":
        """'confidence 0.9', '0.9' or 'patience 2'."""
        if match := re.fullmatch(r"\s*(?:confidence\s*)?(0?\.\d+|1|1\.0*)\s*", text):
            return cls(confidence=float(match[1]))
        if match := re.fullmatch(r"\s*patience\s*([1-9]\d*)\s*", text):
            return cls(patience=int(match[1]))
        raise UserError(f"exit {text!r}: expected a probability such as 0.9, or a patience such as 'patience 2'")


class Left(NamedTuple):
    """The answers of a batch."""

    logits: Tensor
    """(B, labels) of the exit that each text took."""
    layers: Tensor
    """(B,) int64, counted from 1."""


def check_exits(model: Classifier) -> None:
    """Refuses models of which nobody has trained the exits."""
    if not model.exits_everywhere:
        depth = model.config.encoder.depth.type
        raise UserError(f'leaving early needs an exit at every layer (depth "prefix"), which {depth} does not have')


def leave_early(model: Classifier, batch: LabelledBatch, plan: Plan, rule: Rule) -> Left:
    """Each text's answer at its own exit; layers run only for texts that have not left."""
    x, sees = model.embed(batch)
    assert isinstance(sees, Padded)
    assert sees.keys is not None
    waiting = torch.arange(batch.source.shape[0], device=x.device)
    logits, layers = x.new_empty(len(waiting), model.output.num_embeddings), torch.empty_like(waiting)
    streak, last = torch.zeros_like(waiting), torch.full_like(waiting, -1)
    for number, layer in enumerate(plan.layers, start=1):
        x = model.encoder.step(layer, x, None, sees)
        found = model.logits(model.predict(x, batch))
        logits[waiting], layers[waiting] = found.to(logits.dtype), number
        label = found.argmax(-1)
        streak, last = torch.where(label == last, streak + 1, 0), label
        if rule.confidence is not None:
            leaves = found.softmax(-1).amax(-1) >= rule.confidence
        else:
            leaves = streak >= (rule.patience or 1)
        stay = (~leaves).nonzero().flatten()
        if not len(stay):
            break
        if len(stay) < len(waiting):
            x, waiting, streak, last = x[stay], waiting[stay], streak[stay], last[stay]
            batch = batch._replace(source=batch.source[stay])
            assert sees.keys is not None
            sees = Padded(sees.keys[stay])
    return Left(logits, layers)
