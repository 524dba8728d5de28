"""What is asked about batches, and batches that are asked about before earlier answers are read."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from classifiers import tiny_classifier
from conftest import PAD

from anydepth.classifying.answering import Answering
from anydepth.classifying.awaiting import AHEAD, Answer, Coming, in_order
from anydepth.classifying.labels import labelled
from anydepth.classifying.lanes import Lanes
from anydepth.depth.full import FullConfig
from anydepth.depth.perword import PerWordConfig
from anydepth.nn.perword import lay_out


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


@pytest.mark.parametrize(
    ("head", "half", "depth", "taken"),
    [
        (32, False, FullConfig(), True),
        (32, True, PerWordConfig(), True),
        (24, True, FullConfig(), True),
        (24, False, FullConfig(), False),
        (24, True, PerWordConfig(), False),
        (20, True, FullConfig(), False),  # flash attention wants multiples of 8
        (264, True, FullConfig(), False),  # of at most 256
    ],
)
def test_heads_that_no_kernel_takes_are_read_in_the_ordinary_way(
    head: int, half: bool, depth: Any, taken: bool
) -> None:
    assert Answering(tiny_classifier(depth, 1, width=2 * head), half).attends_in_places() == taken


@pytest.mark.parametrize("depth", [FullConfig(), PerWordConfig(stopped="refresh"), PerWordConfig(stopped="keep")])
def test_answers_of_all_lanes_are_those_of_the_ordinary_way(depth: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, lengths = tiny_classifier(depth, 3).eval(), np.array([4, 2])
    answering, batch = Answering(model, half=False), labelled([[5, 6, 7, 8], [9, 5]], PAD, "")
    if isinstance(depth, PerWordConfig):
        batch = batch._replace(words=lay_out(np.array([1, 3, 2, 1, 2, 1]), lengths, 4))
    expected = answering(batch, model.plan())
    (lane,) = answering.lanes.all  # on a CPU
    assert not lane.made
    monkeypatch.setattr(answering, "lanes", Lanes(model, 2))
    monkeypatch.setattr(answering, "records", lambda: True)
    answering.prepare(batch, model.plan())
    assert [len(lane.made) for lane in answering.lanes.all] == [1, 1]
    replayed = [answering.read(batch, model.plan(), None, lane).get() for lane in answering.lanes.all]
    for found in (*replayed, answering(batch, model.plan())):
        torch.testing.assert_close(found.logits, expected.logits, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found.depths, expected.depths)
