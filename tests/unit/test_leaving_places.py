"""Texts that leave early, in fixed places, on a CPU without being recorded: where they leave in the ordinary way."""

from typing import Any

import numpy as np
import pytest
import torch
from classifiers import sure, undecided
from conftest import PAD
from test_word_places import texts

from anydepth.classifying.answering import Answering
from anydepth.classifying.awaiting import Coming
from anydepth.classifying.labels import labelled
from anydepth.classifying.lanes import Lane, Lanes
from anydepth.classifying.leaving import Rule
from anydepth.depth.prefix import PrefixConfig
from anydepth.depth.recurrent import RecurrentConfig

LAYERS = 5
SIZES = [[4, 1, 2, 7, 3, 12], [3], [6, 6, 60, 2], [4, 2, 5, 7, 1, 13], [2] * 40]


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(
    "depth", [PrefixConfig(), PrefixConfig(exits=(2, 4)), RecurrentConfig(depth=4)], ids=["every", "some", "recurrent"]
)
@pytest.mark.parametrize("share", [0.3, 0.7, None])
def test_texts_leave_as_in_the_ordinary_way(
    share: float | None, depth: Any, norm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = undecided(depth, 2 if isinstance(depth, RecurrentConfig) else LAYERS, norm)
    rule = Rule(patience=1) if share is None else sure(model, [text for each in SIZES for text in texts(each)], share)
    answering, plans = Answering(model, half=False), model.plan()
    batches = [labelled(texts(sizes), PAD, "") for sizes in SIZES]
    expected = [answering(batch, plans, rule) for batch in batches]
    taken = {number for each in expected if each.depths is not None for number in each.depths.tolist()}
    assert taken <= set(model.exits)
    assert len(taken) > 1
    monkeypatch.setattr(answering, "lanes", Lanes(model, 2))
    monkeypatch.setattr(answering, "records", lambda: True)
    for _ in range(2):  # in places that have been used, too
        for found, right in zip(answering.all(batches, plans, rule), expected, strict=True):
            torch.testing.assert_close(found.logits, right.logits, atol=1e-4, rtol=1e-4)
            assert found.depths is not None
            assert right.depths is not None
            assert found.depths.tolist() == right.depths.tolist()


def test_a_batch_keeps_its_room_until_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU has just answered about the first part of the layers when the next batch comes to the same lane."""
    model, rule = undecided(PrefixConfig(exits=(2, 4)), LAYERS, "post"), Rule(confidence=1.0)
    answering, plans = Answering(model, half=False), model.plan()
    first, second = (labelled(texts([40, 30, size]), PAD, "") for size in (20, 19))
    expected = [answering(batch, plans, rule).logits for batch in (first, second)]
    monkeypatch.setattr(answering, "lanes", Lanes(model, 1))
    monkeypatch.setattr(answering, "records", lambda: True)
    asked = [answering.ask(batch, plans, rule) for batch in (first, second)]
    found = [each.get().logits for each in asked]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(found[0], found[1])


def test_layers_run_only_for_texts_that_have_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    model = undecided(PrefixConfig(), LAYERS, "post")
    answering, plans, ids = Answering(model, half=False), model.plan(), texts([4] * 512)
    batch, rule = labelled(ids, PAD, ""), sure(model, ids, 0.6)
    monkeypatch.setattr(answering, "records", lambda: True)
    rows: list[int] = []
    for layer in model.encoder.layers:
        layer.grow.register_forward_hook(lambda _, given, __: rows.append(len(given[0])))
    depths = answering(batch, plans, rule).depths
    assert depths is not None
    running = [count for number in range(LAYERS) if (count := int((depths > number).sum()))]
    assert all(count <= row <= max(32, count * 33 // 32 + 32) for row, count in zip(rows, running, strict=True))
    assert len(set(rows)) > 1
    assert np.all(np.diff(rows) <= 0)


def test_places_are_few_whoever_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is recorded on a GPU; those of all shapes that texts which stay may have would be hundreds."""
    model = undecided(PrefixConfig(), LAYERS, "post")
    answering, random = Answering(model, half=False), np.random.default_rng(0)
    monkeypatch.setattr(answering, "records", lambda: True)
    stayed = set()
    for share in (0.2, 0.4, 0.6, 0.8):
        ids = texts(random.integers(40, 60, 32).tolist())
        depths = answering(labelled(ids, PAD, ""), model.plan(), sure(model, ids, share)).depths
        assert depths is not None
        stayed |= {int((depths > number).sum()) for number in range(LAYERS)}
    assert len(stayed) > LAYERS
    (lane,) = answering.lanes.all
    assert len(lane.made) <= LAYERS


def test_other_batches_go_on_while_one_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a GPU that has never answered before somebody waits for it."""
    model, parts = undecided(PrefixConfig(), LAYERS, "post"), []
    answering, plans, rule = Answering(model, half=False), model.plan(), Rule(confidence=1.0)
    batches = [labelled(texts([40, 30, size]), PAD, "") for size in (20, 19)]
    expected = [answering(batch, plans, rule).logits for batch in batches]
    monkeypatch.setattr(answering, "lanes", Lanes(model, 2))
    monkeypatch.setattr(answering, "records", lambda: True)
    monkeypatch.setattr(Coming, "is_there", lambda _: False)
    read_texts = Lane.read_texts

    def noted(lane: Lane, *given: Any) -> torch.Tensor:
        parts.append(answering.lanes.all.index(lane))
        return read_texts(lane, *given)

    monkeypatch.setattr(Lane, "read_texts", noted)
    found = [each.logits for each in answering.all(batches, plans, rule)]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert parts == [0, 1] * LAYERS
