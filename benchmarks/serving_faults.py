"""Does a server survive what happens to servers?

    python benchmarks/serving_faults.py RUN --seconds 600 --connections 10000 --out docs/results/serving-faults.json

In turn, all on this machine: many connections at once; clients that go away; a server killed in the middle of its work
beside another that is not; a server told to end; and a soak of all kinds of requests, good and bad, with reloads, in
which memory must stay flat. Exits with an error where the service answers neither properly nor with a clear refusal.
"""

import argparse
import asyncio
import json
import random
import resource
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import fmean
from typing import Any

from serving_client import Pool, Reply, Running, read_reply, serve

TEXTS = ["forty-one kilometers", "July", "the second of May", "three hundred and five", "Monday, 7 June 2021"]
HEAD = "POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CLEAR = {200, 400, 408, 413, 415, 429, 499, 504}
"""What may be answered."""
GROWTH = 0.03
"""Of memory that a soak may end with: its last quarter against its second."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--seconds", type=float, default=600.0, help="of the soak")
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    parts: dict[str, Callable[[], Awaitable[dict[str, Any]]]] = {
        "connections": lambda: many_connections(args.run, args.connections),
        "disconnects": lambda: disconnects(args.run, 500),
        "killed": lambda: killed(args.run),
        "shutdown": lambda: shutdown(args.run),
        "soak": lambda: soak(args.run, args.seconds),
    }
    found = {}
    for name, part in parts.items():
        found[name] = asyncio.run(part())
        print(name, json.dumps(found[name]), flush=True)
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    if bad := [name for name, one in found.items() if not one["passed"]]:
        raise SystemExit(f"failed: {', '.join(bad)}")


def asking(running: Running) -> dict[str, str]:
    pair = next(one for one in running.get("/languages") if one["targets"])
    return {"source": pair["code"], "target": pair["targets"][0]}


def counted(replies: list[Reply]) -> dict[str, int]:
    return {str(status): count for status, count in sorted(Counter(one.status for one in replies).items())}


# ---- the parts


async def many_connections(run: str, count: int) -> dict[str, Any]:
    """All open before the first asks; then all ask at once."""
    with serve(run) as running:
        languages, files = asking(running), running.open_files()
        start, gate = time.perf_counter(), asyncio.Event()
        opened = 0

        async def client(number: int) -> Reply:
            nonlocal opened
            body = json.dumps({"q": TEXTS[number % len(TEXTS)]} | languages).encode()
            # the header goes first: a connection on which nothing comes is closed after a while
            reader, writer = await connect(running.port)
            writer.write(f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode())
            opened += 1
            await gate.wait()
            try:
                writer.write(body)
                status, content = await asyncio.wait_for(read_reply(reader), 120)
                return Reply(status, content, 0.0)
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                return Reply(0, None, 0.0)
            finally:
                writer.close()

        tasks = [asyncio.create_task(client(number)) for number in range(count)]
        while opened < count:
            await asyncio.sleep(0.05)
        ready = time.perf_counter() - start
        healthy = await asyncio.to_thread(lambda: running.get("/health")["status"])
        gate.set()
        replies = await asyncio.gather(*tasks)
        seconds = time.perf_counter() - start - ready
        await asyncio.sleep(1)
        after = await Pool(running.port).post("/translate", {"q": TEXTS[0]} | languages)
        statuses = counted(replies)
        return {
            "connections": count,
            "seconds_to_open": round(ready, 1),
            "seconds_to_answer": round(seconds, 1),
            "statuses": statuses,
            "health_meanwhile": healthy,
            "open_files": [files, running.open_files()],
            "megabytes": running.kilobytes() // 1024,
            "passed": set(statuses) <= {"200", "429"} and after.status == 200 and running.open_files() <= files + 5,
        }


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    for _ in range(50):
        try:
            return await asyncio.open_connection("127.0.0.1", port)
        except OSError:  # more come at once than may wait to be accepted
            await asyncio.sleep(0.2)
    return await asyncio.open_connection("127.0.0.1", port)


async def disconnects(run: str, count: int) -> dict[str, Any]:
    """Clients that leave at any moment, some in the middle of their request."""
    with serve(run) as running:
        languages, draw = asking(running), random.Random(1)

        async def client(stream: bool) -> None:
            body = json.dumps({"q": TEXTS * 4, "stream": stream} | languages).encode()
            head = (
                f"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
            )
            _, writer = await connect(running.port)
            sent = f"{head}\r\n\r\n".encode() + body
            writer.write(sent[: draw.choice([10, len(sent) - 5, len(sent), len(sent)])])
            await asyncio.sleep(draw.random() / 2)
            writer.transport.abort()

        await asyncio.gather(*(client(draw.random() < 0.5) for _ in range(count)))
        pool = Pool(running.port)
        reply = await pool.post("/translate", {"q": TEXTS[0]} | languages)
        pool.close()
        await asyncio.sleep(1)
        numbers = running.get("/metrics").splitlines()
        waiting = sum(float(line.split()[-1]) for line in numbers if line.startswith("anydepth_queue_texts{"))
        dropped = sum(float(line.split()[-1]) for line in numbers if line.startswith("anydepth_dropped_texts_total{"))
        return {
            "clients": count,
            "texts_dropped": dropped,
            "texts_left_waiting": waiting,
            "status_afterwards": reply.status,
            "passed": reply.status == 200 and waiting == 0 and dropped > 0,
        }


async def killed(run: str) -> dict[str, Any]:
    """Of two servers one is killed: who was connected to it hears so at once and is answered by the other."""
    with serve(run) as first, serve(run) as second:
        languages, pools = asking(first), [Pool(first.port), Pool(second.port)]

        async def client(number: int) -> tuple[Reply, bool]:
            await asyncio.sleep(number * 0.01)
            for turn in range(2):
                try:
                    reply = await pools[(number + turn) % 2].post("/translate", {"q": TEXTS} | languages)
                except OSError:  # nobody listens
                    reply = Reply(0, None, 0.0)
                if reply.status:
                    return reply, turn > 0
            return reply, True

        tasks = [asyncio.create_task(client(number)) for number in range(300)]
        await asyncio.sleep(1.5)
        first.process.kill()
        replies, again = zip(*await asyncio.gather(*tasks))
        statuses = counted(list(replies))
        return {
            "requests": len(replies),
            "asked_again": sum(again),
            "statuses": statuses,
            "passed": set(statuses) <= {"200", "429"} and any(again),
        }


async def shutdown(run: str) -> dict[str, Any]:
    """Told to end while requests wait: all that were accepted are answered."""
    with serve(run) as running:
        languages, pool = asking(running), Pool(running.port)
        tasks = [asyncio.create_task(pool.post("/translate", {"q": TEXTS * 4} | languages)) for _ in range(40)]
        while "anydepth_queue_texts{" not in (numbers := await asyncio.to_thread(running.get, "/metrics")) or (
            not any(float(line.split()[-1]) > 100 for line in numbers.splitlines() if "anydepth_queue_texts{" in line)
        ):
            await asyncio.sleep(0.01)
        running.process.send_signal(signal.SIGTERM)
        statuses = counted(await asyncio.gather(*tasks))
        code = await asyncio.to_thread(running.process.wait, 60)
        return {
            "requests": 40,
            "statuses": statuses,
            "exit": code,  # uvicorn ends by the signal that it was sent
            "passed": set(statuses) == {"200"} and code in (0, -signal.SIGTERM),
        }


async def soak(run: str, seconds: float) -> dict[str, Any]:
    """Eight clients, each with one request after the other, now and then a reload."""
    with serve(run, "--timeout", 5) as running:
        languages, draw, end = asking(running), random.Random(1), time.monotonic() + seconds
        replies: Counter[int] = Counter()
        memory: list[tuple[float, int, int]] = []

        async def client() -> None:
            pool = Pool(running.port)
            while time.monotonic() < end:
                replies[await any_request(running.port, pool, languages, draw)] += 1
            pool.close()

        async def watch() -> None:
            rounds = 0
            while time.monotonic() < end:
                await asyncio.sleep(min(5.0, seconds / 40))
                memory.append((round(seconds - end + time.monotonic(), 1), running.kilobytes(), running.open_files()))
                rounds += 1
                if rounds % 12 == 0:
                    running.process.send_signal(signal.SIGHUP)

        await asyncio.gather(watch(), *(client() for _ in range(8)))
        healthy = running.get("/health")["status"]
        part = len(memory) // 4
        before, after = (fmean(one[1] for one in some) for some in (memory[part : 2 * part], memory[-part:]))
        return {
            "seconds": seconds,
            "requests": sum(replies.values()),
            "statuses": {str(status): count for status, count in sorted(replies.items())},
            "megabytes_second_quarter": round(before / 1024, 1),
            "megabytes_last_quarter": round(after / 1024, 1),
            "open_files_at_most": max(one[2] for one in memory),
            "memory": memory[:: max(1, len(memory) // 60)],
            "health": healthy,
            "passed": set(replies) <= CLEAR | {0} and after < (1 + GROWTH) * before and healthy == "ok",
        }


async def any_request(port: int, pool: Pool, languages: dict[str, str], draw: random.Random) -> int:
    """Its status, or 0 where the client itself went away."""
    kind = draw.choice(["good"] * 4 + ["many", "stream", "json", "type", "huge", "utf-8", "gone", "depth"])
    text = " ".join(draw.choice(TEXTS) for _ in range(draw.randrange(1, 4)))
    bodies: dict[str, bytes] = {
        "json": b'{"q": ',
        "huge": b"x" * 200_000,
        "utf-8": b'{"q": "\xff"}',
        "stream": json.dumps({"q": text, "stream": True} | languages).encode(),
        "gone": json.dumps({"q": [text] * 8} | languages).encode(),
    }
    if kind in bodies:
        return await raw(port, bodies[kind], leave=kind == "gone")
    fields: dict[str, Any] = {
        "good": {"q": text},
        "many": {"q": [text] * 8},
        "type": {"q": {"a": 1}},
        "depth": {"q": text, "depth": "../../etc/passwd"},
    }[kind]
    return (await pool.post("/translate", fields | languages)).status


async def raw(port: int, body: bytes, leave: bool) -> int:
    """A connection of its own."""
    reader, writer = await connect(port)
    try:
        writer.write(f"{HEAD}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        if leave:
            await asyncio.sleep(0.01)
            writer.transport.abort()
            return 0
        answer = await asyncio.wait_for(reader.read(), 60)
        return int(answer.split()[1]) if answer else 0
    except OSError:  # it hung up on a body that is too long
        return 0
    finally:
        writer.close()


if __name__ == "__main__":
    main()
