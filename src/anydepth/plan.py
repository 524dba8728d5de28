"""Depth is data: which layers run, in which order.

    x_{k+1} = x_k + z_k · F_{l_k}(x_k)

A depth policy (`depth/`) turns a `Request` into a `Plan`, the layers l_0 … l_{K-1} of one stack. Not listed means not
computed, listed twice means recurrent. A plan is plain hashable numbers, so that caches, exports and reports can be
keyed by it; the gates z are tensors and travel beside it.

Shapes, everywhere in this library:
    B  sentences of a batch         D  width of the model
    T  target positions             H  attention heads
    S  source positions             V  vocabulary
    L  layers a stack owns          K  steps of a plan
    R  rows of a search (B × beam)  N  words of a packed batch
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from anydepth.errors import UserError


@dataclass(frozen=True)
class Plan:
    """The layers one stack runs, in order, counted from 0."""

    layers: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.layers)


@dataclass(frozen=True)
class Request:
    """What a policy may base its plan on."""

    depth: int | None = None
    """Layers wanted; None asks for the policy's deepest plan."""
    key: str = ""
    """Language, language pair or task, for policies that plan per key."""
    tokens: Tensor | None = None
    """(B, S) the input itself, for policies that look at it."""
    pad: int = 0
    """The padding in `tokens`, on the right."""
    stack: int = 0
    """0 for the encoder, 1 for the decoder: random draws of the two must differ."""


class Noise(NamedTuple):
    """What the gates of one training batch are drawn with, in one stack.

    Tensors, and part of the batch: a pass recorded as a CUDA graph reads them from where they were when it was
    recorded, and is replayed with other noise, another temperature, by copying those there (`training/graphs.py`).
    """

    logistic: Tensor
    """(rows, L) the difference of two Gumbel draws, one row per key."""
    temperature: Tensor
    """() τ of this step."""
    hard: Tensor
    """() 1 if the step's gates are 0 or 1, else 0."""

    def to(self, device: torch.device) -> "Noise":
        on_gpu = device.type == "cuda"  # from ordinary memory a copy would wait for all that the GPU has to do before
        return Noise(*((tensor.pin_memory() if on_gpu else tensor).to(device, non_blocking=True) for tensor in self))


BothNoises = tuple[Noise | None, Noise | None]
"""Of encoder and decoder; None where gates are not drawn."""


class Part(NamedTuple):
    """Whose an equal share of a joined batch is (`data/any_batch.py`): its gates are its own."""

    key: str
    noise: BothNoises


class Plans(NamedTuple):
    """One plan for each stack of a model."""

    encoder: Plan
    decoder: Plan = Plan(())
    """Without layers where a model has no decoder."""

    @property
    def name(self) -> str:
        return depth_name(len(self.encoder), len(self.decoder))


def depth_name(encoder: float, decoder: float = 0) -> str:
    """6-2, or 6 where there is no decoder."""
    return f"{encoder}-{decoder}" if decoder else f"{encoder}"


def parse_depth(text: str) -> tuple[int, int]:
    """'6-2' → (6, 2): encoder layers, decoder layers."""
    match = re.fullmatch(r"\s*(\d+)\s*-\s*(\d+)\s*", text)
    if not match:
        raise UserError(f"depth {text!r}: expected encoder-decoder layers, for example 6-2")
    return int(match[1]), int(match[2])


def parse_encoder_depth(text: str) -> tuple[int, int]:
    """'6' → (6, 0), of a model without a decoder."""
    if not re.fullmatch(r"\s*\d+\s*", text):
        raise UserError(f"depth {text!r}: this model has no decoder; expected encoder layers, for example 6")
    return int(text), 0
