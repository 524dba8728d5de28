"""What the verbs of the command line share: texts in and out, a run's test set and its depth grid."""

import gzip
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from anydepth.errors import UserError

if TYPE_CHECKING:
    from anydepth.run import Run, Translation


def read_texts(file: Path | None) -> list[str]:
    """The lines of a file, or of stdin."""
    name = "stdin" if file is None else str(file)
    try:
        data = sys.stdin.buffer.read() if file is None else file.read_bytes()
        data = gzip.decompress(data) if file and file.suffix == ".gz" else data
        text = data.decode("utf-8")
    except FileNotFoundError:
        raise UserError(f"{name}: no such file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise UserError(f"{name}: not a gzip file, or cut short") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{name}:{line}: invalid UTF-8") from None
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def render(found: list[list["Translation"]], n_best: int | None, first: int = 1) -> list[str]:
    """Output lines: the texts alone, or all n-best with line number and score."""
    return [
        (f"{number}\t{one.score:.4f}\t" if n_best is not None else "") + one.text.replace("\n", " ")
        for number, translations in enumerate(found, start=first)
        for one in translations
    ]


def read_test_set(
    run: Path, source: Path | None = None, reference: Path | None = None, language: str | None = None
) -> tuple[list[str], list[str]]:
    """Given as files, or the one that the run's recipe names for a language."""
    from anydepth.config import load
    from anydepth.data.corpora import CorpusConfig, ParallelText, Skips, read_pairs
    from anydepth.languages import find_language

    if (source is None) != (reference is None):
        raise UserError("--source and --reference: give both or neither")
    corpora: Sequence[CorpusConfig]
    if source and reference:
        corpora = [ParallelText(source=str(source), target=str(reference))]
    else:
        if not (run / "config.toml").is_file():
            raise UserError(f"{run} is not a run: it has no config.toml")
        config = load(run / "config.toml")
        key = find_language(config, language)
        corpora = [corpus for corpus in config.data.test if not key or corpus.key == key]
    if not corpora:
        wanted = f" for {language}" if language else ""
        raise UserError(f"{run}: its recipe names no test set{wanted}; give --source and --reference")
    if len(corpora) > 1:
        raise UserError(f"{run}: its recipe names {len(corpora)} test sets; say which with --language")
    (corpus,) = corpora
    skips = Skips()
    pairs = list(read_pairs(corpus, "test", skips))
    if summary := skips.summary():
        print(f"anydepth: {summary}", file=sys.stderr)
    return [source for source, _ in pairs], [target for _, target in pairs]


def evaluate_run(
    run: "Run",
    folder: Path,
    source: list[str],
    reference: list[str],
    depths: list[str] | None = None,
    beam: int | None = None,
    batch: int | None = None,
    lowercase: bool = False,
) -> dict[str, Any]:
    """Fills grid.json with a progress bar, then writes report.html."""
    from anydepth.evaluation.grid import evaluate
    from anydepth.evaluation.report import write_report

    decoding = run.config.decoding
    with progress_bar("evaluating") as bar:
        task = bar.add_task("", total=None)

        def show(done: int, total: int, depth: str) -> None:
            bar.update(task, completed=done, total=total, description=depth)

        grid = evaluate(
            run,
            source,
            reference,
            depths or run.depths(),
            beam=decoding.beam if beam is None else beam,
            batch=decoding.batch if batch is None else batch,
            out=folder,
            lowercase=lowercase or run.config.tokenizer.lowercase,
            progress=show,
        )
    write_report([folder], folder / "report.html")
    return grid


def show_grid(grid: dict[str, Any]) -> None:
    """The grid and some translations, on stdout."""
    from anydepth.evaluation.report import print_grid, print_samples

    console = Console(highlight=False)
    print_grid(console, grid)
    console.print()
    print_samples(console, grid)


def progress_bar(title: str, visible: bool = True) -> Progress:
    """On stderr, gone when it is done, and only for people."""
    console = Console(stderr=True)
    return Progress(
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not (visible and console.is_terminal),
    )
