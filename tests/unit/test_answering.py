"""Batches that are asked about before earlier answers are read."""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from anydepth.classifying.answering import AHEAD, Answer, Coming, in_order


class Late(NamedTuple):
    """An answer of a GPU that has never finished before somebody waits for it."""

    number: int
    events: list[str]

    def is_there(self) -> bool:
        return False

    def get(self) -> Answer:
        self.events.append(f"read {self.number}")
        return Answer(torch.tensor([self.number]), None)


def test_answers_come_in_order_and_only_some_are_waited_for() -> None:
    events: list[str] = []

    def ask() -> Iterator[tuple[str, Late]]:
        for number in range(6):
            events.append(f"ask {number}")
            yield f"batch {number}", Late(number, events)

    found = [(item, int(answer.logits)) for item, answer in in_order(ask())]
    assert found == [(f"batch {number}", number) for number in range(6)]
    first, rest = events[: AHEAD + 1], events[AHEAD + 1 :]
    assert first == [f"ask {number}" for number in range(AHEAD + 1)]
    assert rest[: 2 * (5 - AHEAD)] == [
        event for number in range(5 - AHEAD) for event in (f"read {number}", f"ask {number + AHEAD + 1}")
    ]
    assert rest[2 * (5 - AHEAD) :] == [f"read {number}" for number in range(5 - AHEAD, 6)]


def test_what_is_there_is_not_held_back() -> None:
    asked = []

    def ask() -> Iterator[tuple[int, Coming]]:
        for number in range(3):
            asked.append(number)
            yield number, Coming(Answer(torch.tensor([[number]]), torch.tensor([1])))

    for number, (logits, depths) in in_order(ask()):
        assert asked[-1] == number == int(logits)
        assert depths is not None
