"""A unit that predicts each word's depth (Elbayad et al. 2020), the baseline of depth-adaptive Transformers.

All exits are trained on all words ("aligned" training), and beside them a unit on the state after the first layer,
which chooses among the depths. Its targets are pseudo-labels: the exit that is worth most, less what its layers cost,

    argmax_n (1[exit n gives the right label] − λ n)     correctness
    argmax_n (log p_n(right label) − λ n)                likelihood

A text has one label, so all its words have the same target; what the unit answers differs from word to word. How its
answer becomes a depth is a setting of the model (`HaltingConfig` in `depth/perword.py`).
"""

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from anydepth.config_class import config
from anydepth.data.labelled_batch import LabelledBatch
from anydepth.encoder_models import Classifier
from anydepth.objectives.cross_entropy import Kernel, Loss, at_least_single, cross_entropy
from anydepth.objectives.tasks import Task, Tasks
from anydepth.planned import Planned


@config
class HaltingObjectiveConfig:
    """All exits of a classifier, and the unit that chooses among them for every word."""

    type: Literal["halting"] = "halting"
    together: ClassVar[int] = 1
    oracle: Literal["correctness", "likelihood"] = "correctness"
    """What an exit is worth when pseudo-labels are made: 1 where it is right and 0 where it is wrong (as depth-adaptive
    Transformers have it, "by classification accuracy"), or the log-probability it gives the right label. Where the
    first exit is right for most training texts, `correctness` tells the unit to stop there; `likelihood` also sees
    that a deeper exit is surer."""
    penalty: float = 0.01
    """λ: what a layer costs when pseudo-labels are made. For `correctness` in right answers: any λ below
    1 / (layers − 1) asks for the first exit that is right, a larger one gives up the deepest exits. For `likelihood` in
    nats, and each value asks for other depths: a layer must raise the log-probability by λ to be worth it, so that at
    0.01 the last of 12 layers must gain 0.11 nats over the first."""
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
    choices = model.unit(model.norm(states[0]).flatten(0, 1))
    owners, texts = model.owners(batch)
    real = batch.target_out != model.no_target
    labels = pseudo_labels(worth(model, exits, batch, settings.oracle), settings.penalty)
    targets = F.pad(labels, (0, 1))  # one more text: that of padding
    each = F.cross_entropy(choices, targets[owners], reduction="none")
    words = each.new_zeros(texts + 1).index_add(0, owners, torch.ones_like(each)).clamp(min=1)
    of_texts = each.new_zeros(texts + 1).index_add(0, owners, each)[:texts] / words[:texts]
    unit = torch.where(real, of_texts, 0).sum()
    totals, plain = (torch.stack(parts).mean() for parts in zip(*losses))
    return Loss(totals + settings.weight * unit, plain)


@torch.no_grad()
def worth(model: Classifier, exits: list[Tensor], batch: LabelledBatch, oracle: str) -> Tensor:
    """(B, layers) what each exit is worth to each text, by its answer; of no meaning for texts without a label."""
    labels = batch.target_out.clamp(min=0)
    with torch.autocast(labels.device.type, enabled=False):  # bfloat16 would round by more than a layer costs
        logits = torch.stack([model.logits(at_least_single(pooled)) for pooled in exits], 1)
    if oracle == "correctness":
        return (logits.argmax(-1) == labels[:, None]).float()
    return logits.log_softmax(-1).gather(-1, labels[:, None, None].expand(-1, len(exits), 1)).squeeze(-1)


def pseudo_labels(worth: Tensor, penalty: float) -> Tensor:
    """(B, layers) what the exits are worth → (B,) the one to take, counted from 0; of equal ones the first."""
    layers = torch.arange(worth.shape[1], device=worth.device)
    return (worth - penalty * layers).argmax(1)
