"""What a server does next, at which depth: all with a clock that stands still unless told."""

import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from anydepth.decoding.decoder import SEARCH_TOKENS
from anydepth.serving.jobs import Batch, Drafted, Job, Wish
from anydepth.serving.load import HOLD, LoadAware, Point, above_floor, up_to, worthwhile
from anydepth.serving.scheduler import Busy, Closed, Done, Dropped, Failed, Late, Scheduler
from anydepth.serving.worker import Worker

LADDER = [Point("6-6", 30.0, 8.0), Point("6-2", 29.0, 4.0), Point("2-1", 25.0, 1.0)]


def clear(depth: str, texts: int, tokens: int) -> float:
    """As if nothing were gained by batches."""
    return texts * next((point.ms for point in LADDER if point.depth == depth), 1.0)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def fixed(depth: str) -> Wish:
    return Wish(ladder=[Point(depth, math.nan, math.inf)])


def job(*lengths: int, wish: Wish | None = None, **settings: Any) -> Job:
    return Job(texts=["x" * n for n in lengths], lengths=list(lengths), wish=wish or Wish(ladder=LADDER), **settings)


def scheduler(clock: Clock, *, batch: int = 4, room: int = 100, wait_ms: float = 40.0, **settings: Any) -> Scheduler:
    load = settings.pop("load", None) or LoadAware(LADDER, wait_ms, clear, clock)
    return Scheduler(batch=batch, room=room, load=load, clock=clock, **settings)


def taken(queue: Scheduler) -> tuple[list[int], str]:
    batch = queue.take()
    assert batch
    return [item.tokens for item in batch.items], batch.depth


# ---- the depth that load allows


def test_depth_falls_at_once_and_to_the_step_that_is_needed(clock: Clock) -> None:
    load = LoadAware(LADDER, 40.0, clear, clock)
    steps = []
    for waiting in (0, 5, 6, 10, 11, 1000):
        load.update(waiting, 10)
        steps.append(load.step)
    assert steps == [0, 0, 1, 1, 2, 2]
    assert LoadAware(LADDER, 40.0, clear, clock).ms == math.inf
    assert load.ms == 1.0


def test_depth_rises_a_step_for_every_second_of_calm(clock: Clock) -> None:
    load = LoadAware(LADDER, 40.0, clear, clock)
    load.update(11, 10)
    load.update(0, 10)
    assert load.step == 2
    clock.now += 0.9 * HOLD
    load.update(0, 10)
    assert load.step == 2
    clock.now += 0.1 * HOLD
    load.update(0, 10)
    assert load.step == 1
    clock.now += HOLD
    load.update(0, 10)
    assert load.step == 0


def test_a_load_between_the_two_thresholds_changes_nothing(clock: Clock) -> None:
    """At 6-6 three to five texts are within the objective, but more than half of it: no reason to rise."""
    load = LoadAware(LADDER, 40.0, clear, clock)
    load.update(6, 10)
    for _ in range(20):
        for waiting in (3, 5, 4):
            clock.now += HOLD
            load.update(waiting, 10)
            assert load.step == 1


def test_a_short_calm_is_forgotten(clock: Clock) -> None:
    load = LoadAware(LADDER, 40.0, clear, clock)
    load.update(6, 10)
    for _ in range(5):
        load.update(0, 10)
        clock.now += 0.9 * HOLD
        load.update(5, 10)
    assert load.step == 1


def test_after_a_long_silence_the_first_request_is_served_at_full_depth(clock: Clock) -> None:
    load = LoadAware(LADDER, 40.0, clear, clock)
    load.update(1000, 10)
    load.update(0, 10)
    clock.now += 60
    load.update(1, 10)
    assert load.step == 0


def test_a_machine_that_is_busier_than_when_calibrated_falls_earlier(clock: Clock) -> None:
    load = LoadAware(LADDER, 40.0, clear, clock)
    load.update(5, 10)
    assert load.step == 0
    for _ in range(30):
        load.took("6-6", 5, 10, 80.0)
    assert load.slowness == pytest.approx(2.0, abs=0.01)
    load.update(5, 10)
    assert load.step == 1
    for _ in range(30):
        load.took("6-6", 5, 10, 20.0)  # faster than calibrated counts as calibrated
    assert load.slowness == pytest.approx(1.0, abs=0.01)
    load.took("6-6", 5, 10, 1e9)
    assert load.slowness < 2.0


def test_an_unknown_ladder_has_one_step(clock: Clock) -> None:
    load = LoadAware([Point("6-6", math.nan, math.inf)], math.inf, clear, clock)
    for waiting in (0, 1000):
        load.update(waiting, 10)
        assert (load.step, load.ms) == (0, math.inf)


def test_steps_that_save_no_time_are_left_out() -> None:
    times = {"6-6": 8.0, "6-5": 9.0, "6-4": 7.9, "6-2": 4.0, "2-2": 3.9, "2-1": 1.0}
    kept = worthwhile(Point(depth, 0.0, ms) for depth, ms in times.items())
    assert [point.depth for point in kept] == ["6-6", "6-2", "2-1"]


def test_floors() -> None:
    assert [point.depth for point in above_floor(LADDER, (3, 2))] == ["6-6", "6-2"]
    assert [point.depth for point in above_floor(LADDER, (6, 3))] == ["6-6"]
    assert [point.depth for point in above_floor(LADDER, (1, 1))] == ["6-6", "6-2", "2-1"]
    assert up_to(above_floor(LADDER, (3, 2)), 1.0) == [LADDER[1]]
    assert up_to(LADDER, 4.0) == LADDER[1:]


# ---- batches


def test_mates_are_of_one_depth_and_the_nearest_in_length(clock: Clock) -> None:
    queue = scheduler(clock, batch=3)
    for wish, *lengths in ((fixed("6-6"), 10, 90), (fixed("2-1"), 10), (fixed("6-6"), 12, 40), (fixed("6-6"), 9)):
        queue.submit(job(*lengths, wish=wish))
    assert taken(queue) == ([10, 9, 12], "6-6")
    assert taken(queue) == ([90, 40], "6-6")
    assert taken(queue) == ([10], "2-1")
    assert queue.take() is None


def test_languages_do_not_mix(clock: Clock) -> None:
    queue = scheduler(clock)
    queue.submit(job(5, key="en-de"))
    queue.submit(job(5, key="en-fr"))
    batch = queue.take()
    assert batch
    assert (len(batch.items), batch.key) == (1, "en-de")


def test_the_oldest_comes_first_whatever_its_length(clock: Clock) -> None:
    queue = scheduler(clock, batch=2)
    queue.submit(job(500))
    for _ in range(10):
        queue.submit(job(5))
    assert taken(queue)[0] == [500, 5]


def test_long_texts_come_in_smaller_batches(clock: Clock) -> None:
    queue = scheduler(clock, batch=8)
    queue.submit(job(*[SEARCH_TOKENS // 3] * 4))
    assert len(taken(queue)[0]) == 2
    queue = scheduler(clock, batch=8)
    queue.submit(job(2 * SEARCH_TOKENS))
    assert len(taken(queue)[0]) == 1


def test_load_lowers_those_that_wait_and_one_request_has_one_depth(clock: Clock) -> None:
    queue = scheduler(clock, batch=2)
    first = job(5, 5, 5)
    queue.submit(first)
    assert taken(queue)[1] == "6-6"
    queue.submit(job(*[5] * 3))
    queue.submit(job(*[5] * 8, wish=fixed("6-6")))
    queue.submit(job(*[5] * 3, wish=Wish(ladder=LADDER[:2])))
    assert queue.load.step == 2
    assert taken(queue) == ([5, 5], "6-6")  # the rest of the first, with a mate that wants this depth
    assert taken(queue)[1] == "2-1"
    depths = [taken(queue)[1] for _ in range(7)]
    assert "6-2" in depths  # the floor of the last


def test_a_long_request_alone_is_no_load(clock: Clock) -> None:
    queue = scheduler(clock)
    queue.submit(job(*[5] * 50))
    assert taken(queue)[1] == "6-6"


def test_a_budget_counts_from_arrival_and_travels_alone(clock: Clock) -> None:
    asked = []

    def within(ms: float, tokens: int, texts: int, key: str) -> str:
        asked.append((round(ms), tokens, texts, key))
        return "6-2"

    queue = scheduler(clock, within=within)
    queue.submit(job(7, 9, wish=Wish(ladder=LADDER, budget_ms=50.0), key="en-de"))
    queue.submit(job(7, wish=fixed("6-2"), key="en-de"))
    clock.now += 0.02
    assert taken(queue) == ([7, 9], "6-2")
    assert set(asked) == {(30, 9, 2, "en-de")}


# ---- refusing and dropping


def test_a_full_queue_refuses_and_says_when_to_come_back(clock: Clock) -> None:
    events: list[Done | Dropped] = []
    queue = scheduler(clock, room=5, watch=events.append)
    queue.pace = 0.7
    queue.submit(job(1, 1, 1))
    queue.submit(job(1, 1))
    with pytest.raises(Busy) as busy:
        queue.submit(job(1))
    assert busy.value.retry_after == 4
    assert events == [Dropped("busy", 1)]
    taken(queue)
    queue.submit(job(1))


def test_texts_that_are_being_prepared_count_as_waiting(clock: Clock) -> None:
    queue = scheduler(clock, room=3)
    worker = Worker("x", lambda batch: [], queue)
    with worker.place_for(2), worker.place_for(1):
        with pytest.raises(Busy):
            queue.check_room(1)
        with pytest.raises(Busy), worker.place_for(1):
            pytest.fail("there was no place")
    with worker.place_for(3):
        pass
    worker.close()


def test_an_empty_queue_takes_a_request_of_any_size(clock: Clock) -> None:
    scheduler(clock, room=2).submit(job(1, 1, 1))


def test_what_nobody_waits_for_is_dropped_also_to_make_room(clock: Clock) -> None:
    events: list[Done | Dropped] = []
    queue = scheduler(clock, room=2, watch=events.append)
    gone, late = job(1), job(1, deadline=clock.now + 1)
    queue.submit(gone)
    queue.submit(late)
    gone.future.cancel()
    clock.now += 2
    kept = job(3, 3)
    queue.submit(kept)
    assert taken(queue)[0] == [3, 3]
    assert isinstance(late.future.exception(), Late)
    assert sorted(events) == [Dropped("gone", 1), Dropped("late", 1)]


def in_ms(clock: Clock, deadline: float, *lengths: int) -> Job:
    return job(*lengths, wish=fixed("6-6"), deadline=clock.now + deadline / 1000)


def test_what_cannot_be_answered_in_time_makes_way_for_others(clock: Clock) -> None:
    """Three take 24 ms together: the most impatient could be answered alone, but then both others would be late."""
    events: list[Done | Dropped] = []
    queue = scheduler(clock, watch=events.append)
    jobs = [in_ms(clock, 10, 3), in_ms(clock, 20, 4), in_ms(clock, 20, 5)]
    for one in jobs:
        queue.submit(one)
    assert taken(queue)[0] == [4, 5]
    refused = jobs[0].future.exception()
    assert isinstance(refused, Busy)
    assert refused.retry_after == 1
    assert events == [Dropped("late", 1)]


def test_a_deadline_lowers_the_depth_where_the_client_leaves_it_open(clock: Clock) -> None:
    queue = scheduler(clock)
    for deadline, texts, floor, expected in ((9, 1, 0, "6-6"), (7, 1, 0, "6-2"), (9, 2, 0, "6-2"), (2, 1, 1, "6-2")):
        wish = Wish(ladder=above_floor(LADDER, (6, 1)) if floor else LADDER)
        queue.submit(job(*[5] * texts, wish=wish, deadline=clock.now + deadline / 1000))
        assert taken(queue)[1] == expected


def test_who_leaves_the_depth_open_is_lowered_before_anybody_is_refused(clock: Clock) -> None:
    """Together they take 24 ms at 6-6: the impatient one is computed before the others, at 6-2."""
    queue = scheduler(clock)
    impatient = job(3, deadline=clock.now + 0.01)
    queue.submit(impatient)
    for length in (4, 5):
        queue.submit(job(length, deadline=clock.now + 1))
    assert [taken(queue), taken(queue)] == [([3], "6-2"), ([4, 5], "6-6")]
    assert impatient.depth == "6-2"


def test_the_next_have_their_turn_where_all_of_a_batch_would_be_late(clock: Clock) -> None:
    queue = scheduler(clock)
    hopeless = [in_ms(clock, 1, 3), in_ms(clock, 2, 4, 4)]
    for one in (*hopeless, job(9, wish=fixed("2-1"))):
        queue.submit(one)
    assert taken(queue) == ([9], "2-1")
    assert all(isinstance(one.future.exception(), Busy) for one in hopeless)
    assert queue.take() is None


def test_who_waits_alone_is_tried_whatever_the_deadline(clock: Clock) -> None:
    queue = scheduler(clock)
    queue.submit(in_ms(clock, 1, 3, 4))
    assert taken(queue)[0] == [3, 4]


def test_of_a_request_that_is_begun_nothing_is_refused(clock: Clock) -> None:
    """20 ms are enough for two of its three texts: whether the third comes in time is seen when the two are done."""
    queue = scheduler(clock)
    begun = in_ms(clock, 20, 3, 4, 5)
    queue.submit(begun)
    queue.submit(in_ms(clock, 1000, 9))
    assert sorted(taken(queue)[0] + taken(queue)[0]) == [3, 4, 5, 9]
    assert not begun.future.done()


def test_times_add_up_over_batches(clock: Clock) -> None:
    queue = scheduler(clock, batch=1)
    one = job(1, 2)
    queue.submit(one)
    for answer, seconds in (("a", 0.5), ("b", 0.25)):
        clock.now += 0.1
        batch = queue.take()
        assert batch
        clock.now += seconds
        queue.answered(batch, [answer], seconds)
    found = one.future.result(timeout=0)
    assert (found.answers, found.depth) == (["a", "b"], "6-6")
    assert (found.compute_ms, found.queue_ms) == pytest.approx((750, 200))


# ---- the thread


def test_who_is_much_longer_travels_alone(clock: Clock) -> None:
    """A batch takes some time for itself, and as long as its longest for every text."""

    def clear(depth: str, texts: int, tokens: int) -> float:
        return 10.0 + texts * tokens

    queue = scheduler(clock, load=LoadAware(LADDER, 1e9, clear, clock))
    for length in (5, 90, 6, 4):
        queue.submit(job(length, wish=fixed("6-6")))
    assert [taken(queue), taken(queue)] == [([5, 6, 4], "6-6"), ([90], "6-6")]


# ---- drafts


def drafting(clock: Clock, **settings: Any) -> Scheduler:
    return scheduler(clock, draft_depth=lambda depth, key: None if depth.endswith("-1") else "6-1", **settings)


def test_a_draft_comes_first_and_its_texts_next(clock: Clock) -> None:
    queue = drafting(clock)
    streamed, other = job(1, 2, wish=fixed("6-6"), draft=Future()), job(3, wish=fixed("6-6"))
    queue.submit(streamed)
    queue.submit(other)
    batch = queue.take()
    assert batch
    assert (batch.stage, batch.depth, len(batch.items)) == ("draft", "6-1", 2)
    queue.answered(batch, [Drafted("a", 1), Drafted("b", 2)], 0.5)
    drafted = streamed.draft.result(0)
    assert (drafted.answers, drafted.depth, drafted.compute_ms) == (["a", "b"], "6-1", 500)
    assert not streamed.future.done()
    batch = queue.take()
    assert batch
    assert (batch.stage, batch.depth, [item.drafted.left for item in batch.items]) == ("refine", "6-6", [1, 2])
    queue.answered(batch, ["A", "B"], 0.5)
    found = streamed.future.result(0)
    assert (found.answers, found.depth, found.compute_ms) == (["A", "B"], "6-6", 1000)
    assert taken(queue) == ([3], "6-6")


def test_all_texts_are_drafted_before_any_is_refined(clock: Clock) -> None:
    queue = drafting(clock, batch=2)
    queue.submit(job(1, 2, 3, wish=fixed("6-6"), draft=Future()))
    queue.submit(job(4, wish=fixed("6-3"), draft=Future()))
    stages = []
    while batch := queue.take():
        stages.append((batch.stage, batch.depth, sorted(item.tokens for item in batch.items)))
        queue.answered(batch, [Drafted("", None) for _ in batch.items], 0.1)
    assert stages == [
        ("draft", "6-1", [1, 2]),
        ("draft", "6-1", [3, 4]),  # of different answers, but the same draft
        ("refine", "6-3", [4]),
        ("refine", "6-6", [1, 2]),
        ("refine", "6-6", [3]),
    ]


def test_where_nothing_drafts_there_is_no_draft(clock: Clock) -> None:
    queue = drafting(clock)
    streamed = job(1, wish=fixed("6-1"), draft=Future())
    queue.submit(streamed)
    batch = queue.take()
    assert batch
    assert (batch.stage, streamed.draft.result(0)) == ("whole", None)


def test_a_failure_is_told_to_both_who_wait(clock: Clock) -> None:
    streamed = job(1, draft=Future())
    streamed.fail(Failed("no"))
    for future in (streamed.draft, streamed.future):
        with pytest.raises(Failed):
            future.result(0)


def worker(compute: Callable[[Batch], list[Any]]) -> Worker:
    return Worker("test", compute, Scheduler(batch=8, room=100, load=LoadAware(LADDER, 1e9, clear, Clock())))


def test_closing_finishes_what_was_accepted_and_takes_nothing_new() -> None:
    go = threading.Event()

    def compute(batch: Batch) -> list[str]:
        go.wait(10)
        return [text.upper() for text in batch.texts]

    busy = worker(compute)
    jobs = [job(n, wish=fixed("6-6")) for n in (1, 2, 3)]
    for one in jobs:
        busy.submit(one)
    closing = threading.Thread(target=busy.close)
    closing.start()
    while not busy.closing:
        pass
    with pytest.raises(Closed):
        busy.submit(job(1))
    go.set()
    closing.join(10)
    assert [one.future.result(timeout=0).answers for one in jobs] == [["X"], ["XX"], ["XXX"]]
    assert not busy.alive


def test_a_failure_is_told_and_the_next_batch_has_its_turn() -> None:
    def compute(batch: Batch) -> list[str]:
        if "xx" in batch.texts:
            raise RuntimeError("no")
        return batch.texts

    steady = worker(compute)
    with pytest.raises(Failed, match="internal error"):
        steady.submit(job(2)).result(timeout=10)
    assert steady.submit(job(1)).result(timeout=10).answers == ["x"]
    steady.close()
