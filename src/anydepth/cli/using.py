"""Using a run: texts in, texts or labels out, at any depth; and handing it to others."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from anydepth.cli.app import (
    Batch,
    Beam,
    Depth,
    Device,
    Engine,
    Language,
    Output,
    Precision,
    RunFolder,
    RunSettings,
    TextFile,
    app,
)
from anydepth.cli.asking import automatic_depth, load_for
from anydepth.cli.showing import print_outputs, render_label, show_words, telling_chosen_depths
from anydepth.errors import UserError
from anydepth.evaluation.texts import naming_lines, read_texts, say_how_many_were_cut
from anydepth.files import check_writable
from anydepth.progress import progress_bar


@app.command()
def translate(
    run: RunFolder,
    file: TextFile = None,
    depth: Annotated[
        str | None,
        typer.Option(
            metavar="E-D|auto|selector",
            help="Depth, such as 6-2; auto: the fastest not significantly worse than the best; selector: one for each "
            "text, selector@20: within 20 ms a text on average. Default: the deepest.",
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
        float | None,
        typer.Option(help="How sure, from 0 to 1. Default: the recipe's, or what `anydepth confidence` found."),
    ] = None,
    precision: Precision = None,
    language: Language = None,
    engine: Engine = "native",
    settings: RunSettings = None,
    device: Device = "auto",
    output: Output = None,
) -> None:
    """Translate text, one sentence a line, at any depth."""
    check_output(output, file)
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    for name, value in sampling.items():
        if value is not None and not sample:
            raise UserError(f"--{name.replace('_', '-')} is for sampling: give --sample as well")
    for name, value in {"draft": draft, "draft_words": draft_words}.items():
        if value is not None and not speculate:
            raise UserError(f"--{name.replace('_', '-')} is for speculation: give --speculate as well")
    if exit_margin is not None and exit is None:
        raise UserError("--exit-margin is for early exits: give --exit as well")
    chosen_for_each = budget_ms is not None or (depth or "").startswith("selector")
    if exit is not None and (depth == "auto" or chosen_for_each):
        raise UserError("--exit: how sure it must be depends on the depth; give that, as 6-2, without --budget-ms")
    for name, given in {"speculate": speculate, "exit": exit is not None, "precision": precision is not None}.items():
        if given and engine != "native":
            raise UserError(f"--{name}: not with --engine {engine}")
    beam = 1 if beam is None and (speculate or exit is not None) else beam
    loaded = load_for(engine, run, device, settings or (), language)
    decoding: dict[str, Any] = {"beam": beam, "batch": batch, "precision": precision, **sampling}
    decoding |= {"draft": draft, "draft_words": draft_words}
    decoding |= {"sample": sample or None, "speculate": speculate or None}  # what was not asked for stays the run's own
    decoding |= {"exit": exit, "exit_margin": exit_margin}
    decoding["n_best"] = 1 if n_best is None else n_best
    if depth == "auto" and budget_ms is None:
        depth = automatic_depth(loaded, decoding)
    how = partial(loaded.translations, depth=depth, budget_ms=budget_ms, **decoding)
    print_outputs(telling_chosen_depths(how) if chosen_for_each else how, file, n_best, output, "translating")


@app.command()
def summarize(
    run: RunFolder,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="One document a line, also .gz. Default: stdin.")
    ] = None,
    depth: Depth = None,
    beam: Beam = None,
    n_best: Annotated[
        int | None,
        typer.Option(help="Summaries per document, printed as line number, score and text with tabs between."),
    ] = None,
    batch: Batch = None,
    min_length: Annotated[
        int | None, typer.Option(help="Tokens of a summary, at least. Default: the recipe's.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Tokens of a summary, at most; 0 for no such limit. Default: the recipe's.")
    ] = None,
    precision: Precision = None,
    language: Language = None,
    settings: RunSettings = None,
    device: Device = "auto",
    output: Output = None,
) -> None:
    """Summarize documents, one a line, at any depth."""
    from anydepth.run import load

    check_output(output, file)
    loaded = load(run, device, settings=settings or ()).in_language(language)
    decoding: dict[str, Any] = {"beam": beam, "batch": batch, "min_length": min_length, "max_length": max_length}
    decoding["precision"] = precision
    decoding["n_best"] = 1 if n_best is None else n_best
    texts = print_outputs(partial(loaded.summaries, depth=depth, **decoding), file, n_best, output, "summarizing")
    say_how_many_were_cut(loaded, texts)


def check_output(output: Path | None, source: Path | None) -> None:
    """Before anything is decoded: what cannot be written would be lost, and so would a text that is written over."""
    if output and source and output.exists() and source.exists() and output.samefile(source):
        raise UserError(f"--output {output}: this is the text to read; choose another file")
    if output:
        try:
            check_writable(output)
        except UserError as error:
            raise UserError(f"--output {error}") from None


@app.command()
def classify(
    run: RunFolder,
    file: TextFile = None,
    depth: Annotated[
        str | None,
        typer.Option(metavar="D|adaptive", help="Layers, such as 4, or until the answer is sure. Default: all."),
    ] = None,
    leave: Annotated[
        str | None,
        typer.Option("--exit", metavar="RULE", help="When it is, for --depth adaptive: 'patience 2'. Default: 0.9."),
    ] = None,
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
    if leave is not None and depth != "adaptive":
        raise UserError("--exit says when texts leave early: give --depth adaptive as well")
    if show and as_json:
        raise UserError("--show, --json: give one of them")
    texts = read_texts(file)
    loaded = load(run, device, settings=settings or ())
    if leave is not None and loaded.config.model.encoder.depth.type == "per-word":
        raise UserError("--exit: the words of this run have depths of their own, and its texts do not leave early")
    with naming_lines(file), progress_bar("classifying", visible=not sys.stdout.isatty()) as bar:
        task = bar.add_task("", total=len(texts))
        found = loaded.classify(
            texts,
            depth,
            batch=batch,
            leave=leave or "0.9",
            progress=lambda done, total: bar.update(task, completed=done),
        )
    if empty := sum(one.label is None for one in found):
        print(f"anydepth: {empty} of {len(texts)} texts are empty and have no label", file=sys.stderr)
    say_how_many_were_cut(loaded, texts)
    if show:
        return show_words(found, len(loaded.plan().encoder))
    for text, one in zip(texts, found):
        print(json.dumps(one._asdict(), ensure_ascii=False) if as_json else render_label(one, text))


@app.command()
def export(
    run: RunFolder,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder to write.")],
    to: Annotated[
        Literal["anydepth", "ctranslate2", "huggingface"],
        typer.Option(help="A run of its own, as small as the depth; a CTranslate2 model; one that transformers loads."),
    ],
    depth: Depth = None,
    language: Annotated[
        str | None,
        typer.Option(metavar="en-de|all", help="One of a run's languages, or all with what any of them uses."),
    ] = None,
    quantization: Annotated[
        str | None, typer.Option(metavar="int8|…", help="For ctranslate2: the type its weights are kept in.")
    ] = None,
    settings: RunSettings = None,
) -> None:
    """Write one depth, or one language, of a run as a model of its own or for another engine."""
    from anydepth.interop.export import export_run
    from anydepth.run import load

    export_run(load(run, "cpu", settings=settings or ()), out, to, depth, language, quantization)
    print(f"The model is in {out}.")


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
