"""Answers that may not be there yet.

Nobody waits for a GPU that is asked. Whoever asks about several batches prepares the next one while it is at work, and
it begins with one before it is done with the last.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from anydepth.data.collate import mapped

AHEAD = 2
"""Batches asked about at most before the answer to an earlier one is read."""
Item = TypeVar("Item")


class Answer(NamedTuple):
    logits: Tensor
    depths: Tensor | None
    """Of the words, where they differ."""


class Awaited(Protocol):
    """An answer that may not be there yet."""

    def is_there(self) -> bool: ...

    def get(self) -> Answer:
        """Waits for it."""


class Coming:
    """An answer on its way to the host."""

    def __init__(self, found: Answer) -> None:
        # read at once, it would also wait for all that the GPU is asked from now on
        self.answer = mapped(lambda tensor: tensor.to("cpu", non_blocking=True), found)
        device = found.logits.device
        self.arrival = torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None

    def is_there(self) -> bool:
        return self.arrival is None or self.arrival.query()

    def get(self) -> Answer:
        if self.arrival is not None:
            self.arrival.synchronize()
        return self.answer


def in_order(asked: Iterable[tuple[Item, Awaited]]) -> Iterator[tuple[Item, Answer]]:
    """Answers, and what was asked, as they come. The next batch is asked about before the last one's answer is there,
    but never more than AHEAD of them."""
    waiting: deque[tuple[Item, Awaited]] = deque()
    for one in asked:
        waiting.append(one)
        there = [found.is_there() for _, found in waiting]  # those of texts that leave go on when they are looked at
        while waiting and (len(waiting) > AHEAD or there[0]):
            item, found = waiting.popleft()
            del there[0]
            yield item, found.get()
    for item, found in waiting:
        yield item, found.get()
