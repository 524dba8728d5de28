"""What calibration makes of times that are given to it: no test here looks at a real clock's seconds."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import anydepth
from anydepth.calibrating.calibration import (
    NAME,
    Calibration,
    Draft,
    Speculation,
    Timing,
    covering,
    find_calibration,
    fitted,
    keep,
    line,
    origin_of,
    read_calibrations,
)
from anydepth.calibrating.course import ENOUGH, MOST
from anydepth.calibrating.measuring import LENGTHS, Setting, Text, calibrate, compared, measure, neighbours
from anydepth.calibrating.tables import print_calibration
from anydepth.calibrating.timed import timed
from anydepth.errors import UserError

GOLDEN = Path(__file__).parent.parent / "golden" / "model"
TEXTS = [Text("x" * tokens, tokens) for tokens in range(1, 101)]


class Machine:
    """Decodes nothing and takes as long as it is told, on a clock of its own."""

    def __init__(self, milliseconds: Callable[[int, Setting], float]) -> None:
        self.milliseconds, self.now, self.order = milliseconds, 0.0, list[Setting]()

    def seconds(self, texts: list[str], setting: Setting) -> float:
        assert len(texts) == setting.batch
        self.order.append(setting)
        spent = self.milliseconds(max(map(len, texts)), setting) / 1000
        self.now += spent
        return spent


def timing(depth: str = "6-6", batch: int = 1, base: float = 1.0, slope: float = 0.5, ratio: float = 1.0) -> Timing:
    return Timing(depth=depth, batch=batch, base=base, slope=slope, error=0.0, ratios=[ratio], lengths=[])


def calibration(timings: list[Timing], speculation: list[Speculation] | None = None) -> Calibration:
    return Calibration(
        origin={}, made="2020-02-02", rounds=8, tokens=[9], timings=timings, speculation=speculation or []
    )


def test_a_machine_that_takes_a_line_is_found_out() -> None:
    settings = [Setting("1-1", 1), Setting("6-6", 1), Setting("6-6", 8)]
    layers = {"1-1": 1, "6-6": 6}
    machine = Machine(lambda tokens, setting: setting.batch + layers[setting.depth] * 0.125 * tokens)
    measured = measure(machine.seconds, TEXTS, settings, 5)
    for setting in settings:
        found = fitted(setting.depth, setting.batch, measured[setting])
        assert found.base == pytest.approx(setting.batch, abs=1e-3)
        assert found.slope == pytest.approx(layers[setting.depth] * 0.125, abs=1e-4)
        assert found.error < 1e-4
        enough = ENOUGH[setting.batch > 1]
        assert found.ratios == pytest.approx([1] * enough, abs=1e-3)
        assert [length.measurements for length in found.lengths] == [enough // LENGTHS] * LENGTHS


def test_a_batch_of_each_setting_warms_up_and_lengths_are_interleaved() -> None:
    settings = [Setting("1-1", 1), Setting("6-6", 1)]
    machine = Machine(lambda tokens, setting: 1000.0 if len(machine.order) <= len(settings) else 1.0)
    measured = measure(machine.seconds, TEXTS, settings, 5)
    assert {round(ms, 6) for groups in measured.values() for some in groups for _, ms in some} == {1.0}
    assert len(machine.order) == len(settings) * (1 + ENOUGH[0])
    for start in range(0, len(machine.order), len(settings)):
        assert sorted(machine.order[start : start + len(settings)]) == settings


def test_what_is_recorded_at_first_sight_is_timed_at_the_second() -> None:
    run, now = anydepth.load(GOLDEN, device="cpu"), [0.0]
    run.translate(["May"], beam=1)
    (searcher,) = run.searchers.values()

    class Counting:
        made = 7

    searcher.recorded.recorder = Counting()

    def work() -> str:
        now[0] += 1.0 if Counting.made == 9 else 50.0
        Counting.made = min(9, Counting.made + 1)
        return "done"

    assert timed(run, work, lambda: now[0]) == ("done", 1.0)
    assert now == [101.0]


def test_what_takes_long_is_measured_less_often() -> None:
    machine = Machine(lambda tokens, setting: 4.0 * tokens * setting.batch)
    settings = [Setting("6-6", 1), Setting("6-6", 8)]
    draw = np.random.default_rng(3)
    noisy = Machine(lambda *given: machine.milliseconds(*given) * float(draw.lognormal(0, 0.3)))
    alone, eight = measure(noisy.seconds, TEXTS, settings, 12).values()
    assert [len(some) for some in eight] == [3 if some is not eight[0] else len(some) for some in eight]
    assert len(alone[0]) == 12 > len(alone[2]) >= len(alone[3]) >= 3


def test_what_is_known_well_is_not_measured_again() -> None:
    draw = np.random.default_rng(3)
    spread = {"1-1": 0.01, "6-6": 0.5}
    machine = Machine(lambda tokens, setting: (2 + 0.3 * tokens) * float(draw.lognormal(0, spread[setting.depth])))
    sure, unsure = measure(machine.seconds, TEXTS, [Setting("1-1", 1), Setting("6-6", 1)], 12).values()
    assert [len(some) for some in sure] == [ENOUGH[0] // LENGTHS] * LENGTHS
    assert [len(some) >= 12 for some in unsure] == [True] * LENGTHS


def test_what_is_quick_is_measured_until_it_is_known_well() -> None:
    """Sentences whose translations happen to be short would promise too much."""
    draw = np.random.default_rng(3)
    machine = Machine(lambda tokens, setting: scale[setting.depth] * (1 + 0.03 * tokens) * draw.lognormal(0, 0.1))
    scale = {"1-1": 1.0, "6-6": 60.0}
    quick, slow = measure(machine.seconds, TEXTS, [Setting("1-1", 1), Setting("6-6", 1)], 5).values()
    assert 100 < sum(map(len, quick)) <= 4 * MOST
    assert all(3 <= len(some) <= 5 for some in slow)


def test_all_settings_see_the_same_sentences_of_a_round() -> None:
    settings = [Setting("1-1", 1), Setting("6-6", 1)]
    machine = Machine(lambda tokens, setting: 1.0)
    first, second = measure(machine.seconds, TEXTS, settings, 4).values()
    first, second = ([[tokens for tokens, _ in some] for some in groups] for groups in (first, second))
    assert first == second
    assert len(set(first[0])) > 1


def test_few_sentences_are_used_again() -> None:
    assert [one.tokens for one in neighbours(TEXTS[:3], 5, 0.9)] == [1, 2, 3, 1, 2]
    assert [one.tokens for one in neighbours(TEXTS, 3, 0.99)] == [98, 99, 100]


def test_19_of_20_new_sentences_take_no_longer_than_predicted() -> None:
    """Outputs are longer or shorter than their sources: the line alone is exceeded by half of them."""
    draw = np.random.default_rng(3)
    late = []
    for _ in range(200):
        machine = Machine(lambda tokens, _: (2 + 0.3 * tokens) * float(draw.lognormal(0, 0.3)))
        measured = measure(machine.seconds, TEXTS, [Setting("6-6", 1)], 8)
        found = fitted("6-6", 1, measured[Setting("6-6", 1)])
        fresh = [(one.tokens, machine.milliseconds(one.tokens, Setting("6-6", 1))) for one in TEXTS]
        late.append(np.mean([ms > found.safe(tokens) for tokens, ms in fresh]))
    assert 0.02 < np.mean(late) < 0.055


def test_chances_are_shares_of_the_measurements() -> None:
    one = replace(timing(base=10, slope=0), ratios=[0.5, 1.0, 1.5, 2.0])
    known = calibration([one])
    assert [known.chance("6-6", 5, 1, ms) for ms in (4, 5, 12, 20)] == [0, 0.25, 0.5, 1]
    assert [known.predict("6-6", 5, 1, level) for level in (0.2, 0.5, 0.95)] == [5, 15, 20]
    two = calibration([one, replace(one, batch=8, ratios=[1.0])])
    assert [two.chance("6-6", 5, sentences, 12) for sentences in (1, 2, 3, 8, 32)] == [0.5, 0.5, 1, 1, 0]


def test_times_of_many_batch_sizes_fit_a_terminal() -> None:
    batches = [1, 2, 4, 8, 16, 32, 64]
    known = calibration([timing("12-12", batch, base=100.25 * batch, slope=500) for batch in batches])
    console = Console(width=80, record=True, file=StringIO())
    print_calibration(console, known)
    told = console.export_text()
    assert "…" not in told
    assert [number for number in ("4600", "2350", "1225", "663", "382", "241", "171") if told.count(number) != 2] == []


def test_a_queue_takes_as_long_as_its_batches() -> None:
    known = calibration([timing(batch=1, base=10, slope=0), timing(batch=8, base=24, slope=0)])
    assert [known.clear_ms("6-6", texts, 5, 8) for texts in (0, 1, 8, 9, 16)] == [0, 10, 24, 34, 48]
    assert known.clear_ms("6-6", 8, 5, 1) == 80


def test_the_usual_p95_is_over_lengths_and_outputs() -> None:
    one = replace(timing(base=0, slope=1), ratios=[1.0] * 9 + [3.0])
    known = replace(calibration([one]), tokens=[10] * 9 + [20])
    assert known.usual_p95("6-6") == 30.0


def test_covering_takes_the_slowest_of_few() -> None:
    assert [covering(count) for count in (1, 18, 19, 20, 39, 100)] == [1, 18, 19, 20, 38, 96]


def test_lines_do_not_fall_and_do_not_start_below_zero() -> None:
    assert line([10, 20], [3.0, 5.0]) == pytest.approx((1.0, 0.2))
    assert line([10, 10], [3.0, 5.0]) == (4.0, 0.0)
    base, slope = line([10, 20], [5.0, 3.0])
    assert 3 < base < 5
    assert slope == 0
    base, slope = line([10, 20], [1.0, 4.0])
    assert base == 0
    assert 0.1 < slope < 0.2


def test_batch_sizes_between_and_beyond_those_measured() -> None:
    known = calibration([timing(batch=1, base=2, slope=0), timing(batch=8, base=9, slope=0, ratio=2)])
    assert known.predict("6-6", 5, 1) == 2
    assert known.predict("6-6", 5, 8) == 18
    assert known.predict("6-6", 5, 8, None) == 9
    assert known.predict("6-6", 5, 4, None) == pytest.approx(5)
    assert known.predict("6-6", 5, 32) == pytest.approx(4 * 18)


def test_depths_that_were_measured_at_fewer_batch_sizes_grow_as_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    full = [
        timing("6-6", 1, base=60, slope=0),
        timing("6-6", 8, base=90, slope=0),
        timing("6-6", 32, base=300, slope=0),
    ]
    one, most = timing("6-1", 1, base=20, slope=0, ratio=1.5), timing("3-3", 32, base=100, slope=0)
    known = calibration([one, *full, most])
    assert known.predict("6-1", 5, 1) == 30
    assert known.predict("6-1", 5, 32) == pytest.approx(30 * 300 / 60)
    assert known.predict("6-1", 5, 64, None) == pytest.approx(20 * 600 / 60)
    assert known.predict("3-3", 5, 1) == pytest.approx(100 * 60 / 300)
    assert known.predict("3-3", 5, 64) == pytest.approx(200)
    monkeypatch.delattr("anydepth.calibrating.calibration.median")  # what is usual is known by now
    assert known.predict("6-6", 5, 64) == pytest.approx(600)


def test_speculation_is_on_only_where_it_pays() -> None:
    seconds = {0: 10.0, 1: 5.0, 2: 12.0}
    machine = Machine(lambda _, setting: seconds[setting.draft] * (1 if setting.batch == 1 else 1 + setting.draft))
    settings = [Setting("6-6", batch, draft, 2 * draft) for batch in (1, 8) for draft in (0, 1, 2)]
    settings.append(Setting("1-1", 1))
    one, eight = compared(measure(machine.seconds, TEXTS, settings, 3))
    assert one.best == Draft(draft=1, draft_words=2, ms=pytest.approx(4 * 5.0))
    assert (one.plain, one.depth, eight.best) == (pytest.approx(40), "6-6", None)
    almost = replace(one, drafts=[Draft(draft=1, draft_words=2, ms=39.5)])
    assert almost.best is None
    known = calibration([], [one, replace(eight, batch=32)])
    assert [known.speculation_at("6-6", n).batch for n in (1, 2, 8, 64)] == [1, 32, 32, 32]
    assert known.speculation_at("6-1", 1) is None


def test_the_best_drafts_have_times_of_their_own() -> None:
    """Those of long sentences gain more here."""

    def milliseconds(tokens: int, setting: Setting) -> float:
        return (3 + tokens * (0.5 if setting.draft else 1.0)) * (10 if setting.batch > 1 and setting.draft else 1)

    settings = [Setting("6-6", batch, draft, 4 * draft) for batch in (1, 8) for draft in (0, 1)]
    measured = measure(Machine(milliseconds).seconds, TEXTS, settings, 8, sparing=False)
    timings = [fitted(one.depth, one.batch, some) for one, some in measured.items() if not one.draft]
    known = calibration(timings, compared(measured))
    first, second = known.speculation
    assert first.timing is not None
    assert (first.timing.base, first.timing.slope) == pytest.approx((3, 0.5), rel=1e-3)
    assert (second.best, second.timing) == (None, None)
    assert known.predict("6-6", 20, 1, None) == pytest.approx(23, rel=1e-3)
    assert known.drafting.predict("6-6", 20, 1, None) == pytest.approx(13, rel=1e-3)
    assert known.drafting.predict("6-6", 20, 8) == known.predict("6-6", 20, 8)
    assert known.draft_at("6-6", 1) == Draft(draft=1, draft_words=4, ms=first.drafts[0].ms)
    assert [known.draft_at("6-6", sentences) for sentences in (2, 9)] == [None, None]


def test_drafts_that_lose_are_given_up_and_the_others_measured_as_often_as_plain_search() -> None:
    """Words drafted are how many times as long a draft takes, in per cent."""
    draw = np.random.default_rng(1)
    machine = Machine(lambda _, setting: (setting.draft_words or 100) / 10 * float(draw.lognormal(0, 0.02)))
    settings = [Setting("6-6", 1), *(Setting("6-6", 1, 1, share) for share in (60, 62, 80, 99, 105, 150))]
    measured = measure(machine.seconds, TEXTS, settings, 5)
    counts = {one.draft_words: sum(map(len, times)) for one, times in measured.items()}
    assert counts[0] == counts[60] == ENOUGH[0]
    assert 4 < counts[62] <= ENOUGH[0]
    assert [counts[share] for share in (80, 99, 105, 150)] == [2, 2, 2, 2]


def test_one_bad_moment_does_not_end_a_race() -> None:
    """The machine stops for a while when the best draft is measured for the first time."""
    good = Setting("6-6", 1, 1, 4)
    machine = Machine(lambda _, one: 10.0 * (0.6 if one.draft else 1.0) * (9 if machine.order.count(good) == 1 else 1))
    (found,) = compared(measure(machine.seconds, TEXTS, [Setting("6-6", 1), good], 3))
    assert found.best == Draft(draft=1, draft_words=4, ms=pytest.approx(0.6 * found.plain, rel=1e-3))


def test_a_draft_that_was_given_up_has_the_ratio_it_had_until_then() -> None:
    machine = Machine(lambda tokens, setting: tokens * (2.0 if setting.draft else 1.0))
    measured = measure(machine.seconds, TEXTS, [Setting("6-6", 1), Setting("6-6", 1, 2, 4)], 3)
    assert [len(some) for some in measured[Setting("6-6", 1, 2, 4)]] == [1, 1, 0, 0]
    (found,) = compared(measured)
    assert found.drafts == [Draft(draft=2, draft_words=4, ms=pytest.approx(2 * found.plain))]
    assert found.best is None


def test_drafts_race_anew_at_every_batch_size() -> None:
    """Good at batch 1, bad at batch 8."""
    machine = Machine(lambda _, setting: setting.batch * (0.5 if setting.batch == 1 else 2.0) ** (setting.draft > 0))
    settings = [Setting("6-6", batch, draft, draft) for batch in (1, 8) for draft in (0, 1)]
    one, eight = compared(measure(machine.seconds, TEXTS, settings, 3))
    assert (one.best, eight.best) == (Draft(draft=1, draft_words=1, ms=pytest.approx(one.plain / 2)), None)


def test_progress_is_the_share_of_the_time() -> None:
    draw = np.random.default_rng(3)
    machine = Machine(lambda tokens, setting: tokens * setting.batch * float(draw.lognormal(0, 0.3)))
    settings = [Setting("6-6", batch, draft, 2) for batch in (1, 8) for draft in (0, 1)]
    at: list[tuple[float, int]] = []
    measure(machine.seconds, TEXTS, settings, 12, progress=lambda done, total: at.append((machine.now, done)))
    assert at[-1][1] == 100
    assert max(abs(100 * now / machine.now - done) for now, done in at[len(at) // 10 :]) < 15


def test_the_file_keeps_other_machines(tmp_path: Path) -> None:
    here = calibration([timing()], [Speculation(depth="6-6", batch=1, plain=2.0, drafts=[])])
    other = replace(here, origin={"machine": "other"})
    keep(here, tmp_path)
    keep(other, tmp_path)
    newer = replace(here, timings=[timing(base=3.0)])
    keep(newer, tmp_path)
    assert read_calibrations(tmp_path / NAME) == [other, newer]
    (tmp_path / NAME).write_text("{")
    with pytest.raises(UserError, match=r"calibration.json is damaged"):
        read_calibrations(tmp_path / NAME)
    damaged = asdict(replace(newer, timings=[replace(timing(), slope="a")]))
    (tmp_path / NAME).write_text(json.dumps({"schema": 1, "calibrations": [damaged]}))
    with pytest.raises(UserError, match=r"damaged \(timings.0.slope .*valid number"):
        read_calibrations(tmp_path / NAME)
    (tmp_path / NAME).write_text(json.dumps({"schema": 2}))
    with pytest.raises(UserError, match="schema 2, expected 1"):
        read_calibrations(tmp_path / NAME)


def test_what_is_not_measured_again_is_kept(tmp_path: Path) -> None:
    def drafts(depth: str, plain: float) -> Speculation:
        return Speculation(depth=depth, batch=1, plain=plain, drafts=[Draft(draft=1, draft_words=2, ms=1.0)])

    old = [timing("6-6", 1), timing("6-6", 8), timing("6-1", 1)]
    keep(calibration(old, [drafts("6-6", 2.0), drafts("6-3", 2.0)]), tmp_path)
    keep(calibration([timing("6-6", 1, base=3.0)], [drafts("6-3", 5.0)]), tmp_path)
    (merged,) = read_calibrations(tmp_path / NAME)
    assert merged.timings == [*old[1:], timing("6-6", 1, base=3.0)]
    assert merged.speculation == [drafts("6-6", 2.0), drafts("6-3", 5.0)]


def test_calibrations_that_end_at_once_are_all_kept(tmp_path: Path) -> None:
    """Each opens the lock for itself, as processes do."""
    made = [replace(calibration([timing()] * 20), origin={"machine": str(number)}) for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: keep(one, tmp_path), made))
    found = read_calibrations(tmp_path / NAME)
    assert sorted(int(one.origin["machine"]) for one in found) == list(range(40))


def test_a_calibration_is_true_only_where_it_was_made(tmp_path: Path) -> None:
    run = anydepth.load(GOLDEN, device="cpu")
    run.folder = tmp_path
    with pytest.raises(UserError, match=rf"is not calibrated, .* run anydepth calibrate {tmp_path} --beam 1$"):
        find_calibration(run, 1)
    made = replace(calibration([timing()]), origin=origin_of(run, 1))
    keep(made, tmp_path)
    assert find_calibration(run, 1) == made
    with pytest.raises(UserError, match=r"beam 1, not 5: run anydepth calibrate .* --beam 5"):
        find_calibration(run, 5)
    with pytest.raises(UserError, match=r"precision 'float32', not 'int8': run anydepth .* --precision int8$"):
        find_calibration(run, 1, precision="int8")
    (tmp_path / NAME).unlink()
    keep(replace(made, origin=made.origin | {"machine": {"name": "Toy CPU", "threads": 64}}), tmp_path)
    with pytest.raises(UserError, match=r"machine name Toy CPU, threads 64, not name .*: run anydepth calibrate"):
        find_calibration(run, 1)
    keep(replace(made, origin=made.origin | {"weights": "0123456789abcdef"}), tmp_path)
    with pytest.raises(UserError, match=r"weights 0123456789ab, not [0-9a-f]{12}: run"):
        find_calibration(run, 1)


def test_a_real_run_is_measured() -> None:
    run = anydepth.load(GOLDEN, device="cpu")
    texts = ["the first of May", "", "twenty-three euros", "Monday, 4 July 2011", "July"]
    shown: list[tuple[int, int]] = []
    now = iter(range(10**6))
    made = calibrate(
        run, texts, ["1-1", "2-2"], batches=[2], beam=1, rounds=1, clock=lambda: float(next(now)),
        progress=lambda *both: shown.append(both),
    )  # fmt: skip
    assert [(one.depth, one.batch) for one in made.timings] == [("1-1", 2), ("2-2", 2)]
    assert all(one.typical(9) == pytest.approx(1000) for one in made.timings)
    lengths = sorted(len(ids) for ids, text in zip(run.sources(texts, ""), texts) if text)
    assert made.tokens == [length for length in lengths for _ in range(5)]
    assert [(one.depth, one.batch, len(one.drafts), one.best) for one in made.speculation] == [("2-2", 2, 3, None)]
    more = calibrate(run, texts, ["2-2"], batches=[1], beam=1, drafts_at=["1-2", "2-2"], rounds=1)
    assert [one.depth for one in more.timings] == [one.depth for one in more.speculation] == ["2-2", "1-2"]
    for beam, depth, expected in ((1, "2-1", "depths with shallower exits"), (2, "2-2", "beam 1, not 2")):
        with pytest.raises(UserError, match=f"drafts at {depth}: expected {expected}"):
            calibrate(run, texts, beam=beam, drafts_at=[depth])
    with pytest.raises(UserError, match="drafts at all: expected beam 1, not 2"):
        calibrate(run, texts, beam=2, drafts_at=None)
    assert shown[-1] == (100, 100)
    assert shown == sorted(shown)
    assert made.origin["precision"] == "float32"
    rough = calibrate(run, texts, ["2-1"], batches=[1], beam=2, precision="bfloat16", rounds=1)
    assert rough.speculation == []
    assert rough.origin["precision"] == "bfloat16"
    assert set(run.searchers) == {"float32", "bfloat16"}
    with pytest.raises(UserError, match="no sentence to measure with"):
        calibrate(run, ["", " "])
    with pytest.raises(UserError, match="batches: expected at least 1, not 0"):
        calibrate(run, texts, batches=[0])
    with pytest.raises(UserError, match="depth 3-1: this run has"):
        calibrate(run, texts, ["3-1"])
