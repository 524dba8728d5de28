"""Forward and backward pass as one CUDA graph per plan.

A 6-6 model launches some two thousand kernels a step, which takes the CPU twice as long as the GPU needs to run them.
Packed batches have one shape and plans are hashable, so that a pass can be recorded once per plan and replayed. All
graphs share their memory: what a replay leaves is read before the next one begins.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from anydepth.data.collate import Batch, Packing
from anydepth.objectives.single import Loss
from anydepth.plan import Plans

MOST_GRAPHS = 128
"""Policies with more plans than this (LayerDrop has 2^L) run the rest kernel by kernel."""


class Recorded(NamedTuple):
    graph: torch.cuda.CUDAGraph
    loss: Loss
    gradients: dict[nn.Parameter, Tensor]
    """Where each replay leaves them; parameters of layers not in the plan have none."""


class GraphedPass:
    """`loss_of(batch, plans)` and its backward pass, recorded at first sight of a plan."""

    def __init__(self, model: nn.Module, loss_of: Callable[[Batch, Plans], Loss]) -> None:
        self.model, self.loss_of = model, loss_of
        self.recorded: dict[tuple[Plans, str], Recorded] = {}
        self.pool, self.stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
        self.batch: Batch | None = None

    def takes(self, batch: Batch, plans: Plans) -> bool:
        """Whether this pass can be replayed, or recorded and then replayed."""
        known = (plans, batch.key) in self.recorded or len(self.recorded) < MOST_GRAPHS
        return known and batch.source_packing is not None

    def __call__(self, batch: Batch, plans: Plans, alone: bool) -> Loss:
        """Leaves the gradients of this batch, or adds them to the step's if it is not the step's only one."""
        self.batch = batch if self.batch is None else copied(batch, self.batch)
        if (plans, batch.key) not in self.recorded:
            self.recorded[plans, batch.key] = self.record(self.batch, plans)
        recorded = self.recorded[plans, batch.key]
        recorded.graph.replay()
        for parameter, gradient in recorded.gradients.items():
            if parameter.grad is None:  # the next replay overwrites what this one leaves
                parameter.grad = gradient if alone else gradient.clone()
            else:
                parameter.grad += gradient
        return recorded.loss

    def record(self, batch: Batch, plans: Plans) -> Recorded:
        parameters = list(self.model.parameters())
        random, before = torch.cuda.get_rng_state(), [parameter.grad for parameter in parameters]
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(2):  # compiles what is to be compiled, and lets libraries set themselves up
                self.model.zero_grad(set_to_none=True)
                self.loss_of(batch, plans).total.backward()
        torch.cuda.current_stream().wait_stream(self.stream)
        self.model.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        # other threads prepare batches meanwhile and may pin memory
        with torch.cuda.graph(graph, self.pool, self.stream, capture_error_mode="thread_local"):
            loss = self.loss_of(batch, plans)
            loss.total.backward()
        gradients = {parameter: parameter.grad for parameter in parameters if parameter.grad is not None}
        for parameter, gradient in zip(parameters, before):
            parameter.grad = gradient
        torch.cuda.set_rng_state(random)
        return Recorded(graph, Loss(loss.total.detach(), loss.nll), gradients)


def copied(batch: Batch, into: Batch) -> Batch:
    """A batch's words and segments in the tensors that the graphs read."""
    for name in ("source", "target_in", "target_out"):
        getattr(into, name).copy_(getattr(batch, name), non_blocking=True)
    for theirs, ours in ((batch.source_packing, into.source_packing), (batch.target_packing, into.target_packing)):
        copy_packing(theirs, ours)
    return into._replace(key=batch.key, tokens=batch.tokens, sentences=batch.sentences)


def copy_packing(batch: Packing | None, into: Packing | None) -> None:
    assert batch is not None
    assert into is not None
    tensors: list[tuple[Tensor, Tensor]] = [(into.starts, batch.starts), (into.positions, batch.positions)]
    for ours, theirs in tensors:
        ours.copy_(theirs, non_blocking=True)
