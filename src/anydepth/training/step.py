"""One update of the weights."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from anydepth.data.any_batch import AnyBatch, join
from anydepth.data.collate import Batch
from anydepth.data.labelled_batch import LabelledBatch
from anydepth.encoder_models import Classifier, EncoderModel, Model
from anydepth.models import Translator
from anydepth.nn.embeddings import Embedding
from anydepth.nn.layers import FinalNorm
from anydepth.nn.stack import Stack
from anydepth.objectives.cross_entropy import Kernel, Loss, losses_and_gradient
from anydepth.objectives.exit_grid import ExitGridConfig
from anydepth.objectives.halting import HaltingObjectiveConfig, halting
from anydepth.objectives.latent import LatentObjectiveConfig, Term, latent_stacks
from anydepth.objectives.latent_fairseq import FairseqLatentConfig
from anydepth.objectives.single import single
from anydepth.objectives.tasks import SharedPass, Tasks, encoder_exits
from anydepth.training.distributed import Ranks, add_up, add_up_gradients
from anydepth.training.gradients import LayerNorms, layer_norms
from anydepth.training.graphs import GraphedPass
from anydepth.training.optim import Optimizers
from anydepth.training.rounded import Rounded
from anydepth.training.settings import TrainingConfig


class Sums(NamedTuple):
    """Of one step, over its batches and ranks, still on the device: reading them would make the GPU wait."""

    loss: Tensor
    nll: Tensor
    predictions: Tensor
    """What the losses are sums over."""
    tokens: Tensor
    """Words that the batches have; a translation predicts them all."""
    gradient_norm: Tensor


class Step:
    """Loss, gradients, update. Randomness is a function of (seed, step): nothing to save, nothing to restore."""

    def __init__(
        self,
        model: Model,
        optimizers: Optimizers,
        settings: TrainingConfig,
        seed: int,
        ranks: Ranks,
        corpus_tokens: int = 1,
    ) -> None:
        self.model, self.optimizers, self.settings, self.seed, self.ranks = model, optimizers, settings, seed, ranks
        self.corpus_tokens = corpus_tokens
        self.layer_norms: LayerNorms = {}
        """Of the last step, if it is one to be logged."""
        on_gpu = ranks.device.type == "cuda"
        self.bf16 = settings.precision == "bf16" or (settings.precision == "auto" and on_gpu)
        self.rounded = Rounded(model, self.bf16)
        self.compiled = settings.compile == "on" or (settings.compile == "auto" and on_gpu)
        self.kernel: Kernel = losses_and_gradient
        if self.compiled:
            self.kernel = torch.compile(losses_and_gradient)
        for part in model.modules():
            if isinstance(part, Stack):
                part.recompute = settings.recompute
            if self.compiled and isinstance(part, Embedding | Stack | FinalNorm):
                part.compile_for_training()
        self.graphs = GraphedPass(model, self.run) if self.compiled and on_gpu and not settings.recompute else None

    def __call__(self, step: int, batches: Sequence[AnyBatch]) -> Sums:
        """Step number `step`, counted from 1, on this rank's batches."""
        torch.manual_seed(mixed(self.seed, step, self.ranks.rank, 3))
        self.rounded.refresh()
        sums = torch.zeros(4, device=self.ranks.device)
        sums[2] = sum(batch.predictions for batch in batches)
        sums[3] = sum(batch.tokens for batch in batches)
        drawn = [self.draw(step, micro, batch) for micro, batch in enumerate(batches)]
        passes = list(at_once(drawn, self.settings.at_once))
        for batch, tasks in passes:
            if self.graphs is not None and self.graphs.takes(batch, tasks):
                loss = self.graphs(batch, tasks, alone=len(passes) == 1)
            else:
                loss = self.run(batch, tasks)
            sums[0] += loss.total
            sums[1] += loss.nll
        add_up(sums, self.ranks)
        add_up_gradients(self.model, self.ranks)
        penalty = self.penalty(self.terms(step, [batch for batch, _ in drawn]), sums[2])
        norm = self.update(step, sums[2], penalty)
        return Sums(sums[0] + penalty.detach() * sums[2], sums[1], sums[2], sums[3], norm)

    def draw(self, step: int, micro: int, batch: AnyBatch) -> tuple[AnyBatch, Tasks]:
        """The batch with its noise, and its tasks: the same on every rank, whatever dropout does."""
        encoder, decoder = (generator(self.seed, step, micro, stack) for stack in (0, 1))
        tasks = self.settings.objective.draw(self.model, batch.key, encoder, decoder)
        return batch._replace(noise=self.model.noise(step, encoder, decoder)), tasks

    def terms(self, step: int, batches: Sequence[AnyBatch]) -> list[Term]:
        """What latent depth adds to the loss. Not before the passes: while autograd holds the logits for these terms on
        the ordinary stream, no pass with the same logits can be recorded."""
        objective = self.settings.objective
        if isinstance(objective, LatentObjectiveConfig | FairseqLatentConfig):
            return objective.terms(latent_stacks(self.model, batches), step)
        return []

    def penalty(self, terms: list[Term], tokens: Tensor) -> Tensor:
        """The terms as a loss per token."""
        tokens_of: dict[str, Tensor | int] = {"token": 1, "step": tokens, "corpus": self.corpus_tokens}
        return sum((value / tokens_of[scale] for value, scale in terms), start=tokens.new_zeros(()))

    def run(self, batch: AnyBatch, tasks: Tasks) -> Loss:
        """Adds this batch's gradients to those of the step."""
        with self.rounded if used_once(tasks) else nullcontext():
            return self.differentiate(batch, tasks)

    def differentiate(self, batch: AnyBatch, tasks: Tasks) -> Loss:
        smoothing, objective = self.settings.label_smoothing, self.settings.objective
        with torch.autocast(self.ranks.device.type, torch.bfloat16, enabled=self.bf16):
            if len(tasks) > 1:
                self_taught = isinstance(objective, ExitGridConfig) and objective.taught_by == "deepest"
                if isinstance(self.model, EncoderModel):
                    assert not isinstance(batch, Batch)
                    return encoder_exits(self.model, batch, tasks, smoothing, self.kernel, self_taught)
                assert isinstance(self.model, Translator)
                assert isinstance(batch, Batch)
                at_once = objective.together
                return SharedPass(self.model, batch, smoothing, self.kernel, at_once, self_taught).backward(tasks)
            ((plans, weight),) = tasks
            if isinstance(objective, HaltingObjectiveConfig):
                assert isinstance(self.model, Classifier)
                assert isinstance(batch, LabelledBatch)
                total, nll = halting(self.model, batch, objective, smoothing, self.kernel)
            else:
                total, nll = single(self.model, batch, plans, smoothing, self.kernel)
        (weight * total).backward()
        return Loss(total.detach(), nll)

    def update(self, step: int, tokens: Tensor, penalty: Tensor) -> Tensor:
        """Gradients of sums become gradients of means; those of the penalty, equal on all ranks, are added."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        torch._foreach_div_(gradients, tokens)
        if penalty.requires_grad:
            penalty.backward()
        if step % self.settings.inner_steps:  # only the last inner step's gradient moves φ (Appendix B.1)
            for parameter in self.optimizers.learnt_by_depth:
                parameter.grad = None
        logged = self.settings.log_gradients and step % self.settings.log_every == 0
        self.layer_norms = layer_norms(self.model) if logged else {}
        return self.optimizers.update(step, self.settings.steps)


def used_once(tasks: Tasks) -> bool:
    """Whether each weight gets one gradient: several would be added up in bfloat16."""
    plans = [plan.layers for task in tasks for plan in task.plans]
    return len(tasks) == 1 and all(len(set(layers)) == len(layers) for layers in plans)


def at_once(drawn: Sequence[tuple[AnyBatch, Tasks]], size: int) -> Iterator[tuple[AnyBatch, Tasks]]:
    """The passes of a step: so many batches as one where they are packed and have one and the same task."""
    for start in range(0, len(drawn), size):
        group = drawn[start : start + size]
        tasks = group[0][1]
        alike = len(tasks) == 1 and all(batch.packed and other == tasks for batch, other in group)
        if size > 1 and alike:
            yield join([batch for batch, _ in group]), tasks
        else:
            yield from group


def generator(*numbers: int) -> Generator:
    """A CPU generator that depends on these numbers alone."""
    return Generator().manual_seed(mixed(*numbers))


def mixed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1)
