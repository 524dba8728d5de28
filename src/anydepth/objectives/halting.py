"""A unit that predicts each word's depth (Elbayad et al. 2020), the baseline of depth-adaptive Transformers.

All exits are trained on all words ("aligned" training), and beside them a unit on the state after the first layer,
which chooses among the depths. Its targets are pseudo-labels: the exit that is right and costs least,

    argmax_n (1[exit n gives the right label] − λ n)

A text has one label, so all its words have the same target; what the unit answers differs from word to word.
"""

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from anydepth.config_class import config
from anydepth.data.labelled_batch import LabelledBatch
from anydepth.encoder_models import Classifier
from anydepth.objectives.cross_entropy import Kernel, Loss, cross_entropy
from anydepth.objectives.tasks import Task, Tasks
from anydepth.planned import Planned


@config
class HaltingObjectiveConfig:
    """All exits of a classifier, and the unit that chooses among them for every word."""

    type: Literal["halting"] = "halting"
    together: ClassVar[int] = 1
    penalty: float = 0.01
    """λ: what a layer costs when pseudo-labels are made. Below 1 / layers, a right answer is worth any depth."""
    weight: float = 0.1
    """Weight of the unit's loss beside that of the exits."""

    def __post_init__(self) -> None:
        if self.penalty < 0:
            raise ValueError("penalty must not be negative")
        if not self.weight > 0:
            raise ValueError("weight must be above 0")

    def draw(self, model: Planned, key: str, encoder: Generator, decoder: Generator) -> Tasks:
        return (Task(model.plan(), 1.0),)


def halting(
    model: Classifier, batch: LabelledBatch, settings: HaltingObjectiveConfig, smoothing: float, kernel: Kernel
) -> Loss:
    """The mean loss of the exits and that of the unit, ready for their backward pass."""
    assert model.unit is not None
    x, sees = model.embed(batch)
    _, *states = model.encoder.states(x, model.plan().encoder, None, sees)
    output, bias = model.output.weight, model.output_bias
    exits = [model.predict(state, batch) for state in states]
    losses = [
        cross_entropy(pooled, output, batch.target_out, model.no_target, smoothing, kernel, bias) for pooled in exits
    ]
    right = torch.stack([model.logits(pooled).argmax(-1) == batch.target_out for pooled in exits], 1)
    choices = model.unit(model.norm(states[0]).flatten(0, 1))
    owners, texts = model.owners(batch)
    real = batch.target_out != model.no_target
    targets = F.pad(pseudo_labels(right, settings.penalty), (0, 1))  # one more text: that of padding
    each = F.cross_entropy(choices, targets[owners], reduction="none")
    words = each.new_zeros(texts + 1).index_add(0, owners, torch.ones_like(each)).clamp(min=1)
    of_texts = each.new_zeros(texts + 1).index_add(0, owners, each)[:texts] / words[:texts]
    unit = torch.where(real, of_texts, 0).sum()
    totals, plain = (torch.stack(parts).mean() for parts in zip(*losses))
    return Loss(totals + settings.weight * unit, plain)


def pseudo_labels(right: Tensor, penalty: float) -> Tensor:
    """(B, layers) which exits are right → (B,) the one to take, counted from 0; the first where none is right."""
    layers = torch.arange(right.shape[1], device=right.device)
    return (right.float() - penalty * layers).argmax(1)
