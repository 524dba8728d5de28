"""Reading in fixed places, on a CPU without being recorded: the answers of the ordinary way."""

from typing import Any

import numpy as np
import pytest
import torch
from classifiers import VOCABULARY, tiny_classifier
from conftest import PAD

from anydepth.classifying import lanes
from anydepth.classifying.answering import answer
from anydepth.classifying.labels import labelled
from anydepth.classifying.lanes import Lane, Lanes
from anydepth.classifying.places import PARTS, Shape
from anydepth.classifying.word_places import Sorted, WordPlaces
from anydepth.data.labelled_batch import LabelledBatch
from anydepth.depth.full import FullConfig
from anydepth.depth.latent import LatentConfig
from anydepth.depth.perword import HaltingConfig, PerWordConfig
from anydepth.depth.prefix import PrefixConfig
from anydepth.depth.recurrent import RecurrentConfig
from anydepth.nn.perword import lay_out
from anydepth.nn.row_attention import SINGLE, choose_tile

LAYERS = 4


def texts(lengths: list[int]) -> list[list[int]]:
    random = np.random.default_rng(0)
    return [random.integers(PAD + 1, VOCABULARY, length).tolist() for length in lengths]


def with_depths(batch: LabelledBatch, depths: np.ndarray, lengths: np.ndarray) -> LabelledBatch:
    return batch._replace(words=lay_out(depths, lengths, batch.source.shape[1]))


@pytest.mark.parametrize("stopped", ["refresh", "keep"])
@pytest.mark.parametrize("norm", ["pre", "post", "none"])
def test_words_with_depths_of_their_own(norm: str, stopped: Any) -> None:
    model = tiny_classifier(PerWordConfig(stopped=stopped), LAYERS, norm=norm).eval()
    places, random = Lane(model), np.random.default_rng(1)
    seen = set()
    for sizes in ([40, 1, 25, 7, 30], [3], [60, 60, 60], [40, 2, 25, 7, 31]):
        lengths = np.array(sizes)
        # at first all run, then fewer and fewer; some texts stop long before others
        depths = np.minimum(random.integers(1, LAYERS + 1, lengths.sum()), np.repeat(1 + np.arange(len(sizes)), sizes))
        depths = np.minimum(depths, LAYERS)
        ids = texts(sizes)
        found = places.read(model.plan().encoder, stopped == "refresh", np.concatenate(ids), depths, lengths)
        expected = answer(model, with_depths(labelled(ids, PAD, ""), depths, lengths), model.plan()).logits
        largest = float(expected.detach().abs().max())  # without norms hundreds
        torch.testing.assert_close(found, expected, atol=1e-5 * max(1, largest), rtol=0)
        seen |= set(found.argmax(-1).tolist())
    assert len(seen) > 1
    assert len(places.made) == 3  # the first and the last have one shape


@pytest.mark.parametrize(
    "depth", [FullConfig(), PrefixConfig(), RecurrentConfig(depth=3)], ids=lambda depth: depth.type
)
def test_plain_classifiers_are_those_whose_words_all_run(depth: Any) -> None:
    model = tiny_classifier(depth, LAYERS if depth.type != "recurrent" else 1).eval()
    places, ids = Lane(model), texts([9, 70, 4])
    tokens, lengths = np.concatenate(ids), np.array([9, 70, 4])
    for name in model.depths():
        plans = model.plan(name)
        found = places.read(plans.encoder, True, tokens, np.full(83, len(plans.encoder)), lengths)
        expected = answer(model, labelled(ids, PAD, ""), plans).logits
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_hardly_more_is_computed_than_the_depths_say() -> None:
    model, rows = tiny_classifier(PerWordConfig(stopped="keep"), LAYERS).eval(), []
    for layer in model.encoder.layers:
        layer.grow.register_forward_hook(lambda _, given, __: rows.append(len(given[0])))
    lengths = np.full(20, 50)
    depths = np.random.default_rng(0).integers(1, LAYERS + 1, 1000)
    places = WordPlaces(model, model.plan().encoder, False, Shape.of(lengths), None)
    places.read(np.concatenate(texts([50] * 20)), depths, lengths)
    running = [int((depths > number).sum()) for number in range(LAYERS)]
    for computed, count in zip(rows, running, strict=True):
        assert count <= computed < count + max(32, 2 * count // PARTS)


def test_rows_are_sorted_by_depth() -> None:
    depths, lengths = np.array([1, 3, 2, 3, 1, 2, 2]), np.array([4, 1, 2])
    words = Sorted.by_depth(depths, lengths, 3)
    assert words.order.tolist() == [1, 3, 2, 5, 6, 0, 4]
    assert words.rows.tolist() == [0, 1, 2, 5, 6, 3, 4]
    assert words.running.tolist() == [[4, 1, 2], [3, 0, 2], [2, 0, 0]]


def test_attention_starts_with_the_longest_texts() -> None:
    model, sizes = tiny_classifier(PerWordConfig(), LAYERS).eval(), [9, 70, 4, 30, 12]
    places = WordPlaces(model, model.plan().encoder, True, Shape.of(np.array(sizes)), None)
    depths = np.repeat([1, 2, 4, 3, 1], sizes)
    places.read(np.concatenate(texts(sizes)), depths, np.array(sizes))
    begins, ends = places.texts.by_length.tolist()
    assert list(zip(begins, ends)) == [(9, 79), (83, 113), (113, 125), (0, 9), (79, 83), *[(0, 0)] * 3]
    third = places.steps[2].tolist()
    assert third[:4] == [34, 4, 0, 30]  # words of texts of 30 and 4 run, in the next layer those of 4
    tiles = [-(-running // places.tile(34).queries) for running in third[2:10]]
    assert third[10:18] == np.cumsum(tiles).tolist()


def test_tiles_are_as_small_as_running_words_are_few() -> None:
    for counts in ([256, 1024, 2048, 8518], [1024, 4096, 8192, 33710]):
        found = [choose_tile(count, counts[0] // 8, 12, torch.bfloat16).queries for count in counts]
        assert found == [16, 32, 64, 64]
    assert choose_tile(512, 1, 12, torch.bfloat16).queries == 16  # larger ones would make too few programs
    assert choose_tile(8518, 32, 12, torch.float32) == SINGLE


@pytest.mark.parametrize("stopped", ["refresh", "keep"])
def test_depths_that_are_all_the_same(stopped: Any) -> None:
    model = tiny_classifier(PerWordConfig(stopped=stopped), LAYERS).eval()
    places, ids, lengths = Lane(model), texts([9, 70, 1]), np.array([9, 70, 1])
    for depth in (2, 1, LAYERS):
        depths = np.full(80, depth)
        found = places.read(model.plan().encoder, stopped == "refresh", np.concatenate(ids), depths, lengths)
        expected = answer(model, with_depths(labelled(ids, PAD, ""), depths, lengths), model.plan()).logits
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_padding_needs_no_positions_of_its_own() -> None:
    model = tiny_classifier(PerWordConfig(), LAYERS, max_positions=8).eval()
    ids, lengths, depths = texts([5, 7]), np.array([5, 7]), np.arange(12) % LAYERS + 1
    found = Lane(model).read(model.plan().encoder, True, np.concatenate(ids), depths, lengths)
    expected = answer(model, with_depths(labelled(ids, PAD, ""), depths, lengths), model.plan()).logits
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_the_shape_not_used_for_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "MOST", 2)
    model = tiny_classifier(PerWordConfig(), LAYERS).eval()
    places, shapes = Lane(model), []
    for size in (10, 200, 10, 400):
        (ids,) = texts([size])
        places.read(model.plan().encoder, True, np.array(ids), np.ones(size, dtype=np.int64), np.array([size]))
        shapes.append(Shape.of(np.array([size])))
    assert [shape for _, shape, _ in places.made] == [shapes[0], shapes[3]]


def test_another_lane_is_taken_only_while_those_before_are_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes, busy = Lanes(tiny_classifier(PerWordConfig(), LAYERS).eval(), 3), set()
    monkeypatch.setattr(Lane, "is_idle", lambda lane: lane not in busy)

    def ask() -> int:
        lane = lanes.next()
        busy.add(lane)
        return lanes.all.index(lane)

    for _ in range(2):  # who waits for every answer
        assert ask() == 0
        busy.clear()
    assert [ask() for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    busy.remove(lanes.all[2])
    assert [ask() for _ in range(4)] == [2, 1, 0, 2]


def test_on_a_cpu_nothing_is_at_work_once_it_is_asked() -> None:
    model = tiny_classifier(PerWordConfig(), LAYERS).eval()
    (ids,), places = texts([9]), Lane(model)
    places.read(model.plan().encoder, True, np.array(ids), np.ones(9, dtype=np.int64), np.array([9]))
    assert places.stream is None
    assert places.is_idle()


def test_shapes_waste_little() -> None:
    for size in (1, 127, 128, 129, 1000, 8518, 33_710):
        shape = Shape.of(np.array([size]))
        assert size <= shape.words <= max(128, size * 9 / 8 + 32)
    assert len({Shape.of(np.array([size])).words for size in range(1, 40_000)}) < 80


def test_what_decides_while_it_reads_is_not_read_so() -> None:
    assert tiny_classifier(PerWordConfig(), LAYERS).depths_are_known
    assert not tiny_classifier(PerWordConfig(estimate=HaltingConfig()), LAYERS).depths_are_known
    assert not tiny_classifier(LatentConfig(), LAYERS).depths_are_known
