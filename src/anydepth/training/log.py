"""What metrics.jsonl tells of a training."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from anydepth.evaluation.metrics import METRICS

Lines = list[dict[str, Any]]


@dataclass(frozen=True)
class Curve:
    """Validations over the steps: of one depth, on the dev set of one language."""

    depth: str
    """"" where the depth changed during the training, as that of latent depth does."""
    language: str
    """"" where there is only one."""
    lines: Lines

    @property
    def name(self) -> str:
        return " ".join(part for part in (self.language, self.depth) if part) or "validation"


@dataclass(frozen=True)
class TrainingLog:
    train: Lines = field(default_factory=list)
    """By step; of a step done twice, before and after a resume, the last. So are all others."""
    valid: list[Curve] = field(default_factory=list)
    """Language by language, shallow depths first."""
    logits: dict[str, Lines] = field(default_factory=dict)
    """What latent depth had learnt by each validation, by stack."""
    gradients: dict[str, Lines] = field(default_factory=dict)
    """Norms of the layers' gradients, by stack."""
    unreadable: int = 0
    """Lines that are no JSON, as a killed training may leave."""

    @property
    def deepest(self) -> list[Curve]:
        """The deepest curve of every language."""
        return list({curve.language: curve for curve in self.valid}.values())

    @property
    def last(self) -> dict[str, Any]:
        """The line of the last step that has one with its time."""
        return max((lines[-1] for lines in (self.train, *(c.lines for c in self.valid)) if lines), key=_step)


def read_log(path: Path) -> TrainingLog:
    """Of a file that may be missing or end in the middle of a line."""
    found: dict[str, dict[tuple[str, str], dict[int, Any]]] = {}
    unreadable = 0
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            line = json.loads(text)
            which = line.get("language", ""), line["depth"] if line["kind"] == "valid" else line.get("stack", "")
            found.setdefault(line["kind"], {}).setdefault(which, {})[line["step"]] = line
        except (ValueError, KeyError, TypeError, AttributeError):
            unreadable += 1
    sorted_by_step = {
        kind: {which: [lines[step] for step in sorted(lines)] for which, lines in each.items()}
        for kind, each in found.items()
    }

    def by_stack(kind: str) -> dict[str, Lines]:
        return {stack: lines for (_, stack), lines in sorted_by_step.get(kind, {}).items()}

    return TrainingLog(
        train=by_stack("train").get("", []),
        valid=_curves(sorted_by_step.get("valid", {})),
        logits=by_stack("logits"),
        gradients=by_stack("gradients"),
        unreadable=unreadable,
    )


def mean_curve(curves: Sequence[Curve]) -> Lines:
    """The mean over languages, at the steps that all have."""
    by_step: dict[int, Lines] = {}
    for curve in curves:
        for line in curve.lines:
            by_step.setdefault(line["step"], []).append(line)
    return [
        {"step": step} | {name: fmean(line[name] for line in lines) for name in ("loss", *METRICS) if name in lines[0]}
        for step, lines in sorted(by_step.items())
        if len(lines) == len(curves)
    ]


def _curves(found: dict[tuple[str, str], Lines]) -> list[Curve]:
    """One for each language and depth. Where a language was validated once a step but at changing depths, the depth
    is one that the model had chosen, and there is one curve."""
    curves = []
    for language in dict.fromkeys(language for language, _ in found):
        depths = {depth: lines for (other, depth), lines in found.items() if other == language}
        together = sorted((line for lines in depths.values() for line in lines), key=_step)
        if len(depths) > 1 and max(Counter(map(_step, together)).values()) == 1:
            curves.append(Curve("", language, together))
        else:
            ordered = sorted(depths, key=lambda depth: sum(map(int, depth.split("-"))))
            curves += [Curve(depth, language, depths[depth]) for depth in ordered]
    return curves


def _step(line: dict[str, Any]) -> int:
    step: int = line["step"]
    return step
