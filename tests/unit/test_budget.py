"""Depths chosen for a budget, from a real depth grid and times that are given, not measured."""

import json
import math
import shutil
import warnings
from dataclasses import replace
from functools import partial
from itertools import chain, count
from pathlib import Path
from random import Random
from statistics import fmean

import numpy as np
import pytest
from conftest import Cli
from synthetic_runs import write_run

import anydepth
from anydepth.calibrating.calibration import Calibration, Draft, Speculation, Timing, keep, origin_of
from anydepth.choosing.budget import LATE, MANY, PACE, Options, worthwhile_depths
from anydepth.choosing.schedule import Choice, schedule
from anydepth.errors import UserError
from anydepth.evaluation.grid import evaluate
from anydepth.evaluation.records import read_records
from anydepth.run import Run

GOLDEN = Path(__file__).parent.parent / "golden" / "model"
TEXTS = [
    "July",
    "the first of May",
    "",
    "twenty-three euros",
    "Monday, 4 July 2011",
    "from the first of May to the second",
]
OUTPUTS = ["Juli", "der erste Mai", "", "dreiundzwanzig Euro", "Montag, 4. Juli 2011", "vom ersten bis zum zweiten Mai"]
SPEEDS = {"1-1": 1.0, "1-2": 2.0, "2-1": 1.5, "2-2": 3.0}
"""ms for a token, injected."""


def times(speeds: dict[str, float], batch: int = 1, ratio: float = 1.0) -> list[Timing]:
    return [
        Timing(depth=depth, batch=batch, base=0.0, slope=ms, error=0.0, ratios=[ratio], lengths=[])
        for depth, ms in speeds.items()
    ]


def calibration(timings: list[Timing], speculation: list[Speculation] | None = None) -> Calibration:
    return Calibration(
        origin={}, made="2020-02-02", rounds=8, tokens=[10], timings=timings, speculation=speculation or []
    )


def calibrated(run: Run, made: Calibration | None = None) -> None:
    assert run.folder
    keep(replace(made or calibration(times(SPEEDS)), origin=origin_of(run, 1)), run.folder)
    run.guides.clear()


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden run with a depth grid of few sentences."""
    folder = tmp_path_factory.mktemp("runs") / "golden"
    shutil.copytree(GOLDEN, folder)
    run = anydepth.load(folder, device="cpu")
    pairs = [pair for pair in zip(TEXTS, OUTPUTS) if pair[0]]
    source, reference = map(list, zip(*pairs))
    evaluate(run, source, reference, run.depths(), beam=1, batch=8, out=folder)
    return folder


@pytest.fixture
def run(measured: Path, tmp_path: Path) -> Run:
    """The same, in a folder that a test may change."""
    shutil.copytree(measured, tmp_path / "run")
    return anydepth.load(tmp_path / "run", device="cpu")


def cells(**qualities: float) -> list[dict[str, float]]:
    return [
        {"encoder": int(name[1]), "decoder": int(name[2]), "bleu": quality, "chrf": 0.0, "seconds": 1.0}
        for name, quality in qualities.items()
    ]


# ---- choosing


def test_the_best_depth_that_fits() -> None:
    options = Options(cells(d11=20, d12=30, d21=25, d22=29), calibration(times(SPEEDS)))
    chosen = [options.within(budget, 10) for budget in (100, 30, 25, 19, 15, 10)]
    assert [one.depth for one in chosen] == ["1-2", "1-2", "1-2", "2-1", "2-1", "1-1"]
    assert all(one.fits for one in chosen)
    assert [options.within(20, tokens).depth for tokens in (5, 10, 13, 20)] == ["1-2", "1-2", "2-1", "1-1"]
    assert options.within(9, 10) == ("1-1", 10.0, False)


def test_it_is_the_time_of_the_slow_ones_that_must_fit() -> None:
    options = Options(cells(d11=20, d22=29), calibration(times(SPEEDS, ratio=1.5)))
    assert [options.within(budget, 10).depth for budget in (45, 44)] == ["2-2", "1-1"]


def test_long_sentences_may_take_a_risk_where_short_ones_take_none() -> None:
    """A fifth of the sentences needs twice the line. With one long sentence in 20, a deep translation of it that is
    late a fifth of the time costs 1 % in all; with ten of them it would cost 10 %."""
    spread = [replace(one, ratios=[1.0] * 8 + [2.0] * 2) for one in times({"1-1": 1.0, "2-2": 3.0})]
    few, many = ([10] * (20 - long) + [100] * long for long in (1, 10))
    chosen = {}
    for name, lengths in {"few": few, "many": many}.items():
        options = Options(cells(d11=20, d22=29), replace(calibration(spread), tokens=lengths))
        chosen[name] = [options.within(400, tokens).depth for tokens in (10, 100)]
    assert chosen == {"few": ["2-2", "2-2"], "many": ["2-2", "1-1"]}


def test_a_machine_that_is_busier_than_calibrated_is_found_out() -> None:
    """However busy, 19 of 20 are in time: by shallower depths, or by deeper ones where it is idler."""
    depths = {"1-1": 1.0, "1-2": 1.5, "2-1": 2.0, "2-2": 3.0}
    spread = [replace(one, ratios=[0.8 + 0.02 * k for k in range(21)]) for one in times(depths)]
    known = replace(calibration(spread), tokens=list(range(10, 41)))
    shares, deep = {}, {}
    for slower, learns in ((0.8, True), (1.0, True), (1.2, True), (1.2, False)):
        options, draw, in_time, chosen = Options(cells(d11=20, d12=22, d21=24, d22=29), known), Random(3), [], []
        for _ in range(3000):
            tokens = draw.randint(10, 40)
            chosen.append(options.within(60, tokens).depth)
            in_time.append(slower * depths[chosen[-1]] * tokens * draw.uniform(0.8, 1.2) <= 60)
            if learns:
                options.answered(60, 1, in_time[-1])
        shares[slower, learns], deep[slower, learns] = fmean(in_time[500:]), chosen.count("2-2")
        fresh = Options(options.cells, known)
        assert all(options.within(60, tokens).fits == fresh.within(60, tokens).fits for tokens in range(20, 90))
    assert all(share >= 0.955 for (_, learns), share in shares.items() if learns), shares
    assert max(shares[1.0, True], shares[1.2, True]) <= 0.98, shares
    assert shares[1.2, False] < 0.9
    assert deep[0.8, True] > deep[1.0, True] > deep[1.2, True]


def test_a_run_learns_how_long_its_answers_take(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    calibrated(run)
    budget = 1.2 * max(tokens_of(run, TEXTS))
    run.translations(TEXTS, "1-1", beam=1, batch=1)  # prepares its weights
    for seconds, slower in ((60.0, True), (0.0, False)):
        run.guides.clear()
        monkeypatch.setattr(run, "clock", partial(next, count(step=seconds)))
        run.translations(TEXTS, beam=1, batch=1, budget_ms=budget)
        assert run.guide(1).options.moods[budget, 1] == pytest.approx(math.exp(5 * PACE * (slower - LATE)))


def test_an_answer_begins_when_it_is_asked_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    calibrated(run)
    run.translations(TEXTS[:1], "1-1", beam=1, batch=1)
    run.guides.clear()
    monkeypatch.setattr(run, "clock", iter([0.0, 1.0]).__next__)  # nobody looks at it in between
    run.translations(TEXTS[:1], beam=1, batch=1, budget_ms=500)
    assert run.guide(1).options.moods[500, 1] > 1


def test_what_cannot_be_in_time_teaches_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten texts of 100 tokens are late at any depth, 90 of 10 in time; and their order says nothing of their length."""
    calibrated(run)
    run.guides.clear()
    guide, decoding, now, order = run.guide(1), replace(run.config.decoding, beam=1, batch=1), [0.0], []
    monkeypatch.setattr(run, "clock", lambda: now[0])
    lengths = [100] * 10 + [10] * 90
    shares = schedule(lengths, decoding, Choice(None, 40, drafts=False), guide, asked=0.0)
    with pytest.warns(UserWarning, match="10 of 100 sentences do not fit"):
        first = next(shares)
    for share in chain([first], shares):
        order.append(lengths[share.places[0]])
        now[0] += order[-1] / 1000
    assert guide.options.moods[40, 1] == pytest.approx(math.exp(-90 * PACE * LATE))
    assert order not in (sorted(order), sorted(order, reverse=True))


def test_the_first_answer_takes_longer_than_others_will(run: Run) -> None:
    """It prepares the weights."""
    calibrated(run)
    run.guides.clear()
    run.searchers.clear()
    run.translations(TEXTS[:1], beam=1, batch=1, budget_ms=1000)
    assert not run.guide(1).options.moods
    run.translations(TEXTS[:1], beam=1, batch=1, budget_ms=1000)
    assert run.guide(1).options.moods


def test_budgets_that_are_never_asked_for_again_are_forgotten() -> None:
    options = Options(cells(d11=20, d22=29), calibration(times(SPEEDS)))
    for number in range(MANY + 1):
        options.within(30 + number, 10)
        options.answered(30 + number, 1, in_time=True)
    assert len(options.levels) == len(options.moods) == 1


def test_the_sentences_of_a_batch_share_its_time() -> None:
    """Eight take twice as long as one: each may take four times as long as its share."""
    known = calibration(times(SPEEDS) + times({depth: 2 * ms for depth, ms in SPEEDS.items()}, batch=8))
    options = Options(cells(d11=20, d22=29), known)
    assert [options.within(budget, 10, 8).depth for budget in (7.5, 7.4)] == ["2-2", "1-1"]
    assert options.within(7.5, 10, 8).ms == 60
    assert options.within(7.5, 10, 16).depth == "2-2"


def test_only_depths_that_are_known_twice() -> None:
    options = Options(cells(d11=20, d22=29, d33=40), calibration(times(SPEEDS)))
    assert options.depths == ["2-2", "1-1"]
    with pytest.raises(UserError, match="no depth was both evaluated and calibrated"):
        Options(cells(d33=40), calibration(times(SPEEDS)))


@pytest.mark.parametrize(
    ("chances", "chosen"),
    [
        ({"1-1": 0.001, "2-1": 0.06, "1-2": 0.9}, "2-1"),
        ({"1-1": 0.001, "2-1": 0.02, "1-2": 0.9}, "1-2"),
        ({"1-1": 0.001, "2-1": 0.03, "1-2": 0.04}, "2-1"),  # times 2, after Holm: no longer significant
        ({"1-1": 0.001, "2-1": 0.001, "1-2": 0.001}, "2-2"),
        ({"1-1": 0.5, "2-1": 0.001, "1-2": 0.001}, "1-1"),
    ],
)
def test_auto_takes_the_fastest_that_is_not_significantly_worse(chances: dict[str, float], chosen: str) -> None:
    options = Options(cells(d11=20, d12=28, d21=27, d22=29), calibration(times(SPEEDS)))
    options.__dict__["chances"] = chances | {"2-2": 1.0}
    found = options.automatic()
    assert found.depth == chosen
    if chances["2-1"] == 0.06:
        assert found.reason == (
            "depth 2-1 with BLEU 27.00 in 15 ms a sentence; "
            "not significantly worse (p = 0.12) than 2-2 with BLEU 29.00 in 30 ms a sentence"
        )


def test_auto_leaves_out_what_is_beaten() -> None:
    options = Options(cells(d11=20, d12=21, d21=27, d22=29), calibration(times(SPEEDS)))
    options.__dict__["chances"] = {"1-1": 0.001, "2-1": 0.001, "1-2": 0.9, "2-2": 1.0}
    assert options.automatic().depth == "2-2"  # 1-2 is slower and worse than 2-1


def test_auto_takes_the_best_where_all_others_are_worse(tmp_path: Path) -> None:
    (record,) = read_records([write_run(tmp_path / "toy", encoders=(1, 6), decoders=(1, 6), sentences=200)])
    speeds = {"1-1": 1.0, "6-6": 4.0}
    found = Options(record.cells, calibration(times(speeds)), record).automatic()
    assert found.depth == "6-6"
    assert "every faster depth is significantly worse" in found.reason
    # where the best is also the fastest there is nothing to weigh
    found = Options(record.cells, calibration(times({"1-1": 4.0, "6-6": 1.0})), record).automatic()
    assert found.depth == "6-6"
    assert found.reason.endswith("; no other is faster")
    found = Options(record.cells, calibration(times({"6-6": 4.0})), record).automatic()
    assert found.reason.endswith("; no other is known")


# ---- a run


def tokens_of(run: Run, texts: list[str]) -> list[int]:
    return [len(ids) for ids in run.sources(texts, "")]


def test_every_sentence_gets_its_depth_and_keeps_its_place(run: Run) -> None:
    calibrated(run)
    options = run.guide(1).options
    lengths = tokens_of(run, TEXTS)
    budget = 1.2 * max(lengths)
    found = [best for (best,) in run.translations(TEXTS, beam=1, batch=1, budget_ms=budget)]
    wanted = [options.within(budget, tokens).depth if tokens else "" for tokens in lengths]
    assert [one.depth for one in found] == wanted
    assert len(set(wanted)) > 2
    for text, one in zip(TEXTS, found):
        assert not text or run.translate([text], one.depth, beam=1) == [one.text]
    assert run.translate(TEXTS, "auto", beam=1, batch=1, budget_ms=budget) == [one.text for one in found]


def test_an_infeasible_budget_is_said(run: Run) -> None:
    calibrated(run)
    lengths = tokens_of(run, TEXTS)
    shortest = min(tokens for tokens in lengths if tokens)
    message = (
        f"no depth is fast enough; a sentence of {shortest} tokens takes up to {shortest} ms at the fastest depth, 1-1"
    )
    with pytest.raises(UserError, match=message):
        run.translate(TEXTS, beam=1, batch=1, budget_ms=shortest - 0.5)
    message = f"^1 of 5 sentences do not fit a budget of .* of {max(lengths)} tokens takes up to {max(lengths)} ms"
    with pytest.warns(UserWarning, match=message):
        (*_, [late]) = run.translations(TEXTS, beam=1, batch=1, budget_ms=max(lengths) - 1)
    assert late.depth == "1-1"


def test_a_budget_alone_is_not_enough(run: Run) -> None:
    with pytest.raises(UserError, match=r"is not calibrated, .*: run anydepth calibrate .* --beam 1$"):
        run.translate(TEXTS, beam=1, budget_ms=20)
    with pytest.raises(UserError, match="is not calibrated"):
        run.translate(TEXTS, "auto", beam=1)
    calibrated(run)
    assert run.translate(TEXTS, beam=1, budget_ms=np.int64(100)) == run.translate(TEXTS, beam=1, budget_ms=100.0)
    for settings, message in (
        ({"depth": "2-2"}, "depth 2-2: a budget chooses the depth"),
        ({"budget_ms": -3.0}, "budget_ms: expected a number above 0, not -3.0"),
        ({"budget_ms": "20"}, "budget_ms: expected a number above 0, not '20'"),
        ({"sample": True}, "time of sampling is not calibrated"),
        ({"beam": 4}, r"beam 1, not 4: run anydepth calibrate"),
    ):
        with pytest.raises(UserError, match=message):
            run.translate(TEXTS, **{"beam": 1, "budget_ms": 20.0} | settings)
    assert run.folder
    grid = run.folder / "grid.json"
    grid.write_text(grid.read_text().replace(run.weights_hash or "", "0" * 64))
    run.guides.clear()
    with pytest.raises(UserError, match=r"grid.json was made with other weights: run anydepth evaluate"):
        run.translate(TEXTS, beam=1, budget_ms=20)
    grid.unlink()
    with pytest.raises(UserError, match=r"has no depth grid, .*: run anydepth evaluate"):
        run.translate(TEXTS, beam=1, budget_ms=20)


def test_drafts_that_a_damaged_calibration_would_tell(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = run.translate(TEXTS, beam=1)
    assert run.folder
    (run.folder / "calibration.json").write_text("{")
    run.guides.clear()
    with pytest.warns(UserWarning, match=r"at depth 2-2: .*calibration.json is damaged") as told:
        assert run.translate(TEXTS, beam=1, speculate=True, batch=1) == expected
    assert len(told) == 1
    read = []
    monkeypatch.setattr("anydepth.choosing.budget.find_calibration", lambda *_: read.append(1))
    assert run.translate(TEXTS, beam=1, speculate=True, batch=1) == expected  # known, and not read for every batch
    assert not read


def test_drafts_are_those_that_calibration_found(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bool, int, int, int]] = []
    search = Run.search

    def watched(self, sources, numbers, plans, key, decoding):
        seen.append((decoding.speculate, decoding.draft, decoding.draft_words, len(sources)))
        return search(self, sources, numbers, plans, key, decoding)

    monkeypatch.setattr(Run, "search", watched)
    expected = run.translate(TEXTS, beam=1)
    with pytest.warns(UserWarning, match=r"may be slower than plain search at depth 2-2: .* is not calibrated"):
        assert run.translate(TEXTS, beam=1, speculate=True) == expected
    assert seen.pop() == (True, 1, 4, 5)  # the recipe's
    tried = [
        Speculation(depth="2-2", batch=1, plain=3.0, drafts=[Draft(draft=1, draft_words=6, ms=2.0)]),
        Speculation(depth="2-2", batch=8, plain=3.0, drafts=[Draft(draft=1, draft_words=6, ms=4.0)]),
    ]
    calibrated(run, made=calibration(times(SPEEDS), tried))
    seen.clear()
    assert run.translate(TEXTS, beam=1, speculate=True, batch=1) == expected
    assert seen == [(True, 1, 6, 1)] * 5
    with pytest.warns(
        UserWarning, match=r"at depth 1-2: .* at 2-2: run anydepth calibrate .* --beam 1 --drafts-at 1-2"
    ):
        assert run.translate(TEXTS, "1-2", beam=1, speculate=True) == run.translate(TEXTS, "1-2", beam=1)
    assert [each[:3] for each in seen[-2:]] == [(True, 1, 4), (False, 1, 4)]
    with pytest.warns(UserWarning, match="speculation is off: at depth 2-2 and batch 8"):
        assert run.translate(TEXTS, beam=1, speculate=True, batch=8) == expected
    assert seen.pop()[0] is False
    assert run.translate(TEXTS, beam=1, speculate=True, batch=8, draft_words=2) == expected
    assert seen.pop() == (True, 1, 2, 5)
    assert run.folder
    (run.folder / "calibration.json").unlink()
    calibrated(run, made=calibration(times(SPEEDS), tried[:1]))
    with pytest.warns(UserWarning, match="speculation is off: at depth 2-2 no batch of more than 1 was calibrated"):
        assert run.translate(TEXTS, beam=1, speculate=True, batch=8) == expected
    assert seen.pop()[0] is False


def test_a_budget_counts_with_drafts_where_they_pay(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """2-2 takes 3 ms for a token, and 1.2 with drafts, but by batches of 8."""
    seen: list[tuple[str, bool, int]] = []
    search = Run.search

    def watched(self, sources, numbers, plans, key, decoding):
        seen.append((plans.name, decoding.speculate, decoding.draft_words if decoding.speculate else 0))
        return search(self, sources, numbers, plans, key, decoding)

    monkeypatch.setattr(Run, "search", watched)
    assert run.folder
    grid = json.loads((run.folder / "grid.json").read_text())
    for cell, bleu in zip(grid["cells"], (20.0, 21.0, 25.0, 30.0), strict=True):  # 1-1, 1-2, 2-1, 2-2
        cell["bleu"] = bleu
    (run.folder / "grid.json").write_text(json.dumps(grid))
    draft, (faster,) = Draft(draft=1, draft_words=6, ms=1.2), times({"2-2": 1.2})
    tried = [
        Speculation(depth="2-2", batch=1, plain=3.0, drafts=[draft], timing=faster),
        Speculation(depth="2-2", batch=8, plain=3.0, drafts=[replace(draft, ms=4.0)]),
    ]
    calibrated(run, made=calibration([*times(SPEEDS), *times(SPEEDS, batch=8)], tried))
    text, found = TEXTS[1], dict[str, list[tuple[str, bool, int]]]()
    (tokens,) = map(len, run.sources([text], run.key))
    budget = 1.6 * tokens
    for name, settings in {
        "plain": {},
        "drafted": {"speculate": True},
        "more drafts": {"speculate": True, "draft_words": 2},  # whose time is not known
        "all": {"speculate": True, "budget_ms": 100.0 * tokens},
        "nothing": {"speculate": True, "budget_ms": 1.1 * tokens},
    }.items():
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "speculation is off: depth 2-1 has no shallower exit")
            run.translate([text], **{"beam": 1, "budget_ms": budget, "batch": 1} | settings)
        found[name] = list(seen)
        seen.clear()
    assert found == {
        "plain": [("2-1", False, 0)],
        "drafted": [("2-2", True, 6)],
        "more drafts": [("2-1", False, 0)],
        "all": [("2-2", True, 6)],
        "nothing": [("1-1", False, 0)],  # at which no drafts were tried
    }
    assert run.guide(1).drafting.usual_seconds("2-2", 1) == pytest.approx(0.0012 * 10)
    assert run.guide(1).options.usual_seconds("2-2", 1) == pytest.approx(0.003 * 10)
    with pytest.warns(UserWarning, match="speculation is off: no draft was calibrated to pay for 5 at a time"):
        run.translate(TEXTS, beam=1, batch=8, budget_ms=100.0, speculate=True)
    assert {one[1] for one in seen} == {False}


def test_depths_that_a_smaller_one_equals_are_not_worth_a_measurement(run: Run) -> None:
    assert run.folder
    grid = json.loads((run.folder / "grid.json").read_text())
    for cell, bleu in zip(grid["cells"], (20.0, 20.0, 25.0, 24.0), strict=True):  # 1-1, 1-2, 2-1, 2-2
        cell["bleu"] = bleu
    (run.folder / "grid.json").write_text(json.dumps(grid))
    assert worthwhile_depths(run) == ["1-1", "2-1", "2-2"]
    (run.folder / "grid.json").unlink()
    assert worthwhile_depths(run) == run.depths()


# ---- the command line


def test_from_the_command_line(run: Run, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "text"
    text.write_text("".join(f"{line}\n" for line in TEXTS))
    short = tmp_path / "short"
    short.write_text("July\nMay\n")
    folder, how = run.folder, ("--beam", 1, "--device", "cpu")
    assert folder
    code, _, error = cli("translate", folder, text, *how, "--budget-ms", 20)
    assert (code, error.count("\n")) == (2, 1)
    assert f"run anydepth calibrate {folder} --beam 1" in error
    asked = ("--depths", "1-1,2-2", "--drafts-at", "2-2, 1-2")
    code, out, _ = cli("calibrate", folder, "--source", short, "--quick", *how, *asked)
    assert code == 0
    for depth in ("2-2", "1-2"):
        assert f"speculation at {depth}, batch 1" in out
    assert f"The calibration is in {folder}/calibration.json." in out
    code, out, error = cli("translate", folder, text, *how, "--budget-ms", 1e6, "--batch", 1)
    best = run.guide(1).options.depths[0]
    assert (code, out) == (0, "".join(f"{line}\n" for line in run.translate(TEXTS, best, beam=1)))
    assert f"sentences by depth: 5 at {best}" in error
    code, out, error = cli("translate", folder, text, *how, "--depth", "auto")
    chosen = run.guide(1).options.automatic(64)
    assert (code, out) == (0, "".join(f"{line}\n" for line in run.translate(TEXTS, chosen.depth, beam=1)))
    assert error == f"anydepth: {chosen.reason}\n"
    for wrong, message in (
        (["translate", folder, text, *how, "--budget-ms", 20, "--depth", "2-2"], "a budget chooses the depth"),
        (["translate", folder, text, *how, "--budget-ms", 1e-4], "no depth is fast enough"),
        (["translate", folder, text, *how, "--budget-ms", 20, "--precision", "bfloat16"], "precision 'float32', not"),
        (["calibrate", folder, "--batches", "1,x"], "--batches 1,x: expected whole numbers"),
        (["calibrate", folder, "--engine", "ctranslate2", "--precision", "int8"], "--precision: not with --engine"),
        (["calibrate", folder, "--depths", "9-9", "--source", text], "depth 9-9: this run has"),
    ):
        code, _, error = cli(*wrong)
        assert code == 2
        assert message in error
    (folder / "calibration.json").write_text("[")
    monkeypatch.setattr("anydepth.calibrating.measuring.measure", lambda *_, **__: pytest.fail("time was spent"))
    code, _, error = cli("calibrate", folder, "--source", short, "--quick", *how)
    assert code == 2
    assert "calibration.json is damaged" in error
