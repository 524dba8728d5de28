"""Texts all of whose words run through the same layers, in fixed places (places.py): those of a plain classifier, and
of one whose texts leave early, part by part of its layers (leaving_places.py).

Words stand text by text, as flash attention wants them, and all layers are recorded as one.
"""

from functools import partial
from itertools import accumulate, pairwise, starmap

import numpy as np
import torch
from torch import Tensor

from anydepth.classifying.places import Records, Shape, after_attention, answer_texts, rounded, up_to_multiple
from anydepth.encoder_models import Classifier
from anydepth.nn.attention import Packed, attend_packed
from anydepth.nn.layers import Layer
from anydepth.nn.packed_attention import BLOCK
from anydepth.nn.recorder import Recorder
from anydepth.nn.row_attention import Texts
from anydepth.nn.row_states import Listed, embed_rows
from anydepth.plan import Plan

Array = np.ndarray


class TextPlaces:
    """Batches of one shape, read by some layers of a classifier."""

    def __init__(
        self,
        model: Classifier,
        plan: Plan,
        shape: Shape,
        recorder: Recorder | None,
        entry: Tensor | None = None,
        exit: Tensor | None = None,
    ) -> None:
        """Words come from rows of `entry`, instead of being embedded, and their states go to `exit`."""
        self.model, self.plan, self.shape, self.entry, self.exit = model, plan, shape, entry, exit
        self.records, self.heads = Records(recorder), model.config.layer.heads
        weight, width = model.output.weight, model.config.layer.width
        # numbers of 32 bits: all begin at multiples of 16 bytes
        sizes = [4, up_to_multiple(shape.texts + 1, 4), shape.words, 0 if entry is not None else shape.words]
        self.parts = list(starmap(slice, pairwise(accumulate(sizes, initial=0))))
        self.given = torch.zeros(sum(sizes), dtype=torch.int32, device=weight.device)
        self.count, starts, self.tokens, positions = self.given.split(sizes)
        self.starts = starts[: shape.texts + 1]
        rows = torch.arange(shape.words, dtype=torch.int32, device=weight.device)
        self.listed = Listed(self.tokens, positions, rows)
        self.texts = Texts(rows, self.starts, rows[:0].view(2, 0))
        self.x = weight.new_zeros(shape.words, width)
        self.entered = torch.zeros_like(self.x) if model.config.layer.norm == "pre" else self.x
        self.logits = torch.zeros(shape.texts, model.output.num_embeddings, device=weight.device)

    @torch.no_grad()
    def read(self, words: Array, lengths: Array) -> Tensor:
        """The words of some texts, one text after the other: tokens, or rows of the entry → (texts, labels) logits. A
        GPU need not have read one batch when it is asked to read the next."""
        self.take(words, lengths)
        count = rounded(len(words), self.shape.words)
        self.records.do(count, partial(self.advance, count))
        return self.logits[: len(lengths)].clone()

    def take(self, words: Array, lengths: Array) -> None:
        """In one copy, which from pinned memory nobody waits for."""
        host = torch.empty(len(self.given), dtype=torch.int32, pin_memory=self.given.is_cuda)
        numbers, ends = host.numpy(), np.cumsum(lengths, dtype=np.int32)
        count, starts, tokens, positions = (numbers[part] for part in self.parts)
        count[:], starts[0], starts[1 : len(ends) + 1], starts[len(ends) + 1 :] = len(words), 0, ends, len(words)
        tokens[: len(words)], tokens[len(words) :] = words, 0  # what stands behind the last word is looked up, too
        if len(positions):
            begins = np.repeat(ends - lengths.astype(np.int32), lengths)
            np.subtract(np.arange(len(words), dtype=np.int32), begins, out=positions[: len(words)])
        self.given.copy_(host, non_blocking=True)

    def advance(self, count: int) -> None:
        """All layers, for so many rows."""
        x = self.x[:count]
        if self.entry is None:
            embed_rows(x, self.model.source, self.listed, self.count)
        else:
            torch.index_select(self.entry, 0, self.tokens[:count], out=x)
        for number in self.plan.layers:
            layer = self.model.encoder.layers[number]
            assert isinstance(layer, Layer)
            after_attention(layer, self.x, self.attend(layer, x), self.entered, self.count)
        self.logits.copy_(answer_texts(self.model, x, self.texts))
        if self.exit is not None:
            self.exit[:count] = x

    def attend(self, layer: Layer, x: Tensor) -> Tensor:
        qkv = layer.attention.qkv(layer.enter(x, layer.attention_norm))
        q, k, v = qkv.view(1, len(x), 3, self.heads, -1).unbind(2)
        longest = self.shape.longest
        sees = Packed(self.starts, self.starts, longest, longest)
        return attend_packed(q, k, v, sees, causal=False, dropout=0.0, short=BLOCK)[0].flatten(1)
