"""Greedy search and speculation on a GPU as two CUDA graphs: one reads the sources, one plays a round.

Launched kernel by kernel, a decoder step at batch 1 takes the CPU five times as long to ask for as the GPU to compute.
Recorded, it is one launch. A graph has fixed shapes, so that batches are padded to the next of a few; and fixed places,
so that a search copies its sources in and its words out. On a CPU the same code runs without being recorded, which is
how it is tested.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from anydepth.decoding.decoder import Hypothesis
from anydepth.decoding.speculative import Drafter, Outcome, Rows, play_round, read

MOST = 64
"""Shapes kept recorded at a time; the one not used for longest makes room."""


class Opener(Drafter, Protocol):
    """A drafter that can be given other sources of the same shape."""

    def open(self, source: Tensor) -> object: ...


class Shape(NamedTuple):
    """What batches are padded to."""

    rows: int
    source: int
    words: int

    @classmethod
    def of(cls, rows: int, source: int, words: int) -> "Shape":
        return cls(power_of_two(rows), rounded(source), rounded(words))


def power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


def rounded(size: int) -> int:
    """Up, by at most a third: 16, 24, 32, 48, 64, 96 …"""
    power = max(16, power_of_two(size))
    return power * 3 // 4 if power > 16 and size <= power * 3 // 4 else power


class Marks(NamedTuple):
    bos: int
    eos: int
    pad: int


class RecordedSearch:
    """Searches of one shape."""

    def __init__(self, drafter: Opener, shape: Shape, marks: Marks, drafts: int, device: torch.device) -> None:
        self.shape, self.marks, self.drafts = shape, marks, drafts
        self.source = torch.full((shape.rows, shape.source), marks.pad, device=device)
        self.source[:, 0] = marks.eos  # a row of padding alone would have nothing to attend to
        limits = torch.full((shape.rows,), shape.words, device=device)
        self.rows = Rows.new(limits, shape.words, drafts, marks.bos, marks.pad)
        self.pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self.any_running = torch.ones((), dtype=torch.bool, device=device)
        self.open = self.record(lambda: drafter.open(self.source))
        self.round = self.record(lambda: self.play(drafter))

    def play(self, drafter: Drafter) -> None:
        play_round(drafter, self.rows, *self.marks, self.drafts)
        self.any_running.copy_(self.rows.running.any())

    def record(self, work: Callable[[], object]) -> Callable[[], object]:
        if self.pool is None:
            return work
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):  # lazy parts, such as cuBLAS handles and caches, are made outside of the graph
                work()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            work()
        return graph.replay

    def search(self, source: Tensor, max_lengths: Tensor, length_penalty: float) -> Outcome:
        """(B, S) padded sources, at most of this shape."""
        batch, marks = len(source), self.marks
        self.source.fill_(marks.pad)
        self.source[:, 0] = marks.eos
        self.source[:batch, : source.shape[1]] = source
        limits = torch.zeros_like(self.rows.limits)  # rows beyond the batch are done before they begin
        limits[:batch] = max_lengths
        self.rows.become(Rows.new(limits, self.shape.words, self.drafts, marks.bos, marks.pad))
        self.open()
        self.play_to_the_end()
        used = self.rows.take(torch.arange(batch, device=source.device))
        found = read(used, marks.eos, length_penalty)
        return Outcome([found[row] for row in range(batch)], int(used.rounds.sum()), int(used.lengths.sum()))

    def play_to_the_end(self) -> None:
        if self.pool is None:
            while self.rows.running.any():
                self.round()
            return
        # the host asks how round n went while round n + 1 runs: the GPU never waits for it
        answers = torch.ones(2, dtype=torch.bool).pin_memory()
        asked = [torch.cuda.Event(), torch.cuda.Event()]
        for number in range(self.shape.words + 1):
            self.round()
            answers[number % 2].copy_(self.any_running, non_blocking=True)
            asked[number % 2].record()
            if number:
                asked[1 - number % 2].synchronize()
                if not answers[1 - number % 2]:
                    return


class RecordedSearches:
    """By what is searched with and by shape, made at first sight."""

    def __init__(self) -> None:
        self.made: OrderedDict[object, RecordedSearch] = OrderedDict()

    def search(
        self,
        key: object,
        drafter: Callable[[int], Opener],
        source: Tensor,
        max_lengths: Tensor,
        marks: Marks,
        drafts: int,
        length_penalty: float,
        longest: int,
    ) -> list[Hypothesis]:
        """`key` tells what `drafter` makes, given the room that its rows need; no source is longer than `longest`."""
        shape = Shape.of(len(source), source.shape[1], int(max_lengths.max()))
        shape = shape._replace(source=min(shape.source, longest))
        found = self.made.get((key, shape, drafts))
        if found is None:
            room = shape.words + drafts + 1
            found = self.made[key, shape, drafts] = RecordedSearch(drafter(room), shape, marks, drafts, source.device)
            while len(self.made) > MOST:
                self.made.popitem(last=False)
        self.made.move_to_end((key, shape, drafts))
        return found.search(source, max_lengths, length_penalty).found
