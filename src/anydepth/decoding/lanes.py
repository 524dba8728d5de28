"""Searches that a GPU makes at the same time.

A step of a few sentences is a chain of small kernels, each of which waits for the one before and leaves most of the GPU
idle. Searches in lanes have places and a stream of their own each, and the host asks for a step of each in turn. On a
CPU the same code takes turns without gaining anything, which is how it is tested.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Generic, TypeVar

import torch

from anydepth.decoding.recorded import Found, Playing, RecordedSearches

Item = TypeVar("Item")


class Lane:
    """Where one search is played at a time."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.searches = RecordedSearches(device, self.stream)


class UnderWay(Generic[Item]):
    """A search for one of several."""

    def __init__(self, item: Item, lane: Lane, playing: Playing | None) -> None:
        self.item, self.lane, self.playing = item, lane, playing
        self.found: Found | None = None
        self.short = False
        """Whether it is over for want of memory."""

    @property
    def failed(self) -> bool:
        """Over, and nothing found."""
        return self.playing is None and self.found is None

    def turn(self) -> None:
        """One step more, if there is one."""
        if self.playing is None:
            return
        try:
            with torch.cuda.stream(self.lane.stream) if self.lane.stream else nullcontext():
                next(self.playing)
        except StopIteration as end:
            self.playing, self.found = None, end.value
        except torch.OutOfMemoryError:
            self.playing, self.short = None, True


class Lanes:
    def __init__(self, device: torch.device, count: int) -> None:
        self.all = [Lane(device) for _ in range(count)]
        self.most = count
        """Lanes in use at a time: fewer where memory was short."""

    @torch.no_grad()
    def search(
        self,
        items: Iterable[Item],
        begin: Callable[[Item, RecordedSearches], Playing | None],
        alone: Callable[[Item], Found],
    ) -> Iterator[Found]:
        """What is found for each item, in order; each is asked for when there is a lane for it. What `begin` does not
        begin, or memory has no room for beside others, is searched `alone`, when all others are done. In the second
        case all that the lanes have recorded is forgotten before, and from then on one lane fewer is used."""
        for stream in (lane.stream for lane in self.all if lane.stream):
            stream.wait_stream(torch.cuda.current_stream(stream.device))  # the weights may still be on their way
        waiting = deque[UnderWay[Item]]()
        """To be given back; the first of them goes on, or nothing does."""
        for item in items:
            busy = [each.lane for each in waiting if each.playing]
            lane = next(lane for lane in self.all if lane not in busy)
            waiting.append(UnderWay(item, lane, begin(item, lane.searches)))
            self.play(waiting, self.most - 1, alone)
            yield from done(waiting)
        self.play(waiting, 0, alone)
        yield from done(waiting)

    def play(self, waiting: Sequence[UnderWay[Item]], most: int, alone: Callable[[Item], Found]) -> None:
        """Until at most so many go on, and all others have found something."""
        while (going := sum(each.playing is not None for each in waiting)) > most or any(one.failed for one in waiting):
            for each in waiting:
                each.turn()
            if not going:
                if any(each.short and each.failed for each in waiting):
                    self.forget()
                    self.most = max(1, self.most - 1)
                for each in waiting:
                    each.found = alone(each.item) if each.failed else each.found

    @property
    def holds(self) -> bool:
        """Whether anything is recorded."""
        return any(lane.searches.made for lane in self.all)

    def forget(self) -> None:
        for lane in self.all:
            if lane.searches.made:
                lane.searches.forget()


def done(waiting: deque[UnderWay[Item]]) -> Iterator[Found]:
    while waiting and (found := waiting[0].found) is not None:
        waiting.popleft()
        yield found
