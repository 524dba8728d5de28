"""Searches of a fixed shape, one after the other in the same places. (That recorded ones are those not recorded is
tested on a GPU: tests/parity/test_recorded_search.py.)"""

import gc
import math
import re
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from conftest import random_batch, talkative_translator
from searches import MARKS, SEARCHES, assert_replayed_searches_find_the_same

from anydepth.decoding.decoder import DecodingConfig
from anydepth.decoding.recorded import MOST, Shape
from anydepth.depth.latent import LatentConfig
from anydepth.depth.prefix import PrefixConfig
from anydepth.depth.recurrent import RecurrentConfig
from anydepth.errors import UserError
from anydepth.models import Translator, TranslatorDecoder
from anydepth.nn.multiscale import MultiscaleConfig
from anydepth.nn.recorder import out_of_memory_of_any_kind
from anydepth.translating.searching import Asked, Searcher


def test_shapes_are_few_and_large_enough() -> None:
    shapes = {Shape.of(rows, length, 2 * length) for rows in range(1, 65) for length in range(1, 129)}
    assert len(shapes) < 80
    for rows, length in ((1, 1), (3, 17), (64, 100)):
        shape = Shape.of(rows, length, length)
        assert shape.rows >= rows
        assert length <= shape.source == shape.words <= max(16, 1.5 * length)


@pytest.mark.parametrize("name", SEARCHES)
def test_replayed_searches_find_what_others_find(name: str) -> None:
    assert_replayed_searches_find_the_same(talkative_translator(PrefixConfig()), SEARCHES[name])


@pytest.mark.parametrize("name", ["greedy", "beam"])
@pytest.mark.parametrize("depth", [RecurrentConfig(depth=5), LatentConfig(inference="soft")], ids=lambda one: one.type)
def test_with_steps_that_share_layers_and_with_gates(name: str, depth: RecurrentConfig | LatentConfig) -> None:
    assert_replayed_searches_find_the_same(talkative_translator(depth), SEARCHES[name])


def test_with_memories_and_contexts_of_each_layer() -> None:
    assert_replayed_searches_find_the_same(talkative_translator(bridge=MultiscaleConfig()), SEARCHES["beam"])


@pytest.mark.parametrize("name", ["greedy", "speculation", "beam"])
def test_beyond_the_places_that_a_step_looks_at_first(name: str) -> None:
    model = talkative_translator(PrefixConfig())
    searcher, plans = Searcher(model, MARKS._replace(eos=22)), model.plan()
    source, limits = random_batch([(4, 2), (9, 2), (7, 2)]).source, torch.tensor([70, 40, 69])
    found = searcher.replay(Asked(source, limits, plans, "", SEARCHES[name]))
    expected = searcher.grow(Asked(source, limits, plans, "", SEARCHES[name], range(3)))
    assert [one.tokens for (one,) in found] == [one.tokens for (one,) in expected]
    assert max(len(one.tokens) for (one,) in found) > 33
    (made,) = searcher.recorded.made.values()
    assert list(made.steps) == [16, 32, 64, made.inner.room]


def test_rounds_are_begun_ahead_as_long_as_recent_searches_went_on() -> None:
    model = talkative_translator(PrefixConfig())
    searcher, plans = Searcher(model, MARKS._replace(eos=22)), model.plan()
    for limit in (40, 12, 30):
        searcher.replay(Asked(random_batch([(6, 2)]).source, torch.tensor([limit]), plans, "", SEARCHES["speculation"]))
    searcher.replay(Asked(random_batch([(6, 2)]).source, torch.tensor([12]), plans, "", SEARCHES["greedy"]))
    long, short, middle, plain = searcher.recorded.made.values()
    assert plain.steps_ahead(6) == math.inf
    ((fewest, words),) = short.paces
    assert words == 6
    assert 3 <= fewest <= 12  # rounds of up to four words
    assert short.steps_ahead(6) == pytest.approx(fewest - 1)
    assert short.steps_ahead(12) == pytest.approx(2 * fewest - 1)
    assert len(middle.paces) == len(long.paces) == 1
    short.paces.append((7, 25))
    assert short.steps_ahead(25) == 6  # to the last bit, or another round is begun
    short.paces.clear()
    assert short.steps_ahead(6) == -1  # nothing is known


def test_what_was_forgotten_is_recorded_again() -> None:
    model = talkative_translator(PrefixConfig())
    searcher, source, limits = Searcher(model, MARKS), random_batch([(3, 2)]).source, torch.tensor([5])
    first, second = (searcher.replay(Asked(source, limits, model.plan(), "", SEARCHES["greedy"])) for _ in range(2))
    assert len(searcher.recorded.made) == 1
    searcher.recorded.forget()
    assert not searcher.recorded.made
    third = searcher.replay(Asked(source, limits, model.plan(), "", SEARCHES["greedy"]))
    assert [each[0][0].tokens for each in (first, second, third)] == [first[0][0].tokens] * 3


def test_the_shape_not_used_for_longest_makes_room() -> None:
    model = talkative_translator(PrefixConfig())
    searcher, source, limits = Searcher(model, MARKS), random_batch([(3, 2)]).source, torch.tensor([1])
    for number in range(MOST + 3):
        for penalty in (number, 0):
            searcher.replay(
                Asked(source, limits, model.plan(), "", replace(SEARCHES["greedy"], length_penalty=penalty))
            )
    made = searcher.recorded.made
    assert len(made) == MOST
    assert {key[-1] for key, _ in made} == {0, *range(MOST + 3 - (MOST - 1), MOST + 3)}


def test_a_batch_that_memory_cannot_hold_is_searched_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device here holds 3 sentences; what was too much once is not tried again."""
    model = talkative_translator(PrefixConfig())
    searcher, plans, tried = Searcher(model, MARKS), model.plan(), []
    source, limits = random_batch([(n % 5 + 1, 2) for n in range(10)]).source, torch.arange(3, 13)
    beam, sampling = SEARCHES["beam"], DecodingConfig(beam=1, sample=True, n_best=2)
    expected = [searcher.search(Asked(source, limits, plans, "", settings, range(10))) for settings in (beam, sampling)]
    start, room = type(model).start, [3]

    def short_of_memory(self: Translator, source: torch.Tensor, *given: Any) -> TranslatorDecoder:
        tried.append(len(source))
        if len(source) > room[0]:
            raise torch.OutOfMemoryError
        return start(self, source, *given)

    monkeypatch.setattr(Translator, "start", short_of_memory)
    found = searcher.search(Asked(source, limits, plans, "", beam, range(10)))
    assert found == expected[0]
    assert tried == [10, 5, 2, 3, 2, 3]
    tried.clear()
    assert searcher.search(Asked(source, limits, plans, "", beam, range(10))) == expected[0]
    assert tried == [2, 3, 2, 3]
    searcher.too_many = math.inf
    assert searcher.search(Asked(source, limits, plans, "", sampling, range(10))) == expected[1]
    room[0], searcher.too_many = 0, 1
    with pytest.raises(
        UserError, match="cpu has too little memory left for a sentence of 5 tokens, its translation may"
    ):
        searcher.search(Asked(source[4:6], limits[:2], plans, "", beam, range(2)))
    assert searcher.too_many == 1  # a single sentence that does not fit either says nothing new


@pytest.mark.parametrize("name", SEARCHES)
def test_what_is_forgotten_is_free(name: str) -> None:
    model = talkative_translator(PrefixConfig())
    searcher, source, limits = Searcher(model, MARKS), random_batch([(3, 2)] * 2).source, torch.tensor([3, 4])
    searcher.replay(Asked(source, limits, model.plan(), "", SEARCHES[name]))
    held = [weakref.ref(room) for room in searcher.recorded.rooms.rooms]
    assert all(room() is not None for room in held)
    gc.disable()  # so that nothing but forgetting can have freed them
    try:
        searcher.forget()
        assert not [room for room in held if room() is not None]
    finally:
        gc.enable()


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_of_all_shapes_share_their_memory(name: str) -> None:
    model = talkative_translator(PrefixConfig())
    searcher = Searcher(model, MARKS)
    sizes = []
    for sentences, words in ((2, 20), (8, 30), (3, 10), (8, 30)):
        source, limits = random_batch([(3, 2)] * sentences).source, torch.full((sentences,), words)
        found = searcher.replay(Asked(source, limits, model.plan(), "", SEARCHES[name]))
        expected = searcher.grow(Asked(source, limits, model.plan(), "", SEARCHES[name], range(sentences)))
        assert [[one.tokens for one in each] for each in found] == [[one.tokens for one in each] for each in expected]
        sizes.append([room.numel() for room in searcher.recorded.rooms.rooms])
    assert len(searcher.recorded.made) == 3
    assert sizes[0] < sizes[1] == sizes[2] == sizes[3]
    assert len(sizes[0]) == 2 * len(model.plan().decoder)  # keys and values of each step


def test_languages_share_their_searches_unless_gates_may_tell_them_apart() -> None:
    for depth, made in ((PrefixConfig(), 1), (LatentConfig(inference="soft"), 2)):
        model = talkative_translator(depth)
        searcher, source, limits = Searcher(model, MARKS), random_batch([(3, 2)]).source, torch.tensor([2])
        for key in "abab":
            searcher.replay(Asked(source, limits, model.plan(key=key), key, SEARCHES["greedy"]))
        assert len(searcher.recorded.made) == made


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), torch.OutOfMemoryError),
        (RuntimeError("Triton Error [CUDA]: out of memory"), torch.OutOfMemoryError),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), RuntimeError),
    ],
)
def test_the_drivers_memory_is_memory_as_well(error: RuntimeError, kind: type[RuntimeError]) -> None:
    with pytest.raises(RuntimeError, match=re.escape(str(error))) as told, out_of_memory_of_any_kind():
        raise error
    assert type(told.value) is kind
