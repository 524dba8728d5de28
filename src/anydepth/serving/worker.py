"""The thread that computes what a scheduler gives it."""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
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
            answers = self.compute(batch)
        except Exception:  # whatever it is, the next batch deserves its turn
            log.exception("a batch failed")
            for item in batch.items:
                item.job.fail(Failed("internal error"))
            return
        with self.changed:
            self.scheduler.answered(batch, answers, monotonic() - start)
