"""One recipe trained several times: with other seeds, on other parts of its data (cross-validation), or both."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from anydepth.chain.running import check_all, do_all
from anydepth.chain.work import Evaluation, Report, Training, Work
from anydepth.config import Config
from anydepth.config import load as load_config
from anydepth.data.labelled import Labelled
from anydepth.encoder_models import ClassifierConfig
from anydepth.errors import UserError
from anydepth.tasks.classification import with_labels


def repeat(
    recipe: Path,
    folder: Path,
    seeds: Sequence[int],
    folds: int = 0,
    settings: Sequence[str] = (),
) -> dict[str, Path]:
    """Trains and scores a recipe for every seed and, with `folds`, every part of its training corpora as the test set;
    one page shows them, and the means of classifiers. What is done already is skipped. Gives the folder of each run."""
    config = with_labels(load_config(recipe, settings)) if folds else load_config(recipe, settings)
    if (folder / "config.toml").exists():
        raise UserError(f"{folder} holds a run: give another --out for several")
    if not seeds or len(set(seeds)) < len(seeds):
        raise UserError("--seeds: expected different numbers, at least one")
    runs = {
        "_".join([*([f"fold_{fold}"] if folds else []), f"seed_{seed}"]): replace(
            folded(config, fold, folds) if folds else config, seed=seed
        )
        for fold in range(folds or 1)
        for seed in seeds
    }
    works: list[Work] = []
    for name, each in runs.items():
        data = each.data if each.data.cache else replace(each.data, cache=str(folder / "tokenized-data"))
        works.append(Training(name=name, stage="train", left=folder / name, config=replace(each, data=data)))
        if each.data.test:
            works.append(scoring(name, folder, each))
    if config.data.test or folds:
        scored = tuple(work for work in works if isinstance(work, Evaluation))
        shown: dict[str, tuple[Evaluation, ...]] = {work.needs[0]: (work,) for work in scored}
        if isinstance(config.model, ClassifierConfig):  # of other scores there are no means yet
            shown = {recipe.stem: scored}
        needs, page = tuple(work.name for work in scored), folder / "report.html"
        works.append(Report(name="report", stage="report", left=page, needs=needs, shown=shown, curves={}))
    check_all(works)
    do_all(works, folder)
    return {name: folder / name for name in runs}


def scoring(name: str, folder: Path, config: Config) -> Evaluation:
    return Evaluation(
        name=f"score_{name}",
        stage="scores",
        left=folder / name / "grid.json",
        needs=(name,),
        run=folder / name,
        depths=(),
        languages=(),
        beam=config.decoding.beam,
        batch=config.decoding.batch,
    )


def folded(config: Config, fold: int, folds: int) -> Config:
    """With one part of the training corpora to test on and, if the recipe validates, the next one for that."""
    corpora = [corpus for corpus in config.data.train if isinstance(corpus, Labelled)]
    if folds < (least := 2 + bool(config.data.dev)):
        parts = "train, validate and test on" if config.data.dev else "train and test on"
        raise UserError(f"--folds {folds}: too few parts to {parts}; expected {least} or more")
    if len(corpora) < len(config.data.train):
        raise UserError("--folds: cuts labelled files into parts; data.train has something else")
    held = (fold, (fold + 1) % folds) if config.data.dev else (fold,)
    train, test, dev = (
        tuple(replace(corpus, folds=folds, take=take, leave=leave) for corpus in corpora)
        for take, leave in (((), held), (held[:1], ()), (held[1:], ()))
    )
    return replace(config, data=replace(config.data, train=train, test=test, dev=dev if config.data.dev else ()))
