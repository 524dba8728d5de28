"""On a GPU: classifiers that read in fixed places, as CUDA graphs, against the same kernel by kernel."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from classifiers import VOCABULARY, sure, tiny_classifier, undecided
from conftest import PAD

from anydepth.classifying.answering import Answering, answer
from anydepth.classifying.labels import labelled
from anydepth.classifying.leaving import Rule
from anydepth.data.labelled_batch import LabelledBatch
from anydepth.depth.full import FullConfig
from anydepth.depth.perword import PerWordConfig
from anydepth.depth.prefix import PrefixConfig
from anydepth.nn.perword import lay_out

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
LAYERS = 4
DEPTHS = [FullConfig(), PerWordConfig(stopped="refresh"), PerWordConfig(stopped="keep")]


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("depth", DEPTHS, ids=["plain", "refresh", "keep"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_recorded_answers_are_those_of_single_kernels(norm: str, depth: Any, half: bool) -> None:
    model = tiny_classifier(depth, LAYERS, norm=norm, width=32, max_positions=600).cuda()
    answering, random = Answering(model, half), np.random.default_rng(0)
    # the last ones have so many words that tiles get larger
    small = [[300, 20, 1, 77], [5], [64] * 9, [280, 30, 3, 80], [6], [290, 10, 2, 90]]
    for sizes in [*small, [120] * 40, [300] * 40]:
        ids = [random.integers(PAD + 1, VOCABULARY, size).tolist() for size in sizes]
        batch, lengths = labelled(ids, PAD, ""), np.array(sizes)
        if isinstance(depth, PerWordConfig):
            depths = random.integers(1, LAYERS + 1, lengths.sum())
            depths[: sizes[0] // 2] = 1
            depths = np.full_like(depths, 3) if sizes == [6] else depths
            batch = batch._replace(words=lay_out(depths, lengths, batch.source.shape[1]))
        with torch.no_grad():
            expected = answer(model, batch.to("cuda"), model.plan()).logits
        found = answering(batch, model.plan()).logits
        tolerance = 0.1 * float(expected.abs().max()) if half else 1e-4
        torch.testing.assert_close(found, expected.cpu(), atol=tolerance, rtol=0)
    # nothing is recorded twice for who waits; words that are all equally deep have places of their own
    shapes = 6 if isinstance(depth, PerWordConfig) else 5
    assert [len(lane.made) for lane in answering.lanes.all] == [shapes, 0]


@pytest.mark.parametrize("depth", DEPTHS, ids=["plain", "refresh", "keep"])
def test_nobody_has_to_wait_for_an_answer_before_the_next_batch(depth: Any) -> None:
    """They share the places and the recorded work."""
    model, random = tiny_classifier(depth, LAYERS, width=32, max_positions=600).cuda(), np.random.default_rng(0)
    answering, batches = Answering(model, half=True), [drawn(random, depth, [300, 20, 1, 77]) for _ in range(12)]
    alone = [answering(batch, model.plan()).logits.tolist() for batch in batches]
    assert [found.logits.tolist() for found in answering.all(batches, model.plan())] == alone
    assert len({str(logits) for logits in alone}) == len(batches)


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("depth", DEPTHS, ids=["plain", "refresh", "keep"])
def test_batches_read_at_the_same_time_do_not_meet(depth: Any, half: bool) -> None:
    """They share the weights only, and their answers, freed at once, stay until they are used."""
    model, random = tiny_classifier(depth, LAYERS, width=32, max_positions=600).cuda(), np.random.default_rng(0)
    sizes = [[300, 20, 1, 77], [64] * 9, [200] * 40, [5], [280, 30, 3, 80], [300] * 30]
    answering, batches = Answering(model, half), [drawn(random, depth, each) for each in 3 * sizes]
    alone = [(2 * answering(batch, model.plan()).logits).tolist() for batch in batches]
    for batch in batches:
        answering.prepare(batch, model.plan())
    assert len({str(logits) for logits in alone}) == len(batches)
    for _ in range(3):
        torch.cuda.synchronize()
        before = [lane.answered for lane in answering.lanes.all]
        for lane in answering.lanes.all:
            with torch.cuda.stream(lane.stream):
                torch.cuda._sleep(500_000_000)  # until all are asked; then both lanes have many to read
        found = [answering.ask(batch, model.plan()) for batch in batches]
        assert [(2 * each.get().logits).tolist() for each in found] == alone
    assert all(lane.answered is not event for lane, event in zip(answering.lanes.all, before))


@pytest.mark.parametrize("exits", [(), (1, 3)], ids=["everywhere", "some"])
@pytest.mark.parametrize("share", [0.3, 0.7, None], ids=["early", "late", "patience"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_texts_leave_where_they_leave_kernel_by_kernel(norm: str, share: float | None, exits: tuple[int, ...]) -> None:
    depth = PrefixConfig(exits=exits)
    model, random = undecided(depth, LAYERS, norm, width=32, max_positions=600), np.random.default_rng(0)
    some = [
        random.integers(PAD + 1, VOCABULARY, size).tolist() for size in (300, 20, 1, 77, 5, 64, 64, 30, 3, 120, 120)
    ]
    rule = Rule(patience=1) if share is None else sure(model, some, share)
    model, sizes = model.cuda(), [[300, 20, 1, 77], [5], [64] * 9, [280, 30, 3, 80], [120] * 40]
    answering, batches = Answering(model, half=False), [drawn(random, depth, each) for each in 2 * sizes]
    with torch.no_grad():
        expected = [answer(model, batch.to("cuda"), model.plan(), rule) for batch in batches]
    taken = set()
    for found in (answering.all(batches, model.plan(), rule), (answering(b, model.plan(), rule) for b in batches)):
        for each, right in zip(found, expected, strict=True):
            torch.testing.assert_close(each.logits, right.logits.cpu(), atol=1e-4, rtol=0)
            assert each.depths is not None
            assert right.depths is not None
            assert each.depths.tolist() == right.depths.tolist()
            taken |= set(each.depths.tolist())
    assert len(taken) > 1


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_texts_that_leave_have_the_answers_of_their_exits(norm: str, half: bool) -> None:
    """Whatever rounding makes of who leaves where."""
    depth, random = PrefixConfig(), np.random.default_rng(0)
    model = undecided(depth, LAYERS, norm, width=32, max_positions=600)
    batches = [drawn(random, depth, sizes) for sizes in ([300, 20, 1, 77], [64] * 9, [5], [120] * 40)]
    rule = sure(model, [random.integers(PAD + 1, VOCABULARY, size).tolist() for size in (120, 64, 77, 20)], 0.6)
    answering, taken = Answering(model.cuda(), half), set()
    found = list(answering.all(batches, model.plan(), rule))
    for batch, (logits, depths) in zip(batches, found, strict=True):
        exits = torch.stack([answering(batch, model.plan(name)).logits for name in model.depths()])
        assert depths is not None
        ends = (batch.source != PAD).sum(1).cumsum(0) - 1
        own = depths[ends]
        tolerance = 0.05 * float(exits.abs().max()) if half else 1e-4
        expected = exits[own - 1, torch.arange(len(logits))]
        torch.testing.assert_close(logits, expected, atol=tolerance, rtol=0)
        taken |= set(own.tolist())
    assert len(taken) > 1


def drawn(random: np.random.Generator, depth: Any, sizes: Sequence[int]) -> LabelledBatch:
    batch = labelled([random.integers(PAD + 1, VOCABULARY, size).tolist() for size in sizes], PAD, "")
    if not isinstance(depth, PerWordConfig):
        return batch
    depths = random.integers(1, LAYERS + 1, sum(sizes))
    return batch._replace(words=lay_out(depths, np.array(sizes), batch.source.shape[1]))
