"""Trainings that build on one another, as one command: pre-train, distil, fine-tune.

A chain is a TOML file of stages. Each leaves a run or a distilled text in the chain's folder, and later stages name it:
`data.train.0.target=$distilled`. A stage that is finished is not done again, one that was interrupted goes on.
"""

import string
import tomllib
from pathlib import Path
from typing import Literal

from anydepth.config import Config
from anydepth.config import load as load_config
from anydepth.config_class import config
from anydepth.config_reader import read
from anydepth.errors import UserError


@config
class TrainStage:
    """Trains a recipe."""

    type: Literal["train"] = "train"
    name: str
    """The stage's name, and that of its folder."""
    recipe: str
    """Path of the recipe, from the folder of the chain."""
    settings: tuple[str, ...] = ()
    """Changes to the recipe, as with --set; $name stands for what the stage of that name left."""

    def out(self, folder: Path) -> Path:
        return folder / self.name


@config
class DistillStage:
    """Translates a text with the run of an earlier stage."""

    type: Literal["distill"] = "distill"
    name: str
    """The stage's name, and that of its file."""
    teacher: str
    """The stage whose run translates."""
    source: str
    """Text to translate, one sentence a line, also .gz."""
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

    def out(self, folder: Path) -> Path:
        return folder / f"{self.name}.txt.gz"


Stage = TrainStage | DistillStage


@config
class Chain:
    """The stages, in order."""

    stages: tuple[Stage, ...]
    """Trainings and distillations; each may use what those before it left."""

    def __post_init__(self) -> None:
        names = [stage.name for stage in self.stages]
        for number, stage in enumerate(self.stages):
            if names.count(stage.name) > 1:
                raise ValueError(f"stages: two have the name {stage.name}")
            if not (stage.name.isascii() and stage.name.isidentifier()):
                raise ValueError(
                    f"stages.{number}.name: {stage.name!r} must be letters, digits and _, to be named as $name"
                )
            runs = [earlier.name for earlier in self.stages[:number] if isinstance(earlier, TrainStage)]
            if isinstance(stage, DistillStage) and stage.teacher not in runs:
                raise ValueError(f"stages.{number}.teacher: there is no training {stage.teacher!r} before this stage")


def load(path: Path) -> Chain:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None
    return read(Chain, values, (), str(path))


def run_chain(path: Path, folder: Path, quiet: bool = False) -> dict[str, Path]:
    """Does what is left to do; gives what each stage left. All recipes are checked before the first stage begins."""
    chain = load(path)
    left = {stage.name: stage.out(folder) for stage in chain.stages}
    recipes = {
        stage.name: recipe_of(stage, path, left, number, chain)
        for number, stage in enumerate(chain.stages)
        if isinstance(stage, TrainStage)
    }
    for stage in chain.stages:
        if isinstance(stage, DistillStage) and not Path(stage.source).is_file():
            raise UserError(f"{path}: {stage.name}: {stage.source}: no such file")
    folder.mkdir(parents=True, exist_ok=True)
    for stage in chain.stages:
        if isinstance(stage, TrainStage):
            train_stage(recipes[stage.name], left[stage.name], quiet)
        else:
            distill_stage(stage, left)
    return left


def recipe_of(stage: TrainStage, chain_path: Path, left: dict[str, Path], number: int, chain: Chain) -> Config:
    """The recipe with its changes, the names of earlier stages filled in."""
    known = {earlier.name: left[earlier.name] for earlier in chain.stages[:number]}
    settings = []
    for setting in stage.settings:
        if not string.Template(setting).is_valid():
            raise UserError(f"{chain_path}: {stage.name}: {setting}: a $ must begin the name of a stage, or be doubled")
        for name in string.Template(setting).get_identifiers():
            if name not in known:
                choices = ", ".join(known) or "none"
                raise UserError(f"{chain_path}: {stage.name}: {setting}: no stage {name!r} before it, only {choices}")
        settings.append(string.Template(setting).substitute(known))
    return load_config(chain_path.parent / stage.recipe, settings)


def train_stage(config: Config, out: Path, quiet: bool) -> None:
    from anydepth.training.loop import train

    train(config, out, resume=(out / "config.toml").exists(), quiet=quiet)


def distill_stage(stage: DistillStage, left: dict[str, Path]) -> None:
    from anydepth.data.distillation import device_of_rank, distill
    from anydepth.run import load as load_run
    from anydepth.verbs import progress_bar

    teacher = load_run(left[stage.teacher], device_of_rank("auto"))
    with progress_bar(f"distilling {stage.name}") as bar:
        task = bar.add_task("", total=None)
        distill(
            teacher,
            stage.source,
            left[stage.name],
            stage.depth or None,
            beam=stage.beam,
            batch=stage.batch,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
