"""A stack runs a plan: the whole idea in one loop."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from anydepth.nn.attention import Sees
from anydepth.nn.bridge import Memory
from anydepth.nn.cache import AnyCache, AnySlot
from anydepth.nn.context import Folded, fold
from anydepth.nn.gating import scale_ends
from anydepth.nn.layers import COMPILER, Gate, Layer, LayerConfig
from anydepth.nn.mix import LinearMix
from anydepth.plan import Plan


class Stack(nn.Module):
    """L layers, and no opinion about which of them run."""

    recompute = False
    """Keep only each layer's input and compute the rest again in the backward pass (activation checkpointing)."""

    def __init__(
        self, config: LayerConfig, layers: int, decoder: bool, mix: str = "residual", fusion: str | None = None
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config, decoder, fusion) for _ in range(layers))
        self.mix = LinearMix(config, layers) if mix == "dlcl" else None
        self.compiled: dict[Callable[..., Any], Callable[..., Any]] = {}

    def states(
        self,
        x: Tensor,
        plan: Plan,
        gates: Tensor | None,
        sees: Sees,
        memories: Sequence[Memory] | None = None,
        sees_memory: Sees | None = None,
        cache: AnyCache | None = None,
    ) -> Iterator[Tensor]:
        """x_0 … x_K. To exit early, stop asking.

        gates, (K,), (K, B, 1, 1) or (K, 1, N, 1), scale the steps; memories are what each step reads besides its input,
        known when it runs; the cache has a slot a step.
        """
        mixed = None if self.mix is None else self.mix.start(x, len(plan))
        x = x if mixed is None else mixed(x)
        yield x
        folded = self.folded(plan) if self.training else []
        for step, (layer, gate) in enumerate(zip(plan.layers, self.gates(plan, gates))):
            memory = None if memories is None else memories[step]
            slot = None if cache is None else cache.slots[step]
            x = self.step(layer, x, gate, sees, memory, sees_memory, slot, folded[step] if folded else None)
            x = x if mixed is None else mixed(x)
            yield x

    def step(
        self,
        layer: int,
        x: Tensor,
        gate: Gate,
        sees: Sees,
        memory: Memory | None = None,
        sees_memory: Sees | None = None,
        slot: AnySlot | None = None,
        folded: Folded | None = None,
    ) -> Tensor:
        """One layer: x + z · F_l(x)."""
        state, context = memory or (None, None)
        return self.run(Layer.__call__, layer, x, gate, sees, state, sees_memory, slot, context, folded)

    def gates(self, plan: Plan, gates: Tensor | None) -> Sequence[Gate]:
        """Of each step."""
        if gates is None:
            return [None] * len(plan)
        layers = [self.layers[layer] for layer in plan.layers]
        ends = [ends for layer in layers if isinstance(layer, Layer) and (ends := layer.ends)]
        if self.training and gates.dim() == 1 and len(ends) == len(plan):
            return scale_ends(ends, gates)
        return gates.unbind()  # one gradient for all, not one for each

    def folded(self, plan: Plan) -> list[Folded]:
        """The projections of each step, where layers read a context."""
        layers = [self.layers[layer] for layer in plan.layers]
        foldable = [parts for layer in layers if isinstance(layer, Layer) and (parts := layer.foldable)]
        return fold(foldable) if foldable else []

    def begin(self, layer: int, x: Tensor, gate: Tensor | None, sees: Sees) -> Tensor:
        """The part of a layer that does not depend on the memory, for exits that share it."""
        return self.run(Layer.begin, layer, x, gate, sees)

    def finish(self, layer: int, x: Tensor, gate: Tensor | None, memory: Memory, sees_memory: Sees) -> Tensor:
        """The rest of a decoder layer that was begun."""
        return self.run(Layer.finish, layer, x, gate, memory.state, sees_memory, None, memory.context)

    def hold(self, layer: int, slot: AnySlot, memory: Memory) -> None:
        """Prepares the memory for a layer's attention ahead of the first word."""
        chosen = self.layers[layer]
        assert isinstance(chosen, Layer)
        chosen.hold(slot, memory.state, memory.context)

    def remember(self, layer: int, x: Tensor, slot: AnySlot) -> None:
        """What later words attend to of one that skips this layer in state x."""
        chosen = self.layers[layer]
        assert isinstance(chosen, Layer)
        chosen.remember(x, slot)

    def run(self, part: Callable[..., Any], layer: int, *given: Any) -> Any:
        if not self.training:
            return part(self.layers[layer], *given)
        part = self.compiled.get(part, part)
        if self.recompute:
            return checkpoint(part, self.layers[layer], *given, use_reentrant=False)
        return part(self.layers[layer], *given)

    def compile_for_training(self) -> None:
        """Compiles the layer, once for all layers and all plans (compiling the stack would make a graph for every
        plan). Inference keeps the plain layer: its shapes change with every word."""
        parts = (Layer.__call__, Layer.begin, Layer.finish)
        self.compiled = {part: torch.compile(part, options=COMPILER) for part in parts}
