"""The single pieces of work that a chain comes down to. Each knows what it leaves and how far it has come."""

import gc
import json
import math
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from anydepth.classifying.leaving import Rule
from anydepth.config import Config, dump
from anydepth.config import load as load_config
from anydepth.config_reader import flat
from anydepth.data.corpora import Split
from anydepth.data.distillation import device_of_rank, distill
from anydepth.data.distilled_parts import Files
from anydepth.describe import describe_training
from anydepth.evaluation.cells import depth_name
from anydepth.evaluation.difficulty import judge, read_difficulty
from anydepth.evaluation.filling import fill_encoder_grid, fill_grid
from anydepth.evaluation.records import DIVERGED, KINDS
from anydepth.evaluation.texts import corpora_for_test, read_test_set, read_test_sets
from anydepth.files import checksum, write_durably
from anydepth.models import Translator
from anydepth.progress import progress_for
from anydepth.reporting.report import write_report
from anydepth.run import load as load_run
from anydepth.training import checkpoint
from anydepth.training.journal import read_metrics
from anydepth.training.loop import train
from anydepth.training.window import Diverged

State = Literal["to do", "interrupted", "done", "diverged", "made otherwise"]
ENDED: tuple[State, ...] = ("done", "diverged")
"""Where nothing is left to do. A training that diverges is a result too: the table has no number there."""
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
    tokenizers: tuple[str, ...] = ()
    """Trainings among it of which only the tokenizer is needed: they write that first."""
    kind: ClassVar[str]
    shared: ClassVar[bool] = False
    """Whether the processes of torchrun do it together; otherwise the first does it alone."""

    def state(self) -> State:
        raise NotImplementedError

    def has(self, other: "Work") -> bool:
        """Whether what it needs of another is there."""
        if other.name in self.tokenizers and (other.left / "tokenizer.json").exists():
            return True
        return other.state() in ENDED

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
        if has_diverged(self.left):
            return "diverged"
        folder = self.left / "checkpoints"
        saved = checkpoint.steps(folder)
        finished = saved and checkpoint.finished(folder, checkpoint.step_of(saved[-1])) is not None
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
        try:
            train(self.config, self.left, resume=state == "interrupted", quiet=quiet)
        except Diverged as error:  # in every process of torchrun at the same step
            if os.environ.get("RANK", "0") == "0":
                write_durably(self.left / DIVERGED, f"{error}\n")
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
        if not self.left.is_symlink() or any(dev_loss(run) == math.inf for run in self.runs if not has_diverged(run)):
            return "to do"
        return "done" if os.readlink(self.left) == self.winner().name else "to do"

    def winner(self) -> Path:
        """The run with the lowest dev loss, the first of several; those that diverged only where all did."""
        return min(self.runs, key=lambda run: (has_diverged(run), dev_loss(run)))

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
        files, weights = Files(self.left), self.teacher / "model.safetensors"
        if not (files.out.exists() and files.report.exists() and weights.exists()):
            return "interrupted" if files.parts.exists() else "to do"
        made_from = json.loads(files.report.read_bytes())["made_from"]
        wanted = {"weights": checksum(weights), "depth": self.depth, "beam": self.beam}
        return "done" if made_from | wanted == made_from else "interrupted"  # and refused when it is taken up

    def do(self, state: State, quiet: bool) -> None:
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
    run: Path
    settings: tuple[str, ...] = ()
    on: Split = "test"
    sentences: int = 0
    exits: tuple[str, ...] = ()

    @property
    def apart(self) -> bool:
        """Whether it is another evaluation than the run's own."""
        return self.left.parent != self.run

    @property
    def mark(self) -> Path:
        """The file that is there when it has ended, in one way or the other."""
        return self.run / DIVERGED if has_diverged(self.run) else self.left

    @property
    def notes(self) -> dict[str, Any] | None:
        """What a grid that is not the run's own says of how it was made."""
        return {"changes": list(self.settings), "on": self.on, "asked": self.sentences} if self.apart else None

    def state(self) -> State:
        """Done where the weights that are there now were scored, on whatever machine."""
        if has_diverged(self.run):
            return "diverged"
        if not self.left.exists():
            return "to do"
        grid = json.loads(self.left.read_text(encoding="utf-8"))
        scored = {depth_name(cell) for cell in grid["cells"]}
        asked = {} if KINDS.keys() & grid["cells"][0].keys() else {"beam": self.beam, "batch": self.batch}
        left = {Rule.parse(rule).name for rule in self.exits} - {cell["exit"] for cell in grid.get("exits", ())}
        whole = not left and scored.issuperset(self.depths) and set(self.languages).issubset(grid.get("languages", ()))
        if not whole or grid | asked | (self.notes or {}) != grid:
            return "interrupted"
        return "done" if grid["weights"] == checksum(self.run / "model.safetensors") else "to do"

    def do(self, state: State, quiet: bool) -> None:
        run, depths, folder = load_run(self.run, settings=self.settings), list(self.depths) or None, self.left.parent
        notes = self.notes and {"run": str(self.run), **self.notes, **describe_training(self.run)}
        with progress_for(self.name, "depths", visible=not quiet) as bar:

            def show(done: int, total: int, depth: str) -> None:
                bar(done, total)

            if isinstance(run.model, Translator):
                test_sets = read_test_sets(self.run, settings=self.settings, on=self.on, sentences=self.sentences)
                fill_grid(run, folder, test_sets, depths, self.beam, self.batch, show, notes=notes)
            else:
                corpora, rules = corpora_for_test(self.run, self.settings, on=self.on), [*map(Rule.parse, self.exits)]
                folder.mkdir(exist_ok=True)
                fill_encoder_grid(run, folder, corpora, depths, show, exits=rules, notes=notes)
        if self.apart:
            decoding = replace(run.config.decoding, beam=self.beam, batch=self.batch)
            write_durably(folder / "config.toml", dump(replace(run.config, decoding=decoding)))


@dataclass(frozen=True, kw_only=True)
class Judgement(Work):
    """How difficult the test sentences of a run are for it."""

    kind: ClassVar[str] = "difficulty"
    checkpoints: int
    parts: int
    language: str

    def state(self) -> State:
        """Done where the last checkpoint that is there now has judged."""
        if has_diverged(self.left.parent):
            return "diverged"
        found, saved = read_difficulty(self.left.parent), checkpoint.steps(self.left.parent / "checkpoints")
        if found is None or not saved or (max(found.part) + 1, found.language) != (self.parts, self.language):
            return "to do"
        return "done" if found.weights == checksum(saved[-1] / "model.safetensors") else "to do"

    def do(self, state: State, quiet: bool) -> None:
        with progress_for(self.name, "checkpoints", visible=not quiet) as show:
            run, language = self.left.parent, self.language or None
            test_set = read_test_set(run, language=language)
            judge(run, test_set, checkpoints=self.checkpoints, parts=self.parts, language=language, progress=show)


@dataclass(frozen=True, kw_only=True)
class Report(Work):
    kind: ClassVar[str] = "report"
    shown: dict[str, tuple[Evaluation, ...]]
    """Names for the page, and the scored runs each stands for."""
    curves: dict[str, Path]
    """Names, and runs whose training alone is shown."""
    means: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names, and the names of classifiers that are the same but for their data sets: their scores are averaged, too."""

    @property
    def runs(self) -> list[Path]:
        return [*(work.left.parent for works in self.shown.values() for work in works), *self.curves.values()]

    def state(self) -> State:
        """Done where no run was scored after the page was written."""
        made = [work.mark for works in self.shown.values() for work in works]
        made += [run / "metrics.jsonl" for run in self.curves.values()]
        if not self.left.exists() or not all(file.exists() for file in made):
            return "to do"
        return "done" if max(map(modified, made)) <= modified(self.left) else "to do"

    def do(self, state: State, quiet: bool) -> None:
        runs = {name: folders_of(works) for name, works in self.shown.items()}
        runs |= {name: [run] for name, run in self.curves.items()}
        given = [f"{name}={','.join(map(str, paths))}" for name, paths in runs.items() if paths]
        write_report(given, self.left, means=self.means)


def folders_of(works: Sequence[Evaluation]) -> list[Path]:
    """Those with scores; where all diverged, a run for its curves."""
    scored = [work.left.parent for work in works if not has_diverged(work.run)]
    return scored or [work.run for work in works if not work.apart][:1]


def has_diverged(run: Path) -> bool:
    return (run / DIVERGED).exists()


def modified(path: Path) -> float:
    return path.stat().st_mtime
