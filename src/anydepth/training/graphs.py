"""Forward and backward pass as one CUDA graph per set of tasks.

A 6-6 model launches some two thousand kernels a step, which takes the CPU twice as long as the GPU needs to run them.
Packed batches have one shape and tasks are hashable, so that a pass can be recorded once and replayed. All graphs share
the memory of their activations and of their gradients: what a replay leaves is read before the next one begins.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from anydepth.data.any_batch import AnyBatch
from anydepth.data.collate import mapped, tensors_of
from anydepth.objectives.cross_entropy import Loss
from anydepth.objectives.tasks import Tasks

MOST_GRAPHS = 128
"""Where there are more sets of tasks (LayerDrop has 2^L plans) the rest runs kernel by kernel."""


class Recorded(NamedTuple):
    graph: torch.cuda.CUDAGraph
    loss: Loss
    trained: list[nn.Parameter]
    """Parameters that get a gradient: those of layers in no plan get none."""


class GraphedPass:
    """`run(batch, tasks)`, forward and backward, recorded at first sight of the tasks."""

    def __init__(self, model: nn.Module, run: Callable[[AnyBatch, Tasks], Loss]) -> None:
        self.model, self.run = model, run
        self.recorded: dict[tuple[Tasks, tuple[str, ...]], Recorded] = {}
        self.pool, self.stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
        self.batches: dict[int, AnyBatch] = {}
        """What the graphs read, by the number of parts."""
        self.gradients = {parameter: torch.empty_like(parameter) for parameter in model.parameters()}
        """Where every graph leaves them."""

    def takes(self, batch: AnyBatch, tasks: Tasks) -> bool:
        """Whether this pass can be replayed, or recorded and then replayed."""
        known = (tasks, keys_of(batch)) in self.recorded or len(self.recorded) < MOST_GRAPHS
        return known and batch.packed

    def __call__(self, batch: AnyBatch, tasks: Tasks, alone: bool) -> Loss:
        """Leaves the gradients of this batch, or adds them to the step's if it is not the step's only one."""
        keys, before = keys_of(batch), self.batches.get(len(batch.parts))
        read = mapped(Tensor.clone, batch) if before is None else copied(batch, before)
        self.batches[len(batch.parts)] = read
        if (tasks, keys) not in self.recorded:
            self.recorded[tasks, keys] = self.record(read, tasks)
        recorded = self.recorded[tasks, keys]
        recorded.graph.replay()
        for parameter in recorded.trained:
            gradient = self.gradients[parameter]
            if parameter.grad is None:  # the next replay overwrites what this one leaves
                parameter.grad = gradient if alone else gradient.clone()
            else:
                parameter.grad += gradient
        return recorded.loss

    def record(self, batch: AnyBatch, tasks: Tasks) -> Recorded:
        parameters = list(self.model.parameters())
        random, before = torch.cuda.get_rng_state(), [parameter.grad for parameter in parameters]
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(1 if self.recorded else 2):  # compiles, and lets libraries set themselves up
                self.model.zero_grad(set_to_none=True)
                self.run(batch, tasks)
        torch.cuda.current_stream().wait_stream(self.stream)
        self.model.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        # other threads prepare batches meanwhile and may pin memory
        with torch.cuda.graph(graph, self.pool, self.stream, capture_error_mode="thread_local"):
            loss = self.run(batch, tasks)
            trained = {parameter: parameter.grad for parameter in parameters if parameter.grad is not None}
            torch._foreach_copy_([self.gradients[parameter] for parameter in trained], list(trained.values()))
        for parameter, gradient in zip(parameters, before):
            parameter.grad = gradient
        torch.cuda.set_rng_state(random)
        return Recorded(graph, loss, list(trained))


def keys_of(batch: AnyBatch) -> tuple[str, ...]:
    return tuple(part.key for part in batch.parts) or (batch.key,)


def copied(batch: AnyBatch, into: AnyBatch) -> AnyBatch:
    """A batch with its words, segments and noise in the tensors that the graphs read."""
    places = tensors_of(into)
    for place, tensor in zip(places, tensors_of(batch), strict=True):
        place.copy_(tensor, non_blocking=True)
    left = iter(places)
    return mapped(lambda _: next(left), batch)
