"""The command line. Each verb is a few lines around the function that does the work.

What the user got wrong is one line on stderr and exit code 2. Torch is imported by the verbs that need it, so that
`anydepth --help` answers at once.
"""

import io
import json
import os
import shlex
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from anydepth.errors import UserError
from anydepth.verbs import (
    automatic_depth,
    corpora_for_test,
    evaluate_encoder,
    evaluate_run,
    load_for,
    margin_of,
    notes_of,
    parse_depths,
    parse_numbers,
    print_outputs,
    progress_bar,
    progress_for,
    read_calibration_texts,
    read_test_set,
    read_test_sets,
    read_texts,
    report_runs,
    say_how_many_were_cut,
    show_depths,
    show_grid,
    show_repeated,
    show_words,
    telling_chosen_depths,
)

app = typer.Typer(
    help="One Transformer, trained once, run at any depth. A depth is written encoder-decoder layers: 6-2.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder made by `anydepth train`.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Change a setting of the recipe; may be repeated."),
]
RunSettings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Change a setting of the run for this call; may be repeated."),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …; auto takes a GPU where there is one.")]
Beam = Annotated[int | None, typer.Option(help="Hypotheses kept per sentence; 1 is greedy. Default: the recipe's.")]
Batch = Annotated[int | None, typer.Option(help="Sentences decoded together. Default: the recipe's.")]
Language = Annotated[
    str | None,
    typer.Option(metavar="en-de", help="Language pair, of a run with several: a key of its training corpora."),
]
Engine = Annotated[
    Literal["native", "ctranslate2"],
    typer.Option(help="ctranslate2: that engine, on the CPU, with an export that the run's folder keeps."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def main() -> None:
    """The entry point: mistakes become one line, Ctrl-C exit code 130."""
    warnings.showwarning = lambda message, *_: print(f"anydepth: warning: {message}", file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")  # as all text we read is, whatever the locale
    try:
        sys.exit(app(standalone_mode=False))
    except UserError as error:
        complain(str(error))
    except OSError as error:
        if error.filename is None:
            raise
        complain(f"{error.filename}: {error.strerror}")
    except Exception as error:
        # typer's own complaints about flags; their class moves between its versions
        if not hasattr(error, "format_message"):
            raise
        complain(error.format_message())
    sys.exit(2)


def complain(text: str) -> None:
    for line in text.splitlines():
        print(f"anydepth: {line}", file=sys.stderr)


def version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version as installed

        print(installed("anydepth"))
        raise typer.Exit


@app.callback()
def anydepth(
    version: Annotated[bool, typer.Option("--version", callback=version, is_eager=True, help="Print it.")] = False,
) -> None:
    pass


# ---- training


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

    config = load(Path(__file__).parent / "quickstart.toml", settings or ())
    train(config, out, resume=(out / "config.toml").exists())
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

    folder = out or Path("runs") / recipe.stem
    train(load(recipe, settings or ()), folder, resume=resume)
    if os.environ.get("RANK", "0") == "0":
        print(f"The run is in {folder}. Next: anydepth evaluate {folder}")


@app.command()
def repeat(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE.toml", help="The settings of the training.")],
    seeds: Annotated[str, typer.Option(metavar="N,…", help="A training for each of these seeds.")] = "1,2,3",
    folds: Annotated[
        int, typer.Option(help="Cross-validation: cut the training files into so many parts, test on each in turn.")
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
            print(f"{state:16}{work.kind:10}{work.name}")
        return
    names = [name.strip() for name in only.split(",") if name.strip()]
    given: dict[str, Any] = {"recipe": recipe, "settings": settings or (), "only": names}
    left = run_chain(stages, folder, **given) if jobs == 1 else run_side_by_side(stages, folder, jobs, **given)
    if os.environ.get("RANK", "0") == "0":
        print(f"The chain is done, in {folder}.")
        for page in (path for path in left.values() if path.suffix == ".html"):
            print(f"The report is in {page}.")


# ---- using a run


@app.command()
def translate(
    run: RunFolder,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="One text a line, also .gz. Default: stdin.")
    ] = None,
    depth: Annotated[
        str | None,
        typer.Option(
            metavar="E-D|auto",
            help="Depth, such as 6-2; auto: the fastest not significantly worse than the best. Default: the deepest.",
        ),
    ] = None,
    budget_ms: Annotated[
        float | None,
        typer.Option(metavar="MS", help="Milliseconds for a sentence: each batch at the best depth that is in time."),
    ] = None,
    beam: Beam = None,
    n_best: Annotated[
        int | None,
        typer.Option(help="Translations per text, printed as line number, score and text with tabs between."),
    ] = None,
    batch: Batch = None,
    sample: Annotated[bool, typer.Option("--sample", help="Draw words at random instead of searching.")] = False,
    temperature: Annotated[float | None, typer.Option(help="Sampling: above 1 is more varied.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sampling: draw from the k most probable words.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Sampling: draw from words that together reach p.")] = None,
    seed: Annotated[int | None, typer.Option(help="Sampling: equal seeds, equal translations.")] = None,
    speculate: Annotated[
        bool, typer.Option("--speculate", help="Greedy search sped up by drafts of a shallow exit: the same output.")
    ] = False,
    draft: Annotated[int | None, typer.Option(help="Speculation: decoder layers that draft.")] = None,
    draft_words: Annotated[int | None, typer.Option(help="Speculation: words drafted at a time.")] = None,
    exit: Annotated[
        int | None,
        typer.Option(help="Greedy search in which words stop after so many decoder layers where the model is sure."),
    ] = None,
    exit_margin: Annotated[
        float | None, typer.Option(help="How sure, from 0 to 1. Default: what `anydepth confidence` found.")
    ] = None,
    language: Language = None,
    engine: Engine = "native",
    settings: RunSettings = None,
    device: Device = "auto",
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Write here. Default: stdout.")] = None,
) -> None:
    """Translate text, one sentence a line, at any depth."""
    check_output(output)
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    for name, value in sampling.items():
        if value is not None and not sample:
            raise UserError(f"--{name.replace('_', '-')} is for sampling: give --sample as well")
    for name, value in {"draft": draft, "draft_words": draft_words}.items():
        if value is not None and not speculate:
            raise UserError(f"--{name.replace('_', '-')} is for speculation: give --speculate as well")
    if exit_margin is not None and exit is None:
        raise UserError("--exit-margin is for early exits: give --exit as well")
    if exit is not None and (depth == "auto" or budget_ms is not None):
        raise UserError("--exit: how sure it must be depends on the depth; give that, without --budget-ms")
    for name, given in {"speculate": speculate, "exit": exit is not None}.items():
        if given and engine != "native":
            raise UserError(f"--{name}: not with --engine {engine}")
        beam = 1 if given and beam is None else beam
    loaded = load_for(engine, run, device, settings or (), language)
    decoding: dict[str, Any] = {"beam": beam, "batch": batch, "sample": sample, **sampling}
    decoding |= {"speculate": speculate, "draft": draft, "draft_words": draft_words}
    decoding |= {"exit": exit, "exit_margin": margin_of(loaded, depth, exit) if exit_margin is None else exit_margin}
    decoding["n_best"] = 1 if n_best is None else n_best
    if depth == "auto" and budget_ms is None:
        depth = automatic_depth(loaded, decoding)
    how = partial(loaded.translations, depth=depth, budget_ms=budget_ms, **decoding)
    print_outputs(how if budget_ms is None else telling_chosen_depths(how), file, n_best, output, "translating")


@app.command()
def summarize(
    run: RunFolder,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="One document a line, also .gz. Default: stdin.")
    ] = None,
    depth: Annotated[str | None, typer.Option(metavar="E-D", help="Depth, such as 6-2. Default: the deepest.")] = None,
    beam: Beam = None,
    n_best: Annotated[
        int | None,
        typer.Option(help="Summaries per document, printed as line number, score and text with tabs between."),
    ] = None,
    batch: Batch = None,
    min_length: Annotated[
        int | None, typer.Option(help="Tokens of a summary, at least. Default: the recipe's.")
    ] = None,
    max_length: Annotated[int | None, typer.Option(help="Tokens of a summary, at most. Default: the recipe's.")] = None,
    language: Language = None,
    settings: RunSettings = None,
    device: Device = "auto",
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Write here. Default: stdout.")] = None,
) -> None:
    """Summarize documents, one a line, at any depth."""
    from anydepth.run import load

    check_output(output)
    loaded = load(run, device, settings=settings or ()).in_language(language)
    decoding: dict[str, Any] = {"beam": beam, "batch": batch, "min_length": min_length, "max_length": max_length}
    decoding["n_best"] = 1 if n_best is None else n_best
    texts = print_outputs(partial(loaded.summaries, depth=depth, **decoding), file, n_best, output, "summarizing")
    say_how_many_were_cut(loaded, texts)


def check_output(output: Path | None) -> None:
    if output and not output.parent.is_dir():
        raise UserError(f"--output {output}: there is no folder {output.parent}")


@app.command()
def classify(
    run: RunFolder,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="One text a line, also .gz. Default: stdin.")
    ] = None,
    depth: Annotated[
        str | None,
        typer.Option(metavar="D|adaptive", help="Layers, such as 4, or until the answer is sure. Default: all."),
    ] = None,
    leave: Annotated[
        str, typer.Option("--exit", metavar="RULE", help="When it is, for --depth adaptive: 0.9, or 'patience 2'.")
    ] = "0.9",
    batch: Annotated[int, typer.Option(help="Texts classified together; 0 means as many as are good.")] = 0,
    settings: RunSettings = None,
    device: Device = "auto",
    show: Annotated[bool, typer.Option("--show", help="Show the words in the colour of their depth.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object a line, with the probabilities of all labels.")
    ] = False,
) -> None:
    """Say which label each text has, one text a line: label, probability, text."""
    from anydepth.run import load

    if batch < 0:
        raise UserError(f"--batch {batch}: expected 0 or more")
    texts = read_texts(file)
    loaded = load(run, device, settings=settings or ())
    with progress_bar("classifying", visible=not sys.stdout.isatty()) as bar:
        task = bar.add_task("", total=len(texts))
        found = loaded.classify(
            texts, depth, batch=batch, leave=leave, progress=lambda done, total: bar.update(task, completed=done)
        )
    if show:
        return show_words(found, len(loaded.plan().encoder))
    for text, one in zip(texts, found):
        plain = f"{one.label}\t{one.probability:.4f}\t{text}"
        print(json.dumps(one._asdict(), ensure_ascii=False) if as_json else plain)


@app.command()
def distill(
    run: RunFolder,
    source: Annotated[Path, typer.Option(metavar="FILE", help="Texts to translate, one a line, also .gz.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Their translations, line by line; .gz compresses.")],
    depth: Annotated[str | None, typer.Option(metavar="E-D", help="Depth, such as 6-2. Default: the deepest.")] = None,
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
    from anydepth.choosing.leaving import Rule
    from anydepth.config import load as load_config
    from anydepth.data.corpora import Labelled, Text
    from anydepth.run import load

    changes = settings or []
    notes = notes_of(run, changes, out)
    wanted, folder = parse_depths(depths), out or run
    is_run = (run / "config.toml").is_file()
    kind = load_config(run / "config.toml", changes).model.type if is_run else "translator"
    if kind != "translator":
        flags: dict[str, Any] = {"source": source, "reference": reference, "beam": beam, "lowercase": lowercase or None}
        flags |= {"batch": batch, "exits": exits or None} if kind == "masked-lm" else {}
        for flag, given in flags.items():
            if given is not None:
                raise UserError(f"--{flag} is for translation: a {kind} takes --data")
        own = Text(path=str(data)) if kind == "masked-lm" else Labelled(path=str(data))
        corpora = [own] if data else corpora_for_test(run, changes, language)
        loaded = load(run, device, settings=changes).in_language(language)
        rules = [Rule.parse(rule) for rule in exits.split(",")] if exits else []
        grid = evaluate_encoder(loaded, folder, corpora, wanted, batch or 0, rules, notes)
    else:
        if data:
            raise UserError("--data is for models without a decoder: give --source and --reference")
        if exits:
            raise UserError("--exits is for classifiers: it says when a text has been read deep enough")
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
    as_json: Json = False,
) -> None:
    """Put one run, or several compared, on one HTML page."""
    report_runs(runs, out, baseline, as_json)


@app.command()
def calibrate(
    run: RunFolder,
    source: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Texts to measure with. Default: the recipe's test or dev set.")
    ] = None,
    depths: Annotated[
        str | None,
        typer.Option(
            metavar="E-D,…",
            help="all, or depths such as 6-6,6-2. Default: all that no smaller one equals.",
        ),
    ] = None,
    batches: Annotated[
        str | None, typer.Option(metavar="N,…", help="Batch sizes. Default: 1,8,32; with --quick 1.")
    ] = None,
    beam: Beam = None,
    quick: Annotated[bool, typer.Option("--quick", help="Measure less.")] = False,
    language: Language = None,
    engine: Engine = "native",
    device: Device = "auto",
) -> None:
    """Measure how long every depth takes on this machine, for `translate --budget-ms` and `--depth auto`."""
    from anydepth.choosing.budget import worthwhile_depths
    from anydepth.choosing.calibration import keep
    from anydepth.choosing.measuring import BATCHES, QUICK_ROUNDS, ROUNDS, calibrate
    from anydepth.choosing.tables import print_calibration

    texts = read_calibration_texts(run, source, language)
    loaded = load_for(engine, run, device, (), language)
    sizes = parse_numbers("--batches", batches) if batches is not None else (1,) if quick else BATCHES
    with progress_for("calibrating", "measurements") as show:
        made = calibrate(
            loaded,
            texts,
            worthwhile_depths(loaded) if depths is None else parse_depths(depths),
            batches=sizes,
            beam=beam,
            rounds=QUICK_ROUNDS if quick else ROUNDS,
            progress=show,
        )
    file = keep(made, run)
    print_calibration(Console(highlight=False), made)
    print(f"The calibration is in {file}.")


@app.command()
def confidence(
    run: RunFolder,
    exit: Annotated[int, typer.Option(help="Decoder layers after which words may stop.")] = 1,
    depth: Annotated[str | None, typer.Option(metavar="E-D", help="Depth, such as 6-2. Default: the deepest.")] = None,
    risk: Annotated[
        float, typer.Option(help="1 − chrF / 100 between outputs and those of full depth, at most.")
    ] = 0.05,
    confidence: Annotated[float, typer.Option(help="How certain it should be that the risk is kept.")] = 0.95,
    source: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Texts to test with. Default: the recipe's test or dev set.")
    ] = None,
    language: Language = None,
    device: Device = "auto",
) -> None:
    """Find how sure a shallow exit must be for its words to be those of full depth, for `translate --exit`."""
    from anydepth.choosing.confidence import calibrate_exit, keep_confidence
    from anydepth.choosing.tables import print_confidence
    from anydepth.run import load

    texts = read_calibration_texts(run, source, language)
    loaded = load(run, device).in_language(language)
    with progress_for("testing", "margins") as show:
        found = calibrate_exit(loaded, texts, depth, exit, risk=risk, confidence=confidence, progress=show)
    file = keep_confidence(found, run)
    print_confidence(Console(highlight=False), found)
    print(f"The margin is in {file}.")


@app.command()
def oracle(run: RunFolder, as_json: Json = False) -> None:
    """Show what the best depth for every sentence would give, and which depths that takes."""
    from anydepth.choosing.oracle import oracle
    from anydepth.evaluation.records import read_records
    from anydepth.evaluation.terminal import print_oracle

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
    checkpoints: Annotated[int, typer.Option(help="The last so many, or as many as there are.")] = 20,
    parts: Annotated[int, typer.Option(help="Equal parts to cut the test set into.")] = 4,
    device: Device = "auto",
) -> None:
    """Judge how difficult every test sentence is; reports then score runs on easy and difficult ones."""
    from anydepth.evaluation.difficulty import judge
    from anydepth.evaluation.report import write_report

    source, reference = read_test_set(run)
    with progress_for("judging", "checkpoints") as show:
        found = judge(run, source, reference, checkpoints=checkpoints, parts=parts, device=device, progress=show)
    page = write_report([run], run / "report.html")
    print(f"{len(source)} sentences in {parts} parts, by {len(found.steps)} checkpoints. The report is in {page}.")


@app.command()
def attention(
    run: RunFolder,
    text: Annotated[list[str], typer.Option(metavar="TEXT", help="A sentence to translate; may be repeated.")],
    depth: Annotated[str | None, typer.Option(metavar="E-D", help="Depth, such as 6-2. Default: the deepest.")] = None,
    language: Language = None,
    device: Device = "auto",
) -> None:
    """Show in the report where the words of a translation look."""
    from anydepth.evaluation.attention import write_attention
    from anydepth.evaluation.report import write_report
    from anydepth.run import load

    write_attention(load(run, device).in_language(language), text, depth)
    print(f"The report is in {write_report([run], run / 'report.html')}.")


@app.command()
def export(
    run: RunFolder,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write.")],
    to: Annotated[
        Literal["anydepth", "ctranslate2", "huggingface"],
        typer.Option(help="A run of its own, as small as the depth; a CTranslate2 model; one that transformers loads."),
    ],
    depth: Annotated[str | None, typer.Option(metavar="E-D", help="Depth, such as 6-2. Default: the deepest.")] = None,
    language: Annotated[
        str | None,
        typer.Option(metavar="en-de|all", help="One of a run's languages, or all with what any of them uses."),
    ] = None,
    quantization: Annotated[
        str | None, typer.Option(metavar="int8|…", help="For ctranslate2: the type its weights are kept in.")
    ] = None,
) -> None:
    """Write one depth, or one language, of a run as a model of its own or for another engine."""
    from anydepth.interop.export import export_run
    from anydepth.run import load

    export_run(load(run, "cpu"), out, to, depth, language, quantization)
    print(f"The model is in {out}.")


@app.command()
def sizes(
    run: RunFolder,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the exports and the report.")],
    depths: Annotated[str, typer.Option(metavar="E-D,…", help="all, or depths such as 6-6,6-2.")] = "all",
    to: Annotated[
        Literal["anydepth", "ctranslate2"], typer.Option(help="Runs of their own, or CTranslate2 models.")
    ] = "anydepth",
    quantization: Annotated[
        str | None, typer.Option(metavar="int8|…", help="For ctranslate2: the type its weights are kept in.")
    ] = None,
    source: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Texts to translate. Default: the recipe's test set.")
    ] = None,
    reference: Annotated[Path | None, typer.Option(metavar="FILE", help="Their translations.")] = None,
    beam: Beam = None,
    language: Language = None,
    device: Device = "auto",
) -> None:
    """Export several depths and compare them: quality, latency, memory, bytes; which to take for which budget."""
    from anydepth.choosing.sizes import make_sizes
    from anydepth.choosing.sizes_page import print_sizes, write_sizes
    from anydepth.run import load

    test_sets = read_test_sets(run, source, reference, language=language)
    if len(test_sets) > 1:
        raise UserError(f"{run}: its recipe names {len(test_sets)} test sets; give --language")
    ((texts, references),) = test_sets.values()
    loaded = load(run, device if to == "anydepth" else "cpu").in_language(language)
    wanted = parse_depths(depths) or loaded.depths()
    with progress_bar("sizes") as bar:
        task = bar.add_task("", total=None)
        found = make_sizes(
            loaded,
            wanted,
            out,
            texts,
            references,
            to=to,
            quantization=quantization,
            beam=beam,
            progress=lambda what: bar.update(task, description=what),
        )
    page = write_sizes(found, out)
    print_sizes(Console(highlight=False), found)
    print(f"The exports are in {out}, the report is in {page}.")


@app.command()
def serve(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Folders; en-de=RUN where a run does not know its languages."),
    ],
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0 is all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen at.")] = 5000,
    batch: Batch = None,
    queue: Annotated[int, typer.Option(min=1, help="Texts that may wait for a run; more are refused (429).")] = 1000,
    max_characters: Annotated[int, typer.Option(min=1, help="In a request.")] = 10_000,
    max_texts: Annotated[int, typer.Option(min=1, help="In a request.")] = 64,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds that a request waits for its answer.")] = 30.0,
    api_keys: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keys, one a line; clients must send one of them.")
    ] = None,
    cors: Annotated[
        list[str] | None, typer.Option(metavar="ORIGIN", help="Web pages that may call the server; may be repeated.")
    ] = None,
    log_texts: Annotated[bool, typer.Option("--log-texts", help="Write the texts into the log, too.")] = False,
    device: Device = "auto",
) -> None:
    """Answer requests over HTTP, as LibreTranslate does, at the depth that clients ask for or the load allows."""
    from anydepth.serving.server import serve

    serve(
        runs,
        host,
        port,
        device,
        batch=batch,
        queue=queue,
        key_file=api_keys,
        characters=max_characters,
        texts=max_texts,
        timeout=timeout,
        origins=cors or (),
        log_texts=log_texts,
    )


# ---- looking ahead


@app.command()
def describe(
    recipe_or_run: Annotated[Path, typer.Argument(metavar="RECIPE|RUN", help="A recipe.toml or a run's folder.")],
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Count the parameters, FLOPs and cache of every depth."""
    from anydepth.describe import describe_path, table

    description = describe_path(recipe_or_run, settings or ())
    if as_json:
        print(json.dumps(description, indent=1))
    else:
        Console(highlight=False).print(table(description))


@app.command()
def depths(
    recipe_or_run: Annotated[Path, typer.Argument(metavar="RECIPE|RUN", help="A recipe.toml or a run's folder.")],
    method: Annotated[
        Literal["mi", "reconstruction"],
        typer.Option(help="mi: what words tell about labels. reconstruction: how hard they are to guess."),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Depths, TSV or JSONL; beside it a picture, .png.")],
    text: Annotated[str, typer.Option(metavar="TEXT", help="A text whose words are drawn, too.")] = "",
    model: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Reconstruction: the masked language model that guesses.")
    ] = None,
    penalty: Annotated[float, typer.Option(help="Reconstruction: λ, what a layer costs.")] = 0.1,
    every: Annotated[int, typer.Option(help="Reconstruction: hide one word in so many at once; 0: one at a time.")] = 0,
    texts: Annotated[int, typer.Option(help="Reconstruction: only the first so many texts; 0: all.")] = 0,
    compare: Annotated[
        bool, typer.Option("--compare", help="Reconstruction: compare with hiding one word at a time.")
    ] = False,
    settings: Settings = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Estimate how many layers words need: by training labels, or by a masked language model for the test texts."""
    from anydepth.estimating.command import estimate_information, estimate_reconstruction

    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}")
    if min(every, texts, penalty) < 0:
        raise UserError("--every, --texts, --penalty: expected 0 or more")
    changes = tuple(settings or ())
    if method == "mi":
        found = estimate_information(recipe_or_run, out, changes, text)
    else:
        found = estimate_reconstruction(
            recipe_or_run, out, model, changes, text, penalty, every, texts, compare, device
        )
    show_depths(found, as_json)


@app.command()
def subnetworks(
    layers: Annotated[int, typer.Argument(metavar="LAYERS", help="Layers of the stack.")],
    strategy: Annotated[
        Literal["head", "seq", "left", "middle-left", "optimal"], typer.Option(help="How layers are assigned.")
    ] = "optimal",
    as_json: Json = False,
) -> None:
    """Show which layers flexible depth assigns to which depth."""
    from anydepth.depth.subnetwork import assign, average_layer_distance, task_balance

    assignment = assign(layers, strategy)
    balance, distance = task_balance(assignment, layers), average_layer_distance(assignment)
    counted = {depth: [layer + 1 for layer in chosen] for depth, chosen in assignment.items()}
    if as_json:
        print(json.dumps({"subnetworks": counted, "task_balance": balance, "average_layer_distance": distance}))
        return
    table = Table("depth", "layers", box=None)
    for depth, chosen in counted.items():
        table.add_row(str(depth), " ".join(map(str, chosen)))
    Console(highlight=False).print(table)
    print(f"task balance {balance:.4f}, average layer distance {distance:.4f}")


if __name__ == "__main__":
    main()
