"""A translator whose shallow decoder exit drafts what its full depth confirms (decoding/speculative.py)."""

from typing import Self

import torch
from torch import Tensor

from anydepth.decoding.picking import Candidates, Next
from anydepth.errors import UserError
from anydepth.models import Translator
from anydepth.nn.cache import FixedCache, RoomFor, new_room
from anydepth.plan import Plan, Plans
from anydepth.translating import quick
from anydepth.translating.reading import Part, Reader


class TranslatorDrafter:
    """One growing translation per row, at a position of its own.

    Where the draft's layers are the first of the full depth's, the two share them: states and caches of the draft are
    those of the full depth, which runs only the layers above. Otherwise (sub-networks) the draft has caches of its own.
    """

    def __init__(
        self, model: Translator, plans: Plans, draft: Plan, room: int, key: str = "", room_for: RoomFor = new_room
    ) -> None:
        """`room` words at most in a row, drafted ones included."""
        if model.decoder.mix is not None:
            raise UserError("speculate: with DLCL the layers above a draft read all states below it, not its last one")
        self.model, self.plans, self.room = model, plans, room
        self.reader = Reader(model, key)
        self.shared = draft.layers == plans.decoder.layers[: len(draft)]
        above = Plan(plans.decoder.layers[len(draft) :]) if self.shared else plans.decoder
        weight = model.output.weight
        self.low, self.high = (
            Part(plan, FixedCache(len(plan), room, weight.dtype, weight.device, room_for)) for plan in (draft, above)
        )
        self.used: int | None = None
        self.counts_words = quick.fits(model)

    def open(self, source: Tensor, memory: Tensor | None = None) -> Self:
        """Reads (R, S) padded sources, unless all that the decoder reads of them is known, a `memory` (R, S, D); and
        prepares them for its attention."""
        model, plans = self.model, self.plans
        self.reader.look_at(source)
        sees = self.reader.sees
        if self.shared:
            steps = self.reader.steps(plans, memory)
            self.low.reads(model, steps[: len(self.low.plan)], sees)
            self.high.reads(model, steps[len(self.low.plan) :], sees)
        else:
            self.low.reads(model, self.reader.steps(plans._replace(decoder=self.low.plan)), sees)
            self.high.reads(model, self.reader.steps(plans), sees)
        return self

    def reach(self, used: int) -> None:
        """No word of the next passes stands at `used` or later: tells how much of the caches is looked at."""
        self.used = used

    def read(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return self.run(self.low, self.embed(tokens, positions), positions)

    def read_next(self, embedded: Tensor, positions: Tensor, into: Tensor) -> Tensor:
        return self.run(self.low, embedded, positions, into)

    def next_words(self, rows: int) -> Next | None:
        return quick.next_words(self.model, rows)

    def exit(self, states: Tensor) -> Tensor:
        return quick.logits(self.model, states)[:, -1]

    def judge(self, tokens: Tensor, states: list[Tensor], positions: Tensor) -> Tensor:
        return quick.logits(self.model, self.above(tokens, states, positions))

    def above(self, tokens: Tensor, states: list[Tensor], positions: Tensor) -> Tensor:
        joined = states[0] if len(states) == 1 else torch.cat(states, dim=1)
        x = joined if self.shared else self.embed(tokens, positions)
        return self.run(self.high, x, positions)

    def choices(self, states: Tensor, forbidden: tuple[int, int]) -> Tensor | Candidates:
        return quick.choices(self.model, states, forbidden)

    def reorder(self, rows: Tensor) -> None:
        self.reader.reorder(rows)
        self.low.reorder(rows)
        self.high.reorder(rows)

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        last = self.model.target.longest - 1
        # words drafted beyond the last position are never kept
        return quick.embed(self.model, tokens, positions if self.room <= last else positions.clamp(max=last))

    def run(self, part: Part, x: Tensor, positions: Tensor, into: Tensor | None = None) -> Tensor:
        if not len(part.plan):
            return x if into is None else into.copy_(x)
        used = self.used
        if used is None:  # the host knows how far a CPU has got; to ask a GPU would make it wait
            used = self.room if positions.is_cuda else int(positions.max()) + 1
        assert isinstance(part.cache, FixedCache)
        part.cache.stand_at(positions, used)
        return part.run(self.model, x, self.reader.sees, into)
