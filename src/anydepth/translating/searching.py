"""The search that settings ask for, with a translator at a depth: word by word, or replayed as CUDA graphs."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from anydepth.decoding.decoder import DecodingConfig, Marks
from anydepth.decoding.in_place import BeamSearch, GreedySearch, Search, Speculation
from anydepth.decoding.lanes import Lanes
from anydepth.decoding.recorded import Found, Playing, RecordedSearches, Shape
from anydepth.decoding.search import decode
from anydepth.decoding.speculative import speculate
from anydepth.errors import UserError
from anydepth.models import Translator
from anydepth.nn.cache import RoomFor
from anydepth.plan import Plan, Plans
from anydepth.translating.alone import DecoderAlone, DrafterAlone, one_thread
from anydepth.translating.beams import TranslatorBeams
from anydepth.translating.confident import ConfidentDecoder
from anydepth.translating.drafter import TranslatorDrafter
from anydepth.translating.precision import read_by_column, rough_head
from anydepth.translating.reading import recordable

RECORD = True
"""Whether searches on a GPU are replayed as CUDA graphs. Whether they find the same there is for
tests/parity/test_recorded_search.py to tell; seen on an H200."""


class Asked(NamedTuple):
    """Sentences to translate together, and how."""

    source: Tensor
    """(B, S), padded; on the host until a search takes them to its device."""
    max_lengths: Tensor
    """(B,) words allowed; there as well."""
    plans: Plans
    key: str
    decoding: DecodingConfig
    numbers: Sequence[int] = ()
    """Of the sentences, for sampling."""

    @property
    def places(self) -> int:
        """Of words in sources and translations, at all layers."""
        words = self.source.shape[1] + int(self.max_lengths.max())
        return len(self.source) * words * self.decoding.beam * len(self.plans.decoder)

    @property
    def halves(self) -> "list[Asked]":
        half = len(self.source) // 2
        return [self.some(slice(half)), self.some(slice(half, None))]

    def some(self, part: slice) -> "Asked":
        return self._replace(source=self.source[part], max_lengths=self.max_lengths[part], numbers=self.numbers[part])

    def to(self, device: torch.device) -> "Asked":
        return self._replace(source=self.source.to(device), max_lengths=self.max_lengths.to(device))


class Searcher:
    """The searches of one model."""

    def __init__(self, model: Translator, marks: Marks, record: bool = True) -> None:
        self.model, self.marks, self.record = model, marks, record
        self.recordable: dict[tuple[Plans, str], bool] = {}
        self.gating: dict[tuple[Plans, str], str] = {}
        self.known_lanes: dict[int, Lanes] = {}
        self.too_many: float = math.inf
        """Places that were more than the device's memory has."""

    @property
    def device(self) -> torch.device:
        return self.model.output.weight.device

    @cached_property
    def recorded(self) -> RecordedSearches:
        return RecordedSearches(self.device)

    def lanes(self, count: int) -> Lanes:
        if count not in self.known_lanes:
            self.known_lanes[count] = Lanes(self.device, count)
        return self.known_lanes[count]

    @property
    def preparations(self) -> int:
        """What was made so far that later searches use again: graphs; on a CPU, weights in other layouts."""
        lanes = (lane.searches for lanes in self.known_lanes.values() for lane in lanes.all)
        layouts = len(vars(self).keys() & {"columns", "head_of_drafts"})
        return layouts + sum(searches.recordings for searches in (self.recorded, *lanes))

    @property
    def holds(self) -> bool:
        """Whether anything is recorded."""
        return bool(self.recorded.made) or any(lanes.holds for lanes in self.known_lanes.values())

    def forget(self) -> None:
        """Gives back the memory of all that was recorded."""
        for lanes in self.known_lanes.values():
            lanes.forget()
        self.recorded.forget()

    def searches(self, batches: Iterable[Asked], at_once: int) -> Iterator[Found]:
        """What each batch finds, in order. Of those that can be replayed, so many, at least two, go at a time."""

        def begin(asked: Asked, searches: RecordedSearches) -> Playing | None:
            return self.play(asked, searches) if self.records(asked) and asked.places < self.too_many else None

        return self.lanes(at_once).search(batches, begin, self.search)

    def search(self, asked: Asked) -> Found:
        """What does not fit into the device's memory is tried again with the memory of all that was recorded before,
        and then searched half by half, as are later batches of that size."""
        alone = len(asked.source) == 1
        to_try = alone or asked.places < self.too_many
        while to_try:
            to_try = self.holds
            try:
                return self.replay(asked) if self.records(asked) else self.grow(asked)
            except torch.OutOfMemoryError:
                pass
            self.forget()  # only now: while an error is handled, what failed still holds its memory
        if alone:
            lengths = f"{asked.source.shape[1]} tokens, its translation may have {int(asked.max_lengths)}"
            raise UserError(f"{self.device} has too little memory left for a sentence of {lengths}")
        self.too_many = min(asked.places, self.too_many)
        return [found for half in asked.halves for found in self.search(half)]

    def grow(self, asked: Asked) -> Found:
        """Kernel by kernel, with caches that grow; sentences that are done leave the batch."""
        asked = asked.to(self.device)
        source, max_lengths, plans, key, decoding, numbers = asked
        if decoding.speculate:
            return self.speculate(asked)
        if decoding.exit:
            return decode(self.confident(asked), *self.marks, max_lengths, decoding, numbers)
        begun = self.model.start(source, plans, key)
        if decoding.beam == 1 and decoding.plain and DecoderAlone.fits(begun):
            with self.alone():
                decoder = DecoderAlone(begun, int(max_lengths))
                return decode(decoder, *self.marks, max_lengths, decoding, numbers)
        return decode(begun, *self.marks, max_lengths, decoding, numbers)

    def records(self, asked: Asked) -> bool:
        """Whether the search is replayed: where it is the same computation for every batch of a shape."""
        if not (RECORD and self.record and self.device.type == "cuda" and asked.decoding.plain):
            return False
        plans, key = asked.plans, asked.key
        if (plans, key) not in self.recordable:
            self.recordable[plans, key] = recordable(self.model, plans, key)
        return self.recordable[plans, key]

    @torch.no_grad()
    def replay(self, asked: Asked) -> Found:
        """In fixed places; on a GPU as CUDA graphs."""
        with torch.cuda.device_of(self.model.output.weight):  # a new thread has the first GPU for its own
            playing = self.play(asked, self.recorded)
            while True:
                try:
                    next(playing)
                except StopIteration as end:
                    found: Found = end.value
                    return found

    def play(self, asked: Asked, searches: RecordedSearches) -> Playing:
        """The same, step by step."""
        plans, key, decoding, marks = asked.plans, asked.key, asked.decoding, self.marks
        drafts, penalty = decoding.draft_words if decoding.speculate else 0, decoding.length_penalty
        draft = self.shallower("draft", asked) if drafts else Plan(())

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
        return searches.search(what, make, asked.source, asked.max_lengths, marks, self.model.source.longest)

    def gating_key(self, plans: Plans, key: str) -> str:
        """The key where gates may depend on it; without them languages of the same plan share their searches."""
        if (plans, key) not in self.gating:
            gates = self.model.gates(plans, key, torch.zeros(1, 1, dtype=torch.long, device=self.device))
            self.gating[plans, key] = "" if all(each is None for each in gates) else key
        return self.gating[plans, key]

    def speculate(self, asked: Asked) -> Found:
        source, max_lengths, plans, key, decoding, _ = asked
        draft, words = self.shallower("draft", asked), decoding.draft_words
        longest, settings = int(max_lengths.max()), (*self.marks, max_lengths, words, decoding.length_penalty)
        shares = draft.layers == plans.decoder.layers[: len(draft)]
        alone = len(source) == 1 and not source.is_cuda
        if alone and shares and DecoderAlone.knows(self.model, plans.decoder):
            begun = self.model.start(source, plans, key)
            if DecoderAlone.fits(begun):
                with self.alone():
                    outcome = speculate(DrafterAlone(begun, draft, longest, self.head_of_drafts), *settings)
                return [[best] for best in outcome.found]
        room = longest + words + 1
        outcome = speculate(TranslatorDrafter(self.model, plans, draft, room, key).open(source), *settings)
        return [[best] for best in outcome.found]

    @contextmanager
    def alone(self) -> Iterator[None]:
        """For one sentence on a CPU."""
        self.columns  # noqa: B018  (made the first time)
        with one_thread():
            yield

    @cached_property
    def columns(self) -> None:
        """Weights for single words."""
        read_by_column(self.model)

    @cached_property
    def head_of_drafts(self) -> nn.Module | None:
        """Of a sentence alone on a CPU."""
        return rough_head(self.model)

    def confident(self, asked: Asked) -> ConfidentDecoder:
        """The decoder that may stop at a shallow exit."""
        exit, margin = self.shallower("exit", asked), asked.decoding.exit_margin
        return ConfidentDecoder(self.model, asked.source, asked.plans, exit, margin, asked.key)

    def shallower(self, name: Literal["draft", "exit"], asked: Asked) -> Plan:
        """The decoder plan of as many layers as settings say, to draft for a deeper one or to stop at."""
        known, layers = self.model.decoder_depth.plans(asked.key), getattr(asked.decoding, name)
        shallower = [depth for depth in sorted(known) if depth < len(asked.plans.decoder)]
        if layers not in shallower:
            some = f"at {', '.join(map(str, shallower))} decoder layers" if shallower else "at no shallower depth"
            raise UserError(f"{name} {layers}: for {asked.plans.name} this run can {name} {some}")
        return known[layers]
