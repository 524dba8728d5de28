"""How good a run is, and why."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from anydepth.cli.app import Batch, Beam, Depth, Device, Json, Language, RunFolder, RunSettings, app
from anydepth.cli.asking import parse_depths
from anydepth.cli.showing import report_runs, show_grid
from anydepth.errors import UserError
from anydepth.evaluation.texts import corpora_for_test, read_test_set, read_test_sets
from anydepth.progress import progress_bar, progress_for
from anydepth.reporting.evaluating import evaluate_encoder, evaluate_run, notes_of


@app.command()
def evaluate(
    run: RunFolder,
    source: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Texts to translate or summarize. Default: the recipe's test set."),
    ] = None,
    reference: Annotated[Path | None, typer.Option(metavar="FILE", help="Their translations or summaries.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Masked language model: text, one a line. Classifier: label, tab, text."),
    ] = None,
    depths: Annotated[str, typer.Option(metavar="E-D,…", help="all, or depths such as 6-6,6-2.")] = "all",
    exits: Annotated[
        str, typer.Option(metavar="RULE,…", help="Classifier: leave early, at a probability (0.9) or by 'patience 2'.")
    ] = "",
    text: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Classifier: show in the report how deep its words are read; repeatable."),
    ] = None,
    beam: Beam = None,
    batch: Batch = None,
    lowercase: Annotated[bool, typer.Option("--lowercase", help="Score without regard to case.")] = False,
    language: Language = None,
    settings: RunSettings = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the evaluation. Default: the run's own.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Score and time a run at many depths, in all its languages: grid.json and report.html."""
    from anydepth.classifying.leaving import Rule
    from anydepth.config import load as load_config
    from anydepth.data.corpora import Labelled, Text
    from anydepth.run import load

    changes = settings or []
    notes = notes_of(run, changes, out)
    wanted, folder = parse_depths(depths), out or run
    is_run = (run / "config.toml").is_file()
    kind = load_config(run / "config.toml", changes).model.type if is_run else "translator"
    if exits and is_run and kind != "classifier":
        raise UserError("--exits is for classifiers: it says when a text has been read deep enough")
    if text and is_run and kind != "classifier":
        raise UserError("--text is for classifiers: it shows how deep words are read")
    if kind != "translator":
        flags: dict[str, Any] = {"source": source, "reference": reference, "beam": beam, "lowercase": lowercase or None}
        flags |= {"batch": batch} if kind == "masked-lm" else {}
        for flag, given in flags.items():
            if given is not None:
                raise UserError(f"--{flag} is for translation: a {kind} takes --data")
        if batch is not None and batch < 0:
            raise UserError(f"--batch {batch}: expected 0 or more")
        loaded = load(run, device, settings=changes).in_language(language)
        own = (Text if kind == "masked-lm" else Labelled)(path=str(data), key=loaded.key)
        corpora = [own] if data else corpora_for_test(run, changes, language)
        rules = [Rule.parse(rule) for rule in exits.split(",")] if exits else []
        grid = evaluate_encoder(loaded, folder, corpora, wanted, batch or 0, rules, text or (), notes)
    else:
        if data:
            raise UserError("--data is for models without a decoder: give --source and --reference")
        test_sets = read_test_sets(run, source, reference, changes, language)
        loaded = load(run, device, settings=changes)
        if lowercase and loaded.config.data.pairs == "summaries":
            raise UserError("--lowercase: ROUGE never looks at case")
        grid = evaluate_run(loaded, folder, test_sets, wanted, beam, batch, lowercase, notes)
    show_grid(grid)
    print(f"The report is in {folder / 'report.html'}.")


@app.command()
def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...", help="Evaluated runs. NAME=RUN,RUN,… shows several, such as one for each depth, as one."
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The page to write.")] = Path("report.html"),
    baseline: Annotated[
        str, typer.Option(metavar="NAME", help="The run that the others are held against. Default: the first.")
    ] = "",
    pictures: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also write each of its figures there, as an SVG file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Put one run, or several compared, on one HTML page."""
    report_runs(runs, out, baseline, as_json)
    if pictures:
        from anydepth.reporting.pictures import write_pictures

        print(f"{len(write_pictures(out, pictures))} figures are in {pictures}.", file=sys.stderr if as_json else None)


@app.command()
def oracle(run: RunFolder, as_json: Json = False) -> None:
    """Show what the best depth for every sentence would give, and which depths that takes."""
    from anydepth.evaluation.records import read_records
    from anydepth.reporting.terminal import print_oracle
    from anydepth.selecting.oracle import oracle

    (record,) = read_records([run])
    with progress_bar("scoring") as bar:
        task = bar.add_task("", total=None)
        found = oracle(record, lambda done, total: bar.update(task, completed=done, total=total))
    if as_json:
        print(json.dumps(found.as_json(), indent=1))
    else:
        print_oracle(Console(highlight=False), found)


@app.command()
def difficulty(
    run: RunFolder,
    source: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Texts to judge. Default: the recipe's test set.")
    ] = None,
    reference: Annotated[Path | None, typer.Option(metavar="FILE", help="Their translations or summaries.")] = None,
    checkpoints: Annotated[int, typer.Option(help="The last so many, or as many as there are.")] = 20,
    parts: Annotated[int, typer.Option(help="Equal parts to cut the test set into.")] = 4,
    language: Language = None,
    device: Device = "auto",
) -> None:
    """Judge how difficult every test sentence is; reports then score runs on easy and difficult ones."""
    from anydepth.evaluation.difficulty import judge
    from anydepth.reporting.report import write_report

    test_set = read_test_set(run, source, reference, language=language)
    asked: dict[str, Any] = {"checkpoints": checkpoints, "parts": parts, "language": language, "device": device}
    with progress_for("judging", "checkpoints") as show:
        found = judge(run, test_set, **asked, progress=show)
    page = write_report([run], run / "report.html")
    print(f"{len(found.part)} sentences in {parts} parts, by {len(found.steps)} checkpoints. The report is in {page}.")


@app.command()
def attention(
    run: RunFolder,
    text: Annotated[list[str], typer.Option(metavar="TEXT", help="A text to translate or summarize; may be repeated.")],
    depth: Depth = None,
    language: Language = None,
    device: Device = "auto",
) -> None:
    """Show in the report where the words of a translation, or of a summary, look."""
    from anydepth.evaluation.attention import write_attention
    from anydepth.reporting.report import write_report
    from anydepth.run import load

    write_attention(load(run, device).in_language(language), text, depth)
    print(f"The report is in {write_report([run], run / 'report.html')}.")
