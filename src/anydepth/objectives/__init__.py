"""What a training step minimises. To add an objective: a file here, and its name in the union below."""

from anydepth.objectives.exit_grid import ExitGridConfig
from anydepth.objectives.halting import HaltingObjectiveConfig
from anydepth.objectives.latent import LatentObjectiveConfig
from anydepth.objectives.latent_fairseq import FairseqLatentConfig
from anydepth.objectives.multitask import MultitaskConfig
from anydepth.objectives.single import SingleConfig

ObjectiveConfig = (
    SingleConfig
    | ExitGridConfig
    | MultitaskConfig
    | LatentObjectiveConfig
    | FairseqLatentConfig
    | HaltingObjectiveConfig
)

__all__ = [
    "ExitGridConfig",
    "FairseqLatentConfig",
    "HaltingObjectiveConfig",
    "LatentObjectiveConfig",
    "MultitaskConfig",
    "ObjectiveConfig",
    "SingleConfig",
]
