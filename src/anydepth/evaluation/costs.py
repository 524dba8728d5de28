"""What runs cost: their size, and the FLOPs and seconds of their trainings."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from anydepth.errors import UserError
from anydepth.evaluation.records import Folder, Record


@dataclass(frozen=True)
class Cost:
    """Of a run, or of all runs of a record together; None where one of them does not tell."""

    run: str
    models: int
    parameters: float | None
    flops: float | None
    """Of the training."""
    seconds: float | None
    """Of the training."""
    bound: bool
    """Whether the FLOPs are what the settings allow at most."""


def cost(record: Record) -> Cost:
    told = [_described(folder) for folder in record.models.values()]

    def total(value: Callable[[dict[str, Any]], float | None]) -> float | None:
        values = [value(one) for one in told]
        return None if any(one is None for one in values) else sum(one for one in values if one is not None)

    return Cost(
        run=record.name,
        models=len(told),
        parameters=total(lambda one: one.get("parameters")),
        flops=total(lambda one: one.get("training_flops")),
        seconds=total(lambda one: (one.get("training") or {}).get("seconds")),
        bound=any((one.get("training") or {}).get("bound") for one in told),
    )


def _described(folder: Folder) -> dict[str, Any]:
    """What `describe` says; an evaluation in a folder of its own wrote it down, since its settings may be others than
    those of the training."""
    if folder.grid and not folder.trained_here:
        return folder.grid
    from anydepth.describe import describe_training

    try:
        return describe_training(folder.path)
    except UserError:  # a report also shows folders that are no whole runs
        return {}
