"""How much faster do trained classifiers answer than a plain one, and at what accuracy?

    python benchmarks/classify_speed.py runs/imdb/plain runs/imdb/joint_keep runs/imdb/exits --device cuda
    python benchmarks/classify_speed.py RUN RUN ... --texts 200 --batches 32 --threads 1 --clock process     on a CPU

The first run is what the others are compared with. All read the same test texts, those of similar length together; the
runs take turns, round after round, and the best round of each counts. Not timed is what belongs to the making of
batches: tokenization and the depths of words (their milliseconds are given beside). Timed are the copy to the device,
the pass and the way of the answers back. On a GPU all is in bfloat16, without padding and as CUDA graphs, except where
a halting unit decides where to stop.

The bound is the ratio of the FLOPs of all matrix products. Accuracies and their differences (paired, 95 %) are those of
the runs' grid.json and outputs/, on the whole test set.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from perword import Shape, flops

from anydepth.classifying.awaiting import Answer
from anydepth.classifying.leaving import Rule
from anydepth.data.cutting import BatchingConfig, Limits
from anydepth.data.labelled_batch import LabelledBatch
from anydepth.data.store import Store, tokenize
from anydepth.evaluation.cells import depth_name
from anydepth.evaluation.labels import paired
from anydepth.nn.perword import lay_out
from anydepth.run import Run
from anydepth.run import load as load_run
from anydepth.tasks.classification import Classification


@dataclass
class System:
    """A run, or one of its exits."""

    name: str
    run: Run
    task: Classification
    rule: Rule | None = None
    figures: dict[str, Any] = field(default_factory=dict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument(
        "--exits", nargs="*", default=["0.9", "patience 2"], help="of runs with exits, at every layer or at some"
    )
    parser.add_argument("--texts", type=int, default=5000, help="of the test set; 0 means all")
    parser.add_argument("--most-batches", type=int, default=500, help="batches timed at most")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=0, help="0 leaves it to torch")
    parser.add_argument("--clock", choices=["wall", "process"], default="wall")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    clock = time.process_time if args.clock == "process" else time.perf_counter
    systems = [system for run in args.runs for system in systems_of(run, args.device, args.exits)]
    for system in systems:
        system.figures |= quality(system, systems[0])
    with TemporaryDirectory() as scratch:
        store = test_set(systems[0].run, Path(scratch))
        for batch in args.batches:
            every = np.arange(len(store))
            wanted = min(args.texts or len(store), len(store), batch * args.most_batches)
            texts = every[:: max(1, len(store) // wanted)][:wanted]
            measure(systems, store, texts, batch, args.rounds, clock)
            show(systems, batch, len(texts))
            if args.json:  # after every batch size: a time limit leaves what there is
                rows = [{"name": system.name} | system.figures for system in systems]
                args.json.write_text(json.dumps({"device": device_name(systems[0]), "rows": rows}, indent=1) + "\n")


def systems_of(folder: Path, device: str, exits: Sequence[str]) -> list[System]:
    run = load_run(folder, device)
    task = Classification(run.config, run.tokenizers).take_depths(folder, str(run.device))
    if run.config.model.encoder.depth.type != "prefix":
        return [System(folder.name, run, task)]
    return [System(f"{folder.name}, {text}", run, task, Rule.parse(text)) for text in exits]


def quality(system: System, plain: System) -> dict[str, Any]:
    """Accuracy and mean depth on the whole test set, and the difference to the plain model with its 95 % interval."""
    assert system.run.folder is not None
    file, wanted = system.run.folder / "grid.json", system.rule.name if system.rule else None
    grid = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"cells": [], "exits": []}
    cells = [cell for cell in [*grid["cells"], *grid["exits"]] if cell.get("exit") == wanted]
    if not cells:  # not evaluated yet
        return {"accuracy": math.nan, "mean_depth": math.nan}
    found = {"accuracy": cells[-1]["accuracy"], "mean_depth": cells[-1].get("mean_depth", cells[-1]["encoder"])}
    mine, theirs = rights(system), rights(plain)
    if mine is None or theirs is None or len(mine) != len(theirs):
        return found
    apart = paired(mine, theirs, np.ones(len(mine), dtype=bool))
    return found | {"difference": apart.difference, "interval": [apart.low, apart.high]}


def rights(system: System) -> np.ndarray | None:
    """Which test texts a system is right about, from what its evaluation left."""
    assert system.run.folder is not None
    outputs, name = system.run.folder / "outputs", depth_name({"encoder": len(system.run.plan().encoder)})
    file = outputs / f"{system.rule.name if system.rule else name}.txt"
    if not file.exists():
        return None
    found, right = (np.array(path.read_text().split("\n")) for path in (file, outputs / "reference.txt"))
    return (found == right)[:-1]


def test_set(run: Run, folder: Path) -> Store:
    (corpus,) = run.config.data.test
    return tokenize(corpus, "test", run.tokenizers, folder, run.config.data)


def measure(
    systems: list[System], store: Store, texts: np.ndarray, batch: int, rounds: int, clock: Callable[[], float]
) -> None:
    """Adds milliseconds a batch, speed-up and bound at this batch size to the figures of each system."""
    order = texts[np.argsort(store.source_lengths[texts], kind="stable")]
    cuts = [order[start : start + batch] for start in range(0, len(order), batch)]
    limits = Limits.of([store], BatchingConfig(tokens=max(8192, store.longest_source), layout="padded", lengths=1))
    passes, best = [], [math.inf] * len(systems)
    for system in systems:
        start = time.perf_counter()
        batches = [system.task.held_out(store, cut, limits) for cut in cuts]
        run_all, depths = make_pass(system, batches)
        making = 1000 * (time.perf_counter() - start) / len(cuts)
        system.figures[f"batch {batch}"] = {"making_ms": making, "flops": flops_of(system, batches, depths())}
        for one in batches:
            system.run.answering.prepare(one, system.run.plan(), system.rule)
        passes.append(run_all)
    for number in range(rounds + 1):
        for place, run_all in enumerate(passes):
            start = clock()
            run_all()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if number:  # the first round warms up
                best[place] = min(best[place], clock() - start)
    for place, system in enumerate(systems):
        figures = system.figures[f"batch {batch}"]
        bound = systems[0].figures[f"batch {batch}"]["flops"] / figures["flops"]
        figures |= {"ms": 1000 * best[place] / len(cuts), "speed_up": best[0] / best[place], "bound": bound}
        figures |= {"texts_per_second": len(texts) / best[place], "share": figures["speed_up"] / bound}


def make_pass(
    system: System, batches: list[LabelledBatch]
) -> tuple[Callable[[], object], Callable[[], list[np.ndarray | None]]]:
    """What to time, and what tells the depths of all words afterwards."""
    plans, answering = system.run.plan(), system.run.answering

    def run_all() -> list[Answer]:
        return list(answering.all(batches, plans, system.rule))

    return run_all, lambda: [None if each.depths is None else each.depths.cpu().numpy() for each in run_all()]


def flops_of(system: System, batches: list[LabelledBatch], depths: list[np.ndarray | None]) -> float:
    layer, model = system.run.config.model.layer, system.run.classifier
    layers = len(system.run.plan().encoder)
    shape, total = Shape(layers, layer.width, layer.ffn, layer.heads), 0.0
    for batch, mine in zip(batches, depths):
        lengths = (batch.source != model.pad).sum(1).numpy()
        deep = np.full(lengths.sum(), layers) if mine is None else mine
        total += flops(shape, lay_out(deep, lengths, batch.source.shape[1]), model.refresh)
    return total


def show(systems: list[System], batch: int, texts: int) -> None:
    print(f"\nbatch {batch}: {texts} texts, {device_name(systems[0])}")
    heading = ("accuracy", "to plain", "95 %", "depth", "ms", "texts/s", "speed-up", "bound", "share", "made in ms")
    print(f"{'':28}" + "".join(f"{name:>16}" for name in heading))
    for system in systems:
        own, figures = system.figures, system.figures[f"batch {batch}"]
        low, high = own.get("interval", (math.nan, math.nan))
        cells = (
            f"{own['accuracy']:.2f}", f"{own.get('difference', math.nan):+.2f}", f"{low:+.2f} … {high:+.2f}",
            f"{own['mean_depth']:.2f}", f"{figures['ms']:.3f}", f"{figures['texts_per_second']:.0f}",
            f"{figures['speed_up']:.2f}x", f"{figures['bound']:.2f}x", f"{figures['share']:.0%}",
            f"{figures['making_ms']:.2f}",
        )  # fmt: skip
        print(f"{system.name:28}" + "".join(f"{cell:>16}" for cell in cells), flush=True)


def device_name(system: System) -> str:
    if system.run.device.type == "cuda":
        return torch.cuda.get_device_name()
    return f"cpu, {torch.get_num_threads()} threads"


if __name__ == "__main__":
    main()
