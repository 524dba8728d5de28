"""What a training step minimises. To add an objective: a file here, and its name in the union below."""

from anydepth.objectives.exit_grid import ExitGridConfig
from anydepth.objectives.multitask import MultitaskConfig
from anydepth.objectives.single import SingleConfig

ObjectiveConfig = SingleConfig | ExitGridConfig | MultitaskConfig

__all__ = ["ExitGridConfig", "MultitaskConfig", "ObjectiveConfig", "SingleConfig"]
