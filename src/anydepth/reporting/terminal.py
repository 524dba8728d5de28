"""Depth grids, sample translations, comparisons and choices in the terminal."""

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from anydepth.evaluation.cells import Cell, best, deepest, depth_name, fastest_within, telling_depths
from anydepth.evaluation.comparison import Comparison
from anydepth.evaluation.language_table import LanguageTable
from anydepth.evaluation.metrics import METRICS, main_metric, metrics_of
from anydepth.evaluation.samples import differences
from anydepth.reporting.figures import plain
from anydepth.selecting.oracle import Oracle
from anydepth.selecting.verdict import Judgement


def print_grid(console: Console, grid: dict[str, Any]) -> None:
    """Scores and seconds by encoder depth (down) and decoder depth (across); a list where the terminal is
    too narrow for that."""
    cells = grid["cells"]
    top, near = best(cells), fastest_within(cells, 1.0)
    decoders = sorted({cell["decoder"] for cell in cells})
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    if 10 + 9 * len(decoders) <= console.width:
        _fill_grid(table, cells, decoders, top, near)
    else:
        _fill_list(table, cells, top, near)
    console.print(table)
    label = METRICS[main_metric(top)]
    legend = Text.assemble((f"best {label} ", ""), (depth_name(top), "bold green"))
    if near is not top:
        legend.append(f", fastest within 1 {label} of it {depth_name(near)}", "")
        legend.stylize("bold cyan", legend.plain.rindex(" ") + 1)
        legend.append(f" ({top['seconds'] / near['seconds']:.1f} times as fast)")
    console.print(legend)
    for lead in grid.get("lead", []):
        scores = ", ".join(f"{label} {lead[metric]:.1f}" for metric, label in metrics_of(lead).items())
        console.print(f"{lead['name']} of each document: {scores}")


def print_languages(console: Console, grid: dict[str, Any]) -> None:
    """Every language at its deepest depth, and the mean."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("language")
    for heading in ("depth", *metrics_of(grid["average"]).values(), "seconds"):
        table.add_column(heading, justify="right")
    for language in grid["languages"]:
        cell = deepest([cell for cell in grid["cells"] if cell["language"] == language])
        table.add_row(language, depth_name(cell), *(f"{number:.2f}" for number in scores_of(cell)))
    table.add_section()
    mean = grid["average"]
    layers = f"{plain(mean['encoder'])}-{plain(mean['decoder'])}"
    table.add_row("mean", layers, *(f"{number:.2f}" for number in scores_of(mean)), style="bold")
    console.print(table)


def print_samples(console: Console, grid: dict[str, Any], count: int = 3) -> None:
    """A few sentences at several depths; words that the deepest output does not have are coloured."""
    depths, full = telling_depths(grid["cells"]), depth_name(deepest(grid["cells"]))
    for sample in grid.get("samples", [])[:count]:
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="dim", justify="right")
        table.add_column()
        table.add_row("source", Text(sample["source"]))
        table.add_row("reference", Text(sample["reference"]))
        for depth in (depth for depth in depths if depth in sample["outputs"]):
            pieces = differences(sample["outputs"][depth], sample["outputs"].get(full, ""))
            text = Text()
            for piece in pieces:
                if piece.kind != "missing":
                    text.append(piece.text, "" if piece.kind == "same" else "yellow")
            table.add_row(depth, text)
        console.print(table)
        console.print()


def _fill_grid(table: Table, cells: list[Cell], decoders: list[int], top: Cell, near: Cell) -> None:
    here = {(cell["encoder"], cell["decoder"]): cell for cell in cells}
    table.add_column("encoder ↓\ndecoder →", style="bold", justify="right")
    for decoder in decoders:
        table.add_column(f"\n{decoder}", justify="right")
    for encoder in sorted({cell["encoder"] for cell in cells}):
        row = [here.get((encoder, decoder)) for decoder in decoders]
        table.add_row(str(encoder), *(_entry(cell, top, near) if cell else Text("·", "dim") for cell in row))
    table.caption = ", ".join([*metrics_of(top).values(), "seconds"])
    table.caption_justify = "left"


def _fill_list(table: Table, cells: list[Cell], top: Cell, near: Cell) -> None:
    for heading in ("depth", *metrics_of(top).values(), "seconds"):
        table.add_column(heading, justify="right")
    for cell in cells:
        numbers = (*(f"{cell[metric]:.1f}" for metric in metrics_of(cell)), f"{cell['seconds']:.2f}")
        table.add_row(depth_name(cell), *numbers, style=_style(cell, top, near))


def _entry(cell: Cell, top: Cell, near: Cell) -> Text:
    first, *others = (f"{cell[metric]:.1f}\n" for metric in metrics_of(cell))
    return Text.assemble(
        (first, _style(cell, top, near) or "bold"), ("".join(others) + f"{cell['seconds']:.2f} s", "dim")
    )


def _style(cell: Cell, top: Cell, near: Cell) -> str:
    return "bold green" if cell is top else "bold cyan" if cell is near else ""


# ---- several runs


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Every run against the baseline: on average, at every depth, and what they cost."""
    for reason in comparison.incomparable:
        console.print(Text(reason, "yellow"))
    if comparison.differences:
        console.print(_means(comparison))
        console.print(_by_depth(comparison))
    if comparison.languages:
        print_language_table(console, comparison.languages)
    console.print(_costs(comparison))


def print_language_table(console: Console, found: LanguageTable) -> None:
    for reason in found.incomparable:
        console.print(Text(reason, "yellow"))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    metric = next((main_metric(cell) for row in found.rows for cell in row.cells if cell), "bleu")
    table.caption = f"{METRICS[metric]} of each run at its deepest; * significantly different from {found.baseline}"
    table.add_column("language", style="bold")
    for run in found.runs:
        table.add_column(Text(run), justify="right")
    for row in (*found.rows, found.mean):
        entries = []
        for run, cell in zip(found.runs, row.cells):
            one = found.at(run, metric, row.name)
            score = f"{cell[metric]:.2f}{'*' if one and one.verdict else ' '}" if cell else "·"
            entries.append(Text(score, "green" if cell is not None and cell is row.best else ""))
        table.add_row(row.name, *entries, end_section=row is found.rows[-1])
    console.print(table)


def _means(comparison: Comparison) -> Table:
    assert comparison.baseline is not None
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left", caption_justify="left")
    table.title = f"differences from {comparison.baseline.name}, mean over the depths that both have"
    table.caption = "significantly better, worse: p < 0.05 by paired bootstrap, Holm's correction over the depths"
    table.add_column("run")
    table.add_column("metric")
    for heading in ("mean", "95 % interval", "depths", "better", "worse"):
        table.add_column(heading, justify="right")
    for one in comparison.differences:
        interval = f"{one.low:+.2f} … {one.high:+.2f}"
        counts = (str(len(one.depths)), str(one.count("better")), str(one.count("worse")))
        table.add_row(Text(one.run), METRICS[one.metric], f"{one.mean:+.2f}", interval, *counts)
    return table


def _by_depth(comparison: Comparison) -> Table:
    assert comparison.baseline is not None
    metric, label = next(iter(comparison.metrics.items()))
    runs = [one.run for one in comparison.differences if one.metric == metric]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption=f"{label} and difference; * significant")
    table.caption_justify = "left"
    table.add_column("depth", style="bold")
    for name in (comparison.baseline.name, *runs):
        table.add_column(Text(name), justify="right")
    styles = {"better": "green", "worse": "red", "": "dim"}
    for depth, score, row in comparison.table(metric):
        entries = [
            Text.assemble(
                f"{one.score:.2f} ", (f"{one.difference:+.2f}{'*' if one.verdict else ' '}", styles[one.verdict])
            )
            if one
            else Text("·", "dim")
            for one in row
        ]
        table.add_row(depth, f"{score:.2f}", *entries)
    return table


def _costs(comparison: Comparison) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("run")
    for heading in ("models", "parameters", "training FLOPs", "seconds"):
        table.add_column(heading, justify="right")
    base = comparison.cost_of_baseline

    def entry(value: float | None, against: float | None, form: str) -> str:
        if value is None:
            return "·"
        return f"{value:{form}}" + (f" ({value / against:.2f}×)" if against else "")

    for one in comparison.costs:
        flops = ("≤ " if one.bound else "") + entry(one.flops, base.flops, ".3g")
        size, seconds = entry(one.parameters, base.parameters, ",.0f"), entry(one.seconds, base.seconds, ",.0f")
        table.add_row(Text(one.run), str(one.models), size, flops, seconds)
    return table


# ---- a depth for every sentence


def print_oracle(console: Console, found: Oracle) -> None:
    """The share of the sentences at every depth, and what it gives."""
    decoders = sorted({cell["decoder"] for cell in found.cells})
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption="percent of the sentences", caption_justify="left")
    table.add_column("encoder ↓\ndecoder →", style="bold", justify="right")
    for decoder in decoders:
        table.add_column(f"\n{decoder}", justify="right")
    here = {(cell["encoder"], cell["decoder"]): f"{100 * cell['share']:.1f}" for cell in found.cells}
    for encoder in sorted({cell["encoder"] for cell in found.cells}):
        table.add_row(str(encoder), *(here.get((encoder, decoder), "·") for decoder in decoders))
    console.print(table)
    scores = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    scores.caption = "the oracle's seconds are estimated from the mean sentence at each depth"
    for heading in ("", "BLEU", "chrF", "seconds"):
        scores.add_column(heading, justify="right" if heading else "left")
    rows = {
        "oracle": (found.bleu, found.chrf, found.seconds),
        f"best fixed depth, {depth_name(found.best)}": scores_of(found.best),
        f"deepest, {depth_name(found.deepest)}": scores_of(found.deepest),
    }
    for name, numbers in rows.items():
        scores.add_row(name, *(f"{number:.2f}" for number in numbers))
    console.print(scores)


def scores_of(cell: Cell) -> tuple[float, ...]:
    return *(cell[metric] for metric in metrics_of(cell)), cell["seconds"]


def print_judgement(console: Console, found: Judgement) -> None:
    """Every way to choose a depth, against the oracle and against fixed depths that take as long."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, caption_justify="left")
    table.caption = "95 % intervals; gain: chrF above fixed depths, or a blind mixture of two, that take as long"
    for heading in ("", "BLEU", "chrF", "ms", "regret", "gain"):
        table.add_column(heading, justify="right" if heading else "left")
    for row in found.rows:
        bleu, chrf = (f"{score:.2f} ±{(high - low) / 2:.2f}" for score, low, high in row.scores.values())
        ms = f"{row.ms[0]:.2f} ±{(row.ms[2] - row.ms[1]) / 2:.2f}"
        gain = row.gain.get("chrf")
        table.add_row(Text(row.name), bleu, chrf, ms, f"{row.regret.value:.2f}", f"{gain.value:+.2f}" if gain else "")
    console.print(table)
    for line in (*found.verdicts(), found.reason(), *(f"{name}: {text}" for name, text in found.seen.items())):
        console.print(Text(line))
