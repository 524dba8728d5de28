"""`report.html`: what was measured on one run, or on several compared, as one page that needs no network.

The page shows numbers from the run folders and nothing else; a part without numbers is left out, with a hint how
to make it. `report.html` beside this file is the template, `report.css` its style.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anydepth.errors import UserError
from anydepth.evaluation import page as parts
from anydepth.evaluation import plots
from anydepth.evaluation.cells import (
    Cell,
    best,
    depth_name,
    fastest,
    fastest_within,
    layers,
    pareto_front,
    telling_depths,
)
from anydepth.evaluation.comparison import compare
from anydepth.evaluation.grid import write_atomically
from anydepth.evaluation.page import METRICS, Page
from anydepth.evaluation.records import Record, read_records
from anydepth.evaluation.terminal import print_grid, print_samples

__all__ = ["print_grid", "print_samples", "write_report"]


def write_report(
    run_folders: Sequence[Path], out: Path, significance: bool = True, bootstrap_samples: int = 1000
) -> Path:
    """Write the report of one run, or the comparison of several, to the file `out`."""
    if not run_folders:
        raise UserError("no run to report: expected at least one run folder")
    page = parts.begin(read_records(run_folders))
    fill = compare if page.comparison else _show_grid
    fill(page, bootstrap_samples if significance else 0)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, _render(page))
    return out


def _show_grid(page: Page, bootstrap_samples: int) -> None:
    """Fill the page with the depth grid of its only run."""
    [record] = page.records
    if not record.grid:
        return
    cells, near = record.cells, depth_name(fastest_within(record.cells, 1.0))
    rings = {near: "dashed", depth_name(best(cells)): "solid"}
    page.headline = _headline(cells)
    page.heat_maps = [
        ("BLEU", "bleu", plots.heat_map(cells, "bleu", "BLEU", rings=rings)),
        ("chrF", "chrf", plots.heat_map(cells, "chrf", "chrF", rings=rings)),
        ("Seconds", "seconds", plots.heat_map(cells, "seconds", "seconds", low_is_good=True, rings=rings)),
    ]
    page.tradeoffs = parts.tradeoffs([plots.Series(record.name, cells)], ring=near)
    page.cells = sorted(cells, key=lambda cell: cell["seconds"])
    page.front = [depth_name(cell) for cell in pareto_front(cells)]
    page.significance = _significance(record, page.front, bootstrap_samples)
    page.samples = _samples(record)
    page.picker = _picker(cells)


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


def _significance(record: Record, front: list[str], samples: int) -> list[dict[str, Any]]:
    """The six best depths of the Pareto front against the deepest."""
    compared = [depth for depth in reversed(front) if depth != record.deepest][:6]
    outputs = record.outputs([record.deepest, *compared])
    test_set = record.test_set()
    if not (samples and test_set and record.deepest in outputs and len(outputs) > 1):
        return []
    return [parts.significance("", outputs, record, test_set[1], samples)]


def _samples(record: Record) -> list[dict[str, Any]]:
    """The grid's samples at every depth, of which a few are shown at first."""
    assert record.grid is not None
    ordered = [depth_name(cell) for cell in sorted(record.cells, key=layers)]
    shown = telling_depths(record.cells)
    return [
        parts.sample(chosen, [depth for depth in ordered if depth in chosen["outputs"]], record.deepest, shown)
        for chosen in record.grid.get("samples", [])
    ]


def _picker(cells: list[Cell]) -> dict[str, Any]:
    """The depths as buttons in the shape of the grid."""
    encoders = sorted({cell["encoder"] for cell in cells})
    decoders = sorted({cell["decoder"] for cell in cells})
    shown = telling_depths(cells)
    return {
        "columns": len(decoders),
        "buttons": [
            {
                "depth": depth_name(cell),
                "row": encoders.index(cell["encoder"]) + 1,
                "column": decoders.index(cell["decoder"]) + 1,
                "shown": depth_name(cell) in shown,
            }
            for cell in sorted(cells, key=lambda cell: (cell["encoder"], cell["decoder"]))
        ],
    }


def _signed(value: float, digits: int = 2) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def _render(page: Page) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    here = Path(__file__).parent
    environment = Environment(
        loader=FileSystemLoader(here),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"number": plots.number, "signed": _signed, "depth": depth_name}
    style = (here / "report.css").read_text(encoding="utf-8")
    return environment.get_template("report.html").render(page=page, style=style, metrics=METRICS)
