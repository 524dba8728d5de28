"""Classifying many texts on a GPU: the whole pass as one CUDA graph for each of a few sizes, in bfloat16.

A pass over 32 reviews is some 150 kernels of a few microseconds; launched one by one they take the CPU longer than the
GPU needs to run them, and words that are left out would save nothing. A graph has one shape, and batches have as many
as there are numbers of words at every layer. So a batch is put into a room that is a little larger than it, in which a
text that nobody asked about fills what is left; the next batch that fits without much waste uses the same room.

Plain encoders are read the same way: all their words run at all layers.
"""

from copy import deepcopy
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from anydepth.data.labelled_batch import LabelledBatch
from anydepth.encoder_models import Classifier
from anydepth.nn.perword import Count, Sizes, Words, lay_out
from anydepth.plan import Plan

SLACK, WASTE = 1.02, 1.05
"""A new room is so much larger than its first batch; a batch is put into a room that costs at most so much more than a
new one would."""
MOST_ROOMS = 256


class Furnished(NamedTuple):
    """A batch as its room takes it, on the CPU."""

    numbers: Tensor
    """Its words, then its layout: one tensor, one copy to the GPU."""
    room: Sizes
    texts: int


class RecordedReader:
    """Texts → logits. On a CPU the same, without graphs and in the weights' own precision."""

    def __init__(self, model: Classifier, plan: Plan) -> None:
        self.device = model.output.weight.device
        self.on_gpu = self.device.type == "cuda"
        self.model, self.plan = in_bfloat16(model) if self.on_gpu else model, plan
        self.rooms: dict[Sizes, Room] = {}
        self.pool = torch.cuda.graph_pool_handle() if self.on_gpu else None

    @staticmethod
    def takes(model: Classifier) -> bool:
        """Whether depths are known before the pass begins, and layers are not scaled."""
        return model.encoder.mix is None and model.unit is None and not model.config.encoder.depth.gated

    def furnish(self, batch: LabelledBatch) -> Furnished:
        """What can be done before the GPU is asked: like padding, it belongs to the making of batches."""
        real = batch.source != self.model.pad
        lengths, ids = real.sum(1).numpy(), batch.source[real]
        depths = np.full(len(ids), len(self.plan)) if batch.words is None else batch.words.depths.numpy()
        room = self.room_for(needed(depths, lengths))
        words = lay_out(depths, lengths, room.width, room)
        numbers = torch.cat([ids, ids.new_full((room.words - len(ids),), self.model.pad), words.numbers])
        return Furnished(numbers.pin_memory() if self.on_gpu else numbers, room, len(lengths))

    def room_for(self, sizes: Sizes) -> Sizes:
        """The cheapest that there is, unless a new one would be much cheaper."""
        new = a_little_larger(sizes)
        holding = [room for room in self.rooms if holds(room, sizes)]
        best = min(holding, key=cost, default=None)
        if best is not None and (cost(best) <= WASTE * cost(new) or len(self.rooms) >= MOST_ROOMS):
            return best
        if len(self.rooms) >= MOST_ROOMS:
            self.rooms.clear()
        self.rooms[new] = Room(self, new)
        return new

    def __call__(self, given: Furnished) -> Tensor:
        """(B, labels), good until the next call."""
        if given.room not in self.rooms:
            self.rooms[given.room] = Room(self, given.room)
        return self.rooms[given.room](given.numbers)[: given.texts]


class Room:
    """Space for batches of one size, and the pass that is recorded when the first of them comes."""

    def __init__(self, reader: RecordedReader, sizes: Sizes) -> None:
        self.reader, self.sizes = reader, sizes
        self.numbers: Tensor | None = None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.logits: Tensor | None = None

    def __call__(self, numbers: Tensor) -> Tensor:
        if self.numbers is None:
            self.numbers = numbers.to(self.reader.device)
            if self.reader.on_gpu:
                self.record()
        self.numbers.copy_(numbers, non_blocking=True)
        if self.graph is None:
            return self.read()
        self.graph.replay()
        assert self.logits is not None
        return self.logits

    def record(self) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.read()  # lets libraries set themselves up
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, self.reader.pool, stream, capture_error_mode="thread_local"):
            self.logits = self.read()
        self.graph = graph

    @torch.no_grad()
    def read(self) -> Tensor:
        assert self.numbers is not None
        ids, words = self.numbers[: self.sizes.words], Words(self.numbers[self.sizes.words :], self.sizes)
        model = self.reader.model
        return model.logits(model.read(ids, words, self.reader.plan))


def in_bfloat16(model: Classifier) -> Classifier:
    """A copy, whose last matrix stays as it is."""
    half = deepcopy(model).to(torch.bfloat16).eval()
    half.output, half.output_bias = model.output, model.output_bias
    return half


def needed(depths: np.ndarray, lengths: np.ndarray) -> Sizes:
    """The sizes of a layout, without making it."""
    steps, starts = [], np.cumsum(lengths) - lengths
    for step in range(1, int(depths.max(initial=0)) + 1):
        running = np.add.reduceat(depths >= step, starts, dtype=np.int64)
        steps.append(Count(int(running.sum()), int(running.max())))
    longest = int(lengths.max(initial=0))
    return Sizes(len(lengths), len(depths), longest, longest, tuple(steps))


def a_little_larger(sizes: Sizes) -> Sizes:
    """With room for one more text, and one more word, that take what is too much."""
    words = up(SLACK * sizes.words + 1, 64)
    longest = up(sizes.longest, 64)
    steps = [
        Count(words, longest)
        if count == sizes.words
        else Count(min(words - 1, up(SLACK * count, 32)), min(longest, up(most, 32)))
        for count, most in sizes.steps
    ]
    return Sizes(up(sizes.texts, 8) + 1, words, longest, longest, tuple(steps))


def holds(room: Sizes, sizes: Sizes) -> bool:
    """Whether a batch of these sizes can be put there. Where all words run, all words of the room do."""
    if len(room.steps) < len(sizes.steps):
        return False
    enough = room.texts > sizes.texts and room.words > sizes.words and room.longest >= sizes.longest
    return enough and all(
        there.words >= count.words
        and there.longest >= count.longest
        and (there.words == room.words) == (count.words == sizes.words)
        for there, count in zip(room.steps, (*sizes.steps, *[Count(0, 0)] * len(room.steps)))
    )


def cost(sizes: Sizes) -> int:
    """Of what is computed, roughly: words to embed and to pool cost a layer's share too."""
    return sizes.layer_words + sizes.words // 4


def up(number: float, multiple: int) -> int:
    return -(-int(number) // multiple) * multiple
