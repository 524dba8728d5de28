"""`report.html`: what was measured on one run, or on several compared, as one page that needs no network.

The page shows numbers from the run folders and nothing else; a part without numbers is left out, with a hint how
to make it. `report.html` beside this file is the template, `report.css` its style.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anydepth.errors import UserError
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
from anydepth.evaluation.comparison import Comparison, compare
from anydepth.evaluation.language_table import language_table
from anydepth.evaluation.languages import average
from anydepth.evaluation.metrics import METRICS, main_metric, metrics_of
from anydepth.evaluation.records import Record, kind_of, read_records
from anydepth.evaluation.significance import SAMPLES, PairedBootstrap, paired_bootstrap
from anydepth.files import check_writable, write_atomically
from anydepth.reporting import figures, heat_maps, plots
from anydepth.reporting import page as parts
from anydepth.reporting.accuracy_page import show_accuracies
from anydepth.reporting.comparison_page import show_comparison
from anydepth.reporting.page import Page
from anydepth.reporting.perplexity_page import show_perplexities
from anydepth.selecting.oracle import oracle
from anydepth.training.cost import TOKENS


def write_report(
    runs: Sequence[str | Path],
    out: Path,
    *,
    baseline: str = "",
    samples: int | None = None,
    means: Mapping[str, Sequence[str]] | None = None,
) -> Path:
    """Write the report of one run, or the comparison of several, to the file `out`.

    `runs` are as in `read_records`; `samples` is the number of resampled test sets, 0 for no significance test. `means`
    names runs, all of them classifiers on data sets of their own, whose mean is shown, too.
    """
    if not runs:
        raise UserError("no run to report: expected at least one run folder")
    if out.parent.is_dir():  # comparing takes long
        check_writable(out)
    records = read_records(runs)
    several = len(records) > 1 and kind_of(records) == "translation"
    comparison = compare(records, baseline, samples) if several else None
    return write_page(records, out, comparison, samples, means, baseline)


def write_page(
    records: list[Record],
    out: Path,
    comparison: Comparison | None,
    samples: int | None = None,
    means: Mapping[str, Sequence[str]] | None = None,
    baseline: str = "",
) -> Path:
    """`baseline` is for classifiers: the run that the others are held against, instead of the first."""
    page = parts.begin(records)
    if comparison:
        show_comparison(page, comparison)
    elif (kind := kind_of(records)) == "masked language model":
        show_perplexities(page)
    elif kind == "classifier":
        show_accuracies(page, means or {}, baseline)
    elif records[0].grid:
        _show_grid(page, SAMPLES if samples is None else samples)
    elif records[0].languages:
        page.languages = language_table(records)
        page.mean_maps = _mean_maps(records[0].languages)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, _render(page))
    return out


def _show_grid(page: Page, samples: int) -> None:
    """Fill the page with the depth grid of its only run."""
    [record] = page.records
    cells, near = record.cells, depth_name(fastest_within(record.cells, 1.0))
    rings = {near: "dashed", depth_name(best(cells)): "solid"}
    page.headline = _headline(cells)
    page.heat_maps = [
        *(
            (label, metric, heat_maps.heat_map(cells, metric, label, rings=rings))
            for metric, label in metrics_of(cells[0]).items()
        ),
        ("Seconds", "seconds", heat_maps.heat_map(cells, "seconds", "seconds", low_is_good=True, rings=rings)),
    ]
    page.tradeoffs = parts.tradeoffs([plots.Series(record.name, cells)], ring=near)
    page.cells = sorted(cells, key=lambda cell: cell["seconds"])
    page.front = [depth_name(cell) for cell in pareto_front(cells)]
    page.significance = _significance(record, page.front, samples)
    try:
        page.oracle = oracle(record)
        page.oracle_map = heat_maps.share_map(page.oracle.cells, "of the sentences")
    except UserError:
        pass  # nothing to choose from
    page.samples = _samples(record)
    page.lead = (record.grid or {}).get("lead", [])
    page.picker = _picker(cells)


def _mean_maps(languages: dict[str, Record]) -> list[tuple[str, str]]:
    """The mean over languages at every depth, where all have several in common."""
    by_depth = [{depth_name(cell): cell for cell in record.cells} for record in languages.values()]
    shared = [depth for depth in by_depth[0] if all(depth in one for one in by_depth)]
    if len(shared) < 2:
        return []
    means = [average([one[depth] for one in by_depth]) for depth in shared]
    cells = [mean | {side: round(mean[side]) for side in ("encoder", "decoder")} for mean in means]
    return [(label, heat_maps.heat_map(cells, metric, label)) for metric, label in metrics_of(cells[0]).items()]


def _headline(cells: list[Cell]) -> dict[str, Any]:
    """The depths worth knowing; a depth that is several of them gets one card with all their names."""
    top, metric = best(cells), main_metric(cells[0])
    named = [
        (f"Best {METRICS[metric]}", top),
        ("Fastest within 1 % of it", fastest_within(cells, top[metric] / 100)),
        (f"Fastest within 1 {METRICS[metric]}", fastest_within(cells, 1.0)),
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


def _significance(record: Record, front: list[str], samples: int) -> PairedBootstrap | None:
    """The six best depths of the Pareto front against the deepest."""
    compared = [depth for depth in reversed(front) if depth != record.deepest][:6]
    found = record.statistics([record.deepest, *compared])
    if not (samples and record.deepest in found and len(found) > 1):
        return None
    return paired_bootstrap(found, samples, lowercase=record.lowercase)


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
    environment.filters |= {
        "number": figures.number,
        "signed": figures.signed,
        "depth": depth_name,
        "plain": figures.plain,
    }
    style = (here / "report.css").read_text(encoding="utf-8")
    template = environment.get_template("report.html")
    return template.render(page=page, style=style, metrics=METRICS, tokens=TOKENS, scale=figures.scale())
