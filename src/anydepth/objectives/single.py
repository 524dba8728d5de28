"""One plan a step: the objective of a plain Transformer, and of any policy that samples its plans."""

from typing import ClassVar, Literal

from torch import Generator

from anydepth.config_class import config
from anydepth.data.any_batch import AnyBatch
from anydepth.objectives.cross_entropy import Kernel, Loss, cross_entropy, losses_and_gradient
from anydepth.objectives.tasks import Task, Tasks
from anydepth.plan import Plans
from anydepth.planned import Planned


@config
class SingleConfig:
    """One plan a step, the one that the depth policies sample."""

    type: Literal["single"] = "single"
    together: ClassVar[int] = 1

    def draw(self, model: Planned, key: str, encoder: Generator, decoder: Generator) -> Tasks:
        return (Task(model.sample(key, encoder, decoder), 1.0),)


def single(
    model: Planned,
    batch: AnyBatch,
    plans: Plans,
    smoothing: float = 0.0,
    kernel: Kernel = losses_and_gradient,
) -> Loss:
    """The loss of one plan, ready for its backward pass."""
    states = model(batch, plans)
    output, bias = model.output.weight, model.output_bias
    return cross_entropy(states, output, batch.target_out, model.no_target, smoothing, kernel, bias)
