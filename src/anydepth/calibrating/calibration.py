"""How long each depth takes on this machine: measured once (measuring.py), kept beside the run, asked before decoding.

`calibration.json` has an entry for every machine, engine, precision, language, beam and set of weights that was
calibrated; times are milliseconds. The time of a batch is a line in the tokens of its longest source; between two batch
sizes that were measured it is interpolated.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from anydepth.config_reader import adapter
from anydepth.decoding.decoder import Precision
from anydepth.errors import UserError
from anydepth.evaluation.grid import machine
from anydepth.files import locked, write_atomically

if TYPE_CHECKING:
    from anydepth.run import Run

NAME = "calibration.json"
SCHEMA = 1
COVERAGE = 0.95
"""The share of the sentences that should take no longer than predicted."""
LEAST_GAIN = 1.03
"""Speculation, or a shallower depth under load, is used where it was at least so many times as fast: less is noise."""

Origin = dict[str, Any]
"""What a calibration is true for: `machine`, `engine`, `precision`, `weights`, `language`, `beam`."""


@dataclass(frozen=True, kw_only=True)
class Length:
    """Measurements of batches of similar length."""

    tokens: float
    """Of the longest source of a batch: the median."""
    p50: float
    p95: float
    measurements: int


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One depth and batch size. A batch takes base + slope · tokens milliseconds, times one of the `ratios`."""

    depth: str
    batch: int
    base: float
    slope: float
    error: float
    """How far the line is from the medians, on average, as a share of them."""
    ratios: list[float]
    """Of all measurements to the line at their own length, in order: outputs are longer or shorter than usual."""
    lengths: list[Length]

    def typical(self, tokens: float) -> float:
        return self.base + self.slope * tokens

    def safe(self, tokens: float, level: float = COVERAGE) -> float:
        """What such a share of new sentences takes at most."""
        return self.ratios[covering(len(self.ratios), level) - 1] * self.typical(tokens)


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A setting of speculation and its time, over all lengths together."""

    draft: int
    draft_words: int
    ms: float


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """One depth and batch size: plain greedy search and drafts of all kinds."""

    depth: str
    batch: int
    plain: float
    drafts: list[Draft]
    timing: Timing | None = None
    """Of the best setting, where it was measured at every length."""

    @property
    def best(self) -> Draft | None:
        """The fastest setting, or none where plain search is as fast."""
        fastest = min(self.drafts, key=lambda one: one.ms)
        return fastest if self.plain >= LEAST_GAIN * fastest.ms else None


Measured = TypeVar("Measured", Timing, Speculation)


@dataclass(frozen=True, kw_only=True)
class Calibration:
    origin: Origin
    made: str
    """The date."""
    rounds: int
    """Measurements of a length, at most, of what takes longer than a few milliseconds."""
    tokens: list[int]
    """How long sources are: of 20 sentences out of as many equal parts, shortest first."""
    timings: list[Timing]
    speculation: list[Speculation]

    @property
    def depths(self) -> list[str]:
        return list(dict.fromkeys(timing.depth for timing in self.timings))

    @property
    def batches(self) -> list[int]:
        return sorted({timing.batch for timing in self.timings})

    @property
    def usual_tokens(self) -> float:
        return median(self.tokens)

    @cached_property
    def by_depth(self) -> dict[str, list[Timing]]:
        """The smallest batches first."""
        ordered = sorted(self.timings, key=lambda one: one.batch)
        return {depth: [one for one in ordered if one.depth == depth] for depth in self.depths}

    def predict(self, depth: str, tokens: float, sentences: int = 1, level: float | None = COVERAGE) -> float:
        """Milliseconds for a batch of so many sentences, the longest of so many tokens: what such a share of them takes
        at most, or, without a level, the line."""
        known = self.by_depth[depth]
        times = [one.typical(tokens) if level is None else one.safe(tokens, level) for one in known]
        nearest = min(max(sentences, known[0].batch), known[-1].batch)
        return between(known, times, nearest) * self.growth(nearest, sentences)

    def growth(self, measured: int, sentences: int) -> float:
        """How many times as long as a batch that was measured at a depth one of another size takes, as far as the depth
        tells that was measured at the most sizes. Batches larger than any are taken to need as much for each sentence
        as the largest."""
        if sentences == measured:
            return 1.0
        known, times = self.example
        largest = known[-1].batch
        now, then = (between(known, times, size) * max(1.0, size / largest) for size in (sentences, measured))
        return now / then

    @cached_property
    def example(self) -> tuple[list[Timing], list[float]]:
        """The depth that was measured at the most batch sizes, and how long those of usual length take."""
        known = max(self.by_depth.values(), key=len)
        return known, [one.typical(self.usual_tokens) for one in known]

    def clear_ms(self, depth: str, texts: int, tokens: int, batch: int) -> float:
        """What a queue of so many texts takes, the longest of so many tokens, in full batches and one for the rest. (A
        few texts need far longer each than many: what one takes in a full batch says little about them.)"""
        full, rest = divmod(texts, batch)
        last = self.predict(depth, tokens, rest, None) if rest else 0.0
        return full * self.predict(depth, tokens, batch, None) + last

    def usual_p95(self, depth: str) -> float:
        """Milliseconds that 95 of 100 sentences of usual lengths take at most, each by itself."""
        alone = self.by_depth[depth][0]
        times = sorted(alone.typical(tokens) * ratio for tokens in self.tokens for ratio in alone.ratios)
        return times[covering(len(times)) - 1]

    def chance(self, depth: str, tokens: float, sentences: int, ms: float) -> float:
        """That a batch is done by then: the share of measurements, at the nearest batch size, that would have been."""
        nearest = min(self.by_depth[depth], key=lambda one: abs(math.log(one.batch / sentences)))
        ratio = ms / self.predict(depth, tokens, sentences, None)
        return bisect_right(nearest.ratios, ratio) / len(nearest.ratios)

    @cached_property
    def tried(self) -> dict[str, list[Speculation]]:
        """By depth, the smallest batches first."""
        ordered = sorted(self.speculation, key=lambda one: one.batch)
        return {depth: [one for one in ordered if one.depth == depth] for depth in {one.depth for one in ordered}}

    def speculation_at(self, depth: str, sentences: int) -> Speculation | None:
        """At the next larger batch size that was measured, or else the largest, if this depth was: drafts gain less the
        more sentences there are."""
        known = self.tried.get(depth, [])
        return next((one for one in known if one.batch >= sentences), known[-1] if known else None)

    def draft_at(self, depth: str, sentences: int) -> Draft | None:
        """What to draft with; none where no draft was found to pay or no batch as large was measured."""
        found = self.speculation_at(depth, sentences)
        return found.best if found and sentences <= found.batch else None

    @cached_property
    def drafting(self) -> "Calibration":
        """With the times of speculation wherever drafts pay."""
        faster = {(one.depth, one.batch): one.timing for one in self.speculation if one.best and one.timing}
        return replace(self, timings=[faster.get((one.depth, one.batch), one) for one in self.timings])


# ---- from measurements


def between(known: Sequence[Timing], times: Sequence[float], sentences: int) -> float:
    """The time of a batch size between two of those known."""
    return float(np.interp(sentences, [one.batch for one in known], times))


def fitted(depth: str, batch: int, measured: Sequence[Sequence[tuple[float, float]]]) -> Timing:
    """The timing that explains (tokens, milliseconds) pairs, which come by length."""
    lengths = [
        Length(
            tokens=median(tokens for tokens, _ in some),
            p50=round(median(ms for _, ms in some), 4),
            p95=round(float(np.quantile([ms for _, ms in some], COVERAGE)), 4),
            measurements=len(some),
        )
        for some in measured
    ]
    base, slope = line([one.tokens for one in lengths], [one.p50 for one in lengths])
    ratios = sorted(ms / (base + slope * tokens) for some in measured for tokens, ms in some)
    return Timing(
        depth=depth,
        batch=batch,
        base=base,
        slope=slope,
        error=round(fmean(abs(base + slope * one.tokens - one.p50) / one.p50 for one in lengths), 4),
        ratios=[round(ratio, 3) for ratio in ratios],
        lengths=lengths,
    )


def covering(count: int, level: float = COVERAGE) -> int:
    """Which of so many sorted values a new one stays below with at least this chance (split conformal prediction); the
    last where they are too few to tell."""
    return min(count, math.ceil(level * (count + 1)))


def line(tokens: Sequence[float], times: Sequence[float]) -> tuple[float, float]:
    """Base and slope, neither below 0, with the least squares of relative errors."""
    x, y = np.array(tokens), np.array(times)

    def least_squares(columns: list[Any]) -> Any:
        return np.linalg.lstsq(np.stack(columns, axis=1) / y[:, None], np.ones_like(y), rcond=None)[0]

    if np.ptp(x) == 0:
        return float(y.mean()), 0.0
    base, slope = least_squares([np.ones_like(x), x])
    if slope < 0:
        base, slope = least_squares([np.ones_like(x)])[0], 0.0
    elif base < 0:
        base, slope = 0.0, least_squares([x])[0]
    return round(float(base), 5), round(float(slope), 6)


# ---- beside the run


def origin_of(run: "Run", beam: int, key: str = "", precision: Precision | None = None) -> Origin:
    """What a calibration of this run would be true for, here and now."""
    here = {"machine": machine(str(run.device)), "engine": run.engine_name}
    here["precision"] = precision or run.config.decoding.precision
    return {**here, "weights": run.weights_hash, "language": key or run.key, "beam": beam}


def read_calibrations(file: Path) -> list[Calibration]:
    """All that were made, on whatever machines; none where there is no file."""
    if not file.exists():
        return []
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            raise UserError(f"{file} has schema {content['schema']}, expected {SCHEMA}: delete it and calibrate again")
        return [adapter(Calibration).validate_python(one) for one in content["calibrations"]]
    except (ValueError, KeyError, TypeError) as error:
        what = " ".join(str(error).split("\n")[1:3]) or error  # pydantic tells how many, then where and what
        raise UserError(f"{file} is damaged ({what}): delete it and calibrate again") from None


def keep(calibration: Calibration, folder: Path) -> Path:
    """Adds it to those beside the run; of one of the same origin, what was not measured again is kept."""
    file = folder / NAME
    with locked(folder, if_possible=True):  # what another process adds meanwhile stays
        known = read_calibrations(file)
        for one in (one for one in known if one.origin == calibration.origin):
            calibration = replace(
                calibration,
                timings=renewed(one.timings, calibration.timings),
                speculation=renewed(one.speculation, calibration.speculation),
            )
        others = [one for one in known if one.origin != calibration.origin]
        content = {"schema": SCHEMA, "calibrations": [asdict(one) for one in (*others, calibration)]}
        write_atomically(file, json.dumps(content, ensure_ascii=False, indent=1) + "\n")
    return file


def renewed(old: list[Measured], new: list[Measured]) -> list[Measured]:
    """By depth and batch size."""
    again = {(one.depth, one.batch) for one in new}
    kept = [one for one in old if (one.depth, one.batch) not in again]
    return kept + new


def find_calibration(run: "Run", beam: int, key: str = "", precision: Precision | None = None) -> Calibration:
    """The one for this machine and these weights; where there is none, what to do about it."""
    check_decodes(run)
    if run.folder is None:
        raise UserError("this run has no folder, so no calibration beside it: choose a depth")
    file, origin = run.folder / NAME, origin_of(run, beam, key, precision)
    known = read_calibrations(file)
    for one in known:
        if one.origin == origin:
            return one
    again = f"run {command(run, origin)}"
    if not known:
        raise UserError(f"{run.folder} is not calibrated, so the time of a depth is not known: {again}")
    # the machine comes first: of two that differ in one thing, one that was measured here says more
    differing = [[name for name, value in origin.items() if one.origin.get(name) != value] for one in known]
    unlike, nearest = min(zip(differing, known), key=lambda both: ("machine" in both[0], len(both[0])))
    reasons = [f"{name} {said(name, nearest.origin.get(name))}, not {said(name, origin[name])}" for name in unlike]
    raise UserError(f"{file} was measured with {'; '.join(reasons)}: {again}")


def check_decodes(run: "Run") -> None:
    """Times are measured and predicted of searches, which other models do not make."""
    if run.config.model.type != "translator":
        kind = run.config.model.type
        raise UserError(f"{run.folder or 'this run'} is a {kind}: only runs that translate or summarize are calibrated")


def said(name: str, value: Any) -> str:
    if name == "weights":
        return str(value)[:12]
    return ", ".join(f"{key} {each}" for key, each in value.items()) if isinstance(value, dict) else repr(value)


def command(run: "Run", origin: Origin) -> str:
    """The one that makes the calibration asked for."""
    usual = {"engine": "native", "precision": run.config.decoding.precision, "language": ""}
    flags = "".join(f" --{name} {origin[name]}" for name, value in usual.items() if origin[name] != value)
    return f"anydepth calibrate {run.folder} --beam {origin['beam']}{flags}"
