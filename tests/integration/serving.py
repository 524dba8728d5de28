"""A real server on a free port of this machine, and a plain client."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any, NamedTuple
from urllib.parse import urlencode

import uvicorn

from anydepth.serving.app import create_app
from anydepth.serving.jobs import Batch
from anydepth.serving.served import Served
from anydepth.serving.service import Limits
from anydepth.serving.watching import Metrics


def wait_for(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


class Reply(NamedTuple):
    status: int
    content: Any
    headers: dict[str, str]


class Client(NamedTuple):
    port: int
    runs: Sequence[Served]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def send(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Reply:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            content, heads = answer.read().decode(), {name.lower(): value for name, value in answer.getheaders()}
            is_json = heads.get("content-type", "").startswith("application/json")
            return Reply(answer.status, json.loads(content) if is_json else content, heads)
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Reply:
        return self.send("GET", path, headers=headers)

    def is_healthy(self) -> bool:
        try:
            return self.get("/health").status == 200
        except OSError:  # not listening yet
            return False

    def post(self, path: str, fields: Any, **headers: str) -> Reply:
        return self.send("POST", path, json.dumps(fields).encode(), {"Content-Type": "application/json"} | headers)

    def form(self, path: str, fields: Any) -> Reply:
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        return self.send("POST", path, urlencode(fields, doseq=True).encode(), kind)

    def translate(self, q: str | list[str], **fields: Any) -> Reply:
        return self.post("/translate", {"q": q, "source": "en", "target": "de"} | fields)

    def number(self, name: str) -> float:
        """One of /metrics; 0 where it has not come up."""
        lines = self.get("/metrics").content.splitlines()
        return sum(float(line.removeprefix(name)) for line in lines if line.startswith(f"{name} "))


@contextmanager
def serving(runs: dict[str, Any], *, room: int = 1000, port: int = 0, **limits: Any) -> Iterator[Client]:
    """`runs` by name: a run and its pairs of languages."""
    metrics = Metrics()
    served = [Served(name, run, pairs, room=room, watch=metrics.saw) for name, (run, pairs) in runs.items()]
    app = create_app(served, Limits(**limits), metrics)
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None, access_log=False))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield Client(server.servers[0].sockets[0].getsockname()[1], served)
    finally:
        server.should_exit = True
        thread.join(30)
    assert not any(one.worker.alive for one in served)


@contextmanager
def held(one: Served) -> Iterator[threading.Event]:
    """A run that computes nothing until the block is left; the event is set when it would like to begin."""
    gate, reached, compute = threading.Event(), threading.Event(), one.worker.compute

    def when_let(batch: Batch) -> Sequence[Any]:
        reached.set()
        gate.wait(30)
        return compute(batch)

    one.worker.compute = when_let
    try:
        yield reached
    finally:
        gate.set()
        one.worker.compute = compute
