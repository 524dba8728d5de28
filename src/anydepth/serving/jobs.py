"""What is asked, as the scheduler holds it: a request is a job, each of its texts an item, items of a kind a batch."""

import math
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from anydepth.serving.load import Ladder

Stage = Literal["whole", "draft", "refine"]
"""Of the work on a text: all of it, its draft, or the rest."""


@dataclass(frozen=True, eq=False)
class Drafted:
    """A shallow answer to one text."""

    answer: Any
    left: Any
    """What the deeper answer can go on from."""


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
    hurried: bool = False
    """Whether the deadline is the client's own, and not that of the server for everybody."""
    future: Future[Outcome] = field(default_factory=Future)
    """Cancelled when the client has gone."""
    draft: Future[Outcome | None] | None = None
    """Where a draft is wanted first; it gets None where there is no shallower depth to draft at."""
    arrived: float = 0.0
    depth: str = ""
    compute_s: float = 0.0
    answers: dict[int, Any] = field(default_factory=dict)

    def fail(self, error: Exception) -> None:
        for future in (self.draft, self.future):
            if future is not None:
                settle(future, error)

    def finish(self, now: float) -> None:
        if self.draft is not None:  # of no text
            settle(self.draft, None)
        settle(self.future, self.outcome(now, self.depth, [self.answers[place] for place in range(len(self.texts))]))

    def outcome(self, now: float, depth: str, answers: list[Any]) -> Outcome:
        waited = max(0.0, now - self.arrived - self.compute_s)
        return Outcome(answers, depth, 1000 * waited, 1000 * self.compute_s)


def settle(future: Future[Any], result: Any) -> None:
    try:
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
    except InvalidStateError:  # the client has gone, or another of its texts failed
        return


class Item(NamedTuple):
    """One text of a job."""

    job: Job
    place: int
    drafted: Drafted | None = None
    """Where that is done."""

    @property
    def tokens(self) -> int:
        return self.job.lengths[self.place]


class Now(NamedTuple):
    """What is computed of a text, and at which depth."""

    stage: Stage
    depth: str


class Batch(NamedTuple):
    items: list[Item]
    depth: str
    key: str
    stage: Stage

    @property
    def texts(self) -> list[str]:
        return [item.job.texts[item.place] for item in self.items]
