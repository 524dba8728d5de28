"""On a GPU: searches recorded as CUDA graphs against the same searches kernel by kernel."""

import math
from dataclasses import replace

import pytest
import torch
from conftest import random_batch, talkative_translator
from searches import MARKS, SEARCHES, assert_replayed_searches_find_the_same, batches_of_many_shapes

from anydepth.decoding.recorded import RecordedSearch
from anydepth.depth import DepthConfig
from anydepth.depth.latent import LatentConfig
from anydepth.depth.prefix import PrefixConfig
from anydepth.depth.recurrent import RecurrentConfig
from anydepth.depth.rezero import ReZeroConfig
from anydepth.depth.subnetwork import SubnetworkConfig
from anydepth.nn.multiscale import MultiscaleConfig
from anydepth.translating.reading import recordable
from anydepth.translating.searching import Asked, Searcher

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
DEPTHS = [PrefixConfig(), SubnetworkConfig(), RecurrentConfig(depth=5), LatentConfig(inference="soft"), ReZeroConfig()]
PAIRS = [(depth, name) for depth in DEPTHS for name in SEARCHES if name != "speculation" or depth in DEPTHS[:3]]


@pytest.mark.parametrize(("depth", "name"), PAIRS, ids=lambda one: one if isinstance(one, str) else one.type)
def test_recorded_searches_find_what_others_find(depth: DepthConfig, name: str) -> None:
    model = talkative_translator(depth).cuda()
    assert recordable(model, model.plan(), "")
    assert_replayed_searches_find_the_same(model, SEARCHES[name])


@pytest.mark.parametrize("name", ["greedy", "beam"])
def test_with_memories_and_contexts_of_each_layer(name: str) -> None:
    assert_replayed_searches_find_the_same(talkative_translator(bridge=MultiscaleConfig()).cuda(), SEARCHES[name])


@pytest.mark.parametrize("name", SEARCHES)
def test_in_single_precision(name: str) -> None:
    assert_replayed_searches_find_the_same(talkative_translator(PrefixConfig()).float().cuda(), SEARCHES[name])


@pytest.mark.parametrize("name", SEARCHES)
def test_beyond_the_places_that_a_step_looks_at_first_and_again(name: str) -> None:
    model = talkative_translator(PrefixConfig()).cuda()
    searcher, plans = Searcher(model, MARKS._replace(eos=22)), model.plan()
    for _ in range(3):  # steps are made, recorded, and from then on replayed
        source, limits = random_batch([(4, 2), (9, 2), (7, 2)]).source, torch.tensor([70, 40, 69])
        with torch.no_grad():
            found = searcher.replay(Asked(source, limits, plans, "", SEARCHES[name]))
            expected = searcher.grow(Asked(source, limits, plans, "", SEARCHES[name], range(3)))
        assert [[one.tokens for one in each] for each in found] == [[one.tokens for one in each] for each in expected]
    (made,) = searcher.recorded.made.values()
    assert list(made.steps) == [16, 32, 64, made.inner.room]


@pytest.mark.parametrize("name", SEARCHES)
def test_bfloat16_finds_scores_close_to_those_of_single_precision(name: str) -> None:
    model = talkative_translator(PrefixConfig()).float()
    source, limits = random_batch([(n % 9 + 1, 2) for n in range(32)]).source, torch.full((32,), 12)
    settings, plans = replace(SEARCHES[name], n_best=1), model.plan()
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        searcher = Searcher(model.to(dtype).cuda(), MARKS)
        found[dtype] = [one for (one,) in searcher.replay(Asked(source, limits, plans, "", settings))]
    single, half = found.values()
    same = [(a.score, b.score) for a, b in zip(single, half) if a.tokens == b.tokens]
    assert len(same) > 16
    assert all(a == pytest.approx(b, abs=0.1) for a, b in same)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", SEARCHES)
def test_on_another_gpu_than_that_of_the_thread(name: str, dtype: torch.dtype) -> None:
    """As in a server, whose threads do not know which one its model is on."""
    model = talkative_translator(PrefixConfig()).to("cuda:1", dtype)
    with torch.cuda.device(0):
        assert_replayed_searches_find_the_same(model, SEARCHES[name])


@pytest.mark.parametrize(("name", "further"), [("greedy", 1), ("beam", 1), ("speculation", 0)])
def test_what_comes_after_the_last_step(name: str, further: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short one, since the GPU does not wait for the host; but no round of speculation, if earlier searches tell."""
    model, calls, advance = talkative_translator(PrefixConfig()).cuda(), list[int](), RecordedSearch.advance
    monkeypatch.setattr(RecordedSearch, "advance", lambda self, used: (calls.append(used), advance(self, used)))
    plans, source, limits = model.plan(), random_batch([(6, 2)]).source, torch.tensor([60])
    ((whole,),) = Searcher(model, MARKS).replay(Asked(source, limits, plans, "", SEARCHES["greedy"]))
    searcher = Searcher(model, MARKS._replace(eos=max(whole.tokens, key=whole.tokens.index)))
    for _ in range(3):
        calls.clear()
        searcher.replay(Asked(source, limits, plans, "", SEARCHES[name]))
        (made,) = searcher.recorded.made.values()
        needed, _ = made.paces[-1]
        assert 3 <= needed < 60
        assert len(calls) == needed + further


def test_a_search_between_two_others_disturbs_neither() -> None:
    """Graphs share their memory."""
    model = talkative_translator(PrefixConfig()).cuda()
    searcher, plans = Searcher(model, MARKS), model.plan()
    expected: dict[object, list[list[int]]] = {}
    for turn in range(3):
        for name, settings in SEARCHES.items():
            for batch in (3, 17):
                source = random_batch([(n % 13 + 1, 2) for n in range(batch)]).source
                found = searcher.replay(Asked(source, torch.full((batch,), 13), plans, "", settings))
                tokens = [one.tokens for each in found for one in each]
                assert expected.setdefault((name, batch), tokens) == tokens, (turn, name, batch)


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_at_the_same_time_find_what_each_finds_alone(name: str) -> None:
    model = talkative_translator(PrefixConfig()).cuda()
    searcher = Searcher(model, MARKS._replace(eos=22))
    batches = 3 * batches_of_many_shapes(model.plan(), SEARCHES[name], longest=70)
    expected = [searcher.search(one) for one in batches]
    for _ in range(3):  # recorded, then replayed
        assert list(searcher.searches(batches, 3)) == expected


def test_where_memory_is_short_batches_are_halved_until_they_fit() -> None:
    model = talkative_translator(PrefixConfig()).cuda()
    source, limits = random_batch([(n % 60 + 1, 2) for n in range(512)]).source, torch.full((512,), 60)
    with torch.no_grad():
        expected = Searcher(model, MARKS).search(
            Asked(source, limits, model.plan(), "", SEARCHES["greedy"], range(512))
        )
        torch.cuda.empty_cache()
        held, total = torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[1]
        searcher = Searcher(model, MARKS)
        torch.cuda.set_per_process_memory_fraction((held + 2**25) / total)
        try:
            found = searcher.search(Asked(source, limits, model.plan(), "", SEARCHES["greedy"], range(512)))
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
    assert searcher.too_many < math.inf
    assert [[one.tokens for one in each] for each in found] == [[one.tokens for one in each] for each in expected]
