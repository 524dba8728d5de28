"""The report's part about layers: the gates that latent depth learns, and the size of every layer's gradient."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch

from anydepth.depth.latent import UNDECIDED, LatentConfig
from anydepth.errors import UserError
from anydepth.evaluation.records import Folder, Record
from anydepth.reporting import figures, plots
from anydepth.reporting.layer_pictures import (
    jaccard,
    jaccard_by_chance,
    over_steps,
    selection_map,
    similarity_map,
    used_layers,
    utilisation,
)
from anydepth.reporting.training_page import lines_of, lines_with_mean
from anydepth.training.log import Lines

STACKS = ("encoder", "decoder")
ALL = "all languages"
"""The row of logits that belongs to no language in particular."""


class Picture(NamedTuple):
    run: str
    title: str
    summary: str
    svg: str


@dataclass(kw_only=True)
class LayersPart:
    """Pictures; what has none is left out."""

    selections: list[Picture] = field(default_factory=list)
    utilisation: list[Picture] = field(default_factory=list)
    similarities: list[Picture] = field(default_factory=list)
    gates: list[Picture] = field(default_factory=list)
    language_gates: list[Picture] = field(default_factory=list)
    gate_span: tuple[float, float] = (0.0, 1.0)
    depths: list[str] = field(default_factory=list)
    """Layers used over steps."""
    gradients: list[Picture] = field(default_factory=list)
    gradient_span: tuple[float, float] = (0.0, 0.0)
    gradient_lines: list[str] = field(default_factory=list)
    undecided: float = UNDECIDED


@dataclass(frozen=True)
class Learnt:
    """What latent depth learnt in one stack of a run."""

    run: str
    stack: str
    lines: Lines
    """Its logits over steps."""
    final: dict[str, list[float]]
    """The logits of the model that the run has kept, by language."""
    config: LatentConfig

    def gates(self, row: str | None = None) -> list[list[float]]:
        """The expected gates of a row, or the mean over rows (the paper's utilisation u), for each step."""
        found = []
        for line in self.lines:
            rows = line["logits"].values() if row is None else [line["logits"][row]]
            each = [self.config.expected(torch.tensor(logits), line["step"]) for logits in rows]
            found.append(torch.stack(each).mean(0).tolist())
        return found

    def depths(self, rows: Iterable[str]) -> Lines:
        """Layers used over steps, the mean over rows."""
        rows = list(rows)
        return [
            {"step": line["step"], "layers": fmean(len(used_layers(line["logits"][row])) for row in rows)}
            for line in self.lines
        ]


def layers_part(records: list[Record]) -> LayersPart | None:
    """Nothing for runs that neither learn their depth nor have logged gradients."""
    part = LayersPart()
    learnt = sorted((one for record in records for one in _learnt(record)), key=lambda one: STACKS.index(one.stack))
    for one in learnt:
        _show_choice(part, one)
    _show_gates(part, learnt, alone=len(records) == 1)
    part.depths = _depth_panels(learnt, [record.name for record in records])
    _show_gradients(part, records)
    return part if part.selections or part.gradients else None


# ---- latent depth


def _learnt(record: Record) -> list[Learnt]:
    from anydepth.config import loads

    folder = record.main
    if not folder.log.logits:
        return []
    try:
        model = loads(folder.config_text).model
    except UserError:  # a report also shows folders whose settings cannot be read
        return []
    found = []
    for stack, lines in folder.log.logits.items():
        config = getattr(model, stack).depth
        if isinstance(config, LatentConfig):
            found.append(Learnt(record.name, stack, lines, _final_logits(folder, stack, lines[-1]), config))
    return found


def _final_logits(folder: Folder, stack: str, last: dict[str, Any]) -> dict[str, list[float]]:
    """Of the weights, which need not be those of the last step."""
    from safetensors import SafetensorError, safe_open

    logits: dict[str, list[float]] = last["logits"]
    try:
        with safe_open(folder.path / "model.safetensors", "pt") as weights:
            found = [weights.get_tensor(f"{stack}_depth.logits.{row}").tolist() for row in range(len(logits))]
        logits = dict(zip(logits, found))
    except (OSError, SafetensorError):
        pass  # a training that has not validated yet
    return {name or ALL: row for name, row in logits.items()}


def _show_choice(part: LayersPart, one: Learnt) -> None:
    """Which layers are used, by which languages and by how many."""
    numbers = [len(used_layers(logits)) for logits in one.final.values()]
    unsure = sum(abs(alpha) < UNDECIDED for logits in one.final.values() for alpha in logits)
    union = {layer for logits in one.final.values() for layer in used_layers(logits)}
    layers = len(next(iter(one.final.values())))
    summary = f"{figures.plain(fmean(numbers))} of {layers} layers"
    if len(numbers) > 1:
        spread = f" ({min(numbers)} to {max(numbers)})" if min(numbers) < max(numbers) else ""
        summary += f" on average{spread}; {len(union)} are used by some language"
    summary += f"; {unsure} undecided" if unsure else ""
    picture = selection_map(one.final, UNDECIDED, f"{one.run}: layers of the {one.stack} that each language uses")
    part.selections.append(Picture(one.run, one.stack, summary, picture))
    if len(one.final) > 1:
        bars = utilisation(one.final, f"{one.run}: share of the languages that use each layer of the {one.stack}")
        part.utilisation.append(Picture(one.run, one.stack, "", bars))
        pairs = list(combinations(one.final.values(), 2))
        mean, chance = (fmean(alike(*pair) for pair in pairs) for alike in (jaccard, jaccard_by_chance))
        svg = similarity_map(one.final, f"{one.run}: similarity of the {one.stack} layers that two languages use")
        part.similarities.append(Picture(one.run, one.stack, f"{mean:.2f} on average, by chance {chance:.2f}", svg))


def _show_gates(part: LayersPart, learnt: list[Learnt], alone: bool) -> None:
    """One run: the mean over its languages and each of them. Several: the mean of each run. At high temperatures gates
    stay near one half, so the colours show as much of either side as there is."""
    means = [(one, "mean over languages" if len(one.final) > 1 else ALL, one.gates()) for one in learnt]
    each = [(one, row, one.gates(row)) for one in learnt for row in one.final if alone and len(one.final) > 1]
    widest = max((abs(gate - 0.5) for _, _, steps in means + each for step in steps for gate in step), default=0.5)
    part.gate_span = (0.5 - max(widest, 0.01), 0.5 + max(widest, 0.01))
    for pictures, shown in ((part.gates, means), (part.language_gates, each)):
        for one, row, gates in shown:
            steps, title = [line["step"] for line in one.lines], f"{one.stack}, {row}"
            svg = over_steps(steps, gates, f"{one.run}, {title}: expected gates over steps", span=part.gate_span)
            pictures.append(Picture(one.run, title, "", svg))


def _depth_panels(learnt: list[Learnt], runs: list[str]) -> list[str]:
    """One run: its languages in colours. Several: the runs in colours, each the mean over its languages."""
    panels = []
    for stack in dict.fromkeys(one.stack for one in learnt):
        here = [one for one in learnt if one.stack == stack]
        rows = list(here[0].lines[-1]["logits"])
        if len(runs) == 1:
            each = {row or ALL: here[0].depths([row]) for row in rows}
            lines = lines_with_mean(each, here[0].depths(rows), "layers")
        else:
            lines = lines_of([(one.run, one.depths(one.lines[-1]["logits"])) for one in here], "layers", runs)
        panels.append(plots.curves(lines, f"{stack} layers used", whole=True))
    return panels


# ---- gradients


def _show_gradients(part: LayersPart, records: list[Record]) -> None:
    logs = [
        (record.name, stack, record.main.log.gradients[stack])
        for stack in STACKS
        for record in records
        if stack in record.main.log.gradients
    ]
    sizes = [norm for _, _, lines in logs for line in lines for norm in line["norms"] if norm]
    if not sizes:
        return
    low, high = (float(value) for value in np.quantile(sizes, (0.005, 0.995)))
    part.gradient_span = (low, high if high > low else 2 * low)
    span = (math.log(part.gradient_span[0]), math.log(part.gradient_span[1]))
    for run, stack, lines in logs:
        values = [[math.log(norm) if norm else None for norm in line["norms"]] for line in lines]
        svg = over_steps(
            [line["step"] for line in lines], values, f"{run}, {stack}: gradient norms over steps", span=span
        )
        part.gradients.append(Picture(run, stack, "", svg))
    for stack in dict.fromkeys(stack for _, stack, _ in logs):
        here = [(run, lines) for run, other, lines in logs if other == stack]
        part.gradient_lines.append(_gradient_lines(stack, here, [record.name for record in records]))


def _gradient_lines(stack: str, logs: list[tuple[str, Lines]], runs: list[str]) -> str:
    """One run: its first, middle and last layer. Several: the first layer of each, where gradients vanish first."""
    if len(runs) > 1:
        first = [(run, _layer(lines, 0)) for run, lines in logs]
        return plots.curves(lines_of(first, "norm", runs), f"gradient norm, {stack} layer 1", log=True)
    ((_, lines),) = logs
    count = len(lines[0]["norms"])
    shown = sorted({0, count // 2, count - 1})
    named = [(f"layer {layer + 1}", _layer(lines, layer)) for layer in shown]
    return plots.curves(lines_of(named, "norm"), f"gradient norm, {stack}", log=True)


def _layer(lines: Lines, layer: int) -> Lines:
    return [{"step": line["step"], "norm": line["norms"][layer]} for line in lines if line["norms"][layer]]
