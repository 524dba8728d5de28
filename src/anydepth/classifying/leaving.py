"""Texts that leave early: the common alternative to depth per word.

A classifier with an exit at every layer, or at some, answers after each of them. A text leaves at the first whose
answer is sure enough (as in DeeBERT, Xin et al. 2020, with the probability of the label in the place of entropy), or
once so many exits in a row have agreed with the one before (PABEE, Zhou et al. 2020). The rest of the batch goes on
without it.
"""

import re
from typing import NamedTuple

import numpy as np
import torch

from anydepth.classifying.awaiting import Answer
from anydepth.data.labelled_batch import LabelledBatch
from anydepth.encoder_models import Classifier
from anydepth.errors import UserError
from anydepth.nn.attention import Padded
from anydepth.plan import Plan

Array = np.ndarray


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


class Departures:
    """The texts of a batch that have not left, and the answers of all. On the host, which has to decide who goes on:
    what a GPU would have to be asked in ten small kernels takes microseconds there."""

    def __init__(self, rule: Rule, texts: int, labels: int) -> None:
        self.rule, self.waiting = rule, np.arange(texts)
        self.logits = np.zeros((texts, labels), dtype=np.float32)
        """Of the exit that each text took."""
        self.layers = np.zeros(texts, dtype=np.int64)
        """Of each text, counted from 1."""
        self.streak, self.last = np.zeros(texts, dtype=np.int64), np.full(texts, -1)

    def see(self, found: Array, layers: int) -> Array:
        """The logits of an exit for the texts that are waiting → the places, among these, of those that stay."""
        self.logits[self.waiting], self.layers[self.waiting] = found, layers
        label = found.argmax(-1)
        self.streak, self.last = np.where(label == self.last, self.streak + 1, 0), label
        if self.rule.confidence is not None:
            leaves = 1 / np.exp(found - found.max(-1, keepdims=True)).sum(-1) >= self.rule.confidence
        else:
            leaves = self.streak >= (self.rule.patience or 1)
        stay = np.flatnonzero(~leaves)
        self.waiting, self.streak, self.last = self.waiting[stay], self.streak[stay], self.last[stay]
        return stay

    def answer(self, lengths: Array) -> Answer:
        """Of texts of these lengths."""
        return Answer(torch.from_numpy(self.logits), torch.from_numpy(np.repeat(self.layers, lengths)))


def check_exits(model: Classifier) -> None:
    """Refuses models of which nobody has trained exits."""
    if len(model.exits) < 2:
        depth = model.config.encoder.depth.type
        raise UserError(f'leaving early needs exits below the last layer (depth "prefix"); this {depth} model has none')


def exits_of(model: Classifier, plan: Plan) -> list[int]:
    """Those on the way of a plan, which is the last of them."""
    return [*(depth for depth in model.exits if depth < len(plan)), len(plan)]


def leave_early(model: Classifier, batch: LabelledBatch, plan: Plan, rule: Rule) -> Departures:
    """Each text's answer at its own exit; layers run only for texts that have not left."""
    x, sees = model.embed(batch)
    assert isinstance(sees, Padded)
    departures, exits = Departures(rule, len(x), model.output.num_embeddings), exits_of(model, plan)
    for number, layer in enumerate(plan.layers, start=1):
        x = model.encoder.step(layer, x, None, sees)
        if number not in exits:
            continue
        found = model.logits(model.predict(x, batch)).float()
        stay = torch.from_numpy(departures.see(found.detach().cpu().numpy(), number)).to(x.device)
        if not len(stay):
            break
        if len(stay) < len(x):
            x, batch = x[stay], batch._replace(source=batch.source[stay])
            assert sees.keys is not None
            sees = Padded(sees.keys[stay])
    return departures
