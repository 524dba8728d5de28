"""A server in a process of its own, and a plain asynchronous client, for the benchmarks of serving."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple


class Reply(NamedTuple):
    status: int
    """0 where the connection broke."""
    content: Any
    seconds: float


class Pool:
    """Connections to one server that are kept and used again."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def post(self, path: str, fields: dict[str, Any], timeout: float = 60.0) -> Reply:
        start = time.perf_counter()
        body = json.dumps(fields).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        reader, writer = self.idle.pop() if self.idle else await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            status, content = await asyncio.wait_for(read_reply(reader), timeout)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            writer.close()
            return Reply(0, None, time.perf_counter() - start)
        self.idle.append((reader, writer))
        return Reply(status, content, time.perf_counter() - start)

    def close(self) -> None:
        for _, writer in self.idle:
            writer.close()


async def read_reply(reader: asyncio.StreamReader) -> tuple[int, Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = next(int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("content-length"))
    content = await reader.readexactly(length)
    return int(head.split()[1]), json.loads(content)


class Running(NamedTuple):
    port: int
    process: "subprocess.Popen[bytes]"

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
            text = answer.read().decode()
        return json.loads(text) if answer.headers["content-type"].startswith("application/json") else text

    def kilobytes(self) -> int:
        """Of memory that the process holds."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


@contextmanager
def serve(run: str, *settings: object) -> Iterator[Running]:
    """`anydepth serve` on a free port of this machine, with the environment that deploy/ gives it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = [sys.executable, "-m", "anydepth", "serve", run, "--port", str(port), *map(str, settings)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    running = Running(port, process)
    try:
        wait_until_healthy(running)
        yield running
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def wait_until_healthy(running: Running, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while True:
        try:
            running.get("/health")
            return
        except OSError:
            if time.monotonic() > end or running.process.poll() is not None:
                raise
            time.sleep(0.1)
