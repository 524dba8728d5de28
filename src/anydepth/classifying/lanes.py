"""Batches that a GPU reads at the same time: in its upper layers few words run, too few to keep it busy. Each lane has
places and a stream of its own, and all have the same weights."""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from anydepth.classifying.awaiting import Awaited
from anydepth.classifying.places import Shape
from anydepth.classifying.text_places import TextPlaces
from anydepth.classifying.word_places import WordPlaces
from anydepth.encoder_models import Classifier
from anydepth.nn.recorder import Recorder
from anydepth.plan import Plan

Array = np.ndarray
Places = TypeVar("Places", TextPlaces, WordPlaces)

MOST = 128
"""Shapes kept at a time; the one not used for longest makes room."""


class Passage(NamedTuple):
    """Through a room of states, in which one part of the layers leaves words for the next."""

    enter: bool = False
    """Whether words are taken from there, and not embedded."""
    leave: bool = False


STAY = Passage()


class Lane:
    """Places of all shapes, made at first sight. On a GPU they are filled, recorded and read on a stream of their
    own."""

    def __init__(self, model: Classifier) -> None:
        device = model.output.weight.device
        self.model, self.stream = model, torch.cuda.Stream(device) if device.type == "cuda" else None
        self.recorder = Recorder(self.stream) if self.stream else None
        if self.stream:  # the weights may still be on their way
            self.stream.wait_stream(torch.cuda.current_stream(device))
        self.made: OrderedDict[object, TextPlaces | WordPlaces] = OrderedDict()
        self.rooms: dict[int, Tensor] = {}
        self.answered: torch.cuda.Event | None = None
        self.returning: Awaited | None = None
        """Who will come back for what was left in a room."""

    def is_idle(self) -> bool:
        gone = self.returning is None or self.returning.is_there()
        return gone and (self.answered is None or self.answered.query())

    def read(self, plan: Plan, refresh: bool, tokens: Array, depths: Array, lengths: Array) -> Tensor:
        """Logits of texts whose words have these depths."""
        depth = int(depths[0])
        if (depths == depth).all():
            return self.read_texts(Plan(plan.layers[:depth]), tokens, lengths)
        return self.on_stream(lambda: self.for_words(plan, refresh, Shape.of(lengths)).read(tokens, depths, lengths))

    def read_texts(
        self, plan: Plan, words: Array, lengths: Array, shape: Shape | None = None, passage: Passage = STAY
    ) -> Tensor:
        """Logits of texts whose words all run through these layers, in places of their own shape or of another."""
        shape = shape or Shape.of(lengths)
        return self.on_stream(lambda: self.for_texts(plan, shape, passage).read(words, lengths))

    def on_stream(self, read: Callable[[], Tensor]) -> Tensor:
        """Logits for the stream of whoever asks. It waits for them, and for the last use of weights that it may free
        next; nothing here waits for it, which may be waiting for other places."""
        if self.stream is None:
            return read()
        asking = torch.cuda.current_stream(self.stream.device)
        with torch.cuda.stream(self.stream):
            logits = read()
        self.answered = self.stream.record_event()
        asking.wait_event(self.answered)
        logits.record_stream(asking)  # their memory is this stream's, which must not use it again before they are read
        return logits

    def for_words(self, plan: Plan, refresh: bool, shape: Shape) -> WordPlaces:
        return self.kept((plan, refresh, shape), lambda: WordPlaces(self.model, plan, refresh, shape, self.recorder))

    def for_texts(self, plan: Plan, shape: Shape, passage: Passage) -> TextPlaces:
        def make() -> TextPlaces:
            doors = (self.room(shape.words) if open else None for open in passage)
            return TextPlaces(self.model, plan, shape, self.recorder, *doors)

        return self.kept((plan, shape, passage), make)

    def kept(self, key: object, make: Callable[[], Places]) -> Places:
        if key not in self.made:
            while len(self.made) >= MOST:
                self.made.popitem(last=False)
            self.made[key] = make()
        self.made.move_to_end(key)
        return self.made[key]  # type: ignore[return-value]  # keys of the two kinds differ

    def room(self, rows: int) -> Tensor:
        """One for all shapes: whoever enters finds what was left."""
        if rows not in self.rooms:
            self.rooms[rows] = self.model.output.weight.new_zeros(rows, self.model.config.layer.width)
        return self.rooms[rows]


class Lanes:
    def __init__(self, model: Classifier, count: int) -> None:
        self.all = [Lane(model) for _ in range(count)]
        self.by_turn = deque(self.all)
        """The one asked longest ago first."""

    def next(self) -> Lane:
        """The first with nothing to do: for whoever waits for every answer, all is recorded only there."""
        lane = next((lane for lane in self.all if lane.is_idle()), self.by_turn[0])
        self.by_turn.remove(lane)
        self.by_turn.append(lane)
        return lane
