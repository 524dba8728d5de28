"""What operators see: numbers for Prometheus and one line of JSON a request, without texts."""

import json
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from anydepth.serving.asking import UNSPOKEN
from anydepth.serving.scheduler import Done, Dropped
from anydepth.serving.served import Served

log = logging.getLogger("anydepth.serving")
NO_SNIFFING = (b"x-content-type-options", b"nosniff")
"""Browsers must not take for a page what is none."""
NOTES = "anydepth.notes"
"""Where, in the scope of a request, its handler leaves what the log should say."""
QUIET = "quiet"
"""Among the notes: that the log should say nothing, because somebody asks all the time."""


class Metrics:
    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("anydepth_requests", "Answers.", ["path", "status"], registry=registry)
        self.seconds = Histogram("anydepth_request_seconds", "From request to answer.", ["path"], registry=registry)
        self.texts = Counter("anydepth_texts", "Texts answered.", ["run", "depth"], registry=registry)
        self.compute = Histogram("anydepth_batch_seconds", "Computing a batch.", ["run"], registry=registry)
        sizes = (1, 2, 4, 8, 16, 32, 64, 128)
        self.sizes = Histogram("anydepth_batch_texts", "Texts in a batch.", ["run"], buckets=sizes, registry=registry)
        self.dropped = Counter(
            "anydepth_dropped_texts", "Texts given up: busy, late, gone.", ["run", "why"], registry=registry
        )
        self.queue = Gauge("anydepth_queue_texts", "Texts waiting.", ["run"], registry=registry)
        self.step = Gauge("anydepth_load_step", "Steps that load has lowered the depth.", ["run"], registry=registry)

    def saw(self, run: str, event: Done | Dropped) -> None:
        if isinstance(event, Dropped):
            self.dropped.labels(run, event.why).inc(event.texts)
            return
        self.texts.labels(run, event.depth).inc(event.texts)
        self.compute.labels(run).observe(event.seconds)
        self.sizes.labels(run).observe(event.texts)

    def follow(self, runs: Sequence[Served]) -> None:
        for one in runs:
            self.queue.labels(one.name).set_function(partial(waiting, one))
            self.step.labels(one.name).set_function(partial(lowered, one))

    def text(self) -> bytes:
        return generate_latest(self.registry)


def waiting(one: Served) -> float:
    return len(one.scheduler.queue)


def lowered(one: Served) -> float:
    return one.scheduler.load.step


class Observed:
    """Counts and logs every request, whatever it was answered with."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: frozenset[str]) -> None:
        """`paths` are those with numbers of their own: others, whatever a client invents, share one."""
        self.app, self.metrics, self.paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status, notes = time.monotonic(), UNSPOKEN, scope.setdefault(NOTES, {})
        path = scope["path"] if scope["path"] in self.paths else "other"

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], NO_SNIFFING]
            await send(message)

        try:
            await self.app(scope, receive, noting)
        except Exception:
            status = 500  # what the server answers further out
            raise
        finally:
            seconds = time.monotonic() - start
            self.metrics.requests.labels(path, str(status)).inc()
            self.metrics.seconds.labels(path).observe(seconds)
            said = {"method": scope["method"], "path": path, "status": status, "ms": round(1000 * seconds, 2)}
            if not notes.pop(QUIET, False):
                log.info("request", extra={"fields": said | notes})


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        if record.exc_info:
            said["error"] = self.formatException(record.exc_info)
        return json.dumps(said | getattr(record, "fields", {}), ensure_ascii=False)


@contextmanager
def log_to_stderr() -> Iterator[None]:
    """As long as a server runs."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    levels = {"anydepth.serving": logging.INFO, "uvicorn.error": logging.WARNING}
    loggers = {name: logging.getLogger(name) for name in levels}
    before = {name: (logger.handlers, logger.propagate, logger.level) for name, logger in loggers.items()}
    for name, logger in loggers.items():
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(levels[name])
    try:
        yield
    finally:
        for name, logger in loggers.items():
            logger.handlers, logger.propagate, level = before[name]
            logger.setLevel(level)
