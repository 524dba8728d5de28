"""A translator that grows the K hypotheses of every sentence in fixed places (decoding/in_place.py)."""

import torch
from torch import Tensor

from anydepth.decoding.picking import Candidates
from anydepth.models import Translator
from anydepth.nn.cache import BeamCache, RoomFor, new_room
from anydepth.plan import Plans
from anydepth.translating import quick
from anydepth.translating.reading import Part, Reader


class TranslatorBeams:
    """K growing translations of each of B sentences, all at the same word: K queries (B, K, D) of one sentence."""

    def __init__(
        self,
        model: Translator,
        plans: Plans,
        key: str,
        sentences: int,
        beam: int,
        room: int,
        room_for: RoomFor = new_room,
    ) -> None:
        """`room` words at most."""
        weight = model.output.weight
        self.model, self.plans = model, plans
        self.reader = Reader(model, key)
        self.cache = BeamCache(len(plans.decoder), sentences, beam, room, weight.dtype, weight.device, room_for)
        self.part, self.at = Part(plans.decoder, self.cache), self.cache.at
        self.coming = torch.zeros_like(self.at)
        self.counts_words = beam == 1 and quick.fits(model)

    def open(self, source: Tensor) -> None:
        self.reader.look_at(source)
        self.part.reads(self.model, self.reader.steps(self.plans))

    def forget(self) -> None:
        self.cache.forget()
        self.coming.zero_()

    def step(self, tokens: Tensor, used: int) -> Tensor:
        return quick.logits(self.model, self.read(tokens, used))

    def choices(self, tokens: Tensor, used: int, forbidden: tuple[int, int]) -> Tensor | Candidates:
        return quick.choices(self.model, self.read(tokens, used), forbidden)

    def read(self, tokens: Tensor, used: int) -> Tensor:
        """(B, K) words → (B, K, D) states above the last layer."""
        self.cache.stand(used)
        x = quick.embed(self.model, tokens, self.coming[None], noted=self.at)
        return self.part.run(self.model, x, self.reader.sees)

    def follow(self, parents: Tensor) -> None:
        self.cache.follow(parents)

    def go_on(self) -> None:
        self.coming += 1
