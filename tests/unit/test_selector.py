"""The choice of a depth before decoding: losses by hand, rules, and networks that must find a rule that is there."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anydepth.calibrating.timed import Timed
from anydepth.errors import UserError
from anydepth.evaluation.metrics import Scorer
from anydepth.reporting.choosing_page import distribution, tradeoff
from anydepth.selecting.cheap import fit_cheap
from anydepth.selecting.judgement import Table, compare, hull
from anydepth.selecting.labels import Labels, deepest_of, fast_first
from anydepth.selecting.model import SelectorConfig, SelectorNet, prior_weights, soft_f, ties_loss
from anydepth.selecting.oracle import SAME
from anydepth.selecting.predictor import Predictor
from anydepth.selecting.rules import at_price, most_probable, price_within, within
from anydepth.selecting.search import JOURNAL, candidates, search, some
from anydepth.selecting.selector import CHEAP, Selector, parse_limit
from anydepth.selecting.training import (
    Fitted,
    Source,
    explained,
    fine_tune,
    fit,
    predict,
    shuffled,
    split,
)
from anydepth.selecting.verdict import FILE, read_judgement

DEPTHS = ["1-1", "2-1", "1-2", "2-2"]
FULL = 3
HARD = 7
"""A word that makes a sentence difficult."""
SMALL = SelectorConfig(layers=1, heads=2, width=16, ffn=16, dropout=0.0, epochs=6, batch=16, learning_rate=0.1)


# ---- losses


def test_cross_entropy_and_f_by_hand() -> None:
    p, y = torch.tensor([[0.8, 0.5, 0.1]]), torch.tensor([[1.0, 1.0, 0.0]])
    delta = torch.tensor([0.25, 1.0, 0.5])
    cross_entropy = -(0.25 * math.log(0.8) + math.log(0.5) + math.log(0.9)) / 3
    precision, recall = 1.3 / 1.4, 1.3 / 2
    f = 5 * precision * recall / (4 * precision + recall)  # β = 2
    assert soft_f(p, y, 2.0).item() == pytest.approx(f, abs=1e-6)
    loss = ties_loss(p.logit(), y, delta, beta=2.0, balance=0.3)
    assert loss.item() == pytest.approx(0.3 * cross_entropy + 0.7 * (1 - f), abs=1e-6)


def test_depths_that_are_often_best_count_less() -> None:
    ties = torch.tensor([[1.0, 1.0], [0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    assert prior_weights(ties, 2.0).tolist() == pytest.approx([0.25, 0.0625])
    assert prior_weights(ties, 0.0).tolist() == [1.0, 1.0]


def test_f_has_a_gradient_where_nothing_is_right() -> None:
    logits = torch.full((1, 2), -200.0, requires_grad=True)
    ties_loss(logits, torch.tensor([[1.0, 0.0]]), torch.ones(2), 1.0, 0.5).backward()
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"heads": 3, "width": 16}, "width"), ({"balance": 1.5}, "balance"), ({"beta": 0}, "beta"), ({"epochs": 0}, "ep")],
)
def test_wrong_settings_are_named(settings: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        SelectorConfig(**settings)


# ---- labels and rules


def labels_of(chrf: list[list[float]]) -> Labels:
    return Labels(DEPTHS, [""] * len(chrf), [[4]] * len(chrf), np.array(chrf))


def test_all_depths_that_reach_the_best_are_labels() -> None:
    labels = labels_of([[30, 50, 50 + SAME / 2, 40], [10, 10, 10, 20]])
    assert labels.ties().tolist() == [[0, 1, 1, 0], [0, 0, 0, 1]]
    assert labels.gains()[1].tolist() == [-10, -10, -10, 0]
    assert labels.best == "2-1"  # as good on average as 1-2, which is slower


def test_depths_in_the_order_of_the_paper() -> None:
    assert fast_first(["2-2", "1-1", "1-2", "2-1"]) == DEPTHS
    assert deepest_of(["1-2", "2-1", "1-1"]) == "2-1"


def test_full_depth_where_nothing_is_sure() -> None:
    chosen = most_probable(np.array([[0.6, 0.7, 0.1, 0.2], [0.4, 0.3, 0.49, 0.1], [0.5, 0.0, 0.5, 0.0]]), FULL)
    assert chosen.tolist() == [1, FULL, 0]


def test_the_price_of_time_keeps_a_limit_and_no_more() -> None:
    quality, ms = np.random.default_rng(1).normal(size=(200, 4)), np.array([1.0, 2.0, 4.0, 8.0])
    free = ms[quality.argmax(axis=1)].mean()
    assert price_within(quality, ms, free) == 0
    for limit in (1.0, 1.5, 2.5, 3.5):
        price = price_within(quality, ms, limit)
        taken = ms[at_price(quality, ms, price)].mean()
        assert taken <= limit + 1e-9
        assert ms[at_price(quality, ms, price * 0.999)].mean() > limit or taken == pytest.approx(limit, abs=0.05)
    # as good as any choice: fixed depths that keep the limit are worse
    chosen = within(quality, ms, 2.0)
    assert quality[np.arange(200), chosen].mean() > max(quality[:, 0].mean(), quality[:, 1].mean()) + 0.3


def test_a_limit_that_no_depth_keeps_is_refused_with_the_fastest_time() -> None:
    with pytest.raises(UserError, match="the fastest depths take 2 ms"):
        within(np.zeros((3, 2)), np.array([2.0, 5.0]), 1.0)


@pytest.mark.parametrize(("depth", "limit"), [("selector", None), ("selector@20", 20.0), ("selector@2.5", 2.5)])
def test_a_limit_in_the_name_of_a_depth(depth: str, limit: float | None) -> None:
    assert parse_limit(depth) == limit


def test_another_name_is_refused() -> None:
    with pytest.raises(UserError, match="selector@20"):
        parse_limit("selector@fast")


# ---- learning


def rule_labels(sentences: int, by: str, seed: int = 1) -> Labels:
    """Sentences that 1-1 translates best unless they are difficult, by a word in them or by their length; then only
    full depth is good. Otherwise full depth is a little worse."""
    draw = np.random.default_rng(seed)
    ids = [draw.integers(8, 30, size=draw.integers(3, 12)).tolist() for _ in range(sentences)]
    for tokens in ids[::2] if by != "length" else []:
        tokens[draw.integers(len(tokens))] = HARD
    hard = np.array([len(tokens) > 7 if by == "length" else HARD in tokens for tokens in ids])
    hard = ~hard if by == "no word" else hard
    chrf = np.where(hard[:, None], [20, 30, 30, 60], [60, 60, 50, 55]) + draw.normal(size=(sentences, 1))
    return Labels(DEPTHS, [" ".join(map(str, tokens)) for tokens in ids], ids, chrf)


@pytest.fixture(scope="module")
def source() -> Source:
    words = torch.randn(30, 16, generator=torch.Generator().manual_seed(3)) / 4
    return Source(words, 20, torch.device("cpu"))


@pytest.fixture(scope="module")
def learnt(source: Source) -> dict[str, Fitted]:
    labels = rule_labels(600, "word")
    return search([("ties", SMALL), ("quality", SMALL)], source, labels)[0]


@pytest.fixture(scope="module")
def selector(source: Source, learnt: dict[str, Fitted]) -> Selector:
    nets = {kind: fitted.net for kind, fitted in learnt.items()}
    labels = rule_labels(600, "word")
    cheap = {name: fit_cheap(labels, 30, rarity=name != CHEAP[0]) for name in CHEAP}
    return Selector(DEPTHS, nets, cheap, {"used": "ties", "best": "2-2", "key": ""})


def test_a_word_decides(selector: Selector) -> None:
    test = rule_labels(200, "word", seed=2)
    chosen = selector.choose(test.ids)
    right = [depth in ({"2-2"} if HARD in ids else {"1-1", "2-1"}) for depth, ids in zip(chosen, test.ids)]
    assert np.mean(right) > 0.97


def test_the_regression_finds_what_length_cannot(selector: Selector) -> None:
    test = rule_labels(200, "word", seed=2)
    assert explained(selector.gains(test.ids), test.gains()) > 0.9
    assert explained(selector.cheap["length"].gains(test.ids), test.gains()) < 0.2


def test_length_finds_a_rule_of_length(source: Source) -> None:
    labels, test = rule_labels(600, "length"), rule_labels(200, "length", seed=2)
    assert explained(fit_cheap(labels, 30, rarity=False).gains(test.ids), test.gains()) > 0.9


def test_rarity_finds_rare_words() -> None:
    labels = rule_labels(600, "word")
    ids = [[30 + row if token == HARD else token for token in tokens] for row, tokens in enumerate(labels.ids)]
    rare = labels._replace(ids=ids)  # every difficult word is another one, seen once
    test = rare.take(np.arange(300))
    scores = [explained(fit_cheap(rare, 700, rarity=one).gains(test.ids), test.gains()) for one in (False, True)]
    assert scores[1] > 0.5 > scores[0]


def test_what_is_held_out_is_not_learnt_from() -> None:
    """Corpora repeat sentences."""
    labels = rule_labels(40, "word")
    twice = labels.take(np.repeat(np.arange(40), 5))
    train, valid = split(twice, 0.1, 1)
    assert len(train.ids) + len(valid.ids) == 200
    assert not {*map(tuple, train.ids)} & {*map(tuple, valid.ids)}
    assert 20 <= len(valid.ids) < 120
    with pytest.raises(UserError, match="1 different sentences among 5"):
        split(labels.take(np.zeros(5, dtype=int)), 0.1, 1)


def test_the_same_seed_gives_the_same_network_and_leaves_random_numbers_alone(source: Source) -> None:
    train, valid = split(rule_labels(80, "word"), 0.2, 1)
    before = torch.random.get_rng_state()
    config = SelectorConfig(layers=1, heads=2, width=16, ffn=16, epochs=2, batch=16)
    nets = [fit("ties", config, source, train, valid).net for _ in range(2)]
    assert all(torch.equal(one, other) for one, other in zip(nets[0].parameters(), nets[1].parameters()))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_fine_tuning_follows_other_sentences(source: Source, learnt: dict[str, Fitted]) -> None:
    other = rule_labels(400, "no word", seed=4)
    tuned, better = fine_tune("ties", learnt["ties"], source, other)
    assert better
    assert not torch.equal(tuned.net.output.weight, learnt["ties"].net.output.weight)


def test_fine_tuning_that_does_harm_changes_nothing(source: Source, learnt: dict[str, Fitted]) -> None:
    wild = learnt["ties"]._replace(config=replace(SMALL, learning_rate=1e5))
    tuned, better = fine_tune("ties", wild, source, rule_labels(100, "word", seed=4))
    assert not better
    assert torch.equal(tuned.net.output.weight, learnt["ties"].net.output.weight)


def test_nesterovs_steps_are_halved_where_nothing_is_gained_and_small_in_fine_tuning(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    class Watched(torch.optim.SGD):
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            made.append(dict(self.param_groups[0]))
            made.append(self.param_groups[0])

    monkeypatch.setattr(torch.optim, "SGD", Watched)
    labels = rule_labels(80, "word")
    train, valid = split(labels, 0.2, 1)
    fitted = fit("ties", replace(SMALL, learning_rate=3.0, epochs=8, patience=8), source, train, valid)
    fine_tune("ties", fitted, source, labels)
    first, last, tuning, _ = made
    assert (first["lr"], first["momentum"], first["nesterov"]) == (3.0, 0.9, True)
    lowest = np.minimum.accumulate([math.inf, *fitted.losses])
    bad = sum(loss >= before for loss, before in zip(fitted.losses, lowest))
    assert 0 < bad < 8
    assert last["lr"] == 3.0 / 2**bad
    assert tuning["lr"] == pytest.approx(0.3)


def test_the_search_takes_the_lowest_common_loss(source: Source) -> None:
    broken = SelectorConfig(layers=1, heads=2, width=16, ffn=16, epochs=1, learning_rate=1e-9, batch=64)
    found, tried = search([("ties", broken), ("ties", SMALL)], source, rule_labels(300, "word"), sentences=0)
    best = found["ties"]
    assert best.config == SMALL
    assert [one["learning_rate"] for one in tried] == [1e-9, 0.1]
    assert tried[1]["loss"] == best.yardstick < tried[0]["loss"]


def test_candidates_are_compared_on_some_sentences_and_the_best_learns_from_all(source: Source) -> None:
    labels = rule_labels(300, "word")
    work = [("ties", replace(SMALL, layers=layers, epochs=2)) for layers in (1, 2)]
    found, tried = search(work, source, labels, sentences=60)
    apart = [fit(kind, config, source, *split(some(labels, 60), 0.1, 1)) for kind, config in work]
    assert [one["loss"] for one in tried] == [one.yardstick for one in apart]
    assert len(some(labels, 60).ids) == 60
    assert some(labels, 0) is some(labels, 300) is labels
    best = min(apart, key=lambda one: one.yardstick).config
    whole = fit("ties", best, source, *split(labels, 0.1, 1))
    assert (found["ties"].config, found["ties"].losses) == (best, whole.losses)


def test_a_search_that_was_killed_goes_on(source: Source, tmp_path: Path) -> None:
    labels = rule_labels(120, "word")
    work = [("ties", replace(SMALL, alpha=alpha, epochs=1)) for alpha in (0.0, 0.5, 1.0)]
    whole = search(work, source, labels)

    def kill(done: int, total: int) -> None:
        assert total == 4  # three candidates of one epoch, and the best again
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(work, source, labels, folder=tmp_path, progress=kill)
    with (tmp_path / JOURNAL).open("a") as file:
        file.write('\n{"made_from": "half a li')
    told: list[int] = []
    resumed = search(work, source, labels, folder=tmp_path, progress=lambda done, total: told.append(done))
    assert told == [2, 3, 4]  # the first candidate was there
    assert resumed[1] == whole[1]
    again: list[int] = []
    search(work, source, labels, folder=tmp_path, progress=lambda done, total: again.append(done))
    assert again == [4]  # all candidates were there
    search(work, source, rule_labels(100, "word"), folder=tmp_path, progress=lambda done, total: again.append(done))
    assert again == [4, 1, 2, 3, 4]  # those of other labels are not taken


def test_the_default_search_is_the_papers_sizes_times_the_losses() -> None:
    assert len(candidates(SelectorConfig(), "ties", 512)) == 3 * 8
    assert {(one.layers, one.heads) for one in candidates(SelectorConfig(), "quality", 512)} == {(2, 4), (4, 2), (8, 8)}
    assert {one.heads for one in candidates(SelectorConfig(), "quality", 12)} == {4, 2}


def test_batches_hold_every_sentence_once() -> None:
    lengths = [1 + number % 17 for number in range(1000)]
    batches = list(shuffled(lengths, 16, np.random.default_rng(1)))
    assert sorted(row for rows in batches for row in rows) == list(range(1000))
    assert max(max(lengths[row] for row in rows) - min(lengths[row] for row in rows) for rows in batches) <= 2


# ---- the network


def test_padding_does_not_matter(learnt: dict[str, Fitted]) -> None:
    net = learnt["ties"].net
    ids = [[8, 9, 10, 11, 12, 13], [9], []]
    with torch.no_grad():
        alone = torch.cat([net([tokens]) for tokens in ids])
    assert torch.allclose(predict(net, ids), alone, atol=1e-5)


def test_it_starts_from_the_words_of_the_translation_model(source: Source) -> None:
    for width, projected in ((0, False), (8, True)):
        net = SelectorNet(SelectorConfig(heads=2, width=width, ffn=8), source.words, 20, 4)
        assert torch.equal(net.source.words.weight[:30], source.words)
        assert isinstance(net.project, torch.nn.Linear) == projected
        assert net([[5, 6]]).shape == (1, 4)


# ---- the judgement


def timed_test(labels: Labels) -> Timed:
    """Outputs that are as wrong as the labels say, in seconds that grow with depth."""
    references = ["the quick brown fox jumps over the lazy dog tonight"] * len(labels.ids)
    words = references[0].split()
    statistics = []
    for place in range(len(DEPTHS)):
        kept = [" ".join(words[: max(1, round(score / 10))]) for score in labels.chrf[:, place]]
        statistics.append(Scorer(references).statistics(kept))
    seconds = np.tile([0.001, 0.002, 0.004, 0.008], (len(labels.ids), 1))
    return Timed(DEPTHS, statistics, seconds, {"device": "cpu", "beam": 1})


def test_a_good_selector_beats_full_depth_length_and_fixed_depths(selector: Selector) -> None:
    test = rule_labels(150, "word", seed=5)
    found = compare(timed_test(test), selector, test.ids, own=0.1, seen={"test": "", "labels": ""})
    rows = {row.name: row for row in found.rows}
    full, length, chosen, oracle = (rows[name] for name in ("always full, 2-2", "length only", "selector", "oracle"))
    assert chosen.scores["chrf"][0] > full.scores["chrf"][0] - 0.1
    assert chosen.ms[0] < 0.75 * full.ms[0]
    assert chosen.scores["chrf"][0] > length.scores["chrf"][0] + 5
    assert abs(chosen.regret.value) < 2 < length.regret.value
    assert oracle.regret.value == 0
    assert chosen.gain["chrf"].low > 0
    assert chosen.gain["chrf"].p_value < 0.05
    assert rows["budget-aware selector"].scores["chrf"][0] > length.scores["chrf"][0] + 5
    assert full.fixed == ""
    assert any(line.startswith("selector: better than fixed depths") for line in found.verdicts())
    assert found.explained["budget-aware"] > 0.5
    assert sum(chosen.shares.values()) == pytest.approx(1)
    slow = compare(timed_test(test), selector, test.ids, own=3.1, seen={"test": "", "labels": ""})
    later = {row.name: row.ms[0] - rows[row.name].ms[0] for row in slow.rows}
    asks = {"selector": 3.0, "budget-aware selector": 3.0}
    assert later == {name: pytest.approx(asks.get(name, 0.0)) for name in rows}


def test_the_hull_leaves_out_what_a_mixture_beats() -> None:
    ms, chrf = np.array([1.0, 2.0, 3.0, 4.0, 5.0]), np.array([10.0, 12.0, 30.0, 29.0, 31.0])
    assert hull(ms, chrf) == [0, 2, 4]
    assert hull(ms[:4], chrf[:4]) == [0, 2]


def test_a_blind_mixture_lies_between_its_depths() -> None:
    timed = timed_test(rule_labels(60, "word", seed=5))
    table = Table(timed)
    low, high = table.front[-2:]
    between = (table.ms[low] + table.ms[high]) / 2
    label, mixed = table.taking(float(between))
    assert "50 %" in label
    scores = [timed.statistics[place].scores()["chrf"] for place in (low, high)]
    assert scores[0] < mixed.scores()["chrf"] < scores[1]
    assert table.taking(0.5)[0] == timed.depths[table.front[0]]
    assert table.taking(99.0)[0] == timed.depths[high]


def test_files_of_the_page(tmp_path: Path, selector: Selector) -> None:
    test = rule_labels(40, "word", seed=5)
    found = compare(timed_test(test), selector, test.ids, own=0.1, seen={"test": "", "labels": ""})
    (tmp_path / FILE).write_text(json.dumps(asdict(found)))
    again = read_judgement(tmp_path)
    assert again is not None
    assert again.verdicts() == found.verdicts()
    assert "at 1-1" in distribution(again)
    assert "budget-aware" in tradeoff(again)
    assert read_judgement(tmp_path / "nothing") is None
    for damaged in ("{", '{"rows": []}', "[]"):
        (tmp_path / FILE).write_text(damaged)
        with pytest.warns(match=rf"{FILE} is damaged, or of another version, and left out: judge again with"):
            assert read_judgement(tmp_path) is None


def test_sentences_in_fixed_places_are_read_as_ever(learnt: dict[str, Fitted]) -> None:
    predictor = Predictor(learnt["ties"].net)
    draw = np.random.default_rng(7)
    for sizes in ([3], [15, 2, 7], [1, 1, 1, 1], [4], [16, 1, 9, 3, 2]):  # what was there before does not show
        ids = [draw.integers(0, 30, size).tolist() for size in sizes]
        assert torch.allclose(predictor.replay(ids), predict(learnt["ties"].net, ids), atol=1e-5)
    assert set(predictor.made) == {(1, 16), (4, 16), (8, 21)}
