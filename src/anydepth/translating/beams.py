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
        self.next = quick.next_words(model, sentences) if beam == 1 else None
        if self.next:  # each row counts for itself, in the kernel that picks its words
            self.cache.at = self.cache.at.new_zeros(sentences)
        self.part, self.at = Part(plans.decoder, self.cache), self.cache.at
        self.coming = self.at if self.next else torch.zeros_like(self.at)
        self.counts_words = beam == 1 and quick.fits(model)

    def open(self, source: Tensor) -> None:
        self.reader.look_at(source)
        self.part.reads(self.model, self.reader.steps(self.plans), self.reader.sees)

    def begin(self, first: Tensor) -> None:
        if self.next:
            self.at.zero_()
            self.next.embed(first, self.at[:, None])
        else:
            self.cache.forget()
            self.coming.zero_()

    def step(self, tokens: Tensor, used: int) -> Tensor:
        return quick.logits(self.model, self.read(self.embed(tokens), used))

    def choices(self, tokens: Tensor, used: int, forbidden: tuple[int, int]) -> Tensor | Candidates:
        embedded = self.next.states if self.next else self.embed(tokens)
        return quick.choices(self.model, self.read(embedded, used), forbidden)

    def embed(self, tokens: Tensor) -> Tensor:
        """(B, K) words → (B, K, D)."""
        if self.at is not self.coming:
            torch.add(self.coming, 0, out=self.at)  # a kernel: a mere copy would be none, and the next one overlaps
        return quick.embed(self.model, tokens, self.at[:, None])

    def read(self, x: Tensor, used: int) -> Tensor:
        """(B, K, D) embedded words → (B, K, D) states above the last layer."""
        self.cache.stand(used)
        return self.part.run(self.model, x, self.reader.sees)

    def follow(self, parents: Tensor) -> None:
        self.cache.follow(parents)

    def go_on(self) -> None:
        self.coming += 1
