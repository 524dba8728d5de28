"""From the stages of a chain to single pieces of work, with all recipes read and all names filled in."""

import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import torch

from anydepth.chain.stages import (
    BestStage,
    DifficultyStage,
    DistillStage,
    EvaluateStage,
    ReportStage,
    Stage,
    TrainStage,
    Values,
    load,
    runs_of,
)
from anydepth.chain.work import Choice, Distillation, Evaluation, Judgement, Report, Training, Work
from anydepth.config import Config, dump, loads
from anydepth.config import load as load_config
from anydepth.config_checks import check_validation, stacks_of
from anydepth.data.corpora import ParallelText
from anydepth.data.languages import find_language, known_languages
from anydepth.depth.latent import LatentConfig
from anydepth.encoder_models import ClassifierConfig
from anydepth.errors import UserError
from anydepth.evaluation.difficulty import FILE
from anydepth.models import TranslatorConfig
from anydepth.plan import depth_name
from anydepth.training.data import BODY


def planned(path: Path, folder: Path, recipe: Path | None = None, settings: Sequence[str] = ()) -> list[Work]:
    """All work of a chain, in order."""
    planner = Planner(path, folder, tuple(settings))
    for stage in load(path, recipe):
        planner.add(stage)
    return planner.works


@dataclass
class Planner:
    """Takes stage after stage, and keeps what later ones can name."""

    path: Path
    folder: Path
    settings: tuple[str, ...]
    """Changes to every training."""
    works: list[Work] = field(default_factory=list)
    runs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Stage → its runs."""
    scored: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Stage → its evaluations, where they have folders of their own."""
    left: dict[str, Path] = field(default_factory=dict)
    """What $name stands for."""
    configs: dict[str, Config] = field(default_factory=dict)
    """Run → its settings."""

    def add(self, stage: Stage) -> None:
        works: Sequence[Work]
        match stage:
            case TrainStage():
                works = trainings = [self.training(stage, name, values) for name, values in stage.repeats()]
                self.configs |= {training.name: training.config for training in trainings}
            case BestStage():
                works = [self.choice(stage)]
                self.configs[stage.name] = self.configs[self.runs[stage.of][0]]
            case DistillStage():
                works = [self.distillation(stage)]
            case EvaluateStage():
                works = [self.evaluation(stage, run) for run in self.named(stage.of)]
                if stage.apart:
                    self.scored |= {work.name: (work.name,) for work in works}
                    self.scored[stage.name] = tuple(work.name for work in works)
            case DifficultyStage():
                works = [self.judgement(stage)]
            case ReportStage():
                works = [self.report(stage)]
        self.works += works
        self.runs |= {name: (name,) for name in runs_of(stage)} | {stage.name: runs_of(stage)}
        if not isinstance(stage, EvaluateStage | DifficultyStage | ReportStage):
            self.left |= {work.name: work.left for work in works}

    def named(self, stages: Iterable[str]) -> tuple[str, ...]:
        """The runs of these stages, each once."""
        return tuple(dict.fromkeys(run for stage in stages for run in (self.scored.get(stage) or self.runs[stage])))

    # -- trainings

    def training(self, stage: TrainStage, name: str, values: Values) -> Training:
        plain, linked, needs, tokenizers = self.fill_in(stage, name, values)
        try:
            # settings with a $ make the chain what it is: --set changes the others
            config = load_config(stage.recipe, (*plain, *self.settings, *linked))
            check_validation(config.training.validate_depths, config.model)
        except UserError as error:
            raise self.mistake(name, str(error)) from None
        if not config.data.cache:  # runs with the same tokenizer share their data
            config = replace(config, data=replace(config.data, cache=str(self.folder / "tokenized-data")))
        self.check_start(name, config)
        return Training(
            name=name, stage=stage.name, left=self.folder / name, needs=needs, tokenizers=tokenizers, config=config
        )

    def fill_in(
        self, stage: TrainStage, name: str, values: Values
    ) -> tuple[list[str], list[str], tuple[str, ...], tuple[str, ...]]:
        """The settings without a $, those with one, filled in, the work they name, and that named for its tokenizer."""
        known = self.left | values
        plain: list[str] = []
        linked: list[str] = []
        needs: dict[str, bool] = {}
        for setting in stage.settings:
            template = string.Template(setting)
            if not template.is_valid():
                raise self.mistake(name, f"{setting}: a $ must begin the name of a stage, or be doubled")
            identifiers = template.get_identifiers()
            for identifier in identifiers:
                if identifier not in known:
                    choices = ", ".join(known) or "none"
                    raise self.mistake(name, f"{setting}: no stage {identifier!r} before it, only {choices}")
            (linked if identifiers else plain).append(template.substitute(known))
            for identifier in identifiers:
                if identifier not in values:
                    for_tokenizer = setting.endswith(f"=${identifier}/tokenizer.json")
                    needs[identifier] = needs.get(identifier, True) and for_tokenizer
        return plain, linked, tuple(needs), tuple(need for need, for_tokenizer in needs.items() if for_tokenizer)

    def check_start(self, name: str, config: Config) -> None:
        """A model that starts from another of this chain needs weights of the same shapes."""
        for other, theirs in self.configs.items():
            if config.training.start_from == str(self.left[other]):
                parts = "" if config.model.type == theirs.model.type else BODY
                mine, its = shapes(config, parts), shapes(theirs, parts)
                for weights in sorted(mine.keys() | its.keys()):
                    if mine.get(weights) != its.get(weights):
                        raise self.mistake(name, f"cannot start from {other}: {weights} is not the same in both")

    # -- what is made of runs

    def choice(self, stage: BestStage) -> Choice:
        runs = self.runs[stage.of]
        for run in runs:
            if not self.configs[run].data.dev:
                raise self.mistake(stage.name, f"{run} has no data.dev: there is no loss to choose by")
        paths = tuple(self.left[run] for run in runs)
        return Choice(name=stage.name, stage=stage.name, left=self.folder / stage.name, needs=runs, runs=paths)

    def distillation(self, stage: DistillStage) -> Distillation:
        (teacher,) = self.runs[stage.teacher]
        corpus, depths = self.configs[teacher].data.train[0], depths_of(self.configs[teacher])
        source = stage.source or (corpus.source if isinstance(corpus, ParallelText) else "")
        if not source:
            raise self.mistake(stage.name, f"source: missing, and {teacher} is not trained on parallel text")
        if stage.depth and stage.depth not in depths:
            raise self.mistake(stage.name, f"depth: {teacher} has {', '.join(depths)}, not {stage.depth}")
        return Distillation(
            name=stage.name,
            stage=stage.name,
            left=self.folder / f"{stage.name}.txt.gz",
            needs=(teacher,),
            teacher=self.left[teacher],
            source=source,
            depth=stage.depth or depths[-1],
            beam=stage.beam,
            batch=stage.batch,
        )

    def evaluation(self, stage: EvaluateStage, run: str) -> Evaluation:
        try:
            config = loads(dump(self.configs[run]), stage.settings)
        except UserError as error:
            raise self.mistake(stage.name, str(error)) from None
        corpora = getattr(config.data, stage.on)
        if not corpora:
            raise self.mistake(stage.name, f"{run} has no data.{stage.on} to be scored on")
        for setting in ("sentences", "beam", "batch") if not isinstance(config.model, TranslatorConfig) else ():
            if getattr(stage, setting):
                raise self.mistake(stage.name, f"{setting}: is for translation, and {run} is a {config.model.type}")
        depths: tuple[str, ...] = ()
        if not learns_depth(config):
            depths = depths_of(config, stage.encoder, stage.decoder)[-1 if stage.deepest else 0 :]
            if not depths:
                raise self.mistake(stage.name, f"{run} has none of these depths, only {', '.join(depths_of(config))}")
        apart = len(known_languages(config)) > 1 and isinstance(config.model, TranslatorConfig)
        languages = tuple(corpus.key for corpus in corpora) if apart else ()
        name = f"{stage.name}_{run}"
        return Evaluation(
            name=name,
            stage=stage.name,
            left=(self.folder / name if stage.apart else self.left[run]) / "grid.json",
            needs=(run,),
            run=self.left[run],
            settings=stage.settings,
            on=stage.on,
            sentences=stage.sentences,
            depths=depths,
            languages=languages,
            beam=stage.beam or config.decoding.beam,
            batch=stage.batch or config.decoding.batch,
            exits=tuple(stage.exits) if isinstance(config.model, ClassifierConfig) else (),
        )

    def judgement(self, stage: DifficultyStage) -> Judgement:
        (run,) = self.runs[stage.of]
        language = self.judged_language(stage, run)
        if self.configs[run].training.keep < 2:
            raise self.mistake(stage.name, f"{run} keeps one checkpoint; expected training.keep of 2 or more")
        return Judgement(
            name=stage.name,
            stage=stage.name,
            left=self.left[run] / FILE,
            needs=(run,),
            checkpoints=stage.checkpoints,
            parts=stage.parts,
            language=language,
        )

    def judged_language(self, stage: DifficultyStage, run: str) -> str:
        """That of the one test set that is meant."""
        config = self.configs[run]
        try:
            key = find_language(config, stage.language or None)
        except UserError as error:
            raise self.mistake(stage.name, str(error)) from None
        found = [corpus for corpus in config.data.test if not key or corpus.key == key]
        if not found:
            raise self.mistake(stage.name, f"{run} has no data.test{f' for {key}' if key else ''} to be judged")
        if len(found) > 1 and not key:
            raise self.mistake(stage.name, f"language: missing, and {run} has {len(found)} test sets")
        return key

    def report(self, stage: ReportStage) -> Report:
        evaluations = [work for work in self.works if isinstance(work, Evaluation)]
        scored = {work.name if work.apart else work.needs[0]: work for work in evaluations}
        for run in (runs := self.named(stage.of)):
            if run not in scored:
                raise self.mistake(stage.name, f"{run} is not evaluated by a stage before it")
        curves = {run: self.left[run] for run in self.named(stage.curves)}
        shown: dict[str, tuple[Evaluation, ...]] = {}
        means: dict[str, tuple[str, ...]] = {}
        for name in stage.of:
            here = {run: scored[run] for run in self.named([name])}
            if self.are_one_grid(tuple(here.values())):
                shown[name] = tuple(here.values())
                continue
            shown |= {run: (work,) for run, work in here.items()}
            if self.differ_in_data(tuple(here.values())):
                means[name] = tuple(here)
        return Report(
            name=stage.name,
            stage=stage.name,
            left=self.folder / f"{stage.name}.html",
            needs=(*(scored[run].name for run in runs), *curves),
            shown=shown,
            curves=curves,
            means=means,
        )

    def are_one_grid(self, works: Sequence[Evaluation]) -> bool:
        """Whether there is one model for each depth; of classifiers, which have means, also one with several seeds."""
        models: dict[str, set[str]] = {}
        for work in works:
            config = self.configs[work.needs[0]]
            same = repr(replace(config, seed=0)) if isinstance(config.model, ClassifierConfig) else work.name
            for depth in work.depths:
                models.setdefault(depth, set()).add(same)
        in_one_language = not any(work.languages for work in works)
        return bool(models) and in_one_language and all(len(here) == 1 for here in models.values())

    def differ_in_data(self, works: Sequence[Evaluation]) -> bool:
        """Whether these are one kind of classifier, each on a data set of its own, with one seed or several."""
        configs = [self.configs[work.needs[0]] for work in works]
        same = {repr(replace(config, seed=0, data=configs[0].data)) for config in configs}
        sets = {repr(config.data.test) for config in configs}
        once = len({(repr(config.data.test), config.seed) for config in configs}) == len(configs)
        return isinstance(configs[0].model, ClassifierConfig) and len(same) == 1 < len(sets) and once

    def mistake(self, name: str, text: str) -> UserError:
        return UserError("\n".join(f"{self.path}: {name}: {line}" for line in text.splitlines()))


def depths_of(config: Config, encoder: Sequence[int] = (), decoder: Sequence[int] = ()) -> tuple[str, ...]:
    """The depths of a model with these settings, limited to some of either side where given; deepest last."""
    wanted, sides = {"encoder": encoder, "decoder": decoder}, []
    for name, stack in stacks_of(config.model).items():
        depths = sorted(stack.depth.build(stack.layers).plans())
        sides.append([depth for depth in depths if not wanted[name] or depth in wanted[name]])
    return tuple(depth_name(*depths) for depths in product(*sides))


def learns_depth(config: Config) -> bool:
    """Whether nobody knows before the training which layers will run."""
    return any(isinstance(stack.depth, LatentConfig) for stack in stacks_of(config.model).values())


def shapes(config: Config, parts: str | tuple[str, ...]) -> dict[str, torch.Size]:
    """Of the weights whose names begin so."""
    with torch.device("meta"):  # the words are the same: who starts from a run takes its tokenizers too
        model = config.model.build(source_vocabulary=1, target_vocabulary=1, pad=0)
    return {name: parameter.shape for name, parameter in model.named_parameters() if name.startswith(parts)}
