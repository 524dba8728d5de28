"""The parts that both reports share: what a page holds, training curves, pictures, significance, samples."""

from dataclasses import dataclass, field
from typing import Any

from anydepth.evaluation.cells import Cell, pareto_front
from anydepth.evaluation.comparison import Comparison, differ
from anydepth.evaluation.language_table import LanguageTable
from anydepth.evaluation.metrics import Statistics, metrics_of, sentence_chrf
from anydepth.evaluation.records import DIVERGED, Record
from anydepth.evaluation.samples import differences
from anydepth.evaluation.significance import PairedBootstrap
from anydepth.reporting import plots
from anydepth.reporting.attention_page import AttentionPicture, attention_part
from anydepth.reporting.choosing_page import ChoosingPart, choosing_part
from anydepth.reporting.difficulty_page import DifficultyPart, difficulty_part
from anydepth.reporting.figures import SERIES
from anydepth.reporting.layers_page import LayersPart, layers_part
from anydepth.reporting.training_page import curve_table, training_panels
from anydepth.selecting.oracle import Oracle

MOST_NAMES = 8
"""In a page's title."""


@dataclass(kw_only=True)
class Page:
    """What the template shows; a part that is empty is left out."""

    records: list[Record]
    hints: list[tuple[str, str]]
    """What is missing, and the command that makes it."""
    panels: list[str]
    """Training curves."""
    curve_tables: list[list[dict[str, Any]]]
    layers: LayersPart | None
    """What latent depth learnt, and gradients."""
    tradeoffs: list[dict[str, Any]] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)
    languages: LanguageTable | None = None

    difficulty: DifficultyPart | None = None
    choosing: list[ChoosingPart] = field(default_factory=list)
    """What selectors were judged to give."""
    attention: dict[str, list[AttentionPicture]] = field(default_factory=dict)
    """By sentence."""

    # of one run
    headline: dict[str, Any] | None = None
    heat_maps: list[tuple[str, str, str]] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    front: list[str] = field(default_factory=list)
    significance: PairedBootstrap | None = None
    oracle: Oracle | None = None
    oracle_map: str = ""
    picker: dict[str, Any] | None = None
    lead: list[dict[str, Any]] = field(default_factory=list)
    """Scores of the beginnings of documents, where the run summarizes."""
    mean_maps: list[tuple[str, str]] = field(default_factory=list)
    """Of several languages, where they have several depths in common."""

    # of masked language models, one or several
    perplexities: dict[str, Any] | None = None

    # of classifiers, one or several
    accuracies: dict[str, Any] | None = None

    # of several runs
    comparison: Comparison | None = None
    score_maps: list[dict[str, Any]] = field(default_factory=list)
    difference_maps: list[dict[str, Any]] = field(default_factory=list)

    @property
    def metrics(self) -> dict[str, str]:
        """What the runs are scored by, and its names in print; BLEU and chrF where they are not scored yet."""
        records = [each for record in self.records for each in (record, *record.languages.values())]
        cells = [cell for record in records for cell in record.cells]
        return (metrics_of(cells[0]) if cells else {}) or metrics_of(dict.fromkeys(Statistics._fields))

    @property
    def main(self) -> str:
        """The metric that decides which depth is best."""
        return next(iter(self.metrics))

    @property
    def title(self) -> str:
        """A few names; of more runs, the first ones and how many others."""
        names = [record.name for record in self.records]
        shown = names if len(names) <= MOST_NAMES else [*names[: MOST_NAMES - 1], f"{len(names) - MOST_NAMES + 1} more"]
        return " · ".join(shown)

    @property
    def facts(self) -> list[Record]:
        """The runs whose grids were made in ways of their own: all, or the first if there was only one way."""
        sentences = () if self.languages else ("sentences",)
        return self._different(*sentences, "beam", "batch", "device", "machine")

    @property
    def signed(self) -> list[Record]:
        """The runs whose scores have signatures of their own: all, or the first."""
        return self._different("signatures")

    def _different(self, *keys: str) -> list[Record]:
        firsts = [record if record.grid else next(iter(record.languages.values()), record) for record in self.records]
        measured = [record for record in firsts if record.grid]
        return measured if differ(measured, *keys) else measured[:1]

    def series(self, run: str) -> int:
        """The number of a run's colour, as figures give it by its place among all."""
        return [record.name for record in self.records].index(run) % len(SERIES) + 1


def begin(records: list[Record]) -> Page:
    """A page with all but the scores."""
    return Page(
        records=records,
        hints=[hint for record in records for hint in _hints(record)],
        panels=training_panels(records),
        layers=layers_part(records),
        curve_tables=[curve_table(record) for record in records],
        difficulty=difficulty_part(records),
        choosing=choosing_part(records),
        attention=attention_part(records),
    )


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
        for metric, label in metrics_of(series[0].cells[0]).items()
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


def _hints(record: Record) -> list[tuple[str, str]]:
    hints = []
    if (lost := record.folders[0].path / DIVERGED).exists():
        hints.append((f"{record.name}: {lost.read_text(encoding='utf-8').partition('. ')[0]}.", ""))
    elif not record.grid and not record.languages:
        hints.append((f"{record.name} has no depth grid yet.", f"anydepth evaluate {record.folders[0].path}"))
    log = record.main.log
    if not log.train and not log.valid and record.main.trained_here:
        hints.append((f"{record.name} has no training curves (metrics.jsonl).", "anydepth train"))
    if unreadable := sum(folder.log.unreadable for folder in record.folders):
        hints.append((f"{record.name}: {unreadable} unreadable lines of metrics.jsonl were skipped.", ""))
    return hints
