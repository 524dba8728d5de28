"""Classifiers that read words with depths of their own in fixed places, on a GPU as CUDA graphs.

Kernel by kernel, a batch of 32 reviews takes the CPU three times as long to ask for as the GPU to compute, and the time
that stopped words would save is not there to be saved. A graph has fixed shapes. So batches are padded to one of a few,
a layer is recorded for several numbers of running words, and the host, which knows the depths, chooses among them.
Which words run is worked out on the GPU. The words that pad a layer's batch all stand for one spare word, which belongs
to no text. On a CPU the same code runs without being recorded, which is how it is tested.

A plain classifier is the one whose words all run through all layers.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from anydepth.encoder_models import Classifier, pool_rows
from anydepth.nn.attention import Packed
from anydepth.nn.perword import step
from anydepth.nn.recorder import Recorder, power_of_two
from anydepth.plan import Plan

Array = np.ndarray

MOST = 64
"""Shapes kept at a time; the one not used for longest makes room."""
PARTS = 32
"""Of the words of a batch: a layer is recorded for whole numbers of them."""


class Shape(NamedTuple):
    """What batches are padded to. The last word is a spare one, which belongs to no text."""

    words: int
    texts: int
    longest: int

    @classmethod
    def of(cls, lengths: Array) -> "Shape":
        """Of texts of these lengths: at most an eighth more words than they have, and a number that kernels like."""
        words = max(128, int(lengths.sum()) + 1)
        even = up_to_multiple(words, max(32, power_of_two(words) // 16))
        return cls(even, power_of_two(len(lengths)), longest(lengths))


def longest(lengths: Array) -> int:
    return max(64, power_of_two(int(lengths.max())))


def up_to_multiple(size: int, of: int) -> int:
    return -(-size // of) * of


class WordPlaces:
    """Batches of one shape, read by a classifier at one depth."""

    def __init__(self, model: Classifier, plan: Plan, refresh: bool, shape: Shape, recorder: Recorder | None) -> None:
        self.model, self.plan, self.refresh, self.shape, self.recorder = model, plan, refresh, shape, recorder
        weight, words, layers = model.output.weight, shape.words, len(plan)
        width, device = model.config.layer.width, weight.device
        self.given = torch.zeros(2 * words + shape.texts + 1, dtype=torch.int32, device=device)
        self.tokens, self.depths, self.starts = self.given.split([words, words, shape.texts + 1])
        self.x = torch.zeros(words, width, dtype=weight.dtype, device=device)
        self.kept = None if refresh else torch.zeros(words, 2 * width, dtype=weight.dtype, device=device)
        self.owners = torch.zeros(words, dtype=torch.long, device=device)
        self.positions = torch.zeros_like(self.owners)
        self.running = torch.zeros(layers, words + 1, dtype=torch.long, device=device)
        self.query_starts = torch.zeros(layers, shape.texts + 1, dtype=torch.int32, device=device)
        self.numbers = torch.arange(words, device=device)
        self.levels = torch.arange(1, layers + 1, device=device)[:, None]
        self.logits = torch.zeros(shape.texts, model.output.num_embeddings, dtype=torch.float32, device=device)
        self.recorded: dict[object, Callable[[], object]] = {}

    def read(self, tokens: Array, depths: Array, lengths: Array) -> Tensor:
        """The words of some texts, one text after the other, and their depths → (texts, labels) logits."""
        self.take(tokens, depths, lengths)
        self.do("open", self.open)
        running = len(depths) - np.cumsum(np.bincount(depths))  # more than 0, 1, 2 … layers
        for number in range(int(depths.max())):
            count = self.rounded(int(running[number])) if running[number] < len(depths) else None
            self.do((number, count), partial(self.advance, number, count))
        self.do("close", self.close)
        return self.logits[: len(lengths)].clone()

    def take(self, tokens: Array, depths: Array, lengths: Array) -> None:
        """In one copy, which from pinned memory nobody waits for."""
        given = np.zeros(len(self.given), dtype=np.int32)
        own_tokens, own_depths, starts = np.split(given, [self.shape.words, 2 * self.shape.words])
        own_tokens[:] = self.model.pad
        own_tokens[: len(tokens)], own_depths[: len(depths)] = tokens, depths
        starts[1:] = len(tokens)  # also of texts that are not there
        starts[1 : len(lengths) + 1] = np.cumsum(lengths)
        host = torch.from_numpy(given)
        self.given.copy_(host.pin_memory() if self.given.is_cuda else host, non_blocking=True)

    def rounded(self, count: int) -> int:
        return min(self.shape.words, up_to_multiple(count, max(32, self.shape.words // PARTS)))

    def do(self, key: object, work: Callable[[], object]) -> None:
        """The first time it is done and recorded, from then on replayed."""
        if self.recorder is None:
            work()
        elif key in self.recorded:
            self.recorded[key]()
        else:
            self.recorded[key] = self.recorder.record(work)

    def open(self) -> None:
        """Embeds the words, and finds those that run at every step and where each text's begin."""
        spare, model = self.shape.words - 1, self.model
        self.owners.copy_(torch.searchsorted(self.starts, self.numbers.int(), right=True) - 1)
        self.positions.copy_((self.numbers - self.starts[self.owners]).clamp(max=model.config.max_positions - 1))
        self.x.copy_(model.source(self.tokens[None], self.positions[None])[0])
        runs = self.depths >= self.levels
        before = runs.cumsum(1)
        self.running.fill_(spare)
        # those that do not run go to the last column, which nobody reads
        self.running.scatter_(1, torch.where(runs, before - 1, spare + 1), self.numbers.expand_as(before))
        before = torch.cat([torch.zeros_like(before[:, :1]), before], 1)
        self.query_starts.copy_(before.gather(1, self.starts.long().expand(len(before), -1)))

    def advance(self, number: int, count: int | None) -> None:
        """One layer, for so many running words, some of them spare, or for all words."""
        sees = Packed(self.query_starts[number], self.starts, self.shape.longest, self.shape.longest)
        running = None if count is None else self.running[number, :count]
        layer, stack = self.plan.layers[number], self.model.encoder
        x, kept = stack.run(step, layer, self.x, self.kept, running, sees, self.refresh)
        if x is not self.x:
            self.x.copy_(x)
        if self.kept is not None and kept is not None and kept is not self.kept:
            self.kept.copy_(kept)

    def close(self) -> None:
        """Pools each text's words by way of a padded batch, whose last row has the words of no text."""
        texts, width = self.shape.texts, self.shape.longest
        states = self.model.norm(self.x).to(self.x.dtype)
        places = self.owners * width + self.positions.clamp(max=width - 1)
        rows = states.new_zeros((texts + 1) * width, states.shape[1]).index_copy_(0, places, states)
        real = torch.arange(width, device=rows.device) < self.starts.diff()[:, None]
        pooled = pool_rows(rows.unflatten(0, (texts + 1, width))[:texts], real)
        self.logits.copy_(self.model.logits(pooled.to(self.x.dtype)))


class PlacesByShape:
    """Of one classifier, made at first sight."""

    def __init__(self, model: Classifier) -> None:
        device = model.output.weight.device
        self.model, self.recorder = model, Recorder() if device.type == "cuda" else None
        self.made: OrderedDict[object, WordPlaces] = OrderedDict()

    @torch.no_grad()
    def read(self, plan: Plan, refresh: bool, tokens: Array, depths: Array, lengths: Array) -> Tensor:
        shape = Shape.of(lengths)
        key = (plan, refresh, shape)
        if key not in self.made:
            while len(self.made) >= MOST:
                self.made.popitem(last=False)
            self.made[key] = WordPlaces(self.model, plan, refresh, shape, self.recorder)
        self.made.move_to_end(key)
        return self.made[key].read(tokens, depths, lengths)
