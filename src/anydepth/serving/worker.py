"""The thread that computes what a scheduler gives it."""

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Condition, Thread
from time import monotonic
from typing import Any

from anydepth.serving.jobs import Batch, Job, Outcome
from anydepth.serving.scheduler import Closed, Failed, Scheduler

log = logging.getLogger("anydepth.serving")

Compute = Callable[[Batch], Sequence[Any]]
"""Answers to the texts of a batch; of drafts, `Drafted`."""


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

    @contextmanager
    def place_for(self, texts: int) -> Iterator[None]:
        """While they are prepared they count as waiting. Raises Busy where there is no room, before anything is done
        for a request that would be refused in the end."""
        with self.changed:
            self.scheduler.check_room(texts)
            self.scheduler.coming += texts
        try:
            yield
        finally:
            with self.changed:
                self.scheduler.coming -= texts

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
        try:
            while batch := self.next_batch():
                self.run(batch)
        finally:  # also where something has killed it: nobody should wait for answers that do not come
            with self.changed:
                self.closing = True
                self.scheduler.give_up(Failed("internal error"))

    def next_batch(self) -> Batch | None:
        """None when the work is over."""
        with self.changed:
            while (batch := self.scheduler.take()) is None:
                if self.closing:
                    return None
                self.changed.wait()
            return batch

    def run(self, batch: Batch) -> None:
        start = monotonic()
        try:
            answers = self.compute(batch)
        except BaseException as error:
            log.exception("a batch failed")
            for item in batch.items:
                item.job.fail(Failed("internal error"))
            if not isinstance(error, Exception):
                raise
            return  # whatever it was, the next batch deserves its turn
        with self.changed:
            self.scheduler.answered(batch, answers, monotonic() - start)
