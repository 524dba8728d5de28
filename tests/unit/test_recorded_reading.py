"""Rooms for batches of many sizes: what is put into one is read as it would be alone. (On a CPU, without graphs.)"""

from typing import Any

import numpy as np
import pytest
import torch
from classifiers import labelled_batch, tiny_classifier

from anydepth.choosing.leaving import Rule
from anydepth.data.labelled_batch import LabelledBatch
from anydepth.depth import DepthConfig
from anydepth.depth.full import FullConfig
from anydepth.depth.perword import ConstantConfig, HaltingConfig, PerWordConfig
from anydepth.depth.prefix import PrefixConfig
from anydepth.depth.rezero import ReZeroConfig
from anydepth.evaluation.accuracy import answer_as_is
from anydepth.nn.perword import lay_out
from anydepth.recorded_reading import RecordedReader, a_little_larger, cost, holds, in_bfloat16, needed

LAYERS = 4
BATCHES = ([5, 1, 7, 3], [6, 2, 7, 3], [40, 33], [9])


def with_depths(lengths: list[int], seed: int, most: int = LAYERS) -> LabelledBatch:
    batch, size = labelled_batch(lengths), np.array(lengths)
    depths = np.random.default_rng(seed).integers(1, most + 1, size.sum())
    return batch._replace(words=lay_out(depths, size, batch.source.shape[1]))


@pytest.mark.parametrize("stopped", ["refresh", "keep"])
@pytest.mark.parametrize("norm", ["pre", "post", "none"])
def test_texts_are_read_as_they_are_without_a_room(norm: str, stopped: Any) -> None:
    model = tiny_classifier(PerWordConfig(stopped=stopped), LAYERS, norm).double()
    reader = RecordedReader(model, model.plan().encoder)
    for seed, lengths in enumerate(BATCHES):
        for most in (2, LAYERS):
            batch = with_depths(lengths, seed, most)
            expected = model.logits(model(batch, model.plan()))
            assert torch.allclose(reader(reader.furnish(batch)), expected, atol=1e-10)


@pytest.mark.parametrize(("depth", "name"), [(FullConfig(), None), (PrefixConfig(), "2"), (PrefixConfig(), None)])
def test_plain_encoders_have_rooms_too(depth: DepthConfig, name: str | None) -> None:
    model = tiny_classifier(depth, LAYERS, "post").double()
    plans = model.plan(name)
    reader = RecordedReader(model, plans.encoder)
    for lengths in BATCHES:
        batch = labelled_batch(lengths)
        assert torch.allclose(reader(reader.furnish(batch)), model.logits(model(batch, plans)), atol=1e-10)


def test_similar_batches_share_a_room() -> None:
    model = tiny_classifier(PerWordConfig(), LAYERS)
    reader = RecordedReader(model, model.plan().encoder)
    rooms = [reader.furnish(with_depths([100 + more] * 8, more)).room for more in range(3)]
    assert len(set(rooms)) == len(reader.rooms) == 1
    assert reader.furnish(with_depths([300] * 8, 1)).room != rooms[0]


def test_a_room_holds_its_first_batch_at_little_more_cost() -> None:
    random = np.random.default_rng(1)
    for texts in (1, 5, 32):
        lengths = random.integers(200, 500, texts)
        sizes = needed(random.integers(1, 13, lengths.sum()), lengths)
        room = a_little_larger(sizes)
        assert holds(room, sizes)
        assert not holds(sizes, sizes)  # no place for the text that takes the rest
        assert cost(room) < (1.06 if texts > 1 else 1.5) * cost(sizes)


def test_where_all_words_run_is_no_room_for_words_that_do_not() -> None:
    lengths = np.array([20, 20])
    everywhere, somewhere = needed(np.full(40, 2), lengths), needed(np.repeat([1, 2], 20), lengths)
    assert holds(a_little_larger(everywhere), everywhere)
    assert not holds(a_little_larger(everywhere), somewhere)
    assert not holds(a_little_larger(somewhere), everywhere)


def test_what_must_be_known_beforehand() -> None:
    assert RecordedReader.takes(tiny_classifier(PerWordConfig(estimate=ConstantConfig(depth=2))))
    assert not RecordedReader.takes(tiny_classifier(PerWordConfig(estimate=HaltingConfig())))
    assert not RecordedReader.takes(tiny_classifier(ReZeroConfig()))


def test_the_sizes_of_a_layout_need_no_layout() -> None:
    lengths = np.array([4, 2, 9])
    depths = np.random.default_rng(3).integers(1, 5, lengths.sum())
    assert needed(depths, lengths) == lay_out(depths, lengths, 9).sizes


@pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
@pytest.mark.parametrize("stopped", ["refresh", "keep"])
def test_graphs_say_what_the_pass_says(stopped: Any) -> None:
    model = tiny_classifier(PerWordConfig(stopped=stopped), LAYERS, "post").cuda()
    reader = RecordedReader(model, model.plan().encoder)
    for _ in range(2):
        for seed, lengths in enumerate((*BATCHES, [100, 80, 500])):
            batch = with_depths(lengths, seed)
            expected = model.logits(model(batch.to("cuda"), model.plan()))
            assert torch.allclose(reader(reader.furnish(batch)), expected, atol=0.1, rtol=0.1)


@pytest.mark.parametrize(
    ("depth", "rule"),
    [
        (PerWordConfig(stopped="refresh"), None),
        (PerWordConfig(stopped="keep"), None),
        (PerWordConfig(estimate=HaltingConfig()), None),
        (PrefixConfig(), Rule(confidence=0.5)),
        (FullConfig(), None),
    ],
)
def test_half_precision_says_nearly_the_same(depth: DepthConfig, rule: Rule | None) -> None:
    model = tiny_classifier(depth, LAYERS, "post")
    half = in_bfloat16(model)
    assert half.encoder.layers[0].grow.weight.dtype == torch.bfloat16
    known = isinstance(depth, PerWordConfig) and not isinstance(depth.estimate, HaltingConfig)
    batch = with_depths([5, 1, 7, 3], 1) if known else labelled_batch([5, 1, 7, 3])
    with torch.no_grad():
        expected, found = (answer_as_is(each, batch, model.plan(), rule) for each in (model, half))
    if expected.depths is None or torch.equal(expected.depths, found.depths):  # near a threshold they may part
        assert torch.allclose(found.logits.float(), expected.logits, atol=0.15, rtol=0.05)
