"""The kinds of batches, and several packed ones as one: a GPU is at its best with many words, whatever their language.

Batches of one run have the same sizes, so that the words of each are an equal share of the row; `parts` says whose they
are. Languages that take turns have an update in common without kernels too small for the machine.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anydepth.data.collate import Batch, Packing
from anydepth.data.labelled_batch import LabelledBatch
from anydepth.data.masking import MaskedBatch
from anydepth.plan import Part

EncoderBatch = MaskedBatch | LabelledBatch
AnyBatch = Batch | EncoderBatch


def join(batches: Sequence[AnyBatch]) -> AnyBatch:
    """One batch with the words of all these, which are of one kind and packed, in their order."""
    first = batches[0]
    fields = {name: [getattr(batch, name) for batch in batches] for name in first._fields}
    changed = {name: joined(values) for name, values in fields.items() if isinstance(values[0], int | Tensor | Packing)}
    if "slots" in changed:
        changed["slots"] = torch.cat(moved(fields["slots"], first.source.shape[1]))
    parts = tuple(Part(batch.key, batch.noise) for batch in batches)
    return first._replace(**changed, key="", noise=(None, None), parts=parts)


def joined(values: Sequence[Any]) -> Any:
    """Numbers are added; words, (1, N) or (M,), and packed rows are put one behind the other."""
    if isinstance(values[0], int):
        return sum(values)
    if isinstance(values[0], Tensor):
        return torch.cat([*values], dim=-1)
    starts = moved([packing.starts for packing in values], values[0].positions.shape[1])
    ends = torch.cat([*(own[:-1] for own in starts), starts[-1][-1:]])
    return Packing(ends, values[0].longest, joined([packing.positions for packing in values]))


def moved(places: Sequence[Tensor], size: int) -> list[Tensor]:
    """Places in each row of this size as places in all of them."""
    return [own + number * size for number, own in enumerate(places)]
