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
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anydepth.encoder_models import Classifier
from anydepth.nn.attention import Packed, attend_packed
from anydepth.nn.layers import Layer
from anydepth.nn.packed_attention import BLOCK
from anydepth.nn.recorder import Recorder, power_of_two
from anydepth.nn.row_attention import Step, Texts, Tile, attend_rows, choose_tile, step_numbers
from anydepth.nn.row_states import add_branch, pool_texts
from anydepth.plan import Plan

Array = np.ndarray

MOST = 64
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
        texts, levels = len(lengths), layers - depths
        order = np.argsort(levels.astype(np.uint16), kind="stable")  # of 16 bits: by radix, in one pass
        groups = np.bincount(np.repeat(np.arange(texts) * layers, lengths) + levels, minlength=texts * layers)
        # the words of one text and depth stand together in rows, depth by depth, as well as in `rows`, text by text
        by_row = before(groups.reshape(texts, layers).T).T.ravel()
        rows = np.repeat(by_row - before(groups), groups) + np.arange(len(depths))
        return cls(order, rows, np.cumsum(groups.reshape(texts, layers), 1)[:, ::-1].T)


def before(counts: Array) -> Array:
    """How many came before each."""
    return (np.cumsum(counts) - counts.ravel()).reshape(counts.shape)


class WordPlaces:
    """Batches of one shape, read by a classifier at one depth."""

    def __init__(self, model: Classifier, plan: Plan, refresh: bool, shape: Shape, recorder: Recorder | None) -> None:
        self.model, self.plan, self.refresh, self.shape, self.recorder = model, plan, refresh, shape, recorder
        weight, words, layers = model.output.weight, shape.words, len(plan)
        self.width, self.heads = model.config.layer.width, model.config.layer.heads
        zeros = partial(torch.zeros, dtype=weight.dtype, device=weight.device)
        self.step = up_to_multiple(2 + 2 * shape.texts, 4)  # numbers of 32 bits: all begin at multiples of 16 bytes
        self.sizes = [layers * self.step, words, words, words, shape.texts + 1]
        self.given = zeros(sum(self.sizes), dtype=torch.int32)
        steps, self.tokens, self.order, rows, starts = self.given.split(self.sizes)
        self.steps, self.texts = steps.view(layers, self.step), Texts(rows, starts)
        self.numbers = torch.arange(words, dtype=torch.int32, device=weight.device)
        self.x = zeros(words, self.width)
        self.entered = zeros(words, self.width) if model.config.layer.norm == "pre" else self.x
        # where keys and values are kept: of words that run, and of those that have stopped
        self.qkv = None if refresh else zeros(2, words, 3 * self.width)
        self.attended = zeros(words, self.width)
        self.logits = zeros(shape.texts, model.output.num_embeddings, dtype=torch.float32)
        self.recorded: dict[object, Callable[[], object]] = {}

    @torch.no_grad()
    def read(self, tokens: Array, depths: Array, lengths: Array) -> Tensor:
        """The words of some texts, one text after the other, and their depths → (texts, labels) logits."""
        words = Sorted.by_depth(depths, lengths, len(self.plan))
        running = [self.rounded(int(count)) for count in words.running.sum(1) if count]
        alike = len(running) == int(depths.min())
        self.take(tokens, words, lengths, [self.tile(count) for count in running])
        self.do("open", self.open)
        for number, count in enumerate(running):
            self.do((number, count, alike), partial(self.advance, number, count, alike))
        self.do("close", self.close)
        return self.logits[: len(lengths)].clone()

    def take(self, tokens: Array, words: Sorted, lengths: Array, tiles: list[Tile]) -> None:
        """In one copy, which from pinned memory nobody waits for."""
        host = torch.empty(len(self.given), dtype=torch.int32, pin_memory=self.given.is_cuda)
        steps, own_tokens, order, rows, starts = np.split(host.numpy(), np.cumsum(self.sizes)[:-1])
        count, texts = len(tokens), self.shape.texts
        running = np.zeros((len(tiles), texts), dtype=np.int64)
        running[:, : len(lengths)] = words.running[: len(tiles)]
        steps.reshape(len(self.plan), -1)[: len(tiles), : 2 + 2 * texts] = step_numbers(running, tiles)
        own_tokens[:count], own_tokens[count:] = tokens, self.model.pad
        order[:count], order[count:] = words.order, np.arange(count, len(order))
        rows[:count], rows[count:] = words.rows, 0
        starts[0], starts[1:] = 0, count  # also of texts that are not there
        starts[1 : len(lengths) + 1] = np.cumsum(lengths)
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

    def open(self) -> None:
        """Embeds the words in their rows."""
        starts = self.texts.starts
        owners = torch.searchsorted(starts, self.numbers, right=True) - 1
        positions = (self.numbers - starts[owners]).clamp(max=self.model.config.max_positions - 1)
        tokens, positions = (numbers.index_select(0, self.order)[None] for numbers in (self.tokens, positions))
        self.x.copy_(self.model.source(tokens, positions)[0])

    def advance(self, number: int, count: int, alike: bool) -> None:
        """One layer, for so many rows; `alike` if all words have one depth."""
        layer = self.model.encoder.layers[self.plan.layers[number]]
        assert isinstance(layer, Layer)
        attend, step = self.attend_all if alike else self.attend, Step(self.steps[number], self.tile(count))
        branch = layer.attention.out(attend(layer, count, step))
        between, last = layer.ffn_norm if layer.norm_first else layer.attention_norm, layer.ffn_norm
        add_branch(self.x, branch, step.numbers, a_norm(between), self.entered)
        branch = layer.feed_forward(self.entered[:count])
        add_branch(self.x, branch, step.numbers, a_norm(last) if layer.norm_last else None, self.x)

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

    def close(self) -> None:
        states = self.model.norm(self.x).to(self.x.dtype)
        self.logits.copy_(self.model.logits(pool_texts(states, self.texts).to(self.x.dtype)))


def a_norm(module: nn.Module) -> nn.LayerNorm | None:
    return module if isinstance(module, nn.LayerNorm) else None


class PlacesByShape:
    """Of one classifier, made at first sight."""

    def __init__(self, model: Classifier) -> None:
        device = model.output.weight.device
        self.model, self.recorder = model, Recorder() if device.type == "cuda" else None
        self.made: OrderedDict[object, WordPlaces] = OrderedDict()

    def read(self, plan: Plan, refresh: bool, tokens: Array, depths: Array, lengths: Array) -> Tensor:
        shape = Shape.of(lengths)
        key = (plan, refresh, shape)
        if key not in self.made:
            while len(self.made) >= MOST:
                self.made.popitem(last=False)
            self.made[key] = WordPlaces(self.model, plan, refresh, shape, self.recorder)
        self.made.move_to_end(key)
        return self.made[key].read(tokens, depths, lengths)
