"""What a training says of itself: settings that will not do what one might think, and what to try when it fails."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from anydepth.config import Config
from anydepth.errors import UserError
from anydepth.nn.multiscale import MultiscaleConfig
from anydepth.objectives import LatentObjectiveConfig
from anydepth.training.journal import Journal
from anydepth.training.optim import Optimizers, learning_rate
from anydepth.training.settings import TrainingConfig

BUSY = 1.5
"""Programs that want a core, for each that there is: with more, the machine has other work to do."""


def warn_of_warmup(settings: TrainingConfig, journal: Journal) -> None:
    """The default warm-up is for long trainings; a first try on little data would seem to learn nothing."""
    warmup, peak = settings.optimizer.warmup, settings.optimizer.learning_rate
    if settings.steps < warmup:
        reached = f"{learning_rate(settings.optimizer, settings.steps, settings.steps):.1g} of {peak:g}"
        journal.say(
            f"warning: training.optimizer.warmup is {warmup}, but training.steps {settings.steps}: "
            f"the learning rate only reaches {reached}"
        )


def warn_of_busy_machine(device: torch.device, journal: Journal) -> None:
    """Each product of several threads waits for the last of them, which waits for a core: on two cores with a load of
    3.5 two threads took four times as long as one."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if device.type == "cpu" and torch.get_num_threads() > 1 and load > BUSY * cores:
        journal.say(
            f"warning: this machine is busy (a load of {load:.1f} on {cores} cores): with OMP_NUM_THREADS=1 in the "
            "environment a training may be several times as fast"
        )


def note_what_has_no_effect(config: Config, optimizers: Optimizers, journal: Journal) -> None:
    """Not refused: the plain models of a chain are trained with the recipe of those that learn their depth, and runs
    that were trained so must load."""
    settings, nothing_learns = config.training, "no depth policy of this model learns anything"
    objective, bridge = settings.objective, getattr(config.model, "bridge", None)
    notes: dict[str, str] = {}
    if settings.depth_optimizer is not None and not optimizers.learnt_by_depth:
        notes["training.depth_optimizer"] = nothing_learns
    if settings.inner_steps > 1 and not optimizers.learnt_by_depth:
        notes["training.inner_steps"] = nothing_learns
    if isinstance(objective, LatentObjectiveConfig):
        wanted = objective.encoder_layers or objective.decoder_layers
        if not wanted and objective.depth_weight not in (0, LatentObjectiveConfig.depth_weight):
            notes["training.objective.depth_weight"] = "no depth is wanted, by encoder_layers or decoder_layers"
    if isinstance(bridge, MultiscaleConfig) and bridge.context == "none" and bridge.fusion != "gate":
        notes["model.bridge.fusion"] = "there is no context"
    for name, reason in notes.items():
        journal.say(f"note: {name} has no effect: {reason}")


@contextmanager
def advice_if_memory_ends(tokens: int, settings: TrainingConfig) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError:
        ways = [f"a lower batching.tokens (now {tokens}) with a higher training.accumulate (now {settings.accumulate})"]
        ways += [f"a lower training.at_once (now {settings.at_once})"] if settings.at_once > 1 else []
        ways += [] if settings.recompute else ["training.recompute=true"]
        raise UserError(f"the GPU has too little memory left for this training: try {', or '.join(ways)}") from None
