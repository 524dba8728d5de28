"""The search that settings ask for, with a translator at a depth: word by word, or replayed as CUDA graphs."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from anydepth.decoding.decoder import DecodingConfig, Hypothesis, Marks
from anydepth.decoding.in_place import BeamSearch, GreedySearch, Search, Speculation
from anydepth.decoding.recorded import RecordedSearches, Shape
from anydepth.decoding.search import decode
from anydepth.decoding.speculative import speculate
from anydepth.errors import UserError
from anydepth.models import Translator
from anydepth.nn.cache import RoomFor
from anydepth.plan import Plan, Plans
from anydepth.translating.alone import DecoderAlone, one_thread
from anydepth.translating.beams import TranslatorBeams
from anydepth.translating.confident import ConfidentDecoder
from anydepth.translating.drafter import TranslatorDrafter
from anydepth.translating.reading import recordable

RECORD = True
"""Whether searches on a GPU are replayed as CUDA graphs. Whether they find the same there is for
tests/parity/test_recorded_search.py to tell; seen on an H200."""


class Searcher:
    """The searches of one model."""

    def __init__(self, model: Translator, marks: Marks, record: bool = True) -> None:
        self.model, self.marks, self.record = model, marks, record
        self.recordable: dict[tuple[Plans, str], bool] = {}
        self.gating: dict[tuple[Plans, str], str] = {}
        self.too_many: float = math.inf
        """Places, of words in sources and translations at all layers, that were more than the device's memory has."""

    @property
    def device(self) -> torch.device:
        return self.model.output.weight.device

    @cached_property
    def recorded(self) -> RecordedSearches:
        return RecordedSearches(self.device)

    def search(
        self,
        source: Tensor,
        max_lengths: Tensor,
        plans: Plans,
        key: str,
        decoding: DecodingConfig,
        sentences: Sequence[int],
    ) -> list[list[Hypothesis]]:
        """(B, S) padded sources and (B,) words allowed, on the host. `sentences` numbers them, for sampling.

        What does not fit into the device's memory is searched half by half, and later batches as large as well.
        """
        places = len(source) * (source.shape[1] + int(max_lengths.max())) * decoding.beam * len(plans.decoder)
        if len(source) == 1 or places < self.too_many:
            try:
                if self.records(plans, key, decoding):
                    return self.replay(source, max_lengths, plans, key, decoding)
                return self.grow(source, max_lengths, plans, key, decoding, sentences)
            except torch.OutOfMemoryError:
                self.too_many = min(places, self.too_many)
            self.recorded.forget()  # only now: while an error is handled, what failed still holds its memory
            if len(source) == 1:
                lengths = f"{source.shape[1]} tokens, its translation may have {int(max_lengths)}"
                raise UserError(f"{self.device} has too little memory left for a sentence of {lengths}")
        half = len(source) // 2
        return [
            found
            for part in (slice(half), slice(half, None))
            for found in self.search(source[part], max_lengths[part], plans, key, decoding, sentences[part])
        ]

    def grow(
        self,
        source: Tensor,
        max_lengths: Tensor,
        plans: Plans,
        key: str,
        decoding: DecodingConfig,
        sentences: Sequence[int],
    ) -> list[list[Hypothesis]]:
        """Kernel by kernel, with caches that grow; sentences that are done leave the batch."""
        source, max_lengths = source.to(self.device), max_lengths.to(self.device)
        if decoding.speculate:
            return self.speculate(source, max_lengths, plans, key, decoding)
        if decoding.exit:
            decoder = self.confident(source, plans, key, decoding)
            return decode(decoder, *self.marks, max_lengths, decoding, sentences)
        begun = self.model.start(source, plans, key)
        if decoding.beam == 1 and decoding.plain and DecoderAlone.fits(begun):
            with one_thread():
                return decode(DecoderAlone(begun, int(max_lengths)), *self.marks, max_lengths, decoding, sentences)
        return decode(begun, *self.marks, max_lengths, decoding, sentences)

    def records(self, plans: Plans, key: str, decoding: DecodingConfig) -> bool:
        """Whether the search is replayed: where it is the same computation for every batch of a shape."""
        if not (RECORD and self.record and self.device.type == "cuda" and decoding.plain):
            return False
        if (plans, key) not in self.recordable:
            self.recordable[plans, key] = recordable(self.model, plans, key)
        return self.recordable[plans, key]

    def replay(
        self, source: Tensor, max_lengths: Tensor, plans: Plans, key: str, decoding: DecodingConfig
    ) -> list[list[Hypothesis]]:
        """In fixed places; on a GPU as CUDA graphs."""
        drafts, penalty, marks = decoding.draft_words if decoding.speculate else 0, decoding.length_penalty, self.marks
        draft = self.shallower("draft", decoding.draft, plans, key) if drafts else Plan(())

        def make(shape: Shape, room_for: RoomFor) -> Search:
            rows, words, weight = shape.rows, shape.words, self.model.output.weight
            if drafts:
                drafter = TranslatorDrafter(self.model, plans, draft, words + drafts + 1, key, room_for)
                return Speculation(drafter, rows, words, marks, penalty, drafts, weight)
            beams = TranslatorBeams(self.model, plans, key, rows, decoding.beam, words, room_for)
            if decoding.beam == 1:
                return GreedySearch(beams, rows, words, marks, penalty, weight)
            return BeamSearch(beams, rows, decoding.beam, words, marks, penalty, decoding.n_best)

        what = (plans, self.gating_key(plans, key), draft, drafts, decoding.beam, decoding.n_best, penalty)
        with torch.cuda.device_of(self.model.output.weight):  # a new thread has the first GPU for its own
            return self.recorded.search(what, make, source, max_lengths, marks, self.model.source.longest)

    def gating_key(self, plans: Plans, key: str) -> str:
        """The key where gates may depend on it; without them languages of the same plan share their searches."""
        if (plans, key) not in self.gating:
            gates = self.model.gates(plans, key, torch.zeros(1, 1, dtype=torch.long, device=self.device))
            self.gating[plans, key] = "" if all(each is None for each in gates) else key
        return self.gating[plans, key]

    def speculate(
        self, source: Tensor, max_lengths: Tensor, plans: Plans, key: str, decoding: DecodingConfig
    ) -> list[list[Hypothesis]]:
        draft, words = self.shallower("draft", decoding.draft, plans, key), decoding.draft_words
        drafter = TranslatorDrafter(self.model, plans, draft, int(max_lengths.max()) + words + 1, key).open(source)
        outcome = speculate(drafter, *self.marks, max_lengths, words, decoding.length_penalty)
        return [[best] for best in outcome.found]

    def confident(self, source: Tensor, plans: Plans, key: str, decoding: DecodingConfig) -> ConfidentDecoder:
        """The decoder that may stop at a shallow exit."""
        exit = self.shallower("exit", decoding.exit, plans, key)
        return ConfidentDecoder(self.model, source, plans, exit, decoding.exit_margin, key)

    def shallower(self, name: Literal["draft", "exit"], layers: int, plans: Plans, key: str) -> Plan:
        """The decoder plan of so many layers, to draft for a deeper one or to stop at."""
        known = self.model.decoder_depth.plans(key)
        shallower = [depth for depth in sorted(known) if depth < len(plans.decoder)]
        if layers not in shallower:
            some = f"at {', '.join(map(str, shallower))} decoder layers" if shallower else "at no shallower depth"
            raise UserError(f"{name} {layers}: for {plans.name} this run can {name} {some}")
        return known[layers]
