"""What all models have in common: the plans of a depth, their gates, and logits from states."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from anydepth.data.any_batch import AnyBatch
from anydepth.depth import Depth
from anydepth.depth.policy import NoLayers
from anydepth.nn.layers import initialise, scale_by_depth
from anydepth.nn.stack import Stack
from anydepth.nn.stack_config import StackConfig
from anydepth.plan import BothNoises, Part, Plans, Request, depth_name, parse_depth


class Planned(nn.Module):
    """What a model of one stack or two answers about its plans, and what training reads of any model."""

    encoder: Stack
    encoder_depth: Depth
    decoder_depth: Depth
    """`NoLayers` where there is no decoder."""
    output: nn.Embedding
    """(V, D) the matrix that makes logits."""
    output_bias: Tensor | None
    pad: int
    parse = staticmethod(parse_depth)

    def __init__(self) -> None:
        super().__init__()
        self.head: nn.Module | None = None
        """What makes logits where the matrix is not used as it stands (translating/precision.py)."""

    @property
    def no_target(self) -> int:
        """What stands in a batch's targets where nothing is to be predicted."""
        return self.pad

    @property
    def policies(self) -> dict[str, Depth]:
        """Of the stacks there are, by name."""
        both = {"encoder": self.encoder_depth, "decoder": self.decoder_depth}
        return {name: policy for name, policy in both.items() if not isinstance(policy, NoLayers)}

    def depths(self, key: str = "") -> list[str]:
        """Every depth this model can be run at, deepest last."""
        encoder, decoder = self.encoder_depth.plans(key), self.decoder_depth.plans(key)
        return [depth_name(m, n) for m in sorted(encoder) for n in sorted(decoder)]

    def plan(self, depth: str | None = None, key: str = "") -> Plans:
        """The plans of a depth such as "6-2", or the deepest ones."""
        encoder, decoder = (None, None) if depth is None else self.parse(depth)
        return Plans(self.encoder_depth.plan(Request(encoder, key)), self.decoder_depth.plan(Request(decoder, key)))

    def sample(self, key: str, encoder: Generator, decoder: Generator) -> Plans:
        """The plans of one training step."""
        request = Request(key=key)
        return Plans(self.encoder_depth.sample(request, encoder), self.decoder_depth.sample(request, decoder))

    def noise(self, step: int, encoder: Generator, decoder: Generator) -> BothNoises:
        """What the gates of one training batch are drawn with."""
        return self.encoder_depth.noise(step, encoder), self.decoder_depth.noise(step, decoder)

    def gates(
        self, plans: Plans, key: str, source: Tensor, noise: BothNoises = (None, None)
    ) -> tuple[Tensor | None, Tensor | None]:
        """The gates of both stacks: of a training step if there is noise, else for inference."""
        requests = [Request(key=key, tokens=source, pad=self.pad, stack=stack) for stack in (0, 1)]
        return (
            self.encoder_depth.gates(plans.encoder, requests[0], noise[0]),
            self.decoder_depth.gates(plans.decoder, requests[1], noise[1]),
        )

    def gates_of(
        self, batch: AnyBatch, plans: Plans, target: Tensor | None = None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Those of a batch. Drawn for a packed one they are (K, 1, N, 1): each part of a joined batch has its own, and
        a gate's gradient costs less there, a sum along each word beside others instead of one over all words."""
        parts = batch.parts or (Part(batch.key, batch.noise),)
        drawn = any(noise is not None for part in parts for noise in part.noise)
        if not (batch.packed and drawn):
            return self.gates(plans, parts[0].key, batch.source, parts[0].noise)
        encoder, decoder = zip(*(self.gates(plans, part.key, batch.source, part.noise) for part in parts))
        return spread(encoder, batch.source.shape[1]), spread(decoder, 0 if target is None else target.shape[1])

    def logits(self, states: Tensor) -> Tensor:
        """(…, D) → (…, V)"""
        if self.head is not None:
            logits: Tensor = self.head(states)
            return logits
        return F.linear(states, self.output.weight, self.output_bias)


def spread(parts: Sequence[Tensor | None], words: int) -> Tensor | None:
    """(K,) gates of each part → (K, 1, N, 1), those of each word; parts have equal shares of the words."""
    known = [gates for gates in parts if gates is not None]
    if not known:
        return None
    each = torch.stack(known, dim=1)[:, :, None]
    return each.expand(-1, -1, words // len(known)).reshape(len(each), 1, words, 1)


def initialise_stack(stack: Stack, settings: StackConfig) -> None:
    stack.apply(initialise)
    if settings.initialisation == "depth-scaled":
        scale_by_depth(stack.layers)
