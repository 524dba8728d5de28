"""One update of the weights."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from anydepth.data.collate import Batch
from anydepth.models import Translator
from anydepth.objectives.cross_entropy import Kernel, Loss, losses_and_gradient
from anydepth.objectives.single import single
from anydepth.objectives.tasks import SharedPass, Tasks
from anydepth.training.distributed import Ranks, add_up, add_up_gradients
from anydepth.training.graphs import GraphedPass
from anydepth.training.optim import learning_rate
from anydepth.training.settings import TrainingConfig


class Sums(NamedTuple):
    """Of one step, over its batches and ranks, still on the device: reading them would make the GPU wait."""

    loss: Tensor
    nll: Tensor
    tokens: Tensor
    gradient_norm: Tensor


class Step:
    """Loss, gradients, update. Randomness is a function of (seed, step): nothing to save, nothing to restore."""

    def __init__(
        self, model: Translator, optimizer: torch.optim.Optimizer, settings: TrainingConfig, seed: int, ranks: Ranks
    ) -> None:
        self.model, self.optimizer, self.settings, self.seed, self.ranks = model, optimizer, settings, seed, ranks
        on_gpu = ranks.device.type == "cuda"
        self.bf16 = settings.precision == "bf16" or (settings.precision == "auto" and on_gpu)
        self.compiled = settings.compile == "on" or (settings.compile == "auto" and on_gpu)
        self.kernel: Kernel = losses_and_gradient
        model.encoder.recompute = model.decoder.recompute = settings.recompute
        if self.compiled:
            self.kernel = torch.compile(losses_and_gradient)
            for part in (model.source, model.target, model.encoder, model.decoder):
                part.compile_for_training()
        self.graphs = GraphedPass(model, self.run) if self.compiled and on_gpu and not settings.recompute else None

    def __call__(self, step: int, batches: Sequence[Batch]) -> Sums:
        """Step number `step`, counted from 1, on this rank's batches."""
        torch.manual_seed(mixed(self.seed, step, self.ranks.rank, 3))
        sums = torch.zeros(3, device=self.ranks.device)
        sums[2] = sum(batch.tokens for batch in batches)
        for micro, batch in enumerate(batches):
            # the same tasks and the same noise on every rank, whatever dropout does
            encoder, decoder = (generator(self.seed, step, micro, stack) for stack in (0, 1))
            tasks = self.settings.objective.draw(self.model, batch.key, encoder, decoder)
            batch = batch._replace(noise=self.model.noise(step, encoder, decoder))
            if self.graphs is not None and self.graphs.takes(batch, tasks):
                loss = self.graphs(batch, tasks, alone=len(batches) == 1)
            else:
                loss = self.run(batch, tasks)
            sums[0] += loss.total
            sums[1] += loss.nll
        add_up(sums, self.ranks)
        add_up_gradients(self.model, self.ranks)
        norm = self.update(step, sums[2])
        return Sums(sums[0], sums[1], sums[2], norm)

    def run(self, batch: Batch, tasks: Tasks) -> Loss:
        """Adds this batch's gradients to those of the step."""
        smoothing = self.settings.label_smoothing
        with torch.autocast(self.ranks.device.type, torch.bfloat16, enabled=self.bf16):
            if len(tasks) > 1:
                return SharedPass(self.model, batch, smoothing, self.kernel).backward(tasks)
            ((plans, weight),) = tasks
            total, nll = single(self.model, batch, plans, smoothing, self.kernel)
        (weight * total).backward()
        return Loss(total.detach(), nll)

    def update(self, step: int, tokens: Tensor) -> Tensor:
        """Gradients of sums become gradients of means, are clipped, and move the weights."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        torch._foreach_div_(gradients, tokens)
        optimizer = self.settings.optimizer
        limit = optimizer.clip if optimizer.clip else float("inf")
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(optimizer, step, self.settings.steps)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm


def generator(*numbers: int) -> Generator:
    """A CPU generator that depends on these numbers alone."""
    return Generator().manual_seed(mixed(*numbers))


def mixed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)
