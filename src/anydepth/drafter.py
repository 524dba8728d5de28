"""A translator whose shallow decoder exit drafts what its full depth confirms (decoding/speculative.py)."""

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

    def __init__(self, model: Translator, source: Tensor, plans: Plans, draft: Plan, room: int, key: str = "") -> None:
        """(B, S) padded sources; `room` words at most in a row, drafted ones included."""
        if model.decoder.mix is not None:
            raise UserError("speculate: with DLCL the layers above a draft read all states below it, not its last one")
        model.source.check_length(source.shape[1])
        self.model, self.sees = model, Padded((source != model.pad)[:, None, None, :])
        self.shared = draft.layers == plans.decoder.layers[: len(draft)]
        memories, gates = self.encode(source, plans, key)
        own = (memories, gates) if self.shared else self.encode(source, plans._replace(decoder=draft), key)
        self.low = Part(draft, *own, room)
        above = len(draft) if self.shared else 0
        rest = Plan(plans.decoder.layers[above:])
        self.high = Part(rest, memories[above:], None if gates is None else gates[above:], room)

    def encode(self, source: Tensor, plans: Plans, key: str) -> tuple[list[Memory], Tensor | None]:
        """What the decoder's steps read, and their gates."""
        positions = torch.arange(source.shape[1], device=source.device)[None]
        encoder_gates, decoder_gates = self.model.gates(plans, key, source)
        return self.model.encode(source, positions, self.sees, plans, encoder_gates), decoder_gates

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
        for part in (self.low, self.high):
            part.cache.reorder(rows)
            if part.gates is not None and part.gates.dim() > 1:  # each sentence has its own
                part.gates = part.gates[:, rows]

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        # words drafted beyond the last position are never kept
        return self.model.target(tokens, positions.clamp(max=self.model.target.longest - 1))

    def run(self, part: "Part", x: Tensor, positions: Tensor) -> Tensor:
        part.cache.stand_at(positions)
        decoder = self.model.decoder
        for state in decoder.states(x, part.plan, part.gates, Padded(None), part.memories, self.sees, part.cache):
            x = state
        return x


class Part:
    """Some steps of the decoder, with what they read and remember."""

    def __init__(self, plan: Plan, memories: list[Memory], gates: Tensor | None, room: int) -> None:
        self.plan, self.memories, self.gates = plan, memories, gates
        self.cache = FixedCache(len(plan), room)
