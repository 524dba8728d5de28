"""Several depths of a run exported at once, each judged: quality, latency, memory and bytes on disk."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from anydepth.calibrating.measuring import Setting, measure, readable
from anydepth.calibrating.timed import timed
from anydepth.evaluation.cells import Cell, pareto_front
from anydepth.evaluation.differences import LEVEL, enough_samples
from anydepth.evaluation.grid import machine
from anydepth.evaluation.metrics import AnyStatistics, Statistics
from anydepth.evaluation.rouge import RougeStatistics
from anydepth.evaluation.significance import PairedBootstrap, holm, paired_bootstrap
from anydepth.interop.ctranslate2 import CTranslate2Run
from anydepth.interop.export import export_run
from anydepth.plan import parse_depth
from anydepth.run import Run, load

Progress = Callable[[int, int, str], None]
"""Called with the number of pieces of work done, their total, and which is next."""

ROUNDS = 15
"""Measurements of an export at each of four lengths."""
MEMORY_SENTENCES = 20
FULL = "full depth"


class Export(NamedTuple):
    """What an export computes, behind the interface of a run; `at` is the depth to ask it for."""

    run: Run
    at: str | None

    def outputs(self, texts: list[str], **settings: Any) -> list[str]:
        return [best.text.replace("\n", " ") for best, *_ in self.run.outputs(texts, self.at, n_best=1, **settings)]


@dataclass(frozen=True, kw_only=True)
class Size:
    """One export."""

    depth: str
    """Also the name of its folder."""
    scores: dict[str, float]
    """By metric."""
    p_values: dict[str, float]
    """How likely the distance from full depth is by chance, after Holm's correction for the number of exports."""
    p50_ms: float
    p95_ms: float
    """Of sentences translated one at a time."""
    memory: int
    disk: int
    """Bytes."""

    def differs(self, metric: str) -> bool:
        """Significantly, from full depth."""
        return self.p_values[metric] < LEVEL

    def as_cell(self) -> Cell:
        encoder, decoder = parse_depth(self.depth)
        return {"encoder": encoder, "decoder": decoder, **self.scores, "seconds": self.p95_ms / 1000}


@dataclass(frozen=True, kw_only=True)
class Advice:
    """From this budget on, this depth is the best that fits."""

    budget_ms: float
    depth: str


@dataclass(frozen=True, kw_only=True)
class Sizes:
    run: str
    to: str
    quantization: str | None
    machine: dict[str, Any]
    device: str
    beam: int
    sentences: int
    signatures: dict[str, str]
    full: dict[str, float]
    """Scores of the run itself at its full depth, which the exports are held against."""
    full_depth: str
    sizes: list[Size]

    @property
    def metric(self) -> str:
        return next(iter(self.full))

    @property
    def advice(self) -> list[Advice]:
        """By the time that 19 of 20 sentences need at most."""
        front = pareto_front([size.as_cell() | {"depth": size.depth} for size in self.sizes], self.metric)
        return [Advice(budget_ms=1000 * cell["seconds"], depth=cell["depth"]) for cell in front]

    @property
    def enough(self) -> Size | None:
        """The fastest that is not significantly worse than full depth, under the main metric."""
        metric = self.metric
        good = [one for one in self.sizes if not one.differs(metric) or one.scores[metric] > self.full[metric]]
        return min(good, key=lambda one: one.p95_ms, default=None)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "advice": [asdict(one) for one in self.advice],
            "enough": self.enough.depth if self.enough else None,
        }


def make_sizes(
    run: Run,
    depths: Sequence[str],
    out: Path,
    source: list[str],
    reference: list[str],
    *,
    to: str = "anydepth",
    quantization: str | None = None,
    beam: int | None = None,
    rounds: int = ROUNDS,
    progress: Progress | None = None,
) -> Sizes:
    """Exports to folders named after the depths in an empty one, judged on a test set."""
    depths = list(dict.fromkeys(depths))
    for depth in depths:
        run.plan(depth)
    readable(run, source)  # complains where there is none
    show = counting(progress, 3 * len(depths) + 2)
    beam = run.config.decoding.beam if beam is None else beam
    opened: dict[str, Export] = {}
    for depth in depths:
        show(f"exporting {depth}")
        export_run(run, out / depth, to, depth, None, quantization)
        opened[depth] = open_export(run, out / depth, to, depth)
    compared = quality(run, opened, source, reference, beam, show)
    full, *others = compared.comparisons
    scores = {metric: one.score for metric, one in full.estimates.items()}
    corrected = {
        metric: holm([one.estimates[metric].p_value or 0.0 for one in others]) for metric in compared.signatures
    }
    show("timing")
    times = latencies(opened, source, beam, rounds)
    sizes = []
    for place, (depth, export) in enumerate(opened.items()):
        show(f"weighing {depth}")
        sizes.append(
            Size(
                depth=depth,
                scores={metric: one.score for metric, one in others[place].estimates.items()},
                p_values={metric: chances[place] for metric, chances in corrected.items()},
                p50_ms=float(np.quantile(times[depth], 0.5)),
                p95_ms=float(np.quantile(times[depth], 0.95)),
                memory=memory(export.run, out / depth, to, source, beam),
                disk=sum(file.stat().st_size for file in (out / depth).rglob("*") if file.is_file()),
            )
        )
    return Sizes(
        run=str(run.folder),
        to=to,
        quantization=quantization,
        machine=machine(str(run.device)),
        device=str(run.device),
        beam=beam,
        sentences=len(source),
        signatures=compared.signatures,
        full=scores,
        full_depth=run.plan().name,
        sizes=sizes,
    )


def counting(progress: Progress | None, total: int) -> Callable[[str], None]:
    """To be told what is next of so many pieces of work."""
    done = count()
    return lambda what: progress(next(done), total, what) if progress else None


def open_export(run: Run, folder: Path, to: str, depth: str) -> Export:
    if to == "ctranslate2":
        return Export(CTranslate2Run.opened(run, folder, depth), depth)
    return Export(load(folder, str(run.device)), None)


def quality(
    run: Run, opened: dict[str, Export], source: list[str], reference: list[str], beam: int, show: Callable[[str], None]
) -> PairedBootstrap:
    """Every export against the run at full depth."""
    kind: type[AnyStatistics] = RougeStatistics if run.config.data.pairs == "summaries" else Statistics
    lowercase = run.config.tokenizer.lowercase
    scorer, systems = kind.scorer(reference, lowercase), dict[str, AnyStatistics]()
    for name, export in {FULL: Export(run, None), **opened}.items():
        show(f"translating at {name}")
        systems[name] = scorer.statistics(export.outputs(source, beam=beam))
    return paired_bootstrap(systems, enough_samples(len(opened)), lowercase=lowercase)


def latencies(opened: dict[str, Export], source: list[str], beam: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of single sentences, short and long, all exports in turn."""

    def seconds(texts: list[str], setting: Setting) -> float:
        export = opened[setting.depth]
        return timed(export.run, lambda: export.outputs(texts, beam=beam, batch=1))[1]

    settings, texts = [Setting(depth, 1) for depth in opened], readable(next(iter(opened.values())).run, source)
    measured = measure(seconds, texts, settings, rounds, sparing=False)
    return {setting.depth: [ms for some in groups for _, ms in some] for setting, groups in measured.items()}


def memory(run: Run, folder: Path, to: str, source: list[str], beam: int) -> int:
    """Of the process that runs it: see footprint.py."""
    texts: list[Any] = [text for text in source if text.strip()][:MEMORY_SENTENCES]
    if to == "ctranslate2":
        names = run.tokenizers.source.tokens
        texts = [[names[number] for number in run.ended(ids)] for ids in run.sources(texts, run.key)]
    asked = {"to": to, "folder": str(folder), "device": str(run.device), "beam": beam, "texts": texts}
    done = subprocess.run(
        [sys.executable, "-m", "anydepth.sizing.footprint"], input=json.dumps(asked), capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"the process that measures the memory of {folder} failed:\n{done.stderr}")
    return int(json.loads(done.stdout)["memory"])
