"""Languages down, runs across, every run at its deepest, and the mean over languages, as papers print it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from anydepth.evaluation.cells import Cell, best, deepest
from anydepth.evaluation.differences import Difference, Differences, enough_samples, language_differences
from anydepth.evaluation.languages import average
from anydepth.evaluation.records import Record


@dataclass(frozen=True)
class Row:
    """One language, or the mean over all, with every run's deepest cell there."""

    name: str
    cells: list[Cell | None]
    best: Cell | None
    """None where they cannot be compared."""


@dataclass(frozen=True, kw_only=True)
class LanguageTable:
    runs: list[str]
    rows: list[Row]
    mean: Row
    """Over the languages that all runs have."""
    incomparable: list[str]
    """What must be said before the runs are read side by side."""
    baseline: str = ""
    differences: list[Differences] = field(default_factory=list)
    """From the baseline; their `depths` are languages."""
    samples: int = 0
    """Resampled test sets behind the differences."""

    def of(self, metric: str) -> list[Differences]:
        return [one for one in self.differences if one.metric == metric]

    def at(self, run: str, metric: str, language: str) -> Difference | None:
        return next((one.at(language) for one in self.of(metric) if one.run == run), None)

    def as_json(self) -> dict[str, Any]:
        rows = [{"language": row.name} | dict(zip(self.runs, row.cells)) for row in (*self.rows, self.mean)]
        differences = [one.as_json() for one in self.differences]
        return {"rows": rows, "incomparable": self.incomparable, "baseline": self.baseline, "differences": differences}


def language_table(records: Sequence[Record], baseline: str = "", samples: int | None = None) -> LanguageTable | None:
    """Of the runs that were evaluated in several languages, if there are any. `samples` is the number of resampled test
    sets, 0 for no significance test."""
    shown = [record for record in records if record.languages]
    if not shown:
        return None
    each = [record.languages for record in shown]
    keys = list(dict.fromkeys(key for languages in each for key in languages))
    reasons = _incomparable(each, keys)
    cells = {key: [_deepest(languages.get(key)) for languages in each] for key in keys}
    rows = [Row(key, row, _best(row, reasons)) for key, row in cells.items()]
    common = [[cell for cell in row if cell] for row in cells.values() if all(row)]
    means: list[Cell | None] = [average(column) for column in zip(*common)] or [None for _ in shown]
    mean = Row("mean" if len(common) == len(rows) else f"mean of {len(common)}", means, _best(means, reasons))
    first = next((record for record in shown if record.name == baseline), shown[0])
    samples = enough_samples(len(keys)) if samples is None else samples
    found = []
    if samples and not reasons:
        found = language_differences(first, [record for record in shown if record is not first], samples)
    return LanguageTable(
        runs=[record.name for record in shown],
        rows=rows,
        mean=mean,
        incomparable=reasons,
        baseline=first.name,
        differences=found,
        samples=samples,
    )


def _deepest(record: Record | None) -> Cell | None:
    return deepest(record.cells) if record else None


def _best(cells: list[Cell | None], reasons: list[str]) -> Cell | None:
    known = [cell for cell in cells if cell]
    return best(known) if len(known) > 1 and not reasons else None


def _incomparable(each: list[dict[str, Record]], keys: list[str]) -> list[str]:
    here = [[languages[key] for languages in each if key in languages] for key in keys]
    reasons = []
    for name, text in (
        ("test_set", "The runs were not evaluated on the same test sets: their scores cannot be compared."),
        ("signatures", "The scores were computed differently: see their signatures."),
        ("beam", "The runs were decoded with different beams."),
    ):
        if any(len({str((record.grid or {}).get(name)) for record in records}) > 1 for records in here):
            reasons.append(text)
    return reasons
