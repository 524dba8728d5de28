"""A translator whose shallow decoder exit drafts what its full depth confirms (decoding/speculative.py)."""

from typing import Self

import torch
from torch import Tensor

from anydepth.errors import UserError
from anydepth.models import Translator
from anydepth.nn.attention import Padded
from anydepth.nn.bridge import Memory
from anydepth.nn.cache import FixedCache
from anydepth.plan import Plan, Plans


class TranslatorDrafter:
    """One growing translation per row, at a position of its own.

    Where the draft's layers are the first of the full depth's, the two share them: states and caches of the draft are
    those of the full depth, which runs only the layers above. Otherwise (sub-networks) the draft has caches of its own.
    """

    def __init__(self, model: Translator, plans: Plans, draft: Plan, room: int, key: str = "") -> None:
        """`room` words at most in a row, drafted ones included."""
        if model.decoder.mix is not None:
            raise UserError("speculate: with DLCL the layers above a draft read all states below it, not its last one")
        self.model, self.plans, self.key = model, plans, key
        self.known_gates: dict[Plans, tuple[Tensor | None, Tensor | None]] = {}
        self.shared = draft.layers == plans.decoder.layers[: len(draft)]
        self.low = Part(draft, room)
        self.high = Part(Plan(plans.decoder.layers[len(draft) :]) if self.shared else plans.decoder, room)

    def open(self, source: Tensor, memory: Tensor | None = None) -> Self:
        """Reads (R, S) padded sources, unless all that the decoder reads of them is known, a `memory` (R, S, D); and
        prepares them for its attention."""
        model, plans = self.model, self.plans
        model.source.check_length(source.shape[1])
        self.sees = Padded((source != model.pad)[:, None, None, :])
        if self.shared:
            steps = self.encode(source, plans, memory)
            self.low.reads(model, steps[: len(self.low.plan)])
            self.high.reads(model, steps[len(self.low.plan) :])
        else:
            self.low.reads(model, self.encode(source, plans._replace(decoder=self.low.plan)))
            self.high.reads(model, self.encode(source, plans))
        return self

    def encode(self, source: Tensor, plans: Plans, memory: Tensor | None = None) -> list["Step"]:
        positions = torch.arange(source.shape[1], device=source.device)[None]
        encoder_gates, gates = self.gates(plans, source)
        if memory is None:
            memories = self.model.encode(source, positions, self.sees, plans, encoder_gates)
        else:
            memories = [Memory(memory)] * len(plans.decoder)
        return list(zip(memories, [None] * len(memories) if gates is None else gates))

    def gates(self, plans: Plans, source: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Computed once, unless each sentence has its own."""
        if plans in self.known_gates:
            return self.known_gates[plans]
        found = self.model.gates(plans, self.key, source)
        if not per_sentence(found):
            self.known_gates[plans] = found
        return found

    def read(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return self.run(self.low, self.embed(tokens, positions), positions)

    def exit(self, states: Tensor) -> Tensor:
        return self.model.logits(self.model.norm(states))[:, -1]

    def judge(self, tokens: Tensor, states: list[Tensor], positions: Tensor) -> Tensor:
        x = torch.cat(states, dim=1) if self.shared else self.embed(tokens, positions)
        return self.model.logits(self.model.norm(self.run(self.high, x, positions)))

    def reorder(self, rows: Tensor) -> None:
        assert self.sees.keys is not None
        self.sees = Padded(self.sees.keys[rows])
        self.low.reorder(rows)
        self.high.reorder(rows)

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        # words drafted beyond the last position are never kept
        return self.model.target(tokens, positions.clamp(max=self.model.target.longest - 1))

    def run(self, part: "Part", x: Tensor, positions: Tensor) -> Tensor:
        part.cache.stand_at(positions)
        decoder = self.model.decoder
        for state in decoder.states(x, part.plan, part.gates, Padded(None), part.memories, self.sees, part.cache):
            x = state
        return x


def recordable(model: Translator, plans: Plans, key: str) -> bool:
    """Whether all that a search computes is the same for every batch of a shape."""
    gates = model.gates(plans, key, torch.zeros(1, 1, dtype=torch.long, device=model.output.weight.device))
    return model.decoder.mix is None and not model.config.sentence_layers and not per_sentence(gates)


def per_sentence(gates: tuple[Tensor | None, Tensor | None]) -> bool:
    return any(gate is not None and gate.dim() > 1 for gate in gates)


Step = tuple[Memory, Tensor | None]
"""What a decoder step reads, and its gate."""


class Part:
    """Some steps of the decoder, with what they read and remember."""

    def __init__(self, plan: Plan, room: int) -> None:
        self.plan, self.cache = plan, FixedCache(len(plan), room)
        self.memories: list[Memory] = []
        self.gates: Tensor | None = None

    def reads(self, model: Translator, steps: list[Step]) -> None:
        self.memories = [memory for memory, _ in steps]
        gates = [gate for _, gate in steps if gate is not None]
        self.gates = torch.stack(gates) if gates else None
        for layer, memory, slot in zip(self.plan.layers, self.memories, self.cache.slots):
            model.decoder.hold(layer, slot, memory)

    def reorder(self, rows: Tensor) -> None:
        self.cache.reorder(rows)
        if self.gates is not None and self.gates.dim() > 1:  # each sentence has its own
            self.gates = self.gates[:, rows]
