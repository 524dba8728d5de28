"""Training, and what builds on it."""

import os
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from anydepth.cli.app import Batch, Beam, Depth, Device, Language, RunFolder, Settings, app, complain
from anydepth.cli.showing import show_grid, show_repeated
from anydepth.errors import UserError
from anydepth.evaluation.texts import read_test_sets
from anydepth.progress import progress_for
from anydepth.reporting.evaluating import evaluate_run


@app.command()
def quickstart(
    out: Annotated[Path, typer.Option(metavar="RUN", help="Folder for the run.")] = Path("runs/quickstart"),
    settings: Settings = None,
) -> None:
    """Train, evaluate and report a small model on the built-in corpus."""
    from anydepth.config import load
    from anydepth.evaluation.cells import deepest, depth_name, fastest_within
    from anydepth.run import load as load_run
    from anydepth.training.loop import train

    config = load(Path(__file__).parent.parent / "quickstart.toml", settings or ())
    try:
        train(config, out, resume=(out / "config.toml").exists())
    except KeyboardInterrupt:
        complain("the same command goes on from there")
        raise
    grid = evaluate_run(load_run(out), out, read_test_sets(out))
    show_grid(grid)
    print(f"The report is in {out / 'report.html'}. Now translate something yourself:\n")
    text = shlex.quote(min((sample["source"] for sample in grid["samples"]), key=len))
    cells = deepest(grid["cells"]), fastest_within(grid["cells"], 1.0)
    for depth in dict.fromkeys(depth_name(cell) for cell in cells):
        print(f"    echo {text} | anydepth translate {out} --depth {depth}")


@app.command()
def train(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE.toml", help="The settings of the training.")],
    out: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Folder for the run. Default: runs/ and the recipe's name.")
    ] = None,
    settings: Settings = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")] = False,
) -> None:
    """Train the model that a recipe describes."""
    from anydepth.config import load
    from anydepth.training.loop import train

    folder, first = out or Path("runs") / recipe.stem, os.environ.get("RANK", "0") == "0"
    try:
        train(load(recipe, settings or ()), folder, resume=resume)
    except KeyboardInterrupt:
        if first and (folder / "config.toml").exists():
            complain(f"the run in {folder} can go on with --resume")
        raise
    if first:
        print(f"The run is in {folder}. Next: anydepth evaluate {folder}")


@app.command()
def repeat(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE.toml", help="The settings of the training.")],
    seeds: Annotated[str, typer.Option(metavar="N,…", help="A training for each of these seeds.")] = "1,2,3",
    folds: Annotated[
        int,
        typer.Option(min=0, help="Cross-validation: cut the training files into so many parts, test on each in turn."),
    ] = 0,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Default: runs/ and the recipe's name.")] = None,
    settings: Settings = None,
) -> None:
    """Train and score a recipe several times, and show the means of classifiers; finished runs are skipped."""
    from anydepth.chain.repeating import repeat

    if not all(seed.strip().isdigit() for seed in seeds.split(",")):
        raise UserError(f"--seeds {seeds}: expected numbers, such as 1,2,3")
    folder = out or Path("runs") / recipe.stem
    runs = repeat(recipe, folder, [int(seed) for seed in seeds.split(",")], folds, settings or ())
    if os.environ.get("RANK", "0") == "0":
        show_repeated(recipe.stem, list(runs.values()))
        print(f"The runs are in {folder}, the report in {folder / 'report.html'}.")


@app.command()
def chain(
    stages: Annotated[Path, typer.Argument(metavar="CHAIN.toml", help="Trainings and what is made of them, in order.")],
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Default: runs/ and the chain's name.")] = None,
    settings: Settings = None,
    recipe: Annotated[
        Path | None, typer.Option(metavar="RECIPE.toml", help="Take this instead of the chain's own recipe.")
    ] = None,
    only: Annotated[
        str, typer.Option(metavar="NAME,…", help="Do these stages, or single runs of them, and no others.")
    ] = "",
    jobs: Annotated[
        int, typer.Option(min=1, help="Pieces of work done at the same time, each by a process of its own.")
    ] = 1,
    list_only: Annotated[bool, typer.Option("--list", help="Print the state of every stage and do nothing.")] = False,
) -> None:
    """Do several trainings that build on one another; finished stages are skipped, interrupted ones go on."""
    from anydepth.chain import list_chain, run_chain, run_side_by_side

    folder = out or Path("runs") / stages.stem
    if list_only:
        for work, state in list_chain(stages, folder, recipe=recipe, settings=settings or ()):
            print(f"{state:16}{work.kind:12}{work.name}")
        return
    names = [name.strip() for name in only.split(",") if name.strip()]
    given: dict[str, Any] = {"recipe": recipe, "settings": settings or (), "only": names}
    left = run_chain(stages, folder, **given) if jobs == 1 else run_side_by_side(stages, folder, jobs, **given)
    if os.environ.get("RANK", "0") == "0":
        print(f"The chain is done, in {folder}.")
        for page in (path for path in left.values() if path.suffix == ".html"):
            print(f"The report is in {page}.")


@app.command()
def distill(
    run: RunFolder,
    source: Annotated[Path, typer.Option(metavar="FILE", help="Texts to translate, one a line, also .gz.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Their translations, line by line; .gz compresses.")],
    depth: Depth = None,
    beam: Beam = None,
    batch: Batch = None,
    block: Annotated[
        int | None, typer.Option(help="Lines written at a time: what a kill can cost. Default: 4000.")
    ] = None,
    shard: Annotated[str, typer.Option(metavar="K/N", help="Do only the K-th of N shares of the work.")] = "1/1",
    language: Language = None,
    device: Device = "auto",
) -> None:
    """Translate a corpus for students to learn from; the same command goes on after a kill."""
    from anydepth.data.distillation import BLOCK, device_of_rank, distill, parse_shard
    from anydepth.run import load

    share, first = parse_shard(shard), os.environ.get("RANK", "0") == "0"
    loaded = load(run, device_of_rank(device)).in_language(language)
    size = BLOCK if block is None else block
    with progress_for("distilling", "sentences", visible=first) as show:
        made = distill(loaded, source, out, depth, beam=beam, batch=batch, block=size, shard=share, progress=show)
    if not first:
        return
    if made.missing:
        print(f"This share is done. Other shares miss {made.missing} blocks; the last one to end writes {out}.")
        return
    print(f"{out} was finished before: nothing to do." if made.made_before else f"{out} has {made.lines} lines.")
    if made.skips.total:
        complain(f"{made.skips.total} of its lines are empty: {made.skips.summary().partition(': ')[2]}")
