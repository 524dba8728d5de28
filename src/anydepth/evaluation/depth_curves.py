"""Scores against depth: over the depths of a run, and over runs that differ in depth alone (multiscale collaboration,
Fig. 2)."""

from collections.abc import Sequence
from typing import Literal

from anydepth.evaluation.cells import Cell, depth_name, layers
from anydepth.evaluation.figures import INK, MUTED, PAPER, SERIES, as_svg, empty_figure, number, styled
from anydepth.evaluation.records import Record

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
    """A dot for every depth, in the colour of its run. Lines join the depths of a run, or runs of a kind."""
    figure, axes = empty_figure(560, 300)
    for family in families(records):
        points = sorted((cell[stack], cell[metric]) for one in family for cell in by_depth(one, stack))
        color = SERIES[records.index(family[0]) % len(SERIES)] if len(family) == 1 else MUTED
        axes.plot(*zip(*points), color=color, linewidth=1.4, zorder=2)
    titles = {}
    for place, one in enumerate(records):
        cells = by_depth(one, stack)
        for point, cell in enumerate(cells):
            dot = axes.scatter(cell[stack], cell[metric], s=40, color=SERIES[place % len(SERIES)], zorder=3)
            dot.set(linewidth=1, edgecolor=PAPER, label="" if point else one.name)
            dot.set_gid(f"depth-{place}-{point}")
            titles[f"depth-{place}-{point}"] = f"{one.name} {depth_name(cell)}: {number(cell[metric])} {label}"
    axes.set(xlabel=f"{stack} layers", ylabel=label)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(labelcolor=INK, loc="upper left", bbox_to_anchor=(1, 1), handletextpad=0.2)
    return as_svg(figure, f"{label} against {stack} layers", titles)


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
