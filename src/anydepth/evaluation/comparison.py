"""Several runs side by side: what they have in common, what tells them apart, and how sure that is."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from anydepth.errors import UserError
from anydepth.evaluation.cells import Cell, best, deepest, depth_name
from anydepth.evaluation.costs import Cost, cost
from anydepth.evaluation.differences import Difference, Differences, compared_depths, differences, enough_samples
from anydepth.evaluation.language_table import LanguageTable, language_table
from anydepth.evaluation.metrics import Statistics, metrics_of
from anydepth.evaluation.records import Record
from anydepth.evaluation.rouge import RougeStatistics
from anydepth.evaluation.significance import SEED
from anydepth.plan import parse_depth

TestSet = tuple[list[str], list[str]]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    measured: list[Record]
    """The runs that have a depth grid."""
    baseline: Record | None
    """The run that the others are held against."""
    test_set: TestSet | None
    """The one that all were evaluated on."""
    incomparable: list[str]
    """What must be said before the numbers are read side by side."""
    rows: list[tuple[str, list[Cell | None], Cell | None]] = field(default_factory=list)
    """A name, every run's cell, and the best of them where they can be compared."""
    differences: list[Differences] = field(default_factory=list)
    samples: int = 0
    """Resampled test sets behind the differences."""
    signatures: dict[str, str] = field(default_factory=dict)
    """Of the resampled scores."""
    languages: LanguageTable | None
    """Of the runs that were evaluated in several languages."""
    costs: list[Cost]
    settings: list[tuple[str, list[str]]]
    """Settings that differ, with every run's value."""

    @property
    def metrics(self) -> dict[str, str]:
        """What the runs are scored by, and the names of it in print."""
        scored = [cell for record in self.measured for cell in record.cells]
        return metrics_of(scored[0]) if scored else {}

    @property
    def cost_of_baseline(self) -> Cost:
        return next(one for one in self.costs if self.baseline is None or one.run == self.baseline.name)

    def table(self, metric: str) -> list[tuple[str, float, list[Difference | None]]]:
        """The differences by depth: a name, the score of the baseline, and every other run."""
        found = [one for one in self.differences if one.metric == metric]
        scores = {one.depth: one.baseline for run in found for one in run.depths}
        return [(depth, score, [run.at(depth) for run in found]) for depth, score in scores.items()]

    def as_json(self) -> dict[str, Any]:
        cells = {record.name: record.cells for record in self.measured}
        return {
            "runs": [asdict(one) | {"cells": cells.get(one.run, [])} for one in self.costs],
            "baseline": self.baseline.name if self.baseline else None,
            "incomparable": self.incomparable,
            "samples": self.samples,
            "signatures": self.signatures,
            "differences": [one.as_json() for one in self.differences],
        } | ({"languages": self.languages.as_json()} if self.languages else {})


def compare(records: Sequence[Record], baseline: str = "", samples: int | None = None) -> Comparison:
    """All runs against the one named `baseline`, or the first. `samples` is the number of resampled test sets: as many
    as the correction needs unless given, 0 for no test."""
    measured = [record for record in records if record.grid]
    if len({record.summaries for record in measured}) > 1:
        raise UserError("some of these runs translate, others summarize: report them apart")
    first = _named(baseline, records) if baseline else measured[0] if measured else None
    languages = language_table(records, baseline, samples)
    test_set = _common_test_set(measured)
    reasons = _incomparable(measured, test_set) if len(measured) > 1 else []
    parts: dict[str, Any] = {"measured": measured, "baseline": first, "test_set": test_set, "incomparable": reasons}
    parts |= {"costs": [cost(record) for record in records], "settings": _differing_settings(records)}
    parts["languages"] = languages
    if len(measured) < 2 or first not in measured:
        return Comparison(**parts)
    comparable = test_set is not None and not differ(measured, "signatures")
    rows = _rows(measured)
    parts["rows"] = [(name, row, best([c for c in row if c]) if comparable else None) for name, row in rows]
    others = [record for record in measured if record is not first]
    if comparable and samples != 0:
        samples = samples or enough_samples(max(len(compared_depths(first, other)) for other in others))
        parts["differences"] = differences(first, others, samples)
        parts["samples"] = samples
        kind = RougeStatistics if first.summaries else Statistics
        parts["signatures"] = kind.signatures(first.lowercase, bs=samples, seed=SEED)
    return Comparison(**parts)


def _named(name: str, records: Sequence[Record]) -> Record:
    for record in records:
        if record.name == name:
            if not record.grid and not record.languages:
                raise UserError(f"--baseline {name}: it has no depth grid yet; make it with anydepth evaluate")
            return record
    raise UserError(f"--baseline {name}: expected one of {', '.join(record.name for record in records)}")


def _rows(records: list[Record]) -> list[tuple[str, list[Cell | None]]]:
    """The deepest of each, then every depth that at least two runs have."""
    by_depth = [{depth_name(cell): cell for cell in record.cells} for record in records]
    depths = sorted({depth for one in by_depth for depth in one}, key=parse_depth)
    rows: list[tuple[str, list[Cell | None]]] = [("deepest of each", [deepest(record.cells) for record in records])]
    each = [(depth, [one.get(depth) for one in by_depth]) for depth in depths]
    return rows + [(depth, row) for depth, row in each if sum(cell is not None for cell in row) > 1]


def _common_test_set(records: list[Record]) -> TestSet | None:
    sets = [record.test_set() for record in records]
    return sets[0] if sets and all(one == sets[0] for one in sets) else None


def _incomparable(records: list[Record], test_set: TestSet | None) -> list[str]:
    reasons = []
    if not test_set:
        reasons.append(
            "The runs were not evaluated on the same test set, or their outputs were not kept: their scores cannot be"
            " compared, and there is no significance test."
        )
    if differ(records, "signatures"):
        reasons.append("The scores were computed differently: see their signatures below.")
    if differ(records, "beam"):
        reasons.append("The runs were decoded with different beams.")
    if differ(records, "device", "machine", "batch"):
        reasons.append("Seconds were measured on different machines or with different batches: do not compare them.")
    return reasons


def differ(records: list[Record], *keys: str) -> bool:
    """Whether the grids of these runs were made in different ways."""
    return len({str([record.grid.get(key) for key in keys]) for record in records if record.grid}) > 1


def _differing_settings(records: Sequence[Record]) -> list[tuple[str, list[str]]]:
    settings = [record.settings() for record in records]
    names = sorted({name for one in settings for name in one})
    rows = [(name, [one.get(name, "") for one in settings]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]
