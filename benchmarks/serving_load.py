"""Does load-aware depth keep answers in time where a fixed depth cannot, and what does it cost?

    anydepth evaluate RUN && anydepth calibrate RUN
    python benchmarks/serving_load.py de-en=RUN --source F --reference F --out docs/results/serving-load

Requests of one text each arrive at random (Poisson) whether or not earlier ones are answered, at 0.5 to 3 times the
capacity of the full depth: what it answers a second when 32 clients ask again at once. The objective is twice the p95
of full-depth answers of an idle server. Clients tell the server (`deadline_ms`), and who has no answer by then hangs up
(timed out); that and what is refused (429) counts against goodput, the answers a second within the objective. Each load
is offered in turn at the fixed full depth and with the depth left to the server. Then a burst of three times the
capacity between two calm parts.

The server computes with one thread; leave it a core, and another for this program. Everything stays on this machine.
"""

import argparse
import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from serving_client import Pool, Running, serve

from anydepth.evaluation.texts import read_texts
from anydepth.serving.asking import LEAST_DEADLINE_MS

LOADS = (0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0)
GOAL = 0.95
CLIENTS = 32


class Texts(NamedTuple):
    source: list[str]
    reference: list[str]
    languages: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Answer:
    at: float
    """Seconds since the beginning of the load, when it was asked."""
    status: int
    """0 where it timed out."""
    ms: float
    place: int
    """Of the text."""
    depth: str = ""
    text: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="as for anydepth serve")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=10.0, help="of every load, each time it is offered")
    parser.add_argument("--rounds", type=int, default=2, help="times that it is offered, in both ways in turn")
    parser.add_argument("--loads", type=float, nargs="+", default=LOADS)
    parser.add_argument("--out", type=Path, required=True, help="writes OUT.json and OUT.png")
    args = parser.parse_args()
    with serve(args.run, "--device", "cpu") as running:
        pair = next(one for one in running.get("/languages") if one["targets"])
        languages = {"source": pair["code"], "target": pair["targets"][0]}
        texts = Texts(read_texts(args.source), read_texts(args.reference), languages)
        found = asyncio.run(measure(running, texts, args.loads, args.rounds, args.seconds))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    draw(found, args.out.with_suffix(".png"))
    for line in table(found):
        print(line)


async def measure(running: Running, texts: Texts, loads: list[float], rounds: int, seconds: float) -> dict[str, Any]:
    (run,) = running.get("/frontend/settings")["runs"]
    if not run["front"]:
        raise SystemExit("the run is not evaluated and calibrated: load would not change its depth")
    full = {"depth": run["front"][0]["depth"]}
    unloaded = await one_by_one(running.port, texts, full, count=100)
    p95 = quantile(unloaded, 0.95)
    capacity = await closed_loop(running.port, texts, full, seconds)
    print(f"unloaded p50 {median(unloaded):.0f} ms, p95 {p95:.0f} ms; capacity {capacity:.1f} a second", flush=True)
    objective = 2 * p95
    rows = []
    for load in loads:
        answers: dict[str, list[Answer]] = {"fixed": [], "load-aware": []}
        for way, asked in [("fixed", full), ("load-aware", {})] * rounds:
            answers[way] += await open_loop(running.port, texts, asked, [(load * capacity, seconds)], objective)
            await asyncio.sleep(len(run["front"]))  # for the depth to rise again
        for way, some in answers.items():
            rows.append({"way": way, "load": load} | summary(some, texts, objective, rounds * seconds))
            print(rows[-1], flush=True)
    parts = [(0.5 * capacity, seconds), (3 * capacity, seconds), (0.5 * capacity, 1.5 * seconds)]
    burst = await open_loop(running.port, texts, {}, parts, objective)
    return {
        "run": run["name"],
        "front": run["front"],
        "unloaded_p50_ms": median(unloaded),
        "unloaded_p95_ms": p95,
        "objective_ms": objective,
        "capacity": capacity,
        "seconds": seconds,
        "rounds": rounds,
        "loads": rows,
        "burst": {"parts": parts, "answers": [told(one, texts) for one in burst]},
    }


# ---- loads


async def one_by_one(port: int, texts: Texts, asked: dict[str, Any], count: int) -> list[float]:
    """Milliseconds of an idle server; the first few warm up."""
    pool, found, draw = Pool(port), [], random.Random(3)
    for _ in range(count + 5):
        reply = await pool.post("/translate", question(texts, draw.randrange(len(texts.source)), asked))
        assert reply.status == 200, reply
        found.append(1000 * reply.seconds)
    pool.close()
    return found[5:]


async def closed_loop(port: int, texts: Texts, asked: dict[str, Any], seconds: float) -> float:
    """Answers a second when as many clients as are good for it ask again at once."""
    pool, answered, draw, start = Pool(port), 0, random.Random(1), time.perf_counter()

    async def client() -> None:
        nonlocal answered
        while time.perf_counter() < start + seconds:
            reply = await pool.post("/translate", question(texts, draw.randrange(len(texts.source)), asked))
            answered += reply.status == 200

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    pool.close()
    return answered / (time.perf_counter() - start)


async def open_loop(
    port: int, texts: Texts, asked: dict[str, Any], parts: list[tuple[float, float]], objective: float
) -> list[Answer]:
    """Requests at so many a second for so many seconds, one part after the other."""
    pool, draw, start, tasks = Pool(port), random.Random(2), time.perf_counter(), []

    async def ask(at: float, place: int) -> Answer:
        left = objective / 1000 - (time.perf_counter() - start - at)
        fields = question(texts, place, asked) | {"deadline_ms": max(LEAST_DEADLINE_MS, 1000 * left)}
        reply = await pool.post("/translate", fields, timeout=left)
        said = reply.content if reply.status == 200 else {}
        return Answer(
            at=at,
            status=reply.status,
            ms=1000 * (time.perf_counter() - start - at),  # from when it was due, not from when we got to it
            place=place,
            depth=said.get("depth", ""),
            text=said.get("translatedText", ""),
        )

    at = 0.0
    for rate, seconds in parts:
        end = at + seconds
        while (at := at + draw.expovariate(rate)) < end:
            await asyncio.sleep(max(0.0, start + at - time.perf_counter()))
            tasks.append(asyncio.create_task(ask(at, draw.randrange(len(texts.source)))))
        at = end
    answers = await asyncio.gather(*tasks)
    pool.close()
    return answers


def question(texts: Texts, place: int, asked: dict[str, Any]) -> dict[str, Any]:
    return {"q": texts.source[place]} | texts.languages | asked


# ---- figures


def summary(answers: list[Answer], texts: Texts, objective: float, seconds: float) -> dict[str, Any]:
    good = [one for one in answers if one.status == 200 and one.ms <= objective]
    times = [one.ms if one.status == 200 else float("inf") for one in answers]
    p95 = quantile(times, 0.95)
    return {
        "requests": len(answers),
        "in_time": len(good) / len(answers),
        "goodput": len(good) / seconds,
        "p50_ms": quantile(times, 0.5) if quantile(times, 0.5) < float("inf") else None,
        "p95_ms": p95 if p95 < float("inf") else None,
        "statuses": dict(sorted(Counter(one.status for one in answers).items())),
        "depths": dict(Counter(one.depth for one in answers if one.depth).most_common()),
        "chrf": fmean([chrf(one, texts) or 0.0 for one in good]) if good else None,
    }


def told(answer: Answer, texts: Texts) -> dict[str, Any]:
    """Without the text: corpora may not be for everybody."""
    said = {"at": round(answer.at, 2), "status": answer.status, "ms": round(answer.ms, 1), "depth": answer.depth}
    return said | {"chrf": chrf(answer, texts)}


def chrf(answer: Answer, texts: Texts) -> float | None:
    from sacrebleu import sentence_chrf

    if answer.status != 200:
        return None
    return float(sentence_chrf(answer.text, [texts.reference[answer.place]]).score)


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def table(found: dict[str, Any]) -> list[str]:
    names = ["load", "way", "in time", "goodput", "p95 ms", "statuses", "chrF", "depths"]
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    for one in found["loads"]:
        p95 = "-" if one["p95_ms"] is None else f"{one['p95_ms']:.0f}"
        quality = "-" if one["chrf"] is None else f"{one['chrf']:.1f}"
        statuses = ", ".join(f"{status}: {count}" for status, count in one["statuses"].items())
        depths = ", ".join(f"{depth} {count}" for depth, count in one["depths"].items())
        lines.append(
            f"| {one['load']:g} | {one['way']} | {one['in_time']:.1%} | {one['goodput']:.1f} | {p95} | {statuses} "
            f"| {quality} | {depths} |"
        )
    return lines


def draw(found: dict[str, Any], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, ((left, right), (times, quality)) = plt.subplots(2, 2, figsize=(11, 7), layout="constrained")
    for way, colour in (("fixed", "tab:gray"), ("load-aware", "tab:blue")):
        rows = [one for one in found["loads"] if one["way"] == way]
        loads = [one["load"] for one in rows]
        left.plot(loads, [100 * one["in_time"] for one in rows], "o-", color=colour, label=f"{way} depth")
        right.plot(loads, [one["goodput"] for one in rows], "o-", color=colour, label=f"{way} depth")
    left.axhline(100 * GOAL, color="tab:red", linewidth=0.8)
    left.set(title=f"answered within {found['objective_ms']:.0f} ms, %", xlabel="load, × full-depth capacity")
    right.set(title="goodput, answers in time a second", xlabel="load, × full-depth capacity")
    for axes in (left, right):
        axes.set_ylim(bottom=0)
        axes.legend()
    draw_burst(found, times, quality)
    figure.savefig(file, dpi=110)


def draw_burst(found: dict[str, Any], times: Any, quality: Any) -> None:
    answers = [one for one in found["burst"]["answers"] if one["status"] == 200]
    begin, length = found["burst"]["parts"][0][1], found["burst"]["parts"][1][1]
    milliseconds = {point["depth"]: point["ms"] for point in found["front"]}
    for axes in (times, quality):
        axes.axvspan(begin, begin + length, color="tab:orange", alpha=0.15, label="burst, 3 × capacity")
        axes.set_xlabel("seconds")
    times.plot([one["at"] for one in answers], [one["ms"] for one in answers], ".", markersize=3, label="answer")
    times.axhline(found["objective_ms"], color="tab:red", linewidth=0.8, label="objective")
    times.set(title="a burst: ms from request to answer", ylim=(0, 1.5 * found["objective_ms"]))
    times.legend(loc="upper right")
    windows = sorted({int(one["at"] // 2) for one in answers})
    means = [fmean(one["chrf"] for one in answers if one["at"] // 2 == window) for window in windows]
    quality.plot([2 * window + 1 for window in windows], means, "o-", color="tab:green", label="chrF, mean of 2 s")
    quality.set(title="a burst: quality and depth", ylim=(0, 80))
    other = quality.twinx()
    full = max(milliseconds.values())
    other.plot([one["at"] for one in answers], [milliseconds.get(one["depth"], full) / full for one in answers], ".k",
               markersize=3)  # fmt: skip
    other.set(ylabel="cost of the depth, full = 1", ylim=(0, 1.05))
    quality.legend(loc="lower left")


if __name__ == "__main__":
    main()
