"""The single pieces of work that a chain comes down to. Each knows what it leaves and how far it has come."""

import gc
import json
import math
import os
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from anydepth.choosing.confidence import Rule
from anydepth.config import Config
from anydepth.config import load as load_config
from anydepth.training import checkpoint
from anydepth.training.journal import read_metrics
from anydepth.verbs import corpora_for_test, fill_encoder_grid, fill_grid, progress_for, read_test_sets

State = Literal["to do", "interrupted", "done", "made otherwise"]
WITHOUT_EFFECT = ("training.device",)
"""Settings that may differ between a chain and the runs it left."""


@dataclass(frozen=True, kw_only=True)
class Work:
    name: str
    stage: str
    """The stage it is, or is part of."""
    left: Path
    """What is there when it is done."""
    needs: tuple[str, ...] = ()
    """Work that must be done before."""
    kind: ClassVar[str]
    shared: ClassVar[bool] = False
    """Whether the processes of torchrun do it together; otherwise the first does it alone."""

    def state(self) -> State:
        raise NotImplementedError

    def do(self, state: State, quiet: bool) -> None:
        """Begins, or goes on from the state it was found in."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Training(Work):
    kind: ClassVar[str] = "train"
    shared: ClassVar[bool] = True
    config: Config

    def state(self) -> State:
        if not (self.left / "config.toml").exists():
            return "to do"
        if self.changes():
            return "made otherwise"
        saved, mark = checkpoint.steps(self.left / "checkpoints"), self.left / "checkpoints" / "finished"
        finished = saved and mark.exists() and mark.read_text() == str(checkpoint.step_of(saved[-1]))
        return "done" if finished else "interrupted"

    def changes(self) -> list[str]:
        """How the settings of the run that is there differ from those of the chain."""
        before, now = flat(asdict(load_config(self.left / "config.toml"))), flat(asdict(self.config))
        if not now.get("model.labels"):  # a run has those of its training corpora
            before.pop("model.labels", None), now.pop("model.labels", None)
        return [
            f"{name} was {before.get(name)}, now {now.get(name)}"
            for name in dict.fromkeys([*before, *now])
            if before.get(name) != now.get(name) and name not in WITHOUT_EFFECT
        ]

    def do(self, state: State, quiet: bool) -> None:
        from anydepth.training.loop import train

        train(self.config, self.left, resume=state == "interrupted", quiet=quiet)
        torch.compiler.reset()  # the same code is compiled a few times at most: the next training counts from 0
        if torch.cuda.is_available():
            gc.collect()
            torch.cuda.empty_cache()


@dataclass(frozen=True, kw_only=True)
class Choice(Work):
    """The best of several runs, as a link: its weights are there under a name known beforehand."""

    kind: ClassVar[str] = "best"
    runs: tuple[Path, ...]

    def state(self) -> State:
        if not self.left.is_symlink() or math.inf in map(dev_loss, self.runs):
            return "to do"
        return "done" if os.readlink(self.left) == self.winner().name else "to do"

    def winner(self) -> Path:
        """The run with the lowest dev loss, the first of several."""
        return min(self.runs, key=dev_loss)

    def do(self, state: State, quiet: bool) -> None:
        part = self.left.with_name(f".part-{self.name}")
        part.unlink(missing_ok=True)
        part.symlink_to(self.winner().name)
        os.replace(part, self.left)


def dev_loss(run: Path) -> float:
    """The loss of the weights that a training kept: the lowest of its validations, the mean of the last checkpoints
    included. Over several validated depths it is their mean, as in the training itself."""
    losses: dict[Any, list[float]] = defaultdict(list)
    path = run / "metrics.jsonl"
    for line in read_metrics(path) if path.exists() else ():
        if line["kind"] in ("valid", "average"):
            losses[line["kind"], line["step"]].append(line["loss"])
    return min((sum(each) / len(each) for each in losses.values()), default=math.inf)


@dataclass(frozen=True, kw_only=True)
class Distillation(Work):
    kind: ClassVar[str] = "distill"
    shared: ClassVar[bool] = True
    teacher: Path
    source: str
    depth: str
    beam: int
    batch: int

    def state(self) -> State:
        from anydepth.data.distillation import Files

        files, weights = Files(self.left), self.teacher / "model.safetensors"
        if not (files.out.exists() and files.report.exists() and weights.exists()):
            return "interrupted" if files.parts.exists() else "to do"
        made_from = json.loads(files.report.read_bytes())["made_from"]
        wanted = {"weights": checkpoint.checksum(weights), "depth": self.depth, "beam": self.beam}
        return "done" if made_from | wanted == made_from else "interrupted"  # and refused when it is taken up

    def do(self, state: State, quiet: bool) -> None:
        from anydepth.data.distillation import device_of_rank, distill
        from anydepth.run import load as load_run

        teacher = load_run(self.teacher, device_of_rank("auto"))
        with progress_for(self.name, "sentences", visible=not quiet) as show:
            distill(teacher, self.source, self.left, self.depth, beam=self.beam, batch=self.batch, progress=show)


@dataclass(frozen=True, kw_only=True)
class Evaluation(Work):
    kind: ClassVar[str] = "evaluate"
    depths: tuple[str, ...]
    """Empty where the run learns its depth: whatever that is."""
    languages: tuple[str, ...]
    """Those scored, if the run translates several; a masked language model has one grid for all."""
    beam: int
    batch: int
    exits: tuple[str, ...] = ()

    @property
    def run(self) -> Path:
        return self.left.parent

    def state(self) -> State:
        """Done where the weights that are there now were scored, on whatever machine."""
        from anydepth.evaluation.cells import depth_name
        from anydepth.evaluation.records import KINDS

        if not self.left.exists():
            return "to do"
        grid = json.loads(self.left.read_text(encoding="utf-8"))
        scored = {depth_name(cell) for cell in grid["cells"]}
        asked = {} if KINDS.keys() & grid["cells"][0].keys() else {"beam": self.beam, "batch": self.batch}
        left = {Rule.parse(rule).name for rule in self.exits} - {cell["exit"] for cell in grid.get("exits", ())}
        whole = not left and scored.issuperset(self.depths) and set(self.languages).issubset(grid.get("languages", ()))
        if not whole or grid | asked != grid:
            return "interrupted"
        return "done" if grid["weights"] == checkpoint.checksum(self.run / "model.safetensors") else "to do"

    def do(self, state: State, quiet: bool) -> None:
        from anydepth.models import Translator
        from anydepth.run import load as load_run

        run, depths = load_run(self.run), list(self.depths) or None
        with progress_for(self.name, "depths", visible=not quiet) as bar:

            def show(done: int, total: int, depth: str) -> None:
                bar(done, total)

            if isinstance(run.model, Translator):
                fill_grid(run, self.run, read_test_sets(self.run), depths, self.beam, self.batch, show)
            else:
                rules = [Rule.parse(rule) for rule in self.exits]
                fill_encoder_grid(run, self.run, corpora_for_test(self.run), depths, show, exits=rules)


@dataclass(frozen=True, kw_only=True)
class Report(Work):
    kind: ClassVar[str] = "report"
    shown: dict[str, tuple[Path, ...]]
    """Names for the page, and the runs each stands for."""

    @property
    def runs(self) -> list[Path]:
        return [run for runs in self.shown.values() for run in runs]

    def state(self) -> State:
        """Done where no run was scored after the page was written."""
        grids = [run / "grid.json" for run in self.runs]
        if not self.left.exists() or not all(grid.exists() for grid in grids):
            return "to do"
        return "done" if max(map(modified, grids)) <= modified(self.left) else "to do"

    def do(self, state: State, quiet: bool) -> None:
        from anydepth.evaluation.report import write_report

        write_report([f"{name}={','.join(map(str, runs))}" for name, runs in self.shown.items()], self.left)


def modified(path: Path) -> float:
    return path.stat().st_mtime


def flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`training.steps` → 10."""
    result: dict[str, Any] = {}
    for name, value in settings.items():
        result |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return result
