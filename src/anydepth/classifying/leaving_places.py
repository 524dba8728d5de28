"""Texts that leave early, read in fixed places.

The layers between two exits are recorded as those of a shallow classifier are (text_places.py). Only the host can tell
how many texts stay, so it looks at the answers of every exit, which have to come from the GPU first; the states of the
words stay there, in a room, from which the next part of the layers takes those of the texts that go on. While one batch
is on its way to the host, the GPU is at work on another, in another lane.
"""

from collections import deque
from itertools import pairwise

import numpy as np

from anydepth.classifying.awaiting import Answer, Coming
from anydepth.classifying.lanes import Lane, Passage
from anydepth.classifying.leaving import Departures, Rule, exits_of
from anydepth.classifying.places import Shape
from anydepth.nn.recorder import power_of_two
from anydepth.plan import Plan

Array = np.ndarray


class Leaving:
    """One batch, from its first exit to its last. The room of its lane is its own until it is done."""

    def __init__(
        self, lane: Lane, plan: Plan, rule: Rule, tokens: Array, lengths: Array, under_way: deque["Leaving"]
    ) -> None:
        """`under_way` are the batches of all lanes that are not done, the one first whose answer will come first."""
        self.lane, self.plan, self.lengths, self.under_way = lane, plan, lengths, under_way
        self.departures = Departures(rule, len(lengths), lane.model.output.num_embeddings)
        self.parts = list(pairwise([0, *exits_of(lane.model, plan)]))
        shape = Shape.of(lengths)
        # One for all parts, whoever leaves: with shapes of those who stay, a lane would meet hundreds, more than it
        # keeps, and record all of them again and again.
        self.shape = shape._replace(words=power_of_two(shape.words))
        self.staying, self.reached = lengths, 0
        self.coming = self.ask(tokens)

    def ask(self, words: Array) -> Coming:
        """The next part of the layers, about words: tokens at first, then the rows in which they were left."""
        begin, self.reached = self.parts.pop(0)
        passage, part = Passage(enter=begin > 0, leave=bool(self.parts)), Plan(self.plan.layers[begin : self.reached])
        logits = self.lane.read_texts(part, words, self.staying, self.shape, passage)
        self.under_way.append(self)
        return Coming(Answer(logits, None))

    @property
    def done(self) -> bool:
        return self not in self.under_way

    def is_there(self) -> bool:
        """Goes on as far as the GPU has come."""
        while not self.done and self.coming.is_there():
            self.go_on()
        return self.done

    def get(self) -> Answer:
        while not self.done:
            self.under_way[0].go_on()  # others, too: the GPU is not to wait for whoever waits for this one
        return self.departures.answer(self.lengths)

    def go_on(self) -> None:
        """Past one exit, whose answers are waited for."""
        stay = self.departures.see(self.coming.get().logits.numpy(), self.reached)
        self.under_way.remove(self)
        if not self.parts or not len(stay):
            return
        starts = np.cumsum(self.staying) - self.staying
        self.staying = self.staying[stay]
        shifts = starts[stay] - (np.cumsum(self.staying) - self.staying)
        self.coming = self.ask(np.arange(self.staying.sum()) + np.repeat(shifts, self.staying))
