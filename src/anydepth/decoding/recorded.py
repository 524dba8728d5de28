"""Searches on a GPU as CUDA graphs: one reads the sources, one for each range of places makes a step.

Launched kernel by kernel, a decoder step at batch 1 takes the CPU five times as long to ask for as the GPU to compute.
Recorded, it is one launch. A graph has fixed shapes, so that batches are padded to the next of a few, and looks at a
fixed number of earlier words, so that there is one for up to 16, one for up to 32 and so on, or a single one where
attention counts the words that there are (nn/word_attention.py); and fixed places, so that a search copies its sources
in and its words out. On a CPU the same code runs without being recorded, which is how it is tested.

Whoever plays a search may do something else between its steps, such as playing another (decoding/lanes.py).
"""

import gc
import math
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Generator
from typing import NamedTuple

import torch
from torch import Tensor

from anydepth.decoding.decoder import Array, Hypothesis, Marks
from anydepth.decoding.in_place import Search
from anydepth.nn.cache import RoomFor, SharedRooms
from anydepth.nn.recorder import Recorder, power_of_two

MOST = 512
"""Shapes kept recorded at a time, so many that the 36 depths of a 6-6 model find theirs again (about ten each, for
sentences one by one); the one not used for longest makes room for the next."""
MOST_OF_MEMORY = 0.25
"""Of the memory that others leave, since several processes may share a GPU. With more they are all forgotten."""
RECENT = 8
"""Searches that tell how many steps the next one has at least."""
FEWEST = 16
"""Places that a step looks at, at least."""


Found = list[list[Hypothesis]]
"""Of each sentence."""
Playing = Generator[None, None, Found]
"""A search under way: the GPU has been asked for a step whenever it yields."""


class Shape(NamedTuple):
    """What batches are padded to."""

    rows: int
    source: int
    words: int

    @classmethod
    def of(cls, rows: int, source: int, words: int) -> "Shape":
        return cls(power_of_two(rows), rounded(source), rounded(words))


def rounded(size: int) -> int:
    """Up, by at most a third: 16, 24, 32, 48, 64, 96 …"""
    power = max(16, power_of_two(size))
    return power * 3 // 4 if power > 16 and size <= power * 3 // 4 else power


class RecordedSearch:
    """Searches of one shape."""

    def __init__(self, search: Search, shape: Shape, marks: Marks, recorder: Recorder | None) -> None:
        self.inner, self.shape, self.marks, self.recorder = search, shape, marks, recorder
        # sources and limits lie together, so that one copy brings both to the GPU
        self.given = torch.zeros(shape.rows * (shape.source + 1), dtype=torch.long, pin_memory=recorder is not None)
        self.padded, self.limits = (part.numpy() for part in self.parted(self.given))
        self.taken = torch.zeros_like(self.given, device=search.asked.device)
        self.steps: dict[int, Callable[[], object]] = {}
        self.opening: Callable[[], object] | None = None
        self.tells = search.told(0) is not None
        """Whether all that the host reads is written into its own memory."""
        self.paces = deque[tuple[int, int]](maxlen=RECENT)
        """Steps of searches, and words of their longest sources."""
        if recorder:
            self.answers = torch.zeros(2, *search.asked.shape, dtype=search.asked.dtype, pin_memory=True)
            self.answered = [torch.cuda.Event(), torch.cuda.Event()]

    def search(self, source: Tensor, max_lengths: Tensor) -> Playing:
        """(B, S) padded sources, at most of this shape, and (B,) words allowed, at least 1; on the host."""
        self.padded.fill(self.marks.pad)
        self.padded[:, 0] = self.marks.eos  # a row of padding alone would have nothing to attend to
        self.padded[: len(source), : source.shape[1]] = source.numpy()
        self.limits.fill(0)
        self.limits[: len(source)] = max_lengths.numpy()
        self.taken.copy_(self.given, non_blocking=True)
        self.inner.begin(self.limits)
        self.open()
        yield from self.play(int(max_lengths.max()), source.shape[1])
        if self.recorder is None or self.tells:
            return self.inner.read()
        # where that is another stream, beside the step that was begun before the last one's answer came
        with torch.cuda.stream(self.recorder.stream):
            return self.inner.read()

    def parted(self, table: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S) sources and (B,) limits."""
        return table[: -self.shape.rows].view(self.shape.rows, -1), table[-self.shape.rows :]

    def open(self) -> None:
        if self.opening is None:
            self.opening = self.record(lambda: self.inner.open(*self.parted(self.taken)))
        self.opening()  # also after recording, which leaves the results in other places, still to be computed

    def play(self, steps: int, longest: int) -> Generator[None]:
        """At most so many, until the one after which it is over has ended; on a GPU the next may have begun by then."""
        # asked for by every event anew, the stream would take as long as a layer
        stream, heard = torch.cuda.current_stream() if self.recorder else None, 0
        ahead = self.steps_ahead(longest) if self.recorder else 0
        for number in range(steps):
            self.advance(self.looked_at(number))
            self.ask(number, stream)
            yield
            while heard < number or (heard == number and number >= ahead):
                if self.inner.over(self.answer(heard)):
                    self.paces.append((heard + 1, longest))
                    return
                heard += 1
        if heard < steps:
            self.answer(steps - 1)

    def steps_ahead(self, longest: int) -> float:
        """Steps after which the next one is begun before the host knows whether it is needed, so that the GPU need not
        wait for the host. Where a step takes longer than that wait, none should come after the last: then only as many
        as any recent search had, given the length of its source."""
        if not self.inner.long_steps:
            return math.inf
        return min((steps * longest / words for steps, words in self.paces), default=0) - 1

    def ask(self, number: int, stream: torch.cuda.Stream | None) -> None:
        """For the answer of a step, once it has ended."""
        if self.recorder:
            if not self.tells:
                self.answers[number % 2].copy_(self.inner.asked, non_blocking=True)
            self.answered[number % 2].record(stream)

    def answer(self, number: int) -> Array:
        """Of a step, the last or the one before it, once it has ended."""
        if self.recorder:
            self.answered[number % 2].synchronize()
        told = self.inner.told(number)
        return (self.answers[number % 2] if self.recorder else self.inner.asked).numpy() if told is None else told

    def looked_at(self, number: int) -> int:
        return min(self.inner.room, max(FEWEST, power_of_two(self.inner.reach(number))))

    def advance(self, used: int) -> None:
        if used in self.steps:
            self.steps[used]()
        else:  # the first time is done, and then recorded for the next
            self.steps[used] = self.record(lambda: self.inner.advance(used))

    def record(self, work: Callable[[], object]) -> Callable[[], object]:
        """Does the work, and gives what does it again."""
        if self.recorder:
            return self.recorder.record(work)
        work()
        return work


class RecordedSearches:
    """By what is searched with and by shape, made at first sight. Their caches share memory: each search is played to
    its end, on the same stream, before the next begins."""

    def __init__(self, device: torch.device, stream: torch.cuda.Stream | None = None) -> None:
        """`stream` is the one that all are played on, where others play at the same time."""
        self.made: OrderedDict[object, RecordedSearch] = OrderedDict()
        self.device, self.stream = device, stream
        self.recorder: Recorder | None = None
        self.forget()
        if device.type == "cuda":  # the last step may still write into the host's memory when nobody needs it any more
            weakref.finalize(self, torch.cuda.synchronize, device).atexit = False

    def forget(self) -> None:
        """Gives back all memory. What comes is recorded in another pool: one whose graphs are gone cannot be used."""
        if self.device.type == "cuda":  # the step after the last search's last may still write to it
            torch.cuda.synchronize(self.device)
        if self.made:
            self.made.clear()
            gc.collect()  # slots and their cache refer to each other
        self.rooms = SharedRooms()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            self.recorder = Recorder(self.stream or torch.cuda.Stream(self.device))
        self.others = self.allocated()
        """Bytes that were not ours when the first search was recorded."""

    def search(
        self,
        key: object,
        make: Callable[[Shape, RoomFor], Search],
        source: Tensor,
        max_lengths: Tensor,
        marks: Marks,
        longest: int,
    ) -> Playing:
        """`key` tells what `make` makes; no source is longer than `longest`. Sources and lengths are on the host."""
        shape = Shape.of(len(source), source.shape[1], int(max_lengths.max()))
        shape = shape._replace(source=min(shape.source, longest))
        if (key, shape) in self.made:
            self.made.move_to_end((key, shape))
            return (yield from self.made[key, shape].search(source, max_lengths))
        if len(self.made) >= MOST:
            self.made.popitem(last=False)
        if not self.made or self.memory_is_full():
            self.forget()
        made = self.made[key, shape] = RecordedSearch(make(shape, self.rooms.search()), shape, marks, self.recorder)
        return (yield from made.search(source, max_lengths))

    @property
    def recordings(self) -> int:
        """Graphs made so far: a search that has made some took longer than it will again."""
        return self.recorder.made if self.recorder else 0

    def allocated(self) -> int:
        return torch.cuda.memory_allocated(self.device) if self.recorder else 0

    def memory_is_full(self) -> bool:
        """Whether what is kept takes its share."""
        taken = self.allocated() - self.others
        return bool(self.recorder) and taken > MOST_OF_MEMORY * (taken + torch.cuda.mem_get_info(self.device)[0])
