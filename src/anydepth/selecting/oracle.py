"""The best depth of every sentence, known only to those who know the reference (tied-multi §5.1 and Fig. 2).

It bounds what any choice of a depth per sentence can reach, and shows how often little depth is enough.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from anydepth.errors import UserError
from anydepth.evaluation.cells import Cell, best, deepest, depth_name
from anydepth.evaluation.languages import LANGUAGES
from anydepth.evaluation.metrics import Array, Statistics
from anydepth.evaluation.records import Record
from anydepth.evaluation.statistics import Progress

SAME = 1e-9
"""chrF scores that differ by less are equal: the same ratios, rounded differently."""


@dataclass(frozen=True)
class Oracle:
    """Every sentence at the depth where its chrF is best; of equally good depths at the fastest."""

    choices: list[str]
    """The depth of each sentence."""
    bleu: float
    chrf: float
    """Corpus scores of the chosen outputs."""
    seconds: float
    """An estimate: every sentence takes as long as the mean sentence does at its depth."""
    cells: list[Cell]
    """The grid chosen from, each cell with its number of `sentences` and their `share`."""
    best: Cell
    """The one depth that has the best BLEU when all sentences are decoded at it."""
    deepest: Cell

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def oracle(record: Record, progress: Progress | None = None) -> Oracle:
    """From the depth grid and the outputs of a run."""
    folder = record.folders[0].path
    if record.languages:
        one = folder / LANGUAGES / next(iter(record.languages))
        raise UserError(f"{folder} has a depth grid for each language: expected one of them, such as {one}")
    if not record.grid:
        raise UserError(f"{folder} has no depth grid yet: make it with anydepth evaluate {folder}")
    if record.kind != "translation":
        raise UserError(f"{folder} is a {record.kind}: the oracle chooses between translations")
    if len(record.cells) < 2:
        raise UserError(f"{folder}: its grid has one depth, {record.deepest}: nothing to choose from")
    if record.summaries:
        raise UserError(f"{folder} summarizes: the oracle chooses between translations, by chrF")
    found = record.statistics(record.depths, progress)
    for depth in record.depths:
        if depth not in found:
            raise UserError(f"{folder / 'outputs'}: the translations of depth {depth} were not kept; evaluate it again")
    return choose(record.cells, {depth: rows for depth, rows in found.items() if isinstance(rows, Statistics)})


def choose(cells: list[Cell], statistics: Mapping[str, Statistics]) -> Oracle:
    """The choice among the cells of a grid, given what their scores are computed from."""
    ordered = sorted(cells, key=speed)
    depths = [depth_name(cell) for cell in ordered]
    chosen = fastest_of_the_best(np.stack([statistics[depth].sentence_chrf() for depth in depths]))
    places = np.arange(len(chosen))
    picked = (np.stack([getattr(statistics[depth], metric) for depth in depths]) for metric in Statistics._fields)
    scores = Statistics(*(rows[chosen, places] for rows in picked)).scores()
    numbers = Counter(chosen.tolist())
    counted = [
        cell | {"sentences": numbers[place], "share": numbers[place] / len(chosen)}
        for place, cell in enumerate(ordered)
    ]
    return Oracle(
        choices=[depths[place] for place in chosen],
        bleu=scores["bleu"],
        chrf=scores["chrf"],
        seconds=sum(cell["share"] * cell["seconds"] for cell in counted),
        cells=counted,
        best=best(cells),
        deepest=deepest(cells),
    )


def speed(cell: Cell) -> tuple[int, int]:
    """The paper's order from fast to slow: decoder layers first, which run once a word, then encoder layers."""
    return cell["decoder"], cell["encoder"]


def fastest_of_the_best(chrf: Array) -> Array:
    """(depths, sentences) scores, fast depths first → the place of each sentence's choice."""
    return np.argmax(chrf >= chrf.max(axis=0) - SAME, axis=0)
