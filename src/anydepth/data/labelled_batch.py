"""Batches of texts with labels, padded or packed like any text."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from anydepth.data.batching import Limits
from anydepth.data.collate import Packing, mapped, one_row, pack, pad_rows
from anydepth.data.store import Store
from anydepth.plan import BothNoises

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

    @property
    def predictions(self) -> int:
        """What the loss is a mean over."""
        return self.sentences

    @property
    def packed(self) -> bool:
        return self.packing is not None

    def to(self, device: torch.device | str) -> "LabelledBatch":
        return mapped(lambda tensor: tensor.to(device, non_blocking=True), self)

    def pin_memory(self) -> "LabelledBatch":
        return mapped(Tensor.pin_memory, self)


def labelled_batch(store: Store, texts: Array, labels: Array, limits: Limits) -> LabelledBatch:
    """These texts of a corpus, with these labels."""
    words, lengths = store.source(texts)
    packed = limits.layout == "packed"
    packing = pack(lengths, limits.target, limits) if packed else None
    answers = np.full(len(packing.starts) - 1 if packing else len(texts), NO_LABEL, dtype=np.int64)
    answers[: len(texts)] = labels
    row = one_row(words, limits.target, store.source_pad) if packed else None
    return LabelledBatch(
        source=pad_rows(words, lengths, store.source_pad, limits.multiple) if row is None else row,
        target_out=torch.from_numpy(answers),
        packing=packing,
        key=store.key,
        tokens=len(words),
        sentences=len(texts),
    )
