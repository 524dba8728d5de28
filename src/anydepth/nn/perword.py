"""A stack whose words stop at different depths, and are really left out from then on.

The words of a batch stand one after the other, text by text, without padding. At every step those that still run are
gathered, go through the layer as one smaller batch, and are put back; the others stay as they are, bit by bit. A
running word still attends to all words of its text (depth-adaptive Eq. 5). Which keys and values a stopped word has
there is a choice, made alike in training and inference:

    refresh    its last state, projected with the weights of the layer at hand, as in the paper: 2 · D² products a word
    keep       those of the last layer it ran: nothing is computed

Which words run at which step is known before the first one, from their depths: all index lists are made together, on
the CPU and in one tensor, so that a GPU gets them in one copy and never waits for them.
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anydepth.nn.attention import Packed, attend_packed
from anydepth.nn.layers import Layer
from anydepth.nn.packed_attention import BLOCK
from anydepth.nn.stack import Stack
from anydepth.plan import Plan

Array = np.ndarray


class Count(NamedTuple):
    """Of the words that run at one step."""

    words: int
    longest: int
    """Of one text at most."""


class Sizes(NamedTuple):
    """What the shapes of a layout follow from."""

    texts: int
    words: int
    width: int
    """Of the padded batch: its rows have so many places."""
    longest: int
    """Words of a text at most."""
    steps: tuple[Count, ...]
    """As many as the deepest word has layers."""

    @property
    def layer_words(self) -> int:
        """Words computed, summed over the layers: the sum of the depths."""
        return sum(step.words for step in self.steps)

    @property
    def refreshed_words(self) -> int:
        """Stopped words whose keys and values `refresh` makes again, summed over the layers."""
        return len(self.steps) * self.words - self.layer_words

    @property
    def starts(self) -> int:
        """64-bit numbers that texts + 1 numbers of 32 bits take."""
        return self.texts // 2 + 1


class Running(NamedTuple):
    """The words that run at one step, text by text."""

    words: Tensor | None
    """(n,) int64 their places among all words; None means all."""
    starts: Tensor
    """(B + 1,) int32 where the running words of each text begin."""
    longest: int
    """Running words of a text at most."""


class Words(NamedTuple):
    """The words of a batch without its padding, and which of them run at which step."""

    numbers: Tensor
    """int64, all that follows, one after the other."""
    sizes: Sizes

    @property
    def places(self) -> Tensor:
        """(N,) int64, where each word stands in the flattened batch."""
        return self.numbers[: self.sizes.words]

    @property
    def positions(self) -> Tensor:
        """(N,) int64, its place in its text."""
        return self.part(1)

    @property
    def depths(self) -> Tensor:
        """(N,) int64"""
        return self.part(2)

    @property
    def starts(self) -> Tensor:
        """(B + 1,) int32, where each text begins."""
        return self.starts_at(3 * self.sizes.words)

    @property
    def steps(self) -> list[Running]:
        """Made anew at every look."""
        sizes, found = self.sizes, []
        place = 3 * sizes.words + sizes.starts
        for words, longest in sizes.steps:
            if words == sizes.words:
                found.append(Running(None, self.starts, longest))
            else:
                some = self.numbers[place : place + words]
                found.append(Running(some, self.starts_at(place + words), longest))
                place += words + sizes.starts
        return found

    def part(self, number: int) -> Tensor:
        return self.numbers[number * self.sizes.words : (number + 1) * self.sizes.words]

    def starts_at(self, place: int) -> Tensor:
        return self.numbers[place : place + self.sizes.starts].view(torch.int32)[: self.sizes.texts + 1]


def lay_out(depths: Array, lengths: Array, width: int) -> Words:
    """Of texts of these lengths in rows of a padded batch of this width: the (N,) depths, 1 or more, of their words."""
    texts = np.repeat(np.arange(len(lengths)), lengths)
    positions = np.arange(len(texts)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    starts, longest = begin_and_longest(texts, len(lengths))
    parts, steps = [texts * width + positions, positions, depths.astype(np.int64), starts], []
    for step in range(1, int(depths.max(initial=0)) + 1):
        words = np.flatnonzero(depths >= step)
        begin, most = begin_and_longest(texts[words], len(lengths))
        steps.append(Count(len(words), most))
        parts += [] if len(words) == len(texts) else [words, begin]
    return Words(torch.from_numpy(np.concatenate(parts)), Sizes(len(lengths), len(texts), width, longest, tuple(steps)))


def begin_and_longest(texts: Array, count: int) -> tuple[Array, int]:
    """Where each text begins, two numbers in the place of one, and the words of the longest."""
    words, starts = np.bincount(texts, minlength=count), np.zeros(2 * (count // 2 + 1), dtype=np.int32)
    np.cumsum(words, out=starts[1 : count + 1])
    return starts.view(np.int64), int(words.max(initial=0))


def run_words(
    stack: Stack, x: Tensor, plan: Plan, words: Words, refresh: bool, kept: Tensor | None = None, first: int = 0
) -> tuple[Tensor, Tensor | None]:
    """(N, D) embedded words → (N, D), each as its own last layer left it; and the keys and values that are kept.

    `first` steps may have been done before, with what they kept.
    """
    starts, longest = words.starts, words.sizes.longest
    for layer, running in list(zip(plan.layers, words.steps))[first:]:
        sees = Packed(running.starts, starts, running.longest, longest)
        x, kept = stack.run(step, layer, x, kept, running.words, sees, refresh)
    return x, kept


def step(
    layer: Layer, x: Tensor, kept: Tensor | None, running: Tensor | None, sees: Packed, refresh: bool
) -> tuple[Tensor, Tensor | None]:
    """One layer for the running words. `kept` are the (N, 2D) keys and values of all words, if they are kept."""
    attention, norm = layer.attention, layer.attention_norm
    mine, width = (x if running is None else x.index_select(0, running)), x.shape[1]
    if running is None or not refresh:
        qkv = attention.qkv(layer.enter(mine, norm))
        q, kv = qkv[:, :width], qkv[:, width:]
        if running is not None:
            assert kept is not None
            kv = put(kept, running, kv)
        kept = None if refresh else kv
    else:
        weight, bias = attention.qkv.weight, attention.qkv.bias
        everyone = layer.enter(x, norm)
        kv = F.linear(everyone, weight[width:], None if bias is None else bias[width:])
        entered = mine if everyone is x else everyone.index_select(0, running)
        q = F.linear(entered, weight[:width], None if bias is None else bias[:width])
    k, v = kv.unflatten(1, (2, attention.heads, -1)).unbind(1)
    dropout = attention.dropout if layer.training else 0.0
    q = q.unflatten(1, (attention.heads, -1))
    attended = attend_packed(q[None], k[None], v[None], sees, causal=False, dropout=dropout, short=BLOCK)
    mine = layer.leave(mine, attention.out(attended[0].flatten(1)), None, norm)
    mine = layer.finish(mine, None, None, None)
    return (mine if running is None else put(x, running, mine)), kept


def put(into: Tensor, places: Tensor, rows: Tensor) -> Tensor:
    """With these rows in these places; in place where no gradient needs what was there."""
    rows = rows.to(into.dtype)
    return into.index_copy(0, places, rows) if torch.is_grad_enabled() else into.index_copy_(0, places, rows)
