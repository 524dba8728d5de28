"""Several searches that take turns find what each finds by itself. (On a GPU, where they are at work at the same time:
tests/parity/test_recorded_search.py.)"""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from conftest import talkative_translator
from searches import MARKS, SEARCHES, batches_of_many_shapes

from anydepth.decoding.recorded import Found, Playing, RecordedSearches
from anydepth.depth.prefix import PrefixConfig
from anydepth.errors import UserError
from anydepth.translating.searching import Asked, Searcher


@pytest.fixture
def searcher(monkeypatch: pytest.MonkeyPatch) -> Searcher:
    """That replays its searches, as on a GPU."""
    monkeypatch.setattr(Searcher, "records", lambda self, asked: asked.decoding.plain)
    return Searcher(talkative_translator(PrefixConfig()), MARKS)


def tokens(found: list[Found]) -> list[list[list[int]]]:
    return [[one.tokens for one in each] for batch in found for each in batch]


@pytest.mark.parametrize("at_once", [1, 2, 3, 9])
@pytest.mark.parametrize("name", SEARCHES)
def test_batches_find_the_same_beside_others_in_their_order(searcher: Searcher, name: str, at_once: int) -> None:
    batches = batches_of_many_shapes(searcher.model.plan(), SEARCHES[name])
    found = list(searcher.searches(iter(batches), at_once))
    assert tokens(found) == tokens([searcher.grow(one) for one in batches])
    assert len({tuple(one) for each in tokens(found) for one in each}) > 8


@pytest.mark.parametrize(("further", "asked_by_then"), [(0, 3), (20, 6)])
def test_a_batch_is_asked_for_when_there_is_a_lane_for_it(searcher: Searcher, further: int, asked_by_then: int) -> None:
    """And given back as soon as all before it are: beside a long one, others come and go."""
    batches = batches_of_many_shapes(searcher.model.plan(), SEARCHES["greedy"])
    batches = [one._replace(max_lengths=torch.full_like(one.max_lengths, 2)) for one in batches]
    batches[0] = batches[0]._replace(max_lengths=batches[0].max_lengths + further)
    asked = list[int]()
    found = searcher.searches((asked.append(number) or one for number, one in enumerate(batches)), 2)
    assert not asked
    next(found)
    assert len(asked) <= asked_by_then
    assert len(asked) >= asked_by_then - 1
    assert len(list(found)) == len(batches) - 1


def test_lanes_are_kept_for_the_next_call(searcher: Searcher) -> None:
    batches = batches_of_many_shapes(searcher.model.plan(), SEARCHES["greedy"])
    for _ in range(2):
        list(searcher.searches(batches, 2))
        made = [set(lane.searches.made.values()) for lane in searcher.lanes(2).all]
    list(searcher.searches(batches, 2))
    assert made == [set(lane.searches.made.values()) for lane in searcher.lanes(2).all]
    assert all(made)
    assert not made[0] & made[1]
    searcher.forget()
    assert not any(lane.searches.made for lane in searcher.lanes(2).all)


def test_what_is_not_replayed_or_too_large_is_searched_by_itself(searcher: Searcher) -> None:
    plans = searcher.model.plan()
    without_repeats = replace(SEARCHES["beam"], block_ngrams=2)
    plain, rules = (batches_of_many_shapes(plans, each) for each in (SEARCHES["beam"], without_repeats))
    searcher.too_many = sorted(one.places for one in plain)[-1]
    mixed = [one for pair in zip(plain, rules) for one in pair]
    assert tokens(list(searcher.searches(mixed, 3))) == tokens([searcher.grow(one) for one in mixed])


def test_what_memory_has_no_room_for_beside_others_is_searched_by_itself(
    searcher: Searcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device here holds two searches: the third is short of memory in its first step."""
    batches = batches_of_many_shapes(searcher.model.plan(), SEARCHES["greedy"])
    expected, held, alone = tokens([searcher.grow(one) for one in batches]), [0], list[Asked]()
    play, search = RecordedSearches.search, Searcher.search

    def short_of_memory(self: RecordedSearches, *given: Any) -> Playing:
        held[0] += 1
        try:
            if held[0] > 2:
                raise torch.OutOfMemoryError
            return (yield from play(self, *given))
        finally:
            held[0] -= 1

    monkeypatch.setattr(RecordedSearches, "search", short_of_memory)
    monkeypatch.setattr(Searcher, "search", lambda self, asked: alone.append(asked) or search(self, asked))
    assert tokens(list(searcher.searches(batches, 3))) == expected
    assert len(alone) == 1
    assert searcher.lanes(3).most == 2  # what memory had no room for is not tried again
    assert tokens(list(searcher.searches(batches, 3))) == expected
    assert len(alone) == 1


def test_what_is_not_begun_costs_the_others_nothing(searcher: Searcher) -> None:
    plans = searcher.model.plan()
    plain = batches_of_many_shapes(plans, SEARCHES["greedy"])
    list(searcher.searches(plain, 2))
    made = [set(lane.searches.made.values()) for lane in searcher.lanes(2).all]
    rules = batches_of_many_shapes(plans, replace(SEARCHES["beam"], block_ngrams=2))
    list(searcher.searches(rules, 2))
    assert made == [set(lane.searches.made.values()) for lane in searcher.lanes(2).all]


def test_a_sentence_alone_gets_the_memory_of_all_that_was_recorded(
    searcher: Searcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = batches_of_many_shapes(searcher.model.plan(), SEARCHES["greedy"])
    list(searcher.searches(batches, 2))
    alone, play = batches[0].some(slice(2, 3)), RecordedSearches.search
    expected, lanes, tried = tokens([searcher.grow(alone)]), searcher.lanes(2), [0]

    def short_of_memory(self: RecordedSearches, *given: Any) -> Playing:
        tried[0] += 1
        if any(lane.searches.made for lane in lanes.all):
            raise torch.OutOfMemoryError
        return (yield from play(self, *given))

    monkeypatch.setattr(RecordedSearches, "search", short_of_memory)
    assert tokens([searcher.search(alone)]) == expected
    assert tried == [2]
    assert searcher.too_many == math.inf  # larger batches may fit as well, now that it is free


def test_a_batch_gets_the_memory_of_all_that_was_recorded_before_it_is_halved(
    searcher: Searcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device here has room for two recorded shapes, wherever they are."""
    batches = batches_of_many_shapes(searcher.model.plan(), SEARCHES["greedy"])
    expected, play, sizes = tokens([searcher.grow(one) for one in batches]), RecordedSearches.search, list[int]()

    def short_of_memory(self: RecordedSearches, key: object, make: Any, source: torch.Tensor, *given: Any) -> Playing:
        found = yield from play(self, key, make, source, *given)
        if sum(len(lane.searches.made) for lane in searcher.lanes(2).all) + len(searcher.recorded.made) > 2:
            raise torch.OutOfMemoryError
        sizes.append(len(source))
        return found

    monkeypatch.setattr(RecordedSearches, "search", short_of_memory)
    assert tokens(list(searcher.searches(3 * batches, 2))) == 3 * expected
    assert sorted(sizes) == sorted(3 * [len(one.source) for one in batches])  # none in halves
    assert searcher.too_many == math.inf
    assert searcher.lanes(2).most == 1


def test_after_an_error_the_lanes_are_free_again(searcher: Searcher) -> None:
    batches = batches_of_many_shapes(searcher.model.plan(), SEARCHES["greedy"])

    def asked() -> Any:
        yield from batches[:3]
        raise UserError("line 4 is too long")

    with pytest.raises(UserError, match="line 4"):
        list(searcher.searches(asked(), 2))
    assert tokens(list(searcher.searches(batches, 2))) == tokens([searcher.grow(one) for one in batches])
