"""Fixed places for the words of a batch, so that what is done with them can be recorded as CUDA graphs.

Kernel by kernel, a batch of 32 reviews takes the CPU three times as long to ask for as the GPU to compute, and the time
that stopped words would save is not there to be saved. A graph has fixed shapes. So batches are padded to one of a few,
and work is recorded for several numbers of words: a few more than run, and what is computed for these is never stored
where anybody reads (nn/row_states.py). On a CPU the same code runs in plain PyTorch without being recorded, which is
how it is tested.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from torch import Tensor

from anydepth.encoder_models import Classifier
from anydepth.nn.layers import Layer
from anydepth.nn.recorder import Recorder, power_of_two
from anydepth.nn.row_attention import Texts
from anydepth.nn.row_states import a_norm, add_branch, pool_texts

Array = np.ndarray

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


def rounded(count: int, most: int) -> int:
    """The words that work is recorded for where so many run."""
    return min(most, up_to_multiple(count, max(32, power_of_two(count) // PARTS)))


class Records:
    """Work by name: the first time it is done and recorded, from then on replayed."""

    def __init__(self, recorder: Recorder | None) -> None:
        self.recorder = recorder
        self.made: dict[object, Callable[[], object]] = {}

    def do(self, key: object, work: Callable[[], object]) -> None:
        if self.recorder is None:
            work()
        elif key in self.made:
            self.made[key]()
        else:
            self.made[key] = self.recorder.record(work)


def after_attention(layer: Layer, x: Tensor, attended: Tensor, entered: Tensor, numbers: Tensor) -> None:
    """The rest of a layer for the first rows of x, of which numbers[0] run. `entered` is for what its feed-forward part
    reads: with post-norm x itself."""
    between = layer.ffn_norm if layer.norm_first else layer.attention_norm
    add_branch(x, layer.attention.out(attended), numbers, a_norm(between), entered)
    branch = layer.feed_forward(entered[: len(attended)])
    add_branch(x, branch, numbers, a_norm(layer.ffn_norm) if layer.norm_last else None, x)


def answer_texts(model: Classifier, x: Tensor, texts: Texts) -> Tensor:
    """(B, labels) logits of the last states of their words."""
    return model.logits(pool_texts(model.norm(x).to(x.dtype), texts))
