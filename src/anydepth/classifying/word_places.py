"""Classifiers that read words with depths of their own in fixed places, on a GPU as CUDA graphs.

Kernel by kernel, a batch of 32 reviews takes the CPU three times as long to ask for as the GPU to compute, and the time
that stopped words would save is not there to be saved. A graph has fixed shapes. So batches are padded to one of a few,
a layer is recorded for several numbers of running words, and the host, which knows the depths, chooses among them.

Attention does not care in which order words stand: positions are in their embeddings. So the words of the whole batch
stand sorted by depth, the deepest first, and those that run in a layer are its first rows. Nothing is gathered and
nothing put back. Where each text's words are is a list that attention looks into (nn/row_attention.py); a layer is
recorded for a few more rows than run, and what it computes for these is never stored where anybody reads
(nn/row_states.py). On a CPU the same code runs in plain PyTorch without being recorded, which is how it is tested.

A plain classifier is the one whose words all run through all layers. They stand text by text then, as flash attention
wants them.

In the upper layers few words run, too few to keep a GPU busy. So several batches are read at the same time, each in
places of its own (`Lanes`), by the same weights.
"""

import itertools
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anydepth.classifying.awaiting import Awaited
from anydepth.encoder_models import Classifier
from anydepth.nn.attention import Packed, attend_packed
from anydepth.nn.layers import Layer
from anydepth.nn.packed_attention import BLOCK
from anydepth.nn.recorder import Recorder, power_of_two
from anydepth.nn.row_attention import Step, Texts, Tile, attend_rows, choose_tile, step_numbers
from anydepth.nn.row_states import Listed, a_norm, add_branch, embed_rows, pool_texts
from anydepth.plan import Plan

Array = np.ndarray

MOST = 128
"""Shapes kept at a time; the one not used for longest makes room."""
PARTS = 32
"""Of the next power of two: a layer is recorded for whole numbers of them."""


class Shape(NamedTuple):
    """What batches are padded to."""

    words: int
    texts: int
    longest: int

    @classmethod
    def of(cls, lengths: Array) -> "Shape":
        """Of texts of these lengths: at most an eighth more words than they have, and a number that kernels like."""
        words = max(128, int(lengths.sum()))
        even = up_to_multiple(words, max(32, power_of_two(words) // 16))
        return cls(even, power_of_two(len(lengths)), max(64, power_of_two(int(lengths.max()))))


def up_to_multiple(size: int, of: int) -> int:
    return -(-size // of) * of


class Sorted(NamedTuple):
    """The words of a batch, the deepest first, and among equals as they were given."""

    order: Array
    """(N,) which word stands in each row."""
    rows: Array
    """(N,) text by text, the rows of its words, the deepest first."""
    running: Array
    """(K, B) words of each text that run in each layer."""

    @classmethod
    def by_depth(cls, depths: Array, lengths: Array, layers: int) -> "Sorted":
        texts, levels = len(lengths), np.subtract(layers, depths, dtype=np.uint16, casting="unsafe")
        order = np.argsort(levels, kind="stable")  # of 16 bits: by radix, in one pass
        keys = np.repeat(np.arange(texts) * layers, lengths)
        keys += levels
        by_text = np.bincount(keys, minlength=texts * layers).reshape(texts, layers)
        by_level = np.ascontiguousarray(by_text.T)
        # the words of one text and depth stand together in rows, depth by depth, as well as in `rows`, text by text
        shifts = before(by_level).T - before(by_text)
        rows = np.repeat(shifts.ravel().astype(np.int32), by_text.ravel())
        rows += np.arange(len(depths), dtype=np.int32)
        return cls(order, rows, np.cumsum(by_level, 0)[::-1])


def before(counts: Array) -> Array:
    """How many came before each."""
    return (np.cumsum(counts) - counts.ravel()).reshape(counts.shape)


class Passage(NamedTuple):
    """Through a room of states, in which one part of the layers leaves words for the next."""

    rows: int = 0
    """Of the room; 0 if words stay where they are."""
    enter: bool = False
    """Whether words are taken from there, and not embedded."""
    leave: bool = False


STAY = Passage()


class WordPlaces:
    """Batches of one shape, read by a classifier at one depth, or by some of its layers."""

    def __init__(
        self,
        model: Classifier,
        plan: Plan,
        refresh: bool,
        shape: Shape,
        recorder: Recorder | None,
        entry: Tensor | None = None,
        exit: Tensor | None = None,
    ) -> None:
        """Words come from the rows of `entry`, which are given as their tokens, and their states go to `exit`."""
        self.model, self.plan, self.refresh, self.shape, self.recorder = model, plan, refresh, shape, recorder
        self.entry, self.exit = entry, exit
        weight, words, layers = model.output.weight, shape.words, len(plan)
        self.width, self.heads = model.config.layer.width, model.config.layer.heads
        zeros = partial(torch.zeros, dtype=weight.dtype, device=weight.device)
        self.step = up_to_multiple(2 + 2 * shape.texts, 4)  # numbers of 32 bits: all begin at multiples of 16 bytes
        sizes = [layers * self.step, up_to_multiple(2 * shape.texts, 4), *[words] * 4, shape.texts + 1]
        self.parts = list(itertools.starmap(slice, itertools.pairwise(itertools.accumulate(sizes, initial=0))))
        self.given = zeros(sum(sizes), dtype=torch.int32)
        steps, by_length, *listed, rows, starts = self.given.split(sizes)
        self.steps, self.listed = steps.view(layers, self.step), Listed(*listed)
        self.texts = Texts(rows, starts, by_length[: 2 * shape.texts].view(2, -1))
        self.x = zeros(words, self.width)
        self.entered = zeros(words, self.width) if model.config.layer.norm == "pre" else self.x
        # where keys and values are kept: of words that run, and of those that have stopped
        self.qkv = None if refresh else zeros(2, words, 3 * self.width)
        self.attended = zeros(words, self.width)
        self.logits = zeros(shape.texts, model.output.num_embeddings, dtype=torch.float32)
        self.recorded: dict[object, Callable[[], object]] = {}

    @torch.no_grad()
    def read(self, tokens: Array, depths: Array, lengths: Array) -> Tensor:
        """The words of some texts, one text after the other, and their depths → (texts, labels) logits. A GPU need not
        have read one batch when it is asked to read the next."""
        words = Sorted.by_depth(depths, lengths, len(self.plan))
        counts = words.running.sum(1).tolist()
        running = [self.rounded(count) for count in counts if count]
        alike = counts[len(running) - 1] == len(tokens)
        self.take(tokens, words, lengths, [self.tile(count) for count in running])
        for number, count in enumerate(running):
            last = number == len(running) - 1
            self.do((number, count, alike, last), partial(self.advance, number, count, alike, last))
        return self.logits[: len(lengths)].clone()

    def take(self, tokens: Array, words: Sorted, lengths: Array, tiles: list[Tile]) -> None:
        """In one copy, which from pinned memory nobody waits for."""
        host = torch.empty(len(self.given), dtype=torch.int32, pin_memory=self.given.is_cuda)
        numbers = host.numpy()
        steps, by_length, own_tokens, positions, order, rows, starts = (numbers[part] for part in self.parts)
        count, texts, places = len(tokens), len(lengths), self.shape.texts  # for texts, more than there are
        ends, turns = np.cumsum(lengths, dtype=np.int32), np.argsort(-lengths)
        begins = ends - lengths.astype(np.int32)
        running = np.zeros((len(tiles), places), dtype=np.int32)
        running[:, :texts] = words.running[: len(tiles), turns]
        steps.reshape(len(self.plan), -1)[: len(tiles), : 2 + 2 * places] = step_numbers(running, tiles)
        by_length[:] = 0
        by_length[:texts], by_length[places : places + texts] = begins[turns], ends[turns]
        starts[0], starts[1 : texts + 1], starts[texts + 1 :] = 0, ends, count
        # what stands behind the last word is never read, but looked up where words come from a room
        own_tokens[:count], own_tokens[count:] = tokens, 0
        order[:count], rows[:count] = words.order, words.rows
        np.subtract(np.arange(count, dtype=np.int32), np.repeat(begins, lengths), out=positions[:count])
        self.given.copy_(host, non_blocking=True)

    def rounded(self, count: int) -> int:
        return min(self.shape.words, up_to_multiple(count, max(32, power_of_two(count) // PARTS)))

    def tile(self, count: int) -> Tile:
        return choose_tile(count, self.shape.texts, self.heads, self.x.dtype)

    def do(self, key: object, work: Callable[[], object]) -> None:
        """The first time it is done and recorded, from then on replayed."""
        if self.recorder is None:
            work()
        elif key in self.recorded:
            self.recorded[key]()
        else:
            self.recorded[key] = self.recorder.record(work)

    def advance(self, number: int, count: int, alike: bool, last: bool) -> None:
        """One layer, for so many rows; `alike` if all words have one depth. The first one is given embedded words, and
        the last one answers."""
        if number == 0 and self.entry is not None:
            self.x[:count] = self.entry.index_select(0, self.listed.tokens[:count])
        elif number == 0:
            embed_rows(self.x, self.model.source, self.listed, self.steps[0])
        layer = self.model.encoder.layers[self.plan.layers[number]]
        assert isinstance(layer, Layer)
        attend, step = self.attend_all if alike else self.attend, Step(self.steps[number], self.tile(count))
        branch = layer.attention.out(attend(layer, count, step))
        between = layer.ffn_norm if layer.norm_first else layer.attention_norm
        add_branch(self.x, branch, step.numbers, a_norm(between), self.entered)
        branch = layer.feed_forward(self.entered[:count])
        add_branch(self.x, branch, step.numbers, a_norm(layer.ffn_norm) if layer.norm_last else None, self.x)
        if last:
            states = self.model.norm(self.x).to(self.x.dtype)
            self.logits.copy_(self.model.logits(pool_texts(states, self.texts)))
        if last and self.exit is not None:
            self.exit[:count] = self.x[:count]

    def attend_all(self, layer: Layer, count: int, step: Step) -> Tensor:
        """Words that stand text by text."""
        qkv = layer.attention.qkv(layer.enter(self.x[:count], layer.attention_norm))
        q, k, v = qkv.view(1, count, 3, self.heads, -1).unbind(2)
        starts, longest = self.texts.starts, self.shape.longest
        sees = Packed(starts, starts, longest, longest)
        return attend_packed(q, k, v, sees, causal=False, dropout=0.0, short=BLOCK)[0].flatten(1)

    def attend(self, layer: Layer, count: int, step: Step) -> Tensor:
        """Words that stand sorted by depth."""
        q, k, v = self.project_all(layer, count) if self.qkv is None else self.project_into(self.qkv, layer, count)
        attend_rows(q, k, v, self.attended, self.heads, self.texts, step)
        return self.attended[:count]

    def project_all(self, layer: Layer, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of so many words, keys and values of all."""
        width, weight, bias = self.width, layer.attention.qkv.weight, layer.attention.qkv.bias
        entered = layer.enter(self.x, layer.attention_norm)
        q = F.linear(entered[:count], weight[:width], None if bias is None else bias[:width])
        kv = F.linear(entered, weight[width:], None if bias is None else bias[width:])
        return q, kv[None, :, :width], kv[None, :, width:]

    def project_into(self, qkv: Tensor, layer: Layer, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Of so many words, straight to where they are kept; the others have keys and values there."""
        weight, bias, into = layer.attention.qkv.weight.t(), layer.attention.qkv.bias, qkv[0, :count]
        entered = layer.enter(self.x[:count], layer.attention_norm)
        if bias is None:
            torch.mm(entered, weight, out=into)
        else:
            torch.addmm(bias, entered, weight, out=into)
        q, k, v = qkv.chunk(3, 2)
        return q[0, :count], k, v


class PlacesByShape:
    """Of one classifier, made at first sight. On a GPU they are filled, recorded and read on a stream of their own."""

    def __init__(self, model: Classifier) -> None:
        device = model.output.weight.device
        self.model, self.stream = model, torch.cuda.Stream(device) if device.type == "cuda" else None
        self.recorder = Recorder(self.stream) if self.stream else None
        if self.stream:  # the weights may still be on their way
            self.stream.wait_stream(torch.cuda.current_stream(device))
        self.made: OrderedDict[object, WordPlaces] = OrderedDict()
        self.rooms: dict[int, Tensor] = {}
        self.answered: torch.cuda.Event | None = None
        self.returning: Awaited | None = None
        """Who will come back for what was left in a room."""

    def is_idle(self) -> bool:
        gone = self.returning is None or self.returning.is_there()
        return gone and (self.answered is None or self.answered.query())

    def read(
        self,
        plan: Plan,
        refresh: bool,
        tokens: Array,
        depths: Array,
        lengths: Array,
        passage: Passage = STAY,
    ) -> Tensor:
        """Logits for the stream of whoever asks. It waits for them, and for the last use of weights that it may free
        next; nothing here waits for it, which may be waiting for other places."""
        if self.stream is None:
            return self.of_shape(plan, refresh, Shape.of(lengths), passage).read(tokens, depths, lengths)
        asking = torch.cuda.current_stream(self.stream.device)
        with torch.cuda.stream(self.stream):
            logits = self.of_shape(plan, refresh, Shape.of(lengths), passage).read(tokens, depths, lengths)
        self.answered = self.stream.record_event()
        asking.wait_event(self.answered)
        logits.record_stream(asking)  # their memory is this stream's, which must not use it again before they are read
        return logits

    def of_shape(self, plan: Plan, refresh: bool, shape: Shape, passage: Passage) -> WordPlaces:
        key = (plan, refresh, shape, passage)
        if key not in self.made:
            while len(self.made) >= MOST:
                self.made.popitem(last=False)
            doors = [self.room(passage.rows) if open else None for open in (passage.enter, passage.leave)]
            self.made[key] = WordPlaces(self.model, plan, refresh, shape, self.recorder, *doors)
        self.made.move_to_end(key)
        return self.made[key]

    def room(self, rows: int) -> Tensor:
        """One for all shapes: whoever enters finds what was left."""
        if rows not in self.rooms:
            weight = self.model.output.weight
            width = self.model.config.layer.width
            self.rooms[rows] = torch.zeros(rows, width, dtype=weight.dtype, device=weight.device)
        return self.rooms[rows]


class Lanes:
    """Places for batches that are read at the same time."""

    def __init__(self, model: Classifier, count: int) -> None:
        self.all = [PlacesByShape(model) for _ in range(count)]
        self.by_turn = deque(self.all)
        """The one asked longest ago first."""

    def next(self) -> PlacesByShape:
        """The first with nothing to do: for whoever waits for every answer, all is recorded only there."""
        lane = next((lane for lane in self.all if lane.is_idle()), self.by_turn[0])
        self.by_turn.remove(lane)
        self.by_turn.append(lane)
        return lane
