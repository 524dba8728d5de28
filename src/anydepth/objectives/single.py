"""One plan a step: the objective of a plain Transformer, and of any policy that samples its plans."""

from typing import ClassVar, Literal

from torch import Generator

from anydepth.config_class import config
from anydepth.data.collate import Batch
from anydepth.models import Translator
from anydepth.objectives.cross_entropy import Kernel, Loss, cross_entropy, losses_and_gradient
from anydepth.objectives.tasks import Task, Tasks
from anydepth.plan import Plans


@config
class SingleConfig:
    """One plan a step, the one that the depth policies sample."""

    type: Literal["single"] = "single"
    together: ClassVar[int] = 1

    def draw(self, model: Translator, key: str, encoder: Generator, decoder: Generator) -> Tasks:
        return (Task(model.sample(key, encoder, decoder), 1.0),)


def single(
    model: Translator,
    batch: Batch,
    plans: Plans,
    smoothing: float = 0.0,
    kernel: Kernel = losses_and_gradient,
) -> Loss:
    """The loss of one plan, ready for its backward pass."""
    states = model(batch, plans)
    return cross_entropy(states, model.output.weight, batch.target_out, model.pad, smoothing, kernel)
