"""Which run answers a request, and who may ask it for what."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event, Thread
from time import monotonic
from typing import Any

from fastapi import Request

from anydepth.serving.asking import Refused, Translate, Work, check_key, read
from anydepth.serving.detection import Detector, language_name
from anydepth.serving.served import Pair, Served, Task
from anydepth.serving.watching import NOTES


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a server does for whom."""

    characters: int = 10_000
    """In a request."""
    texts: int = 64
    """In a request."""
    timeout: float = 30.0
    """Seconds; nobody waits longer for an answer."""
    keys: Sequence[str] = ()
    """That clients must have one of; none: everybody is served."""
    origins: Sequence[str] = ()
    """Of web pages that may call the server (CORS)."""
    log_texts: bool = False


class Service:
    """The runs of a server and how requests reach them."""

    def __init__(self, runs: Sequence[Served], limits: Limits) -> None:
        self.runs, self.limits, self.detector = runs, limits, Detector()
        self.closing = Event()

    @property
    def pairs(self) -> dict[Pair, Served]:
        return {pair: one for one in reversed(self.runs) for pair in one.pairs}  # of two, the one named first

    def replace(self, old: Served, new: Served) -> None:
        """Requests from now on go to the new run."""
        self.runs = [new if one is old else one for one in self.runs]
        Thread(target=self.retire, args=[old], name=f"anydepth {old.name} retires", daemon=True).start()

    def retire(self, old: Served) -> None:
        """It finishes the requests that it has accepted, and those that have found their way to it and are about to
        queue: for them it stays open as long as anybody waits for an answer."""
        self.closing.wait(self.limits.timeout)
        old.worker.close()

    async def read(self, request: Request, model: type[Any]) -> Any:
        """The body of a request that may be served."""
        try:
            reading = read(request, model, self.limits.characters, self.limits.texts)
            body = await asyncio.wait_for(reading, self.limits.timeout)
        except TimeoutError:
            raise Refused(408, "the body did not come in time", {"Connection": "close"}) from None
        check_key(request, body, self.limits.keys)
        notes = request.scope[NOTES]
        notes |= {"texts": len(body.texts), "characters": sum(map(len, body.texts))}
        if self.limits.log_texts:
            notes["q"] = body.q
        return body

    def route(self, source: str, target: str) -> tuple[Served, str]:
        """The run that translates, and what it calls the languages."""
        for pair, one in self.pairs.items():
            if pair == (source, target):
                return one, one.pairs[pair]
        known = ", ".join(sorted(f"{pair.source}-{pair.target}" for pair in self.pairs)) or "no languages"
        raise Refused(400, f"{source}-{target} is not served; there is {known}")

    def detected(self, body: Translate) -> dict[str, Any] | None:
        """The language of all texts together, where the client does not say it."""
        if body.source != "auto":
            return None
        sources = {pair.source for pair in self.pairs if pair.target == body.target}
        if not sources:
            self.route("auto", body.target)
        found = self.detector.detect("\n".join(body.texts), sources, 1)
        known = [one for one in found if one["language"] in sources]
        return known[0] if known else {"confidence": 0.0, "language": min(sources)}

    def find(self, task: Task, name: str) -> Served:
        """The run for a task, by name where there are several."""
        able = [one for one in self.runs if one.task == task]
        chosen = [one for one in able if name in ("", one.name)]
        if len(chosen) == 1:
            return chosen[0]
        names = ", ".join(one.name for one in able) or "no such run"
        raise Refused(400 if able else 404, f"run {name!r}: to {task} there is {names}")

    def deadline(self, body: Work) -> tuple[float, bool]:
        """And whether it is the client's own."""
        asked = math.inf if body.deadline_ms is None else body.deadline_ms / 1000
        return monotonic() + min(self.limits.timeout, asked), asked < self.limits.timeout

    def languages(self) -> list[dict[str, Any]]:
        codes = sorted({code for pair in self.pairs for code in pair})
        return [
            {
                "code": code,
                "name": language_name(code),
                "targets": sorted(pair.target for pair in self.pairs if pair.source == code),
            }
            for code in codes
        ]

    def close(self) -> None:
        self.closing.set()
        for one in self.runs:
            one.worker.close()
