"""Batches of texts with labels, padded or packed like any text."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from anydepth.data.collate import Packing, mapped, one_row, pack, pad_rows
from anydepth.data.cutting import Limits
from anydepth.data.store import Store
from anydepth.nn.perword import Words, lay_out
from anydepth.plan import BothNoises, Part

Array = np.ndarray

NO_LABEL = -1
"""Where a packed row has a segment of padding, or nothing at all: the loss leaves it out."""


class LabelledBatch(NamedTuple):
    source: Tensor
    """(B, S) int64, each text with eos; (1, N) if packed."""
    target_out: Tensor
    """(B,) int64, the label of each text; packed, of each segment."""
    packing: Packing | None
    key: str
    tokens: int
    """Words read, ends of texts included, padding not."""
    sentences: int
    noise: BothNoises = (None, None)
    parts: tuple[Part, ...] = ()
    words: Words | None = None
    """Where words have depths of their own."""

    @property
    def predictions(self) -> int:
        """What the loss is a mean over."""
        return self.sentences

    @property
    def packed(self) -> bool:
        """Whether all batches have one shape."""
        return self.packing is not None

    def to(self, device: torch.device | str) -> "LabelledBatch":
        return mapped(lambda tensor: tensor.to(device, non_blocking=True), self)

    def pin_memory(self) -> "LabelledBatch":
        return mapped(Tensor.pin_memory, self)


def labelled_batch(
    store: Store, texts: Array, labels: Array, limits: Limits, depths: Array | None = None
) -> LabelledBatch:
    """These texts of a corpus, with these labels and, where they have any, the depths of their words."""
    words, lengths = store.source(texts)
    packed = limits.layout == "packed" and depths is None
    packing = pack(lengths, limits.target, limits) if packed else None
    answers = np.full(len(packing.starts) - 1 if packing else len(texts), NO_LABEL, dtype=np.int64)
    answers[: len(texts)] = labels
    if packed:
        rows = one_row(words, limits.target, store.source_pad)
    else:
        rows = pad_rows(words, lengths, store.source_pad, limits.multiple)
    return LabelledBatch(
        source=rows,
        target_out=torch.from_numpy(answers),
        packing=packing,
        key=store.key,
        tokens=len(words),
        sentences=len(texts),
        words=None if depths is None else lay_out(depths, lengths, rows.shape[1]),
    )
