"""A stack whose words stop at different depths, and are really left out from then on.

The words of a batch stand one after the other, text by text, without padding. At every step those that still run are
gathered, go through the layer as one smaller batch, and are put back; the others stay as they are, bit by bit. A
running word still attends to all words of its text (depth-adaptive Eq. 5). Which keys and values a stopped word has
there is a choice, made alike in training and inference:

    refresh    its last state, projected with the weights of the layer at hand, as in the paper: 2 · D² products a word
    keep       those of the last layer it ran: nothing is computed

Which words run at which step is known before the first one, from their depths: all index lists are made together, on
the CPU, so that a GPU never waits for them.
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

    places: Tensor
    """(N,) int64, where each word stands in the flattened batch."""
    positions: Tensor
    """(N,) int64, its place in its text."""
    texts: Tensor
    """(N,) int64, the text it belongs to."""
    starts: Tensor
    """(B + 1,) int32, where each text begins."""
    longest: int
    steps: tuple[Running, ...]
    """As many as the deepest word has layers."""
    depths: Tensor
    """(N,) uint8"""

    @property
    def layer_words(self) -> int:
        """Words computed, summed over the layers: the sum of the depths."""
        return sum(len(step.words if step.words is not None else self.texts) for step in self.steps)

    @property
    def refreshed_words(self) -> int:
        """Stopped words whose keys and values `refresh` makes again, summed over the layers."""
        return len(self.steps) * len(self.texts) - self.layer_words


def lay_out(depths: Array, lengths: Array, width: int) -> Words:
    """Of texts of these lengths in rows of a padded batch of this width: the (N,) depths, 1 or more, of their words."""
    texts = np.repeat(np.arange(len(lengths)), lengths)
    positions = np.arange(len(texts)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    starts, longest = begin_and_longest(texts, len(lengths))
    steps = []
    for step in range(1, int(depths.max(initial=0)) + 1):
        words = np.flatnonzero(depths >= step)
        if len(words) == len(depths):
            steps.append(Running(None, starts, longest))
        else:
            steps.append(Running(torch.from_numpy(words), *begin_and_longest(texts[words], len(lengths))))
    return Words(
        places=torch.from_numpy(texts * width + positions),
        positions=torch.from_numpy(positions),
        texts=torch.from_numpy(texts),
        starts=starts,
        longest=longest,
        steps=tuple(steps),
        depths=torch.from_numpy(depths.astype(np.uint8)),
    )


def begin_and_longest(texts: Array, count: int) -> tuple[Tensor, int]:
    words = np.bincount(texts, minlength=count)
    return torch.from_numpy(np.concatenate([[0], np.cumsum(words)]).astype(np.int32)), int(words.max(initial=0))


def run_words(
    stack: Stack, x: Tensor, plan: Plan, words: Words, refresh: bool, kept: Tensor | None = None, first: int = 0
) -> tuple[Tensor, Tensor | None]:
    """(N, D) embedded words → (N, D), each as its own last layer left it; and the keys and values that are kept.

    `first` steps may have been done before, with what they kept.
    """
    for layer, running in list(zip(plan.layers, words.steps))[first:]:
        sees = Packed(running.starts, words.starts, running.longest, words.longest)
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
