"""`report.html`: what was measured on one run, or on several compared, as one page that needs no network.

The page shows numbers from the run folders and nothing else; a part without numbers is left out, with a hint how to
make it. `report.html` beside this file is the template, `report.css` its style.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anydepth.errors import UserError
from anydepth.evaluation import plots
from anydepth.evaluation.cells import (
    Cell,
    best,
    deepest,
    depth_name,
    fastest,
    fastest_within,
    layers,
    pareto_front,
    telling_depths,
)
from anydepth.evaluation.grid import write_atomically
from anydepth.evaluation.metrics import sentence_chrf
from anydepth.evaluation.records import Record, read_records
from anydepth.evaluation.samples import choose_samples, differences
from anydepth.evaluation.significance import paired_bootstrap
from anydepth.evaluation.terminal import print_grid, print_samples

__all__ = ["print_grid", "print_samples", "write_report"]

METRICS = {"bleu": "BLEU", "chrf": "chrF"}
WIDE, NARROW = (740, 400), (340, 350)


def write_report(
    run_folders: Sequence[Path], out: Path, significance: bool = True, bootstrap_samples: int = 1000
) -> Path:
    """Write the report of one run, or the comparison of several, to the file `out`."""
    if not run_folders:
        raise UserError("no run to report: expected at least one run folder")
    records = read_records([Path(folder) for folder in run_folders])
    samples = bootstrap_samples if significance else 0
    page = _one_run(records[0], samples) if len(records) == 1 else _comparison(records, samples)
    page |= {
        "records": records,
        "panels": _training_panels(records),
        "curve_tables": [_curve_table(record) for record in records],
        "hints": _hints(records),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, _render(page))
    return out


def _one_run(record: Record, bootstrap_samples: int) -> dict[str, Any]:
    page: dict[str, Any] = {"title": record.name}
    if not record.grid:
        return page
    cells, near = record.cells, fastest_within(record.cells, 1.0)
    rings = {depth_name(near): "dashed", depth_name(best(cells)): "solid"}
    heat_maps = [
        ("BLEU", "bleu", plots.heat_map(cells, "bleu", "BLEU", rings=rings)),
        ("chrF", "chrf", plots.heat_map(cells, "chrf", "chrF", rings=rings)),
        ("Seconds", "seconds", plots.heat_map(cells, "seconds", "seconds", low_is_good=True, rings=rings)),
    ]
    front = [depth_name(cell) for cell in pareto_front(cells)]
    compared = front[:: max(1, len(front) // 6)]
    systems = {record.deepest: [depth for depth in compared if depth != record.deepest]}
    return page | {
        "headline": _headline(cells),
        "heat_maps": heat_maps,
        "tradeoffs": _tradeoffs([plots.Series(record.name, cells)], ring=depth_name(near)),
        "front": front,
        "cells": sorted(cells, key=lambda cell: cell["seconds"]),
        "significance": _significance_of_depths(record, systems, bootstrap_samples),
        "samples": _depth_samples(record),
        "picker": _picker(cells),
    }


def _comparison(records: list[Record], bootstrap_samples: int) -> dict[str, Any]:
    measured = [record for record in records if record.grid]
    page: dict[str, Any] = {"title": " · ".join(record.name for record in records), "comparison": True}
    page["differences"] = _differing_settings(records)
    if len(measured) < 2:
        return page
    by_depth = [{depth_name(cell): cell for cell in record.cells} for record in measured]
    shared = [depth for depth in by_depth[0] if all(depth in cells for cells in by_depth)]
    rows = [("deepest of each", [cells[record.deepest] for record, cells in zip(measured, by_depth)])]
    rows += [(depth, [cells[depth] for cells in by_depth]) for depth in shared]
    same_test_set = len({str(record.test_set()) for record in measured}) == 1 and measured[0].test_set()
    page |= {
        "measured": measured,
        "rows": [(name, row, best(row), fastest(row)) for name, row in rows],
        "incomparable": _incomparable(measured, bool(same_test_set)),
        "tradeoffs": _tradeoffs([plots.Series(record.name, record.cells) for record in measured]),
    }
    if same_test_set:
        depths = [depth for depth in telling_depths(measured[0].cells) if depth in shared]
        page["significance"] = _significance_of_runs(measured, depths, bootstrap_samples)
        page["samples"] = _run_samples(measured)
    return page


def _headline(cells: list[Cell]) -> dict[str, Any]:
    """The depths worth knowing; a depth that is several of them gets one card with all their names."""
    top = best(cells)
    named = [
        ("Best BLEU", top),
        ("Fastest within 1 % of it", fastest_within(cells, top["bleu"] / 100)),
        ("Fastest within 1 BLEU", fastest_within(cells, 1.0)),
        ("Fastest of all", fastest(cells)),
    ]
    cards: dict[str, dict[str, Any]] = {}
    for name, cell in named:
        cards.setdefault(depth_name(cell), {"cell": cell, "names": []})["names"].append(name)
    return {
        "best": top,
        "near": fastest_within(cells, 1.0),
        "cards": list(cards.values()),
        "encoder": max(cell["encoder"] for cell in cells),
        "decoder": max(cell["decoder"] for cell in cells),
    }


def _tradeoffs(series: list[plots.Series], ring: str | None = None) -> list[dict[str, str]]:
    """Quality against time under each metric, for wide and for narrow screens."""
    return [
        {
            "metric": metric,
            "label": label,
            "wide": plots.tradeoff(series, metric, label, size=WIDE, ring=ring),
            "narrow": plots.tradeoff(series, metric, label, size=NARROW, ring=ring),
        }
        for metric, label in METRICS.items()
    ]


def _training_panels(records: list[Record]) -> list[str]:
    """One run: its depths in colours. Several: the runs in colours, each at the deepest depth it was validated."""
    if len(records) == 1:
        train, depths = records[0].train, list(records[0].valid)
        shown = depths if len(depths) <= 6 else [depths[i * (len(depths) - 1) // 5] for i in range(6)]
        valid = [(depth, records[0].valid[depth]) for depth in shown]
        loss = [_line("training", train, "loss", plots.MUTED, faint=True)]
        panels = [("loss", loss + _lines(valid, "loss"))]
    else:
        valid = [(record.name, list(record.valid.values())[-1] if record.valid else []) for record in records]
        training = [(record.name, record.train) for record in records]
        panels = [("training loss", _lines(training, "loss")), ("validation loss", _lines(valid, "loss"))]
    panels += [(f"validation {label}", _lines(valid, metric)) for metric, label in METRICS.items()]
    if len(records) == 1:
        panels += [("learning rate", [_line("", train, "learning_rate", plots.MUTED)])]
    drawn = [(label, [line for line in lines if len(line.steps)]) for label, lines in panels]
    return [plots.curves(lines, label) for label, lines in drawn if lines]


def _lines(series: Sequence[tuple[str, list[dict[str, Any]]]], key: str) -> list[plots.Line]:
    colors = plots.SERIES
    return [_line(name, entries, key, colors[i % len(colors)]) for i, (name, entries) in enumerate(series)]


def _line(name: str, entries: list[dict[str, Any]], key: str, color: str, faint: bool = False) -> plots.Line:
    known = [entry for entry in entries if entry.get(key) is not None]
    return plots.Line(name, [entry["step"] for entry in known], [entry[key] for entry in known], color, faint)


def _curve_table(record: Record) -> list[dict[str, Any]]:
    """Validation lines, at most a hundred of them, evenly spaced."""
    entries = sorted(
        (entry for lines in record.valid.values() for entry in lines), key=lambda entry: entry["step"]
    )
    every = max(1, -(-len(entries) // 100))
    return entries[::-1][::every][::-1]


def _significance_of_depths(
    record: Record, systems: dict[str, list[str]], samples: int
) -> list[dict[str, Any]]:
    test_set = record.test_set()
    [(baseline, others)] = systems.items()
    outputs = record.outputs([baseline, *others])
    if not (samples and test_set and baseline in outputs and len(outputs) > 1):
        return []
    return [_paired("", outputs, test_set[1], samples, record)]


def _significance_of_runs(records: list[Record], depths: list[str], samples: int) -> list[dict[str, Any]]:
    test_set = records[0].test_set()
    if not (samples and test_set):
        return []
    tables = []
    for heading, wanted in [
        ("Each at its deepest", [record.deepest for record in records]),
        *((depth, [depth] * len(records)) for depth in depths),
    ]:
        found = [record.outputs([depth]) for record, depth in zip(records, wanted)]
        if all(found):
            systems = {record.name: output[depth] for record, output, depth in zip(records, found, wanted)}
            tables.append(_paired(heading, systems, test_set[1], samples, records[0]))
    return tables


def _paired(
    heading: str, systems: dict[str, list[str]], reference: list[str], samples: int, record: Record
) -> dict[str, Any]:
    assert record.grid is not None
    lowercase = "case:lc" in record.grid.get("signatures", {}).get("bleu", "")
    result = paired_bootstrap(systems, reference, samples, lowercase=lowercase)
    return {"heading": heading, "result": result, "baseline": result.comparisons[0]}


def _depth_samples(record: Record) -> list[dict[str, Any]]:
    assert record.grid is not None
    ordered = [depth_name(cell) for cell in sorted(record.cells, key=layers)]
    shown = telling_depths(record.cells)
    return [
        _sample(sample, [depth for depth in ordered if depth in sample["outputs"]], record.deepest, shown)
        for sample in record.grid.get("samples", [])
    ]


def _run_samples(records: list[Record]) -> list[dict[str, Any]]:
    """Sentences on which the deepest outputs of the runs differ; the first run is what the others are held against."""
    outputs = {record.name: record.outputs([record.deepest]).get(record.deepest) for record in records}
    known = {name: texts for name, texts in outputs.items() if texts}
    test_set = records[0].test_set()
    if not test_set or len(known) < 2:
        return []
    names = list(known)
    return [_sample(sample, names, names[0], names) for sample in choose_samples(*test_set, known)]


def _sample(sample: dict[str, Any], names: list[str], against: str, shown: list[str]) -> dict[str, Any]:
    outputs = sample["outputs"]
    rows = [
        {
            "name": name,
            "pieces": differences(outputs[name], outputs.get(against, outputs[name])),
            "chrf": sentence_chrf(outputs[name], sample["reference"]),
            "shown": name in shown,
        }
        for name in names
    ]
    return {**sample, "rows": rows}


def _picker(cells: list[Cell]) -> dict[str, Any]:
    """The depths as buttons in the shape of the grid."""
    encoders = sorted({cell["encoder"] for cell in cells})
    decoders = sorted({cell["decoder"] for cell in cells})
    return {
        "columns": len(decoders),
        "buttons": [
            {
                "depth": depth_name(cell),
                "row": encoders.index(cell["encoder"]) + 1,
                "column": decoders.index(cell["decoder"]) + 1,
                "shown": depth_name(cell) in telling_depths(cells),
            }
            for cell in sorted(cells, key=lambda cell: (cell["encoder"], cell["decoder"]))
        ],
    }


def _differing_settings(records: list[Record]) -> list[tuple[str, list[str]]]:
    settings = [record.settings() for record in records]
    names = sorted({name for one in settings for name in one})
    rows = [(name, [one.get(name, "") for one in settings]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


def _incomparable(records: list[Record], same_test_set: bool) -> list[str]:
    """What must be said before the numbers of these runs are read side by side."""
    grids = [record.grid or {} for record in records]

    def differ(key: str) -> bool:
        return len({str(grid.get(key)) for grid in grids}) > 1

    reasons = []
    if not same_test_set:
        reasons.append(
            "The runs were not evaluated on the same test set, or their outputs were not kept: "
            "their scores cannot be compared, and there is no significance test."
        )
    if differ("signatures"):
        reasons.append("The scores were computed differently (see their signatures).")
    if differ("beam"):
        reasons.append("The runs were decoded with different beams.")
    if differ("device") or differ("machine") or differ("batch"):
        reasons.append(
            "Seconds were measured on different machines or with different batches: do not compare them."
        )
    return reasons


def _hints(records: list[Record]) -> list[tuple[str, str]]:
    hints = []
    for record in records:
        if not record.grid:
            hints.append((f"{record.name} has no depth grid yet.", f"anydepth evaluate {record.folder}"))
        if not record.train and not record.valid:
            hints.append((f"{record.name} has no training curves (metrics.jsonl).", "anydepth train"))
        if record.unreadable:
            hints.append(
                (f"{record.name}: {record.unreadable} unreadable lines in metrics.jsonl skipped.", "")
            )
    return hints


def _render(page: dict[str, Any]) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    here = Path(__file__).parent
    environment = Environment(
        loader=FileSystemLoader(here),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"number": plots.number, "depth": depth_name}
    style = (here / "report.css").read_text(encoding="utf-8")
    return environment.get_template("report.html").render(
        page=page, style=style, metrics=METRICS, deepest=deepest
    )
