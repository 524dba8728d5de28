"""Searches of a fixed shape, one after the other in the same places. (That recorded rounds are those not recorded is
tested on a GPU: tests/parity/test_recorded_search.py.)"""

import pytest
import torch
from conftest import BOS, PAD, random_batch, talkative_translator

from anydepth.decoding.greedy import greedy
from anydepth.decoding.recorded import MOST, Marks, RecordedSearches, Shape
from anydepth.depth.prefix import PrefixConfig
from anydepth.drafter import TranslatorDrafter
from anydepth.plan import Plan

END = 7
MARKS = Marks(BOS, END, PAD)


def test_shapes_are_few_and_large_enough() -> None:
    shapes = {Shape.of(rows, length, 2 * length) for rows in range(1, 65) for length in range(1, 129)}
    assert len(shapes) < 80
    for rows, length in ((1, 1), (3, 17), (64, 100)):
        shape = Shape.of(rows, length, length)
        assert shape.rows >= rows
        assert length <= shape.source == shape.words <= max(16, 1.5 * length)


@pytest.mark.parametrize("drafts", [0, 3])
def test_searches_one_after_the_other_are_those_of_greedy_search(drafts: int) -> None:
    model, searches = talkative_translator(PrefixConfig()), RecordedSearches()
    plans = model.plan()

    def make(room: int) -> TranslatorDrafter:
        return TranslatorDrafter(model, plans, Plan((0,)), room)

    said: set[int] = set()
    for batch, longest in ((5, 12), (8, 9), (1, 3), (7, 15), (30, 40)):
        source = random_batch([(n % longest + 1, 2) for n in range(batch)]).source
        limits = torch.tensor([3 + n % 11 for n in range(batch)])
        expected = greedy(model.start(source, plans), BOS, END, PAD, limits)
        found = searches.search("prefix", make, source, limits, MARKS, drafts, 1.0, 45)
        assert [one.tokens for one in found] == [one.tokens for one in expected]
        assert [one.score for one in found] == pytest.approx([one.score for one in expected], abs=1e-5)
        said |= {token for one in found for token in one.tokens}
    assert len(said) > 5
    assert len(searches.made) == 3  # 8 rows of 16 words thrice, one row, and 32 of 48


def test_the_shape_not_used_for_longest_makes_room() -> None:
    model, searches = talkative_translator(PrefixConfig()), RecordedSearches()
    source, limits = random_batch([(3, 2)]).source, torch.tensor([1])

    def make(room: int) -> TranslatorDrafter:
        return TranslatorDrafter(model, model.plan(), Plan((0,)), room)

    for number in range(MOST + 3):
        for key in (number, 0):
            searches.search(key, make, source, limits, MARKS, 0, 1.0, 45)
    assert len(searches.made) == MOST
    assert {key for key, *_ in searches.made} == {0, *range(MOST + 3 - (MOST - 1), MOST + 3)}
