"""How good a model is on the dev sets, at the depths asked for."""

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

from anydepth.config import Config
from anydepth.data.any_batch import AnyBatch
from anydepth.data.cutting import BatchingConfig, Limits, one_pass
from anydepth.data.store import Store
from anydepth.encoder_models import Model
from anydepth.errors import UserError
from anydepth.objectives.single import single
from anydepth.plan import Plans
from anydepth.tasks import AnyTask
from anydepth.training.data import TrainingData


@torch.no_grad()
def validate(config: Config, model: Model, data: TrainingData, device: torch.device) -> list[dict[str, Any]]:
    """One line for the journal per dev set and depth: loss, perplexity, and the scores of the task."""
    model.eval()
    lines = []
    for corpus, store in zip(config.data.dev, data.dev):
        for depth in config.training.validate_depths or (model.plan(key=store.key).name,):
            found = held_out_loss(model, held_out_batches(data.task, store), model.plan(depth, store.key), device)
            line: dict[str, Any] = {"depth": depth, "loss": found.nll, "perplexity": found.perplexity}
            if store.key:
                line["language"] = store.key
            lines.append(line | data.task.scores(model, corpus, store, depth))
    model.train()
    return lines


class HeldOut(NamedTuple):
    nll: float
    """Mean negative log-likelihood of a predicted word."""
    predictions: int

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.nll, 50))


def held_out_batches(task: AnyTask, store: Store) -> Iterator[AnyBatch]:
    """All of a corpus, in the same order and with the same words hidden each time."""
    config = BatchingConfig(tokens=max(4096, store.longest_target), layout="padded", lengths=1)
    limits = Limits.of([store], config)
    for pairs in one_pass(store, config, limits):
        yield task.held_out(store, pairs, limits)


@torch.no_grad()
def held_out_loss(model: Model, batches: Iterable[AnyBatch], plans: Plans, device: torch.device) -> HeldOut:
    """Without label smoothing, in full precision."""
    total, predictions = torch.zeros((), dtype=torch.double, device=device), 0
    for batch in batches:
        total += single(model, batch.to(device), plans).nll.double()
        predictions += batch.predictions
    if not predictions:
        raise UserError("too little held-out text: no word of it is predicted")
    return HeldOut(float(total) / predictions, predictions)
