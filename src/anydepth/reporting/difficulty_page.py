"""The report's part about easy and difficult sentences: scores of every run on each part of the test set."""

from dataclasses import dataclass

import numpy as np

from anydepth.evaluation.difficulty import Difficulty, read_difficulty
from anydepth.evaluation.metrics import METRICS, main_metric
from anydepth.evaluation.records import Record
from anydepth.reporting.figures import INK, SERIES, as_svg, empty_figure, signed, styled


@dataclass(frozen=True)
class DifficultyPart:
    judge: str
    """The run whose losses tell how difficult a sentence is."""
    language: str
    """Of the test set, if it has one."""
    checkpoints: int
    names: list[str]
    sizes: list[int]
    """Sentences in each part."""
    baseline: str
    metric: str
    """Its name in print."""
    rows: list[tuple[str, list[float], list[float]]]
    """A run, its score on each part, and what it is above the baseline there."""
    picture: str


def difficulty_part(records: list[Record]) -> DifficultyPart | None:
    """By the first run that has judged a test set, for all that were evaluated on it."""
    for record in records:
        if (found := read_difficulty(record.main.path)) is None:
            continue
        tried = [each for one in records for each in (one, *one.languages.values())]
        rows = {one.name: (one, scores) for one in tried if (scores := scores_by_part(one, found))}
        if not rows:
            continue
        baseline = record.name if record.name in rows else next(iter(rows))
        compared_with, theirs = rows[baseline]
        compared = [
            (name, scores, [mine - other for mine, other in zip(scores, theirs)]) for name, (_, scores) in rows.items()
        ]
        sizes = np.bincount(found.part).tolist()
        metric = METRICS[main_metric(compared_with.cells[0])]
        svg = picture(found.names, compared, baseline, metric) if len(compared) > 1 else ""
        judged = record.name, found.language, len(found.steps), found.names
        return DifficultyPart(*judged, sizes, baseline, metric, compared, svg)
    return None


def scores_by_part(record: Record, difficulty: Difficulty) -> list[float]:
    """The main score on each part, at the deepest depth of the run; nothing if it was evaluated on another test set."""
    if not record.grid or record.kind != "translation" or record.grid.get("test_set") != difficulty.test_set:
        return []
    counts = record.statistics([record.deepest]).get(record.deepest)
    if counts is None:
        return []
    part = np.array(difficulty.part)
    selections = [part == number for number in range(part.max() + 1)]
    metric = main_metric(record.cells[0])
    return [type(counts)(*(column[rows] for column in counts)).scores()[metric] for rows in selections]


@styled
def picture(names: list[str], rows: list[tuple[str, list[float], list[float]]], baseline: str, metric: str) -> str:
    """What each run is above the baseline, part by part."""
    shown = [(place, name, gains) for place, (name, _, gains) in enumerate(rows) if name != baseline]
    figure, axes = empty_figure(740, 300)
    width, titles = 0.8 / len(shown), {}
    for column, (place, name, gains) in enumerate(shown):
        xs = [number - 0.4 + width * (column + 0.5) for number in range(len(names))]
        bars = axes.bar(xs, gains, width=0.92 * width, color=SERIES[place % len(SERIES)], label=name)
        for number, (bar, gain) in enumerate(zip(bars, gains)):
            bar.set_gid(f"gain-{column}-{number}")
            titles[f"gain-{column}-{number}"] = f"{name}, {names[number]}: {signed(gain)} {metric}"
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.set(ylabel=f"{metric} above {baseline}")
    axes.set_xticks(range(len(names)), names)
    axes.grid(axis="x", visible=False)
    axes.legend(labelcolor=INK, loc="upper left", bbox_to_anchor=(1, 1))
    return as_svg(figure, f"{metric} above {baseline} by difficulty", titles)
