"""Scores against depth: over the depths of a run, and over runs that differ in depth alone (multiscale collaboration,
Fig. 2)."""

from collections.abc import Sequence
from itertools import takewhile
from operator import itemgetter
from typing import Literal

from anydepth.evaluation.cells import Cell, depth_name, layers
from anydepth.evaluation.records import Record
from anydepth.reporting.figures import INK, PAPER, SERIES, as_svg, empty_figure, number, styled

Stack = Literal["encoder", "decoder"]

KIND = ("model.", "training.objective.", "training.optimizer.")
"""Settings that make runs different kinds of model."""
SIZE = ("layers", "dropout", "bridge.blocks", "warmup")
"""Those among them that follow from the depth."""


def depth_curves(records: Sequence[Record], metric: str, label: str) -> list[str]:
    """A picture for each stack of which there are several depths."""
    stacks: tuple[Stack, ...] = ("encoder", "decoder")
    several = [stack for stack in stacks if len({cell[stack] for one in records for cell in one.cells}) > 1]
    return [picture(records, stack, metric, label) for stack in several]


@styled
def picture(records: Sequence[Record], stack: Stack, metric: str, label: str) -> str:
    """A dot for every depth, and a line through those of a family."""
    found = families(records)
    figure, axes = empty_figure(620, max(300, 30 + 19 * len(found)))  # the legend has a row for each
    titles = {}
    for place, family in enumerate(found):
        color, name = SERIES[place % len(SERIES)], name_of(family)
        cells = [(cell[stack], one.name, cell) for one in family for cell in by_depth(one, stack)]
        cells.sort(key=itemgetter(0))
        xs, ys = [depth for depth, _, _ in cells], [cell[metric] for _, _, cell in cells]
        axes.plot(xs, ys, color=color, linewidth=1.6, marker="o", markersize=6, markeredgecolor=PAPER, label=name)
        for point, (depth, run, cell) in enumerate(cells):
            gid = f"depth-{place}-{point}"
            axes.scatter(depth, cell[metric], s=90, alpha=0).set_gid(gid)  # something to point at
            titles[gid] = f"{run} {depth_name(cell)}: {number(cell[metric])} {label}"
    axes.set(xlabel=f"{stack} layers", ylabel=label)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(labelcolor=INK, loc="upper left", bbox_to_anchor=(1, 1), handlelength=1.4)
    return as_svg(figure, f"{label} against {stack} layers", titles)


def name_of(family: Sequence[Record]) -> str:
    """A run's name, or what the names of several begin with."""
    names = [one.name for one in family]
    if len(names) == 1:
        return names[0]
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*names))
    return "".join(letter for letter, *_ in alike).rstrip("_- 0123456789") or f"{names[0]} …"


def by_depth(record: Record, stack: Stack) -> list[Cell]:
    """For every depth of a stack the cell whose other stack is deepest."""
    return list({cell[stack]: cell for cell in sorted(record.cells, key=layers)}.values())


def families(records: Sequence[Record]) -> list[list[Record]]:
    """Runs of a kind that were evaluated on the same text. One with several depths stands for itself."""
    found: dict[str, list[Record]] = {}
    for place, one in enumerate(records):
        alone = len(one.cells) > 1
        found.setdefault(f"run {place}" if alone else kind_of_model(one), []).append(one)
    return list(found.values())


def kind_of_model(record: Record) -> str:
    """What a model is, whatever its depth, and the text that it was evaluated on."""
    settings = {
        name: value for name, value in record.settings().items() if name.startswith(KIND) and not name.endswith(SIZE)
    }
    return f"{settings} {(record.grid or {}).get('test_set')}"
