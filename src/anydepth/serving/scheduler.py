"""Requests into batches: a bounded queue in front of one thread, because a model serves one batch at a time.

A batch is filled with what has arrived while the one before it was computed: texts of the same depth and language as
the oldest, the nearest in length first. Nobody waits for a batch to fill.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from itertools import islice
from threading import Condition, Thread
from time import monotonic
from typing import Any, NamedTuple

from anydepth.choosing.schedule import SEARCH_TOKENS
from anydepth.serving.load import Clock, Ladder, LoadAware, at_most

LOOK_AHEAD = 8
"""Batches' worth of texts that mates are looked for in: bounds the work of one choice."""
DEFAULT_PACE = 0.05
"""Seconds that a text is taken to need before any was answered, for Retry-After."""

log = logging.getLogger("anydepth.serving")

Compute = Callable[[list[str], str, str], Sequence[Any]]
"""Answers to texts at a depth, in a language."""
Within = Callable[[float, int, int, str], str]
"""The depth for so many milliseconds, for texts the longest of which has so many tokens, their number and language."""


class Busy(Exception):
    """The queue is full."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"too many requests are waiting; try again in {retry_after} s")
        self.retry_after = retry_after


class Late(Exception):
    """The deadline passed before the work was begun."""


class Closed(Exception):
    """The server is going down and takes nothing new."""


class Failed(Exception):
    """Something broke while computing; the log says what."""


class Outcome(NamedTuple):
    """What a request gets."""

    answers: list[Any]
    depth: str
    queue_ms: float
    compute_ms: float


@dataclass(frozen=True, kw_only=True)
class Wish:
    """The depths that a request may get."""

    ladder: Ladder
    """Load decides among these; a single one is fixed."""
    budget_ms: float | None = None
    """From arrival to answer: the best depth that is predicted to keep it, whatever the load."""


@dataclass(kw_only=True, eq=False)
class Job:
    """The texts of one request. All get the same depth: that chosen when the first of them is begun."""

    texts: list[str]
    lengths: list[int]
    """In tokens."""
    wish: Wish
    key: str = ""
    """The language."""
    deadline: float = math.inf
    """On the scheduler's clock; nothing is begun after it."""
    future: Future[Outcome] = field(default_factory=Future)
    """Cancelled when the client has gone."""
    arrived: float = 0.0
    depth: str = ""
    compute_s: float = 0.0
    answers: dict[int, Any] = field(default_factory=dict)

    def fail(self, error: Exception) -> None:
        try:
            self.future.set_exception(error)
        except InvalidStateError:  # the client has gone, or another of its texts failed
            return

    def finish(self, now: float) -> None:
        answers = [self.answers[place] for place in range(len(self.texts))]
        waited = max(0.0, now - self.arrived - self.compute_s)
        try:
            self.future.set_result(Outcome(answers, self.depth, 1000 * waited, 1000 * self.compute_s))
        except InvalidStateError:
            return


class Item(NamedTuple):
    """One text of a job."""

    job: Job
    place: int

    @property
    def tokens(self) -> int:
        return self.job.lengths[self.place]


class Batch(NamedTuple):
    items: list[Item]
    depth: str
    key: str

    @property
    def texts(self) -> list[str]:
        return [item.job.texts[item.place] for item in self.items]


class Done(NamedTuple):
    """A batch that was answered, for those who watch."""

    depth: str
    texts: int
    seconds: float


class Dropped(NamedTuple):
    """Texts that were given up."""

    why: str
    texts: int


class Scheduler:
    """The queue, without threads: what is accepted, what is dropped, what comes next, at which depth."""

    def __init__(
        self,
        *,
        batch: int,
        room: int,
        load: LoadAware,
        within: Within | None = None,
        clock: Clock = monotonic,
        watch: Callable[[Done | Dropped], None] = lambda event: None,
    ) -> None:
        """`batch` texts are computed together at most; `room` may wait."""
        self.batch, self.room, self.load, self.within = batch, room, load, within
        self.clock, self.watch = clock, watch
        self.queue: deque[Item] = deque()
        self.pace = DEFAULT_PACE
        """Seconds for a text, of late."""

    def submit(self, job: Job) -> None:
        """Accepts a job, or raises Busy. A job that finds the queue empty is always accepted: limits on the size of a
        request are set elsewhere."""
        if len(self.queue) + len(job.texts) > self.room:
            self.drop_dead()
            if self.queue and len(self.queue) + len(job.texts) > self.room:
                self.watch(Dropped("busy", len(job.texts)))
                raise Busy(max(1, math.ceil(len(self.queue) * self.pace)))
        job.arrived = self.clock()
        self.queue.extend(Item(job, place) for place in range(len(job.texts)))
        self.load.update(self.waiting)
        if not job.texts:
            job.finish(job.arrived)

    @property
    def waiting(self) -> int:
        """Texts of other requests behind the oldest: a long request alone is no load."""
        return len(self.queue) - sum(item.job is self.queue[0].job for item in self.queue)

    def drop_dead(self) -> None:
        """Gives up what nobody waits for any more."""
        now, alive = self.clock(), []
        dead = {"gone": 0, "late": 0}
        for item in self.queue:
            if item.job.deadline < now:
                item.job.fail(Late("the deadline passed before the work was begun"))
            if item.job.future.done():
                dead["gone" if item.job.future.cancelled() else "late"] += 1
            else:
                alive.append(item)
        self.queue = deque(alive)
        for why, texts in dead.items():
            if texts:
                self.watch(Dropped(why, texts))

    def take(self) -> Batch | None:
        """The next batch, off the queue."""
        self.drop_dead()
        self.load.update(self.waiting)
        if not self.queue:
            return None
        oldest = self.queue[0]
        depth = self.depth_of(oldest.job)
        alike = [item for item in islice(self.queue, LOOK_AHEAD * self.batch) if self.goes_with(item, oldest, depth)]
        alike.sort(key=lambda item: abs(item.tokens - oldest.tokens))  # stable: the oldest stays first
        items = self.as_many_as_fit(alike)
        for item in items:
            item.job.depth = depth
        chosen = set(items)
        self.queue = deque(item for item in self.queue if item not in chosen)
        return Batch(items, depth, oldest.job.key)

    def goes_with(self, item: Item, oldest: Item, depth: str) -> bool:
        """Same language and depth. Who has a budget travels alone: mates would cost time that it may not have."""
        if item.job is oldest.job:
            return True
        budgets = item.job.wish.budget_ms, oldest.job.wish.budget_ms
        return budgets == (None, None) and item.job.key == oldest.job.key and self.depth_of(item.job) == depth

    def as_many_as_fit(self, items: list[Item]) -> list[Item]:
        longest, count = 0, 0
        for item in items[: self.batch]:
            longest = max(longest, item.tokens)
            if count and (longest + 1) * (count + 1) > SEARCH_TOKENS:
                break
            count += 1
        return items[:count]

    def depth_of(self, job: Job) -> str:
        """The depth that it has, or would get now."""
        if job.depth:
            return job.depth
        if job.wish.budget_ms is None or self.within is None:
            return at_most(job.wish.ladder, self.load.ms)
        left = job.wish.budget_ms - 1000 * (self.clock() - job.arrived)
        return self.within(left, max(job.lengths), len(job.texts), job.key)

    def answered(self, batch: Batch, answers: Sequence[Any], seconds: float) -> None:
        now, jobs = self.clock(), {id(item.job): item.job for item in batch.items}
        for item, answer in zip(batch.items, answers, strict=True):
            item.job.answers[item.place] = answer
        for job in jobs.values():
            job.compute_s += seconds
            if len(job.answers) == len(job.texts):
                job.finish(now)
        self.pace = 0.8 * self.pace + 0.2 * seconds / len(batch.items)
        self.load.update(self.waiting)
        self.watch(Done(batch.depth, len(batch.items), seconds))


class Worker:
    """A scheduler and the thread that works for it."""

    def __init__(self, name: str, compute: Compute, scheduler: Scheduler) -> None:
        self.compute, self.scheduler = compute, scheduler
        self.changed = Condition()
        self.closing = False
        self.thread = Thread(target=self.work, name=f"anydepth {name}", daemon=True)
        self.thread.start()

    @property
    def alive(self) -> bool:
        return self.thread.is_alive()

    def submit(self, job: Job) -> Future[Outcome]:
        with self.changed:
            if self.closing or not self.alive:
                raise Closed("the server is going down")
            self.scheduler.submit(job)
            self.changed.notify()
        return job.future

    def close(self) -> None:
        """Takes nothing new, finishes what was accepted."""
        with self.changed:
            self.closing = True
            self.changed.notify()
        self.thread.join()

    def work(self) -> None:
        while True:
            with self.changed:
                while (batch := self.scheduler.take()) is None:
                    if self.closing:
                        return
                    self.changed.wait()
            self.run(batch)

    def run(self, batch: Batch) -> None:
        start = monotonic()
        try:
            answers = self.compute(batch.texts, batch.depth, batch.key)
        except Exception:  # whatever it is, the next batch deserves its turn
            log.exception("a batch failed")
            for item in batch.items:
                item.job.fail(Failed("internal error"))
            return
        with self.changed:
            self.scheduler.answered(batch, answers, monotonic() - start)
