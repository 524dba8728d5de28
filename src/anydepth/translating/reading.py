"""What translators that decode in fixed places share: sources read ahead of the first word, steps with their caches."""

import torch
from torch import Tensor

from anydepth.models import Translator
from anydepth.nn.attention import Padded
from anydepth.nn.bridge import Memory
from anydepth.nn.cache import BeamCache, FixedCache, as_scores
from anydepth.nn.layers import Layer
from anydepth.plan import Plan, Plans
from anydepth.translating import quick, quick_reading

Step = tuple[Memory, Tensor | None]
"""What a decoder step reads, and its gate."""


class Reader:
    """Reads padded sources for the decoder's attention."""

    sees: Padded
    """The words of the sources."""
    words: Tensor | None
    """(R · S, D) their embeddings, where kernels for few words read them."""

    def __init__(self, model: Translator, key: str) -> None:
        self.model, self.key = model, key
        self.known_gates: dict[Plans, tuple[Tensor | None, Tensor | None]] = {}

    def look_at(self, source: Tensor) -> None:
        """(R, S), padded."""
        self.model.source.check_length(source.shape[1])
        self.source, self.words = source, None
        if quick_reading.fits(self.model, source):
            self.words, seen = quick_reading.embed(self.model, source)
        else:
            seen = as_scores((source != self.model.pad)[:, None, None, :], self.model.output.weight.dtype)
        self.sees = Padded(seen)

    def steps(self, plans: Plans, memory: Tensor | None = None) -> list[Step]:
        """Of the decoder; a `memory`, (R, S, D), is all that it reads of the sources, known from before."""
        encoder_gates, gates = self.gates(plans)
        if memory is not None:
            memories = [Memory(memory)] * len(plans.decoder)
        else:
            memories = self.read(plans, encoder_gates)
        return list(zip(memories, [None] * len(memories) if gates is None else gates))

    def read(self, plans: Plans, gates: Tensor | None) -> list[Memory]:
        """What each decoder step attends to."""
        if self.words is not None and (gates is None or gates.dim() == 1):
            assert self.sees.keys is not None
            state = quick_reading.read(self.model, self.words, plans.encoder, gates, self.sees.keys)
            return [Memory(state)] * len(plans.decoder)
        positions = torch.arange(self.source.shape[1], device=self.source.device)[None]
        return self.model.encode(self.source, positions, self.sees, plans, gates)

    def gates(self, plans: Plans) -> tuple[Tensor | None, Tensor | None]:
        """Computed once, unless each sentence has its own."""
        if plans in self.known_gates:
            return self.known_gates[plans]
        found = self.model.gates(plans, self.key, self.source)
        if not per_sentence(found):
            self.known_gates[plans] = found
        return found

    def reorder(self, rows: Tensor) -> None:
        assert self.sees.keys is not None
        self.sees = Padded(self.sees.keys[rows])


class Part:
    """Some steps of the decoder, with what they read and remember."""

    def __init__(self, plan: Plan, cache: FixedCache | BeamCache) -> None:
        self.plan, self.cache = plan, cache
        self.memories: list[Memory] = []
        self.gates: Tensor | None = None

    def reads(self, model: Translator, steps: list[Step], sees_memory: Padded) -> None:
        assert sees_memory.keys is not None
        self.memories = [memory for memory, _ in steps]
        gates = [gate for _, gate in steps if gate is not None]
        self.gates = torch.stack(gates) if gates else None
        quick_reading.hold(model, self.plan, self.cache.slots, self.memories, sees_memory.keys)

    def run(self, model: Translator, x: Tensor, sees_memory: Padded, into: Tensor | None = None) -> Tensor:
        """(R, q, D) the state below these steps → that above, perhaps into a place for it."""
        if quick.fits(model) and quick.takes(x, self.gates):
            assert sees_memory.keys is not None
            layers = [layer for n in self.plan.layers if isinstance(layer := model.decoder.layers[n], Layer)]
            return quick.run(layers, x, self.gates, self.cache.slots, sees_memory.keys, into)
        given = (self.gates, Padded(None), self.memories, sees_memory, self.cache)
        for state in model.decoder.states(x, self.plan, *given):
            x = state
        return x if into is None else into.copy_(x)

    def reorder(self, rows: Tensor) -> None:
        assert isinstance(self.cache, FixedCache)
        self.cache.reorder(rows)
        if self.gates is not None and self.gates.dim() > 1:  # each sentence has its own
            self.gates = self.gates[:, rows]


def recordable(model: Translator, plans: Plans, key: str) -> bool:
    """Whether all that a search computes is the same for every batch of a shape."""
    gates = model.gates(plans, key, torch.zeros(1, 1, dtype=torch.long, device=model.output.weight.device))
    return model.decoder.mix is None and not model.config.sentence_layers and not per_sentence(gates)


def per_sentence(gates: tuple[Tensor | None, Tensor | None]) -> bool:
    return any(gate is not None and gate.dim() > 1 for gate in gates)
