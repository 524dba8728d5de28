"""Batches: every pair once an epoch, within budget, exactly resumable, the same on every rank."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any, Literal

import numpy as np
import pytest
import torch
from word_corpora import word_store

from anydepth.data import batching, cutting
from anydepth.data.batching import Batches, IndexBatch
from anydepth.data.collate import Batch, collate, collate_sources, prefetch, stream
from anydepth.data.cutting import BatchingConfig, Limits, one_pass
from anydepth.data.store import Store
from anydepth.errors import UserError

Layout = Literal["padded", "packed"]
LAYOUTS: tuple[Layout, ...] = ("padded", "packed")
both_layouts = pytest.mark.parametrize("layout", LAYOUTS)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[Store]:
    """Three corpora of different sizes and lengths."""
    folder = tmp_path_factory.mktemp("stores")
    sizes = {"large": (3000, 30), "small": (300, 30), "short": (1000, 6)}
    return [
        word_store(folder / key, pairs, longest, seed=number, key=key)
        for number, (key, (pairs, longest)) in enumerate(sizes.items())
    ]


def settings(layout: Layout, tokens: int = 256, window: int = 640) -> BatchingConfig:
    return BatchingConfig(tokens=tokens, layout=layout, window=window)


def first_epoch(batches: Batches) -> Iterator[IndexBatch]:
    while batches.epoch < 1:
        yield next(batches)


def same(one: IndexBatch, two: IndexBatch) -> bool:
    return one.corpus == two.corpus and np.array_equal(one.pairs, two.pairs)


@both_layouts
@pytest.mark.parametrize("window", [64, 640, 1_000_000])
def test_every_pair_once_an_epoch(stores: list[Store], layout: Layout, window: int) -> None:
    batches = Batches(stores[:1], settings(layout, window=window), seed=3)
    first = [batch.pairs for batch in first_epoch(batches)]
    assert batches.epoch == 1
    assert sorted(np.concatenate(first)) == list(range(3000))
    second = []
    while batches.epoch < 2:
        second.append(next(batches).pairs)
    assert sorted(np.concatenate(second)) == list(range(3000))
    assert np.concatenate(first).tolist() != np.concatenate(second).tolist()


@both_layouts
def test_budgets(stores: list[Store], layout: Layout) -> None:
    store = stores[0]
    batches = Batches([store], settings(layout), seed=1)
    limits = batches.limits
    sizes = []
    for _, pairs in first_epoch(batches):
        assert len(pairs) > 0
        source, target = store.source_lengths[pairs], store.target_lengths[pairs]
        if layout == "padded":
            assert len(pairs) * (-(-source.max() // 8) * 8) <= limits.source
            assert len(pairs) * (-(-target.max() // 8) * 8) <= 256
        else:
            assert source.sum() <= limits.source - limits.padding
            assert target.sum() <= 256 - limits.padding
            assert len(pairs) <= limits.sentences
        sizes.append(target.sum())
    assert np.mean(sizes) > (0.75 if layout == "padded" else 0.9) * 256


@both_layouts
def test_the_source_can_fill_a_batch_too(stores: list[Store], layout: Layout) -> None:
    limits = replace(Limits.of(stores[:1], settings(layout)), source=100)
    for pairs in cutting.cut(stores[0], np.arange(3000), limits):
        lengths = stores[0].source_lengths[pairs]
        if layout == "padded":
            assert len(pairs) * (-(-lengths.max() // 8) * 8) <= 100
        else:
            assert lengths.sum() <= 100 - limits.padding


def test_padded_batches_hold_similar_lengths(stores: list[Store], monkeypatch: pytest.MonkeyPatch) -> None:
    store = stores[0]

    def efficiency() -> float:
        real = padded = 0
        for pairs in one_pass(store, settings("padded", window=3000)):
            for lengths in (store.source_lengths[pairs], store.target_lengths[pairs]):
                real += lengths.sum()
                padded += len(pairs) * (-(-lengths.max() // 8) * 8)
        return real / padded

    ours = efficiency()
    assert ours > 0.75  # most of the rest is rounding up to a multiple of 8
    monkeypatch.setattr(cutting, "_by_length", lambda source, target, _: np.lexsort((source, -(-target // 8))))
    assert efficiency() < ours
    monkeypatch.setattr(cutting, "_by_length", lambda source, target, _: np.arange(len(source)))
    assert efficiency() < 0.7 * ours


@both_layouts
def test_order_comes_from_the_seed(stores: list[Store], layout: Layout) -> None:
    def start(seed: int) -> list[list[int]]:
        return [batch.pairs.tolist() for batch in islice(Batches(stores[:1], settings(layout), seed=seed), 20)]

    assert start(1) == start(1)
    assert start(1) != start(2)


@both_layouts
@pytest.mark.parametrize("count", [1, 3])
def test_a_position_resumes_exactly(stores: list[Store], layout: Layout, count: int) -> None:
    def make() -> Batches:
        return Batches(stores[:count], settings(layout), seed=5, temperature=2.0)

    whole = make()
    expected = list(islice(whole, 700))
    assert whole.epoch > 1
    for taken in (0, 1, 37, 299, 500):
        before = make()
        for _ in range(taken):
            next(before)
        position = json.loads(json.dumps(before.position()))
        assert position["epoch"] == before.epoch
        after = make()
        after.seek(position)
        assert after.epoch == before.epoch
        assert all(same(*pair) for pair in zip(islice(after, 200), expected[taken : taken + 200], strict=True))


def test_seeking_makes_only_the_window_at_hand(stores: list[Store], monkeypatch: pytest.MonkeyPatch) -> None:
    batches = Batches(stores[:1], settings("packed", window=64), seed=5)
    for _ in islice(batches, 300):
        pass
    again = Batches(stores[:1], settings("packed", window=64), seed=5)
    made: list[int] = []
    cut = batching.cut
    monkeypatch.setattr(batching, "cut", lambda *args: (made.append(1), cut(*args))[1])
    again.seek(batches.position())
    assert same(next(again), next(batches))
    assert len(made) <= 3  # of 47 in an epoch; the other stream may have made one, too


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 6}, "seed was 5, now it is 6"),
        ({"tokens": 300}, "tokens was 256, now it is 300"),
        ({"layout": "packed"}, "layout was padded, now it is packed"),
        ({"stores": 1}, r"pairs was \[3000, 300\], now it is \[3000\]"),
    ],
)
def test_a_position_of_other_batches_is_refused(stores: list[Store], changes: dict[str, Any], message: str) -> None:
    config = settings("padded")
    position = Batches(stores[:2], config, seed=5).position()
    other = Batches(
        stores[: changes.pop("stores", 2)],
        replace(config, **{name: value for name, value in changes.items() if name != "seed"}),
        seed=changes.get("seed", 5),
    )
    with pytest.raises(UserError, match=message):
        other.seek(position)


@both_layouts
def test_two_ranks_share_one_sequence(stores: list[Store], layout: Layout) -> None:
    alone = Batches(stores[:1], settings(layout), seed=7)
    ranks = [Batches(stores[:1], settings(layout), seed=7, rank=rank, world=2) for rank in (0, 1)]
    for _ in range(200):
        assert same(next(alone), next(ranks[0]))
        assert same(next(alone), next(ranks[1]))
        assert ranks[0].position() == ranks[1].position()
    # and the position is also that of the single rank, but for the number of steps
    assert ranks[0].position()["places"] == alone.position()["places"]


def test_ranks_agree_on_the_corpus_of_each_step(stores: list[Store]) -> None:
    ranks = [Batches(stores, settings("padded"), seed=7, temperature=5.0, rank=rank, world=3) for rank in range(3)]
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for _ in range(15):
        step = [next(rank) for rank in ranks]
        assert len({batch.corpus for batch in step}) == 1
        for batch in step:
            seen[batch.corpus].extend(batch.pairs)
    for pairs in seen.values():  # no rank repeats what another one has
        assert len(pairs) == len(set(pairs)) > 0


@pytest.mark.parametrize("temperature", [1.0, 5.0])
def test_corpora_are_drawn_by_temperature(stores: list[Store], temperature: float) -> None:
    batches = Batches(stores, settings("packed"), seed=9, temperature=temperature)
    sizes = np.array([store.target_tokens for store in stores], dtype=float)
    expected = sizes ** (1 / temperature) / (sizes ** (1 / temperature)).sum()
    assert np.allclose(batches.probabilities, expected)
    draws = Counter(batch.corpus for batch in islice(batches, 4000))
    frequencies = np.array([draws[corpus] for corpus in range(3)]) / 4000
    assert np.abs(frequencies - expected).max() < 4 * np.sqrt(0.25 / 4000)


def test_at_temperature_1_all_corpora_finish_together(stores: list[Store]) -> None:
    batches = Batches(stores, settings("packed"), seed=9)
    for _ in islice(batches, 2000):
        pass
    epochs = [cursor.epoch for cursor in batches._cursors]
    assert max(epochs) / min(epochs) < 1.35


@pytest.mark.parametrize(("layout", "needed"), [("padded", 32), ("packed", 35)])
def test_a_pair_larger_than_a_batch_is_an_error(stores: list[Store], layout: Layout, needed: int) -> None:
    message = f"a batch of 31 target tokens .*: 31 tokens, {needed} with padding; raise batching.tokens"
    with pytest.raises(UserError, match=message):
        Batches(stores[:1], settings(layout, tokens=31), seed=1)


@both_layouts
def test_the_smallest_possible_budget(stores: list[Store], layout: Layout) -> None:
    batches = Batches(stores[:1], settings(layout, tokens=36), seed=1)
    seen = []
    for _, pairs in first_epoch(batches):
        batch = collate(stores[0], pairs, batches.limits)
        seen.extend(pairs)
        if batch.target_packing:
            assert_packed_well(batch, batches.limits)
    assert sorted(seen) == list(range(3000))


@both_layouts
def test_one_pass(stores: list[Store], layout: Layout) -> None:
    config = settings(layout, window=1000)
    once, again = list(one_pass(stores[0], config)), list(one_pass(stores[0], config))
    assert sorted(np.concatenate(once)) == list(range(3000))
    assert all(np.array_equal(*pair) for pair in zip(once, again, strict=True))
    with pytest.raises(UserError, match="cannot hold the longest"):
        list(one_pass(stores[0], config, replace(Limits.of(stores, config), target=16)))


def sentences_of(batch: Batch, which: str) -> list[list[int]]:
    """The rows of a padded batch or the segments of a packed one, without padding."""
    tensor, packing = getattr(batch, which), batch.source_packing if which == "source" else batch.target_packing
    if packing is None:
        rows = tensor.tolist()
    else:
        starts = packing.starts.tolist()[: batch.sentences + 1]
        rows = [tensor[0, start:end].tolist() for start, end in pairwise(starts)]
    return [[token for token in row if token != 0] for row in rows]


def test_packed_and_padded_hold_the_same(stores: list[Store]) -> None:
    pairs = np.array([5, 17, 2999, 0, 123])
    padded, packed = (collate(stores[0], pairs, Limits.of(stores, settings(layout))) for layout in LAYOUTS)
    for which in ("source", "target_in", "target_out"):
        assert sentences_of(padded, which) == sentences_of(packed, which)
    target = sentences_of(padded, "target_out")
    assert all(sentence[-1] == 2 for sentence in target + sentences_of(padded, "source"))
    assert sentences_of(padded, "target_in") == [[1, *sentence[:-1]] for sentence in target]
    for batch in (padded, packed):
        assert (batch.tokens, batch.sentences, batch.key) == (sum(map(len, target)), 5, "large")
    assert padded.source.dtype == packed.target_in.dtype == torch.int64
    assert padded.source.shape[1] % 8 == padded.target_in.shape[1] % 8 == 0


def assert_packed_well(batch: Batch, limits: Limits) -> None:
    lengths = []
    for tensor, packing, size in (
        (batch.source, batch.source_packing, limits.source),
        (batch.target_in, batch.target_packing, limits.target),
    ):
        assert packing is not None
        assert tensor.shape == packing.positions.shape == (1, size)
        assert packing.starts.dtype == torch.int32
        assert packing.starts.shape == (limits.sentences + limits.padding + 1,)
        assert (packing.starts[0], packing.starts[-1]) == (0, size)
        lengths.append(packing.starts.diff())
        assert lengths[-1].min() >= 0
        assert lengths[-1].max() <= packing.longest
        starts = set(packing.starts.tolist()) - {size}
        assert starts == set((packing.positions[0] == 0).nonzero()[:, 0].tolist())
        assert (packing.positions[0].diff()[packing.positions[0, 1:] != 0] == 1).all()
        assert (tensor[0, packing.starts[batch.sentences] :] == 0).all()
        assert (tensor[0, : packing.starts[batch.sentences]] != 0).all()
    # segments are aligned, padding included: no target attends to nothing, no source is left over
    assert torch.equal(lengths[0] > 0, lengths[1] > 0)


def test_packed_batches_have_one_shape(stores: list[Store]) -> None:
    batches = Batches(stores, settings("packed"), seed=1, temperature=5.0)
    for batch, _ in islice(stream(batches), 300):
        assert_packed_well(batch, batches.limits)
    for tokens in (256, 1000, 4096):  # nearly all of it is padding
        limits = Limits.of(stores, settings("packed", tokens=tokens))
        assert_packed_well(collate(stores[0], np.array([0]), limits), limits)


def test_stream_hands_out_the_position_after_each_batch(stores: list[Store]) -> None:
    def make() -> Batches:
        return Batches(stores, settings("padded"), seed=4)

    with prefetch(stream(make()), depth=4) as ahead:
        for _ in range(9):
            batch, position = next(ahead)
        following, _ = next(ahead)
    resumed = make()
    resumed.seek(position)
    assert torch.equal(next(stream(resumed))[0].source, following.source)
    assert not torch.equal(batch.source, following.source)


def test_prefetch_passes_items_and_errors() -> None:
    def numbers() -> Iterator[int]:
        yield from range(10)
        raise RuntimeError("broken")

    ahead = prefetch(numbers(), depth=2)
    assert [next(ahead) for _ in range(10)] == list(range(10))
    with pytest.raises(RuntimeError, match="broken"):
        next(ahead)
    with pytest.raises(StopIteration):
        next(ahead)
    assert list(prefetch(iter(range(100)))) == list(range(100))


def test_prefetch_stays_within_its_depth_and_stops() -> None:
    made = []

    def numbers() -> Iterator[int]:
        for number in range(1_000_000):
            made.append(number)
            yield number

    before = threading.active_count()
    with prefetch(numbers(), depth=3) as ahead:
        assert [next(ahead) for _ in range(5)] == [0, 1, 2, 3, 4]
    assert len(made) <= 5 + 3 + 1
    assert threading.active_count() == before
    assert list(ahead) == []


def test_batches_move(stores: list[Store]) -> None:
    for layout in LAYOUTS:
        batch = collate(stores[0], np.arange(4), Limits.of(stores, settings(layout)))
        moved = batch.to("meta")
        assert moved.source.device.type == moved.target_out.device.type == "meta"
        if moved.target_packing:
            assert moved.target_packing.starts.device.type == "meta"
            assert moved.target_packing.positions.device.type == "meta"


def test_collate_sources() -> None:
    assert collate_sources([[5, 6, 2], [7, 2]], pad=0).tolist() == [[5, 6, 2], [7, 2, 0]]
    assert collate_sources([[3]], pad=1).dtype == torch.int64


@pytest.mark.parametrize("name", ["tokens", "window", "lengths"])
def test_settings_out_of_range(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        BatchingConfig(**{name: 0})  # type: ignore[arg-type]
