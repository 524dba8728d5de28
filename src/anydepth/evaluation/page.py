"""The parts that both reports share: what a page holds, training curves, pictures, significance, samples."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from anydepth.choosing.oracle import Oracle
from anydepth.evaluation import figures, plots
from anydepth.evaluation.cells import Cell, pareto_front
from anydepth.evaluation.comparison import Comparison, differ
from anydepth.evaluation.metrics import sentence_chrf
from anydepth.evaluation.records import Record
from anydepth.evaluation.samples import differences
from anydepth.evaluation.significance import PairedBootstrap

METRICS = {"bleu": "BLEU", "chrf": "chrF"}


@dataclass(kw_only=True)
class Page:
    """What the template shows; a part that is empty is left out."""

    records: list[Record]
    hints: list[tuple[str, str]]
    """What is missing, and the command that makes it."""
    panels: list[str]
    """Training curves."""
    curve_tables: list[list[dict[str, Any]]]
    tradeoffs: list[dict[str, Any]] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)

    # of one run
    headline: dict[str, Any] | None = None
    heat_maps: list[tuple[str, str, str]] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    front: list[str] = field(default_factory=list)
    significance: PairedBootstrap | None = None
    oracle: Oracle | None = None
    oracle_map: str = ""
    picker: dict[str, Any] | None = None

    # of masked language models, one or several
    perplexities: dict[str, Any] | None = None

    # of several runs
    comparison: Comparison | None = None
    score_maps: list[dict[str, Any]] = field(default_factory=list)
    difference_maps: list[dict[str, Any]] = field(default_factory=list)

    @property
    def title(self) -> str:
        return " · ".join(record.name for record in self.records)

    @property
    def facts(self) -> list[Record]:
        """The runs whose grids were made in ways of their own: all, or the first if there was only one way."""
        return self._different("sentences", "beam", "batch", "device", "machine")

    @property
    def signed(self) -> list[Record]:
        """The runs whose scores have signatures of their own: all, or the first."""
        return self._different("signatures")

    def _different(self, *keys: str) -> list[Record]:
        measured = [record for record in self.records if record.grid]
        return measured if differ(measured, *keys) else measured[:1]

    def place(self, run: str) -> int:
        """Of a run among all, which decides its colour."""
        return [record.name for record in self.records].index(run)


def begin(records: list[Record]) -> Page:
    """A page with what there is to say before any depth was evaluated."""
    return Page(
        records=records,
        hints=[hint for record in records for hint in _hints(record)],
        panels=training_panels(records),
        curve_tables=[_curve_table(record) for record in records],
    )


def training_panels(records: list[Record]) -> list[str]:
    """One run: its depths in colours. Several: the runs in colours, each at its deepest validated depth."""
    if len(records) == 1:
        train, depths = records[0].main.train, list(records[0].main.valid)
        shown = depths if len(depths) <= 6 else [depths[i * (len(depths) - 1) // 5] for i in range(6)]
        valid = [(depth, records[0].main.valid[depth]) for depth in shown]
        training = [_line("training", train, "nll", figures.MUTED, faint=True)]
        panels = [("loss", training + _lines(valid, "loss"))]
    else:
        mains = [(record.name, record.main) for record in records]
        valid = [(name, list(main.valid.values())[-1] if main.valid else []) for name, main in mains]
        training = _lines([(name, main.train) for name, main in mains], "nll")
        panels = [("training loss", training), ("validation loss", _lines(valid, "loss"))]
    panels += [(f"validation {label}", _lines(valid, metric)) for metric, label in METRICS.items()]
    if len(records) == 1:
        panels += [("learning rate", [_line("", train, "learning_rate", figures.MUTED)])]
    drawn = [(label, [line for line in lines if line.steps]) for label, lines in panels]
    return [plots.curves(lines, label) for label, lines in drawn if lines]


def tradeoffs(series: list[plots.Series], ring: str | None = None) -> list[dict[str, Any]]:
    """Quality against time under each metric, for wide and for narrow screens."""
    wide, narrow = (740, 410) if len(series) == 1 else (1060, 480), (340, 350)
    return [
        {
            "metric": metric,
            "label": label,
            "front": pareto_front(series[0].cells, metric),
            "wide": plots.tradeoff(series, metric, label, size=wide, ring=ring),
            "narrow": plots.tradeoff(series, metric, label, size=narrow, ring=ring),
        }
        for metric, label in METRICS.items()
    ]


def sample(chosen: dict[str, Any], names: list[str], against: str, shown: list[str]) -> dict[str, Any]:
    """A sample with a row for each of `names`, whose words are compared with those of the row `against`."""
    outputs = chosen["outputs"]
    rows = [
        {
            "name": name,
            "pieces": differences(outputs[name], outputs.get(against, outputs[name])),
            "chrf": sentence_chrf(outputs[name], chosen["reference"]),
            "shown": name in shown,
        }
        for name in names
    ]
    return {**chosen, "rows": rows}


def _lines(series: Sequence[tuple[str, list[dict[str, Any]]]], key: str) -> list[plots.Line]:
    colors = figures.SERIES
    return [_line(name, entries, key, colors[i % len(colors)]) for i, (name, entries) in enumerate(series)]


def _line(name: str, entries: list[dict[str, Any]], key: str, color: str, faint: bool = False) -> plots.Line:
    known = [entry for entry in entries if entry.get(key) is not None]
    return plots.Line(name, [entry["step"] for entry in known], [entry[key] for entry in known], color, faint)


def _curve_table(record: Record) -> list[dict[str, Any]]:
    """Validation lines, at most a hundred of them, evenly spaced, the last included."""
    lines = [line for depth in record.main.valid.values() for line in depth]
    lines.sort(key=lambda line: line["step"], reverse=True)
    return lines[:: max(1, -(-len(lines) // 100))][::-1]


def _hints(record: Record) -> list[tuple[str, str]]:
    hints = []
    if not record.grid:
        hints.append((f"{record.name} has no depth grid yet.", f"anydepth evaluate {record.folders[0].path}"))
    if not record.main.train and not record.main.valid and record.main.trained_here:
        hints.append((f"{record.name} has no training curves (metrics.jsonl).", "anydepth train"))
    if unreadable := sum(folder.unreadable for folder in record.folders):
        hints.append((f"{record.name}: {unreadable} unreadable lines of metrics.jsonl were skipped.", ""))
    return hints
