"""The report's training curves."""

from collections.abc import Sequence
from typing import Any

from anydepth.evaluation.metrics import METRICS
from anydepth.evaluation.records import Record
from anydepth.reporting import figures, plots
from anydepth.training.log import Curve, Lines, mean_curve

COLORS = len(figures.SERIES)


def training_panels(records: list[Record]) -> list[str]:
    """One run: its depths or languages in colours. Several: the runs in colours, each at its deepest validated depth,
    the mean over languages."""
    if len(records) == 1:
        log = records[0].main.log
        training = [line_of("training", log.train, "nll", figures.MUTED, faint=True)]
        panels = [("loss", training + _validation(log.valid, "loss"))]
        panels += [(f"validation {label}", _validation(log.valid, metric)) for metric, label in METRICS.items()]
        panels += [("learning rate", [line_of("", log.train, "learning_rate", figures.MUTED)])]
    else:
        logs = [(record.name, record.main.log) for record in records]
        valid = [(name, mean_curve(log.deepest)) for name, log in logs]
        panels = [("training loss", lines_of([(name, log.train) for name, log in logs], "nll"))]
        panels += [("validation loss", lines_of(valid, "loss"))]
        panels += [(f"validation {label}", lines_of(valid, metric)) for metric, label in METRICS.items()]
    drawn = [(label, [line for line in lines if line.steps]) for label, lines in panels]
    return [plots.curves(lines, label) for label, lines in drawn if lines]


def _validation(curves: list[Curve], key: str) -> list[plots.Line]:
    """The depths of one language, or the deepest of each of several; where these are more than there are colours, all
    in grey and their mean."""
    languages = {curve.language: curve for curve in curves}
    if len(languages) <= 1:
        shown = curves if len(curves) <= COLORS else [curves[i * (len(curves) - 1) // 5] for i in range(6)]
        return lines_of([(curve.name, curve.lines) for curve in shown], key)
    return lines_with_mean(
        {name: curve.lines for name, curve in languages.items()}, mean_curve([*languages.values()]), key
    )


def lines_with_mean(each: dict[str, Lines], mean: Lines, key: str) -> list[plots.Line]:
    if len(each) <= COLORS:
        return lines_of(list(each.items()), key)
    grey = [line_of("", lines, key, figures.MUTED, faint=True) for lines in each.values()]
    return [*grey, line_of(f"mean of {len(each)} languages", mean, key, figures.ACCENT)]


def lines_of(series: Sequence[tuple[str, Lines]], key: str, names: Sequence[str] = ()) -> list[plots.Line]:
    """In colours, each that of its place among all `names` where these are more than there are lines."""
    places = [names.index(name) if names else i for i, (name, _) in enumerate(series)]
    return [line_of(*one, key, figures.SERIES[place % COLORS]) for one, place in zip(series, places)]


def line_of(name: str, lines: Lines, key: str, color: str, faint: bool = False) -> plots.Line:
    known = [line for line in lines if line.get(key) is not None]
    return plots.Line(name, [line["step"] for line in known], [line[key] for line in known], color, faint)


def curve_table(record: Record) -> list[dict[str, Any]]:
    """Validation lines, at most a hundred of them, evenly spaced, the last included."""
    lines = [line for curve in record.main.log.valid for line in curve.lines]
    lines.sort(key=lambda line: line["step"], reverse=True)
    return lines[:: max(1, -(-len(lines) // 100))][::-1]
