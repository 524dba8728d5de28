"""What depths cost on this machine, and which to take."""

import json
import os
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from anydepth.cli.app import Batch, Beam, Depth, Device, Engine, Json, Language, Precision, RunFolder, app
from anydepth.cli.asking import load_for, parse_depths, parse_numbers
from anydepth.errors import UserError
from anydepth.evaluation.texts import check_readable, read_calibration_texts, read_test_set, read_test_sets
from anydepth.files import check_writable, new_folder
from anydepth.progress import progress_for, steps_shown


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
            help="all, or depths such as 6-6,6-2. Default: all that no smaller one equals (before `evaluate`: all).",
        ),
    ] = None,
    batches: Annotated[
        str | None, typer.Option(metavar="N,…", help="Batch sizes. Default: 1,8,32; with --quick 1.")
    ] = None,
    beam: Beam = None,
    precision: Precision = None,
    drafts_at: Annotated[
        str | None,
        typer.Option(metavar="E-D,…", help="With --beam 1: depths to try drafts at, or all. Default: the deepest."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Measure less.")] = False,
    language: Language = None,
    engine: Engine = "native",
    device: Device = "auto",
) -> None:
    """Measure how long every depth takes here: for `translate --budget-ms`, `--depth auto` and `--speculate`."""
    from anydepth.calibrating.calibration import NAME, check_decodes, keep, read_calibrations
    from anydepth.calibrating.measuring import BATCHES, QUICK_ROUNDS, ROUNDS, calibrate
    from anydepth.calibrating.tables import print_calibration
    from anydepth.choosing.budget import worthwhile_depths

    if precision and engine != "native":
        raise UserError(f"--precision: not with --engine {engine}")
    texts = read_calibration_texts(run, source, language)
    loaded = load_for(engine, run, device, (), language)
    check_decodes(loaded)
    read_calibrations(run / NAME)  # complains about a damaged file before any time is spent
    check_writable(run / NAME)
    sizes = parse_numbers("--batches", batches) if batches is not None else (1,) if quick else BATCHES
    with progress_for("calibrating", "%") as show:
        made = calibrate(
            loaded,
            texts,
            worthwhile_depths(loaded) if depths is None else parse_depths(depths),
            batches=sizes,
            beam=beam,
            precision=precision,
            drafts_at=parse_depths(drafts_at) if drafts_at else (),
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
    depth: Depth = None,
    risk: Annotated[
        float, typer.Option(help="1 − chrF / 100 between outputs and those of full depth, at most.")
    ] = 0.05,
    confidence: Annotated[float, typer.Option(help="How certain it should be that the risk is kept.")] = 0.95,
    source: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Texts to test with. Default: the recipe's test or dev set.")
    ] = None,
    precision: Precision = None,
    language: Language = None,
    device: Device = "auto",
) -> None:
    """Find how sure a shallow exit must be for its words to be those of full depth, for `translate --exit`."""
    from anydepth.calibrating.confidence import NAME, calibrate_exit, keep_confidence, read_confidences
    from anydepth.calibrating.tables import print_confidence
    from anydepth.run import load

    texts = read_calibration_texts(run, source, language)
    loaded = load(run, device).in_language(language)
    read_confidences(run / NAME)  # complains about a damaged file before any time is spent
    check_writable(run / NAME)
    with progress_for("testing", "margins") as show:
        found = calibrate_exit(
            loaded, texts, depth, exit, risk=risk, confidence=confidence, precision=precision, progress=show
        )
    file = keep_confidence(found, run)
    print_confidence(Console(highlight=False), found)
    print(f"The margin is in {file}.")


@app.command()
def selector(
    run: RunFolder,
    source: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Texts to learn from, one a line. Default: the recipe's training corpus."),
    ] = None,
    reference: Annotated[Path | None, typer.Option(metavar="FILE", help="Their translations.")] = None,
    sentences: Annotated[int, typer.Option(min=0, help="The first so many of them; 0 for all.")] = 50_000,
    search: Annotated[bool, typer.Option("--search", help="Try several sizes and losses.")] = False,
    search_sentences: Annotated[
        int, typer.Option(min=0, help="With --search: sentences to try each on; 0 for all. The best learn from all.")
    ] = 10_000,
    fine_tune: Annotated[bool, typer.Option("--fine-tune", help="Go on with the recipe's dev set.")] = False,
    evaluate: Annotated[
        bool, typer.Option("--evaluate", help="Judge the selector instead; the texts are the test set, or given.")
    ] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="A=B", help="A setting of the selector; may be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Its folder. Default: RUN/selector.")] = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="Processes that decode, score and train side by side, on the same GPU if any.")
    ] = 1,
    beam: Beam = None,
    batch: Batch = None,
    language: Language = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Learn to choose a depth for every sentence before it is decoded: `translate --depth selector`."""
    from anydepth.data.distillation import device_of_rank
    from anydepth.reporting.report import write_report
    from anydepth.reporting.terminal import print_judgement
    from anydepth.run import load
    from anydepth.selecting.commands import judge_selector, make_selector

    loaded, folder = load(run, device_of_rank(device)).in_language(language), out or run / "selector"
    show = partial(progress_for, visible=os.environ.get("RANK", "0") == "0")
    if evaluate:
        check_writable(folder / "judgement.json")
        pairs = read_test_set(run, source, reference, language=language, sentences=sentences)
        found = judge_selector(loaded, pairs, folder, show, beam)
        own = folder.resolve().parent == run.resolve()
        page = write_report([run], run / "report.html") if own else None
        if as_json:
            return print(json.dumps(asdict(found), indent=1))
        print_judgement(Console(highlight=False), found)
        return print(f"The report is in {page}." if page else f"The figures are in {folder / 'judgement.json'}.")
    pairs = read_test_set(run, source, reference, language=language, on="train", sentences=sentences)
    dev = read_test_set(run, language=language, on="dev") if fine_tune else None
    how: dict[str, Any] = {"wide": search, "searched": search_sentences, "dev": dev, "jobs": jobs}
    if made := make_selector(loaded, pairs, folder, show, settings=settings or (), beam=beam, batch=batch, **how):
        print(f"The selector is in {folder}: {made.facts['seen']}.")
        judged = f"anydepth selector {run} --evaluate"
        used = f"anydepth translate {run} --depth selector"
        print(f"Next: {judged}, {used}" if out is None else f"Next: {judged} --out {out}; as {run}/selector: {used}")


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
    from anydepth.run import load
    from anydepth.sizing.sizes import make_sizes
    from anydepth.sizing.sizes_page import print_sizes, write_sizes

    test_sets = read_test_sets(run, source, reference, language=language)
    if len(test_sets) > 1:
        raise UserError(f"{run}: its recipe names {len(test_sets)} test sets; give --language")
    (test_set,) = test_sets.values()
    loaded = load(run, device if to == "anydepth" else "cpu").in_language(language)
    check_readable(loaded, test_set)
    wanted = parse_depths(depths) or loaded.depths()
    with new_folder(out) as folder, steps_shown("comparing") as show:
        found = make_sizes(
            loaded,
            wanted,
            folder,
            test_set.source,
            test_set.reference,
            to=to,
            quantization=quantization,
            beam=beam,
            progress=show,
        )
        page = write_sizes(found, folder)
    print_sizes(Console(highlight=False), found)
    print(f"The exports are in {out}, the report is in {out / page.name}.")
