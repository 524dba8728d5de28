"""Depth by the word: a decoder that stops at a shallow exit where the model is sure of the next word."""

import torch
from torch import Tensor

from anydepth.errors import UserError
from anydepth.models import Translator
from anydepth.nn.attention import Padded
from anydepth.plan import Plan, Plans


class ConfidentDecoder:
    """One growing translation per row (the `Decoder` that searches drive).

    After the first `exit` layers the two most probable words are compared. Where their probabilities differ by at least
    `margin`, that is the word; the layers above it only get keys and values, of the state that the exit left, for the
    words that come after (as in CALM, Schuster et al. 2022). A margin of 0 always stops there, one of 1 never does.

    A row's words do not depend on the others; but layers above are skipped only where all rows are sure.
    """

    def __init__(
        self, model: Translator, source: Tensor, plans: Plans, exit: Plan, margin: float, key: str = ""
    ) -> None:
        if model.decoder.mix is not None:
            raise UserError("exit: with DLCL the layers above an exit read all states below it, not its last one")
        if exit.layers != plans.decoder.layers[: len(exit)]:
            raise UserError(
                f"exit {len(exit)}: its layers are not the first of {plans.name}, so nothing can go on from it"
            )
        self.model, self.plans, self.exit, self.margin = model, plans, len(exit), margin
        self.inner = model.start(source, plans, key)
        for number in range(self.exit, len(plans.decoder)):  # they may see their first word after rows have gone
            slot, memory = self.inner.cache.slots[number], self.inner.memories[number]
            model.decoder.hold(plans.decoder.layers[number], slot, memory)
        self.words = torch.zeros((), dtype=torch.long, device=source.device)
        self.stopped = torch.zeros_like(self.words)

    @property
    def mean_layers(self) -> float:
        """Decoder layers a word, on average so far."""
        words, stopped, deep = int(self.words), int(self.stopped), len(self.plans.decoder)
        return deep - (deep - self.exit) * stopped / max(1, words)

    def step(self, tokens: Tensor) -> Tensor:
        inner, model, (_, plan) = self.inner, self.model, self.plans
        position = inner.cache.length
        model.target.check_length(position + 1)
        x = model.target(tokens[:, None], torch.full((1, 1), position, device=tokens.device))
        for number in range(self.exit):
            x = self.layer(number, x)
        logits = self.logits(x)
        real = tokens != model.pad
        sure = self.is_sure(logits) & real
        self.words += real.sum()
        self.stopped += sure.sum()
        if bool((sure | ~real).all()):
            for number in range(self.exit, len(plan)):
                model.decoder.remember(plan.layers[number], x, inner.cache.slots[number])
        else:
            frozen = sure[:, None, None]
            for number in range(self.exit, len(plan)):
                x = x.where(frozen, self.layer(number, x))
            logits = logits.where(sure[:, None], self.logits(x))
        inner.cache.length += 1
        return logits

    def layer(self, number: int, x: Tensor) -> Tensor:
        inner = self.inner
        gate = None if inner.gates is None else inner.gates[number]
        memory, slot = inner.memories[number], inner.cache.slots[number]
        return self.model.decoder.step(
            self.plans.decoder.layers[number], x, gate, Padded(None), memory, inner.sees, slot
        )

    def logits(self, x: Tensor) -> Tensor:
        return self.model.logits(self.model.norm(x)[:, -1])

    def is_sure(self, logits: Tensor) -> Tensor:
        """(R, V) → (R,)"""
        first, second = logits.softmax(dim=-1, dtype=torch.float32).topk(2).values.unbind(-1)
        return (first - second >= self.margin) & (self.margin < 1)

    def reorder(self, rows: Tensor) -> None:
        self.inner.reorder(rows)
