"""The report on several exports: in the terminal, as `sizes.html` and as `sizes.json`."""

import json
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from anydepth.evaluation.metrics import METRICS
from anydepth.files import write_atomically
from anydepth.reporting import plots
from anydepth.sizing.sizes import Size, Sizes

STYLE = Path(plots.__file__).parent / "report.css"


def write_sizes(found: Sizes, out: Path) -> Path:
    """`sizes.json` and the page."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    write_atomically(out / "sizes.json", json.dumps(found.as_json(), ensure_ascii=False, indent=1) + "\n")
    here = FileSystemLoader(Path(__file__).parent)
    environment = Environment(
        loader=here, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    environment.filters["bytes"] = in_bytes
    cells = [size.as_cell() for size in found.sizes]
    page = environment.get_template("sizes.html").render(
        found=found,
        metrics={metric: METRICS[metric] for metric in found.full},
        style=STYLE.read_text(encoding="utf-8"),
        picture=plots.tradeoff(
            [plots.Series(found.run, cells)],
            found.metric,
            METRICS[found.metric],
            size=(740, 380),
            time="seconds for a sentence: 19 of 20 take no longer",
        ),
    )
    write_atomically(out / "sizes.html", page)
    return out / "sizes.html"


def print_sizes(console: Console, found: Sizes) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("depth")
    for heading in (*(METRICS[metric] for metric in found.full), "p50 ms", "p95 ms", "memory", "on disk"):
        table.add_column(heading, justify="right")
    for size in found.sizes:
        scores = [entry(size, metric) for metric in found.full]
        times = [f"{size.p50_ms:.1f}", f"{size.p95_ms:.1f}"]
        table.add_row(size.depth, *scores, *times, in_bytes(size.memory), in_bytes(size.disk))
    console.print(table)
    full = ", ".join(f"{METRICS[metric]} {score:.2f}" for metric, score in found.full.items())
    console.print(f"* significantly different from the run at full depth, {found.full_depth}: {full}")
    if found.enough:
        console.print(f"fastest that is not significantly worse: {found.enough.depth}")
    for one in found.advice:
        console.print(f"from {one.budget_ms:.1f} ms a sentence on: {one.depth}")


def entry(size: Size, metric: str) -> str:
    return f"{size.scores[metric]:.2f}{'*' if size.differs(metric) else ' '}"


def in_bytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
