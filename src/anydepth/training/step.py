"""One update of the weights."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from anydepth.data.collate import Batch
from anydepth.models import Translator
from anydepth.objectives.single import CrossEntropy, Loss, single, smoothed_cross_entropy
from anydepth.plan import Plans
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
        self.cross_entropy: CrossEntropy = smoothed_cross_entropy
        model.encoder.recompute = model.decoder.recompute = settings.recompute
        if self.compiled:
            self.cross_entropy = torch.compile(smoothed_cross_entropy)
            for part in (model.source, model.target, model.encoder, model.decoder):
                part.compile_for_training()
        self.graphs = GraphedPass(model, self.loss) if self.compiled and on_gpu else None

    def loss(self, batch: Batch, plans: Plans) -> Loss:
        with torch.autocast(self.ranks.device.type, torch.bfloat16, enabled=self.bf16):
            return single(self.model, batch, plans, self.settings.label_smoothing, self.cross_entropy)

    def __call__(self, step: int, batches: Sequence[Batch]) -> Sums:
        """Step number `step`, counted from 1, on this rank's batches."""
        torch.manual_seed(mixed(self.seed, step, self.ranks.rank, 3))
        sums = torch.zeros(3, device=self.ranks.device)
        sums[2] = sum(batch.tokens for batch in batches)
        for micro, batch in enumerate(batches):
            # the same plans on every rank, whatever dropout does
            encoder, decoder = (generator(self.seed, step, micro, stack) for stack in (0, 1))
            loss = self.backward(batch, self.model.sample(batch.key, encoder, decoder), alone=len(batches) == 1)
            sums[0] += loss.total
            sums[1] += loss.nll
        add_up(sums, self.ranks)
        add_up_gradients(self.model, self.ranks)
        norm = self.update(step, sums[2])
        return Sums(sums[0], sums[1], sums[2], norm)

    def backward(self, batch: Batch, plans: Plans, alone: bool) -> Loss:
        """Adds this batch's gradients to those of the step."""
        if self.graphs is not None and self.graphs.takes(batch, plans):
            return self.graphs(batch, plans, alone)
        loss = self.loss(batch, plans)
        loss.total.backward()
        return Loss(loss.total.detach(), loss.nll)

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
