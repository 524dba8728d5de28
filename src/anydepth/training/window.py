"""Where a training stands, what its last steps came to, and whether it is lost."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from anydepth.errors import UserError
from anydepth.training import checkpoint
from anydepth.training.step import Sums


@dataclass
class Progress:
    """Where a training stands: with weights, optimizer and place in the data, all that a resume needs."""

    step: int = 0
    tokens: int = 0
    """Target words trained on, those of all ranks, up to the last line of the journal or checkpoint."""
    seconds: float = 0.0
    best: float = math.inf
    """The dev loss of the weights that are the model now, or minus their score."""
    judged_by: str = ""
    """Which of the two, `training.best`; "" where nothing was judged, or by a version that did not say."""
    best_step: int = 0
    without_gain: int = 0


class Window:
    """Sums since the last line of the journal, on the device until they are read."""

    def __init__(self, explosion: float) -> None:
        self.explosion = explosion
        self.first: float | None = None
        self.steps: list[Sums] = []
        self.begin(Progress())

    def begin(self, progress: Progress) -> None:
        self.steps = []
        self.seconds = progress.seconds
        self.tokens = torch.tensor(progress.tokens, dtype=torch.double)
        """Of the whole training."""

    def add(self, sums: Sums) -> None:
        self.steps.append(sums)
        self.tokens = self.tokens + sums.tokens

    def close(self, progress: Progress) -> dict[str, Any]:
        """The line for the journal; a new window begins."""
        means = torch.stack([torch.stack(sums) for sums in self.steps]).double().mean(0).tolist()
        loss, nll, predictions, tokens, norm = means
        progress.tokens = int(self.tokens)
        line = {
            "step": progress.step,
            "kind": "train",
            "tokens": progress.tokens,
            "loss": loss / predictions,
            "nll": nll / predictions,
            "gradient_norm": norm,
            "tokens_per_second": tokens * len(self.steps) / max(1e-9, progress.seconds - self.seconds),
            "seconds": progress.seconds,
        }
        self.begin(progress)
        return line

    def check(self, step: int, out: Path) -> None:
        """Stops a training that is lost."""
        for sums in self.steps[-1:]:
            nll = float(sums.nll / sums.predictions)
            self.first = nll if self.first is None else self.first
            # deep models without norms begin far above where guessing is
            limit = max(self.explosion, 2 * self.first)
            if not math.isfinite(nll) or not math.isfinite(float(sums.gradient_norm)) or nll > limit:
                folder = out / "checkpoints"
                kept = (
                    f"The last good state is kept in {folder}" if checkpoint.steps(folder) else "Nothing was saved yet"
                )
                raise Diverged(
                    f"training diverged at step {step}: {nll:.3g} nats a word. {kept}; try a lower "
                    "training.optimizer.learning_rate, a longer warm-up or clip"
                )


class Diverged(UserError):
    """The loss is not a number, or far above where it began."""
