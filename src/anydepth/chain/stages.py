"""What a chain's TOML file says."""

import itertools
import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

from anydepth.config_class import config
from anydepth.config_reader import read
from anydepth.data.corpora import Split
from anydepth.errors import UserError

Value = int | float | str
Values = dict[str, Value]
"""Of one run of a repeated training, by their names."""


@config
class TrainStage:
    """Trains a recipe, once or for each of several values."""

    type: Literal["train"] = "train"
    name: str
    """The stage's name, and that of its folder; each run of a repeated training adds its values: separate_12_6."""
    recipe: str = ""
    """Path of the recipe, from the folder of the chain; empty means the chain's."""
    settings: tuple[str, ...] = ()
    """Changes to the recipe, as with --set; $name stands for what the stage of that name left, or for a value of
    `each`."""
    each: tuple[dict[str, Value | tuple[Value, ...]], ...] = ()
    """Tables of values to repeat the training for; lists in a table stand for all their combinations."""

    def __post_init__(self) -> None:
        if any(table.keys() != self.each[0].keys() for table in self.each):
            raise ValueError("each: all its tables need the same names")

    def repeats(self) -> Iterator[tuple[str, Values]]:
        """The name of every run, and its values."""
        for table in self.each or ({},):
            lists = (value if isinstance(value, tuple) else (value,) for value in table.values())
            for values in itertools.product(*lists):
                name = "_".join([self.name, *(re.sub(r"\W", "_", str(value)) for value in values)])
                yield name, dict(zip(table, values))


@config
class BestStage:
    """Picks the run with the lowest dev loss: a link to it."""

    type: Literal["best"] = "best"
    name: str
    """The stage's name, and that of the link."""
    of: str
    """The repeated training to pick from."""


@config
class DistillStage:
    """Translates a text with the run of an earlier stage."""

    type: Literal["distill"] = "distill"
    name: str
    """The stage's name, and that of its file."""
    teacher: str
    """The stage whose run translates."""
    source: str = ""
    """Text to translate, one sentence a line, also .gz; empty means what the teacher was trained on."""
    depth: str = ""
    """Depth of the teacher; empty means the deepest."""
    beam: int = 5
    """Hypotheses per sentence."""
    batch: int = 64
    """Sentences translated together."""

    def __post_init__(self) -> None:
        for name in ("beam", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")


@config
class EvaluateStage:
    """Scores runs on the test set of their recipe: grid.json in each of them.

    With `settings`, `on` or `sentences` it is another evaluation than the run's own and gets folders of its own, named
    after the stage and the run, which reports can show beside it: soft_latent.
    """

    type: Literal["evaluate"] = "evaluate"
    name: str
    """The stage's name."""
    of: tuple[str, ...]
    """Stages whose runs to score; a repeated training means all its runs."""
    encoder: tuple[int, ...] = ()
    """Encoder depths, of which each run is scored at those it has; empty means all."""
    decoder: tuple[int, ...] = ()
    """Decoder depths, likewise."""
    deepest: bool = False
    """Scores each run at its deepest depth only."""
    beam: int = 0
    """Hypotheses per sentence; 0 means the recipe's."""
    batch: int = 0
    """Sentences decoded together; 0 means the recipe's."""
    exits: tuple[str, ...] = ()
    """Of classifiers: ways for texts to leave early, such as "0.9" or "patience 2"."""
    settings: tuple[str, ...] = ()
    """Changes to the runs for this evaluation, as with --set: other gates of latent depth, for example."""
    on: Split = "test"
    """The corpora to score on: those of the recipe for `test`, `dev` or `train`."""
    sentences: int = 0
    """The first so many of each corpus; 0 means all."""

    @property
    def apart(self) -> bool:
        """Whether its scores are kept in folders of their own."""
        return bool(self.settings or self.sentences or self.on != "test")

    def __post_init__(self) -> None:
        for name in ("beam", "batch", "sentences"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")


@config
class ReportStage:
    """Puts the scores of several runs on one page."""

    type: Literal["report"] = "report"
    name: str
    """The stage's name, and that of the page: name.html."""
    of: tuple[str, ...] = ()
    """Stages whose runs to show, each of them evaluated before; a repeated training means all its runs, or, where
    they differ in depth alone, one row for each depth; classifiers that differ in their seed are shown as means.
    Evaluations in folders of their own are named like trainings."""
    curves: tuple[str, ...] = ()
    """Stages of whose runs only the training is shown: nothing needs to be evaluated."""

    def __post_init__(self) -> None:
        if not self.of and not self.curves:
            raise ValueError("of, curves: expected at least one stage to show")


@config
class DifficultyStage:
    """Judges how difficult the test sentences of a run are for it, for the reports after it: difficulty.json."""

    type: Literal["difficulty"] = "difficulty"
    name: str
    """The stage's name."""
    of: str
    """The training that judges, whose recipe keeps several checkpoints."""
    checkpoints: int = 20
    """The last so many, or as many as there are."""
    parts: int = 4
    """Equal parts to cut the test set into."""
    language: str = ""
    """Of a run with several: whose test set to judge."""

    def __post_init__(self) -> None:
        for name in ("checkpoints", "parts"):
            if getattr(self, name) < 2:
                raise ValueError(f"{name} must be at least 2")


Stage = TrainStage | BestStage | DistillStage | EvaluateStage | DifficultyStage | ReportStage


@config
class Chain:
    """The stages, in order."""

    after: str = ""
    """Another chain, from the folder of this one, whose stages come before these."""
    recipe: str = ""
    """Recipe of the trainings that name none of their own, from the folder of the chain."""
    settings: tuple[str, ...] = ()
    """Changes to the recipe of every training here, before its own `settings`."""
    stages: tuple[Stage, ...]
    """Each may use what those before it left."""


def load(path: Path, recipe: Path | None = None) -> tuple[Stage, ...]:
    """The stages of a chain, each training with the path of its recipe; `recipe` takes the place of the chain's."""
    stages = read_stages(path, recipe)
    check_names(stages, path)
    return stages


def read_stages(path: Path, recipe: Path | None, later: tuple[Path, ...] = ()) -> tuple[Stage, ...]:
    if path.resolve() in later:
        raise UserError(f"{path}: comes after itself")
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # Windows editors write the mark
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None
    chain = read(Chain, values, (), str(path))
    default = recipe or (path.parent / chain.recipe if chain.recipe else None)
    later += (path.resolve(),)
    stages = read_stages(path.parent / chain.after, recipe, later) if chain.after else ()
    for stage in chain.stages:
        if isinstance(stage, TrainStage):
            chosen = path.parent / stage.recipe if stage.recipe else default
            if chosen is None:
                raise UserError(f"{path}: {stage.name}: recipe: missing, and the chain has none for all")
            stage = replace(stage, recipe=str(chosen), settings=(*chain.settings, *stage.settings))
        stages += (stage,)
    return stages


def check_names(stages: tuple[Stage, ...], path: Path) -> None:
    """Every name is new and can be written as $name; what a stage uses comes before it."""
    runs: dict[str, tuple[str, ...]] = {}
    scored: dict[str, tuple[str, ...]] = {}
    for stage in stages:
        mine, (setting, used) = runs_of(stage), used_by(stage)
        known = runs | scored if isinstance(stage, ReportStage) else runs
        for name in (stage.name, *mine):
            if name in runs or name in scored or mine.count(name) > 1:
                raise UserError(f"{path}: two stages have the name {name}")
            if not (name.isascii() and name.isidentifier()):
                raise UserError(f"{path}: {name}: a name must be letters, digits and _, to be written as $name")
        for name in used:
            if not known.get(name):
                raise UserError(f"{path}: {stage.name}: {setting}: there is no training {name!r} before this stage")
            if isinstance(stage, DistillStage | DifficultyStage) and len(runs[name]) > 1:
                raise UserError(f"{path}: {stage.name}: {setting}: {name} has {len(runs[name])} runs; expected one")
        runs |= {name: (name,) for name in mine} | {stage.name: mine}
        if isinstance(stage, EvaluateStage) and stage.apart:
            mine = tuple(f"{stage.name}_{run}" for name in used for run in runs[name])
            scored |= {name: (name,) for name in mine} | {stage.name: mine}


def runs_of(stage: Stage) -> tuple[str, ...]:
    """The runs that later stages find under this one's name."""
    match stage:
        case TrainStage():
            return tuple(name for name, _ in stage.repeats())
        case BestStage():
            return (stage.name,)
        case _:
            return ()


def used_by(stage: Stage) -> tuple[str, tuple[str, ...]]:
    """The setting in which a stage names others, and their names. (Trainings do so with a $, in any setting.)"""
    match stage:
        case TrainStage():
            return "settings", ()
        case BestStage() | DifficultyStage():
            return "of", (stage.of,)
        case DistillStage():
            return "teacher", (stage.teacher,)
        case EvaluateStage():
            return "of", stage.of
        case ReportStage():
            return "of, curves", (*stage.of, *stage.curves)
