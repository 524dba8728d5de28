"""Words with depths of their own, in fixed places (places.py).

A layer is recorded for several numbers of running words, and the host, which knows the depths, chooses among them.
Attention does not care in which order words stand: positions are in their embeddings. So the words of the whole batch
stand sorted by depth, the deepest first, and those that run in a layer are its first rows. Nothing is gathered and
nothing put back. Where each text's words are is a list that attention looks into (nn/row_attention.py).
"""

import itertools
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anydepth.classifying.places import Records, Shape, after_attention, answer_texts, rounded, up_to_multiple
from anydepth.encoder_models import Classifier
from anydepth.nn.layers import Layer
from anydepth.nn.recorder import Recorder
from anydepth.nn.row_attention import Step, Texts, Tile, attend_rows, choose_tile, step_numbers
from anydepth.nn.row_states import Listed, embed_rows
from anydepth.plan import Plan

Array = np.ndarray


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


class WordPlaces:
    """Batches of one shape, read by a classifier at one depth."""

    def __init__(self, model: Classifier, plan: Plan, refresh: bool, shape: Shape, recorder: Recorder | None) -> None:
        self.model, self.plan, self.refresh, self.shape = model, plan, refresh, shape
        self.records = Records(recorder)
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

    @torch.no_grad()
    def read(self, tokens: Array, depths: Array, lengths: Array) -> Tensor:
        """The words of some texts, one text after the other, and their depths → (texts, labels) logits. A GPU need not
        have read one batch when it is asked to read the next."""
        words = Sorted.by_depth(depths, lengths, len(self.plan))
        counts = words.running.sum(1).tolist()
        running = [rounded(count, self.shape.words) for count in counts if count]
        self.take(tokens, words, lengths, [self.tile(count) for count in running])
        for number, count in enumerate(running):
            last = number == len(running) - 1
            self.records.do((number, count, last), partial(self.advance, number, count, last))
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
        # what stands behind the last word is never read
        own_tokens[:count], order[:count], rows[:count] = tokens, words.order, words.rows
        np.subtract(np.arange(count, dtype=np.int32), np.repeat(begins, lengths), out=positions[:count])
        self.given.copy_(host, non_blocking=True)

    def tile(self, count: int) -> Tile:
        return choose_tile(count, self.shape.texts, self.heads, self.x.dtype)

    def advance(self, number: int, count: int, last: bool) -> None:
        """One layer, for so many rows. The first one is given embedded words, and the last one answers."""
        if number == 0:
            embed_rows(self.x, self.model.source, self.listed, self.steps[0])
        layer = self.model.encoder.layers[self.plan.layers[number]]
        assert isinstance(layer, Layer)
        step = Step(self.steps[number], self.tile(count))
        after_attention(layer, self.x, self.attend(layer, count, step), self.entered, step.numbers)
        if last:
            self.logits.copy_(answer_texts(self.model, self.x, self.texts))

    def attend(self, layer: Layer, count: int, step: Step) -> Tensor:
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
