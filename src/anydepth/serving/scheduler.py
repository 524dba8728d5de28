"""Requests into batches: a bounded queue in front of one thread, because a model serves one batch at a time.

A batch is filled with what has arrived while the one before it was computed: texts of the same depth and language as
the oldest, the nearest in length first. Nobody waits for a batch to fill.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from time import monotonic
from typing import Any, NamedTuple

from anydepth.decoding.decoder import SEARCH_TOKENS
from anydepth.serving.jobs import Batch, Item, Job, Now, Wish, settle
from anydepth.serving.load import Clock, LoadAware, up_to

LOOK_AHEAD = 8
"""Batches' worth of texts that mates are looked for in: bounds the work of one choice."""
DEFAULT_PACE = 0.05
"""Seconds that a text is taken to need before any was answered, for Retry-After."""

DraftDepth = Callable[[str, str], str | None]
"""The depth that drafts for another, in a language; None where none does."""
Within = Callable[[float, int, int, str], str]
"""The depth for so many milliseconds, for texts the longest of which has so many tokens, their number and language."""


class Busy(Exception):
    """The queue is full."""

    def __init__(self, retry_after: int, why: str = "too many requests are waiting") -> None:
        super().__init__(f"{why}; try again in {retry_after} s")
        self.retry_after = retry_after


class Late(Exception):
    """The deadline passed."""

    def __init__(self, job: Job) -> None:
        super().__init__("there was no answer within deadline_ms" if job.hurried else "there was no answer in time")
        self.hurried = job.hurried


class Closed(Exception):
    """The server is going down and takes nothing new."""


class Failed(Exception):
    """Something broke while computing; the log says what."""


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
        draft_depth: DraftDepth = lambda depth, key: None,
        clock: Clock = monotonic,
        watch: Callable[[Done | Dropped], None] = lambda event: None,
    ) -> None:
        """`batch` texts are computed together at most; `room` may wait."""
        self.batch, self.room, self.load, self.within = batch, room, load, within
        self.draft_depth, self.clock, self.watch = draft_depth, clock, watch
        self.queue: deque[Item] = deque()
        self.coming = 0
        """Texts that are being prepared for the queue."""
        self.pace = DEFAULT_PACE
        """Seconds for a text, of late."""
        self.moment = 0.0
        """Of a choice: time does not pass while a batch is chosen, or depths could change under the choice."""

    def check_room(self, texts: int) -> None:
        """Raises Busy where so many more cannot wait. Those that find nobody there always can: limits on the size of a
        request are set elsewhere."""
        if self.waiting + texts > self.room:
            self.drop_dead()
            if self.waiting and self.waiting + texts > self.room:
                self.watch(Dropped("busy", texts))
                raise Busy(self.retry_after)

    @property
    def retry_after(self) -> int:
        """Seconds until all that wait are answered."""
        return max(1, math.ceil(self.waiting * self.pace))

    @property
    def waiting(self) -> int:
        return len(self.queue) + self.coming

    def submit(self, job: Job) -> None:
        """Accepts a job, or raises Busy."""
        self.check_room(len(job.texts))
        job.arrived = self.clock()
        self.queue.extend(Item(job, place) for place in range(len(job.texts)))
        self.update_load()
        if not job.texts:
            job.finish(job.arrived)

    def update_load(self) -> None:
        """A long request alone is no load: of the oldest, one text counts."""
        others = len(self.queue) - sum(item.job is self.queue[0].job for item in self.queue)
        longest = max((item.tokens for item in islice(self.queue, self.batch)), default=0)
        self.load.update(others + 1 if others else 0, longest)

    def drop_dead(self) -> None:
        """Gives up what nobody waits for any more."""
        now, alive = self.clock(), []
        dead = {"gone": 0, "late": 0}
        for item in self.queue:
            if item.job.deadline < now:
                item.job.fail(Late(item.job))
            if item.job.future.done():
                dead["gone" if item.job.future.cancelled() else "late"] += 1
            else:
                alive.append(item)
        self.queue = deque(alive)
        for why, texts in dead.items():
            if texts:
                self.watch(Dropped(why, texts))

    def give_up(self, error: Exception) -> None:
        """Everything: there is nobody to compute it."""
        while self.queue:
            self.queue.popleft().job.fail(error)

    def take(self) -> Batch | None:
        """The next batch, off the queue."""
        batch, self.moment = None, self.clock()
        self.drop_dead()
        while self.queue and not batch:
            batch = self.next_batch()
        return batch

    def next_batch(self) -> Batch | None:
        """The oldest text and its mates; None where some would be too late, and were refused or lowered."""
        self.update_load()
        oldest = self.queue[0]
        now = self.now(oldest)
        alike = [item for item in islice(self.queue, LOOK_AHEAD * self.batch) if self.goes_with(item, oldest, now)]
        alike.sort(key=lambda item: abs(item.tokens - oldest.tokens))  # stable: the oldest stays first
        items = self.in_time(self.worth_together(alike, now.depth), now.depth)
        for item in items:
            self.settle_depth(item.job)
        chosen = set(items)
        self.queue = deque(item for item in self.queue if item not in chosen)
        return Batch(items, now.depth, oldest.job.key, now.stage) if items else None

    def now(self, item: Item) -> Now:
        """What would be computed of it, were it begun now."""
        job = item.job
        depth = self.depth_of(job)
        if item.drafted:
            return Now("refine", depth)
        drafts = self.draft_depth(depth, job.key) if job.draft else None
        return Now("draft", drafts) if drafts else Now("whole", depth)

    def goes_with(self, item: Item, oldest: Item, now: Now) -> bool:
        """Same language, depth and stage. Who has a budget travels alone: mates cost time that it may not have."""
        if item.job is oldest.job:
            return True
        budgets = item.job.wish.budget_ms, oldest.job.wish.budget_ms
        return budgets == (None, None) and item.job.key == oldest.job.key and self.now(item) == now

    def settle_depth(self, job: Job) -> None:
        """From now on it does not change."""
        job.depth = self.depth_of(job)
        if job.draft and not self.draft_depth(job.depth, job.key):
            settle(job.draft, None)

    def worth_together(self, items: list[Item], depth: str) -> list[Item]:
        """As many of them, from the first, as make each the cheapest: a batch takes as long as its longest text, so
        that one much longer than the others is better computed by itself."""
        longest, best, cheapest = 0, 1, math.inf
        for count, item in enumerate(items[: self.batch], start=1):
            longest = max(longest, item.tokens)
            if count > 1 and (longest + 1) * count > SEARCH_TOKENS:
                break
            if (each := self.load.clear_ms(depth, count, longest) / count) <= cheapest:
                best, cheapest = count, each
        return items[:best]

    def in_time(self, items: list[Item], depth: str) -> list[Item]:
        """As many of them as are predicted to be answered together by their deadlines. The others would be later still
        in any batch after this one. Where the server may choose a faster depth for them, it does, and chooses a batch
        again (then this is empty); else they are refused, because others wait. Who waits alone is always tried."""
        if all(item.job is items[0].job for item in self.queue):
            return items
        patient, kept = sorted(items, key=lambda item: -item.job.deadline), len(items)
        while kept and self.moment + self.batch_seconds(patient[:kept], depth) > patient[kept - 1].job.deadline:
            kept -= 1
        begun = {id(item.job) for item in patient[:kept]}
        late = {id(item.job): item.job for item in patient[kept:] if id(item.job) not in begun}
        lowered = [self.lower(job) for job in late.values()]
        for job, has_faster in zip(late.values(), lowered):
            if not has_faster:
                job.fail(Busy(self.retry_after, "too many requests are waiting to answer this one before its deadline"))
        if late:
            self.drop_dead()
        return [] if any(lowered) else [item for item in items if id(item.job) in begun][:kept]

    def lower(self, job: Job) -> bool:
        """Leaves it the depths that are faster than the one it would get now, if there are any."""
        steps = [point.depth for point in job.wish.ladder]
        depth = self.depth_of(job)
        if job.depth or job.wish.budget_ms is not None or depth == steps[-1]:
            return False
        job.wish = Wish(ladder=job.wish.ladder[steps.index(depth) + 1 :])
        return True

    def batch_seconds(self, items: Sequence[Item], depth: str) -> float:
        return self.seconds(depth, len(items), max(item.tokens for item in items))

    def seconds(self, depth: str, texts: int, tokens: int) -> float:
        """That so many should take now, the longest of so many tokens."""
        return self.load.slowness * self.load.clear_ms(depth, texts, tokens) / 1000

    def depth_of(self, job: Job) -> str:
        """The depth that it has, or would get now: the best that load allows and its deadline, or else the fastest."""
        if job.depth:
            return job.depth
        longest, texts = max(job.lengths), len(job.texts)
        if job.wish.budget_ms is not None and self.within is not None:
            left = job.wish.budget_ms - 1000 * (self.moment - job.arrived)
            return self.within(left, longest, texts, job.key)
        allowed, left = up_to(job.wish.ladder, self.load.ms), job.deadline - self.moment
        in_time = (point.depth for point in allowed if self.seconds(point.depth, texts, longest) <= left)
        return next(in_time, allowed[-1].depth)

    def answered(self, batch: Batch, answers: Sequence[Any], seconds: float) -> None:
        now, jobs = self.clock(), {id(item.job): item.job for item in batch.items}
        for item, answer in zip(batch.items, answers, strict=True):
            item.job.answers[item.place] = answer
        for job in jobs.values():
            job.compute_s += seconds
            if len(job.answers) == len(job.texts):
                if batch.stage == "draft":
                    self.refine(job, batch.depth, now)
                else:
                    job.finish(now)
        self.pace = 0.8 * self.pace + 0.2 * seconds / len(batch.items)
        if batch.stage == "whole":
            self.load.took(batch.depth, len(batch.items), max(item.tokens for item in batch.items), 1000 * seconds)
        self.update_load()
        self.watch(Done(batch.depth, len(batch.items), seconds))

    def refine(self, job: Job, depth: str, now: float) -> None:
        """Gives out the draft; its texts have waited long enough to be the next."""
        drafted = [job.answers.pop(place) for place in range(len(job.texts))]
        assert job.draft
        settle(job.draft, job.outcome(now, depth, [one.answer for one in drafted]))
        self.queue.extendleft(reversed([Item(job, place, one) for place, one in enumerate(drafted)]))
