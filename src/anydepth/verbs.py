"""What the verbs of the command line share: texts in and out, a run's depth grid."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from anydepth.errors import UserError
from anydepth.evaluation.texts import read_texts
from anydepth.progress import depths_shown, progress_bar

if TYPE_CHECKING:
    from anydepth.choosing.leaving import Rule
    from anydepth.classifying import Labelling
    from anydepth.data.corpora import CorpusConfig
    from anydepth.estimating.command import Estimated
    from anydepth.evaluation.grid import Progress as GridProgress
    from anydepth.evaluation.languages import TestSet
    from anydepth.run import Run, Translation


def render(found: list[list["Translation"]], n_best: int | None, first: int = 1) -> list[str]:
    """Output lines: the texts alone, or all n-best with line number and score."""
    return [
        (f"{number}\t{one.score:.4f}\t" if n_best is not None else "") + one.text.replace("\n", " ")
        for number, translations in enumerate(found, start=first)
        for one in translations
    ]


def print_outputs(
    decode: Callable[..., list[list["Translation"]]],
    file: Path | None,
    n_best: int | None,
    output: Path | None,
    title: str,
) -> list[str]:
    """What a run makes of the lines of a file, or of stdin, to stdout or another file; gives the lines back. At a
    terminal every line is answered at once."""
    from anydepth.evaluation.files import write_atomically

    if file is None and sys.stdin.isatty():
        for number, line in enumerate(sys.stdin, start=1):
            print(*render(decode([line.rstrip("\n")]), n_best, number), sep="\n", flush=True)
        return []
    texts = read_texts(file)
    with progress_bar(title, visible=output is not None) as bar:
        task = bar.add_task("", total=len(texts))
        found = decode(texts, progress=lambda done, total: bar.update(task, completed=done))
    lines = "".join(f"{line}\n" for line in render(found, n_best))
    if output:
        write_atomically(output, lines)
    else:
        sys.stdout.write(lines)
    return texts


def load_for(engine: str, run: Path, device: str, settings: Sequence[str], language: str | None) -> "Run":
    """A run, in a language, that searches with an engine."""
    from anydepth.run import load

    if engine != "native" and device not in ("auto", "cpu"):
        raise UserError(f"--device {device}: --engine {engine} runs on the CPU")
    loaded = load(run, device if engine == "native" else "cpu", settings=settings).in_language(language)
    if engine == "native":
        return loaded
    from anydepth.interop.ctranslate2 import CTranslate2Run

    return CTranslate2Run.of(loaded)


def parse_depths(text: str) -> list[str] | None:
    """`6-6,6-2`; none for `all`."""
    return None if text == "all" else [depth.strip() for depth in text.split(",")]


def parse_numbers(flag: str, text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise UserError(f"{flag} {text}: expected whole numbers with commas between") from None


def automatic_depth(run: "Run", settings: dict[str, Any]) -> str:
    """What `--depth auto` stands for; says why on stderr."""
    from anydepth.run import changed

    decoding = changed(run.config.decoding, settings)
    found = run.guide(decoding.beam, precision=decoding.precision).options.automatic(decoding.batch)
    print(f"anydepth: {found.reason}", file=sys.stderr)
    return found.depth


def margin_of(run: "Run", depth: str | None, exit: int | None) -> float | None:
    """How sure an exit must be, as `anydepth confidence` found."""
    if not exit:
        return None
    from anydepth.choosing.confidence import find_confidence

    return find_confidence(run, depth, exit).margin


def telling_chosen_depths(decode: Callable[..., list[list["Translation"]]]) -> Callable[..., list[list["Translation"]]]:
    """The same, and on stderr how many texts it decoded at which depth."""

    def decode_and_tell(texts: Sequence[str], **settings: Any) -> list[list["Translation"]]:
        found = decode(texts, **settings)
        counts = Counter(best.depth for best, *_ in found if best.depth)
        if counts:
            depths = ", ".join(f"{count} at {depth}" for depth, count in counts.most_common())
            print(f"anydepth: sentences by depth: {depths}", file=sys.stderr)
        return found

    return decode_and_tell


def say_how_many_were_cut(run: "Run", texts: Sequence[str], key: str = "") -> None:
    """On stderr, where a run reads only the beginning of some texts."""
    limit = run.config.data.max_source
    if limit and (cut := run.count_cut(texts, key)):
        print(f"anydepth: only the first {limit} tokens of {cut} of {len(texts)} texts were read", file=sys.stderr)


def evaluate_encoder(
    run: "Run",
    folder: Path,
    corpora: Sequence["CorpusConfig"],
    depths: list[str] | None = None,
    batch: int = 0,
    exits: Sequence["Rule"] = (),
    texts: Sequence[str] = (),
    notes: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """As `evaluate_run`: the perplexity of a masked language model on all of these, or the accuracy of a classifier."""
    from anydepth.config import dump
    from anydepth.evaluation.files import write_atomically
    from anydepth.evaluation.report import write_report

    folder.mkdir(parents=True, exist_ok=True)
    with depths_shown() as show:
        grid = fill_encoder_grid(run, folder, corpora, depths, show, batch, exits, texts, notes)
    if notes is not None:
        write_atomically(folder / "config.toml", dump(run.config))
    write_report([folder], folder / "report.html")
    return grid


def fill_encoder_grid(
    run: "Run",
    folder: Path,
    corpora: Sequence["CorpusConfig"],
    depths: list[str] | None,
    progress: "GridProgress",
    batch: int = 0,
    exits: Sequence["Rule"] = (),
    texts: Sequence[str] = (),
    notes: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The depth grid of a model without a decoder."""
    from anydepth.encoder_models import Classifier
    from anydepth.evaluation.accuracy import evaluate_labels
    from anydepth.evaluation.perplexity import evaluate_text

    if isinstance(run.model, Classifier):
        given: dict[str, Any] = {"batch": batch, "exits": exits, "texts": texts, "notes": notes, "progress": progress}
        return evaluate_labels(run, corpora, depths or run.depths(), out=folder, **given)
    return evaluate_text(run, corpora, depths, out=folder, notes=notes, progress=progress)


def evaluate_run(
    run: "Run",
    folder: Path,
    test_sets: dict[str, "TestSet"],
    depths: list[str] | None = None,
    beam: int | None = None,
    batch: int | None = None,
    lowercase: bool = False,
    notes: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Fills grid.json with a progress bar, then writes report.html.

    With `notes` the folder is not the run's own, and gets a config.toml that says how the run was decoded.
    """
    from anydepth.config import dump
    from anydepth.evaluation.files import write_atomically
    from anydepth.evaluation.report import write_report
    from anydepth.run import changed

    decoding = changed(run.config.decoding, {"beam": beam, "batch": batch})
    with depths_shown() as show:
        grid = fill_grid(run, folder, test_sets, depths, decoding.beam, decoding.batch, show, lowercase, notes)
    if notes is not None:
        write_atomically(folder / "config.toml", dump(replace(run.config, decoding=decoding)))
    write_report([folder], folder / "report.html")
    return grid


def fill_grid(
    run: "Run",
    folder: Path,
    test_sets: dict[str, "TestSet"],
    depths: list[str] | None,
    beam: int,
    batch: int,
    progress: "GridProgress",
    lowercase: bool = False,
    notes: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The depth grid of the only test set, or of every language."""
    from anydepth.data.languages import known_languages
    from anydepth.evaluation.grid import evaluate
    from anydepth.evaluation.languages import evaluate_languages

    lowercase = lowercase or run.config.tokenizer.lowercase
    settings: dict[str, Any] = {"beam": beam, "batch": batch, "out": folder, "lowercase": lowercase, "notes": notes}
    settings["summaries"] = run.config.data.pairs == "summaries"
    for key, (source, _) in test_sets.items():
        say_how_many_were_cut(run, source, key)
    known = known_languages(run.config)
    if len(known) > 1 and "" not in test_sets:
        return evaluate_languages(run, test_sets, depths, progress=progress, **settings)
    if len(test_sets) > 1:
        raise UserError(f"{len(test_sets)} test sets: expected one, or keys of the training corpora for all of them")
    ((key, (source, reference)),) = test_sets.items()
    run = run.in_language(key) if key in known else run
    return evaluate(run, source, reference, depths or run.depths(), progress=progress, **settings)


def notes_of(run: Path, settings: Sequence[str], out: Path | None) -> dict[str, Any] | None:
    """What a grid in a folder of its own says of the run it belongs to; nothing where it stays with the run."""
    from anydepth.describe import describe_training

    if not out:
        if settings:
            raise UserError("--set changes the run for this call: give --out DIR for what is measured then")
        return None
    if (out / "model.safetensors").exists() or (out / "checkpoints").exists():
        raise UserError(f"--out {out}: a run is there; give a folder for the evaluation alone")
    return {"run": str(run), "changes": list(settings), **describe_training(run)}


def show_grid(grid: dict[str, Any]) -> None:
    """The grid and some translations, on stdout; of several languages their scores."""
    from anydepth.evaluation.accuracy import is_accuracy, print_accuracies
    from anydepth.evaluation.perplexity import is_perplexity, print_perplexities
    from anydepth.evaluation.terminal import print_grid, print_languages, print_samples

    console = Console(highlight=False)
    if is_accuracy(grid):
        return print_accuracies(console, grid)
    if is_perplexity(grid):
        return print_perplexities(console, grid)
    if "languages" in grid:
        return print_languages(console, grid)
    print_grid(console, grid)
    console.print()
    print_samples(console, grid)


def show_repeated(name: str, runs: Sequence[Path]) -> None:
    """The means of classifiers that were trained several times; of other runs the report has the scores."""
    from anydepth.evaluation.accuracy import is_accuracy, print_accuracies
    from anydepth.evaluation.records import read_records

    if not all((run / "grid.json").exists() for run in runs):
        return
    if is_accuracy(json.loads((runs[0] / "grid.json").read_text(encoding="utf-8"))):
        (record,) = read_records([f"{name}={','.join(map(str, runs))}"])
        assert record.grid is not None
        print_accuracies(Console(highlight=False), record.grid)


def show_words(found: Sequence["Labelling"], layers: int) -> None:
    """Each text with its label, its words in the colour of their depth."""
    from rich.text import Text

    from anydepth.evaluation.coloured import for_terminal

    console = Console(highlight=False, soft_wrap=True)
    for one in found:
        if not one.words:
            raise UserError("--show: all words of this run are equally deep")
        console.print(Text.assemble((f"{one.label} {one.probability:.2f}  ", "bold"), for_terminal(one.words, layers)))


def show_depths(found: "Estimated", as_json: bool) -> None:
    """What `anydepth depths` has estimated."""
    if as_json:
        return print(json.dumps(asdict(found), default=str, indent=1))
    total = max(1, sum(found.counts))
    shares = "  ".join(f"{depth}: {100 * count / total:.0f} %" for depth, count in enumerate(found.counts, start=1))
    print(f"{found.words:,} words, {found.mean_depth:.2f} layers on average.  {shares}")
    if found.by_penalty:
        print("mean depth by penalty:  " + "  ".join(f"{k:g}: {mean:.2f}" for k, mean in found.by_penalty.items()))
    if found.agreement:
        equal, near, apart = found.agreement
        print(f"against one word at a time: {equal:.1%} equal, {near:.1%} at most one layer apart, {apart:+.2f} layers")
    print(f"The depths are in {found.file}, the picture in {found.picture}.")


def report_runs(runs: Sequence[str], out: Path, baseline: str = "", as_json: bool = False) -> None:
    """Writes the page; of several runs also prints how they compare."""
    from anydepth.evaluation.comparison import compare
    from anydepth.evaluation.records import kind_of, read_records
    from anydepth.evaluation.report import write_page
    from anydepth.evaluation.terminal import print_comparison

    records = read_records(runs)
    if kind_of(records) != "translation":
        if as_json or baseline:
            raise UserError("--json, --baseline: for runs that translate; other scores are in each grid.json")
        write_page(records, out, None)
        return print(f"The report is in {out}.")
    with progress_bar("scoring") as bar:
        task = bar.add_task("", total=None)
        for record in records:
            bar.update(task, description=record.name)
            record.statistics(record.depths, lambda done, total: bar.update(task, completed=done, total=total))
    comparison, several = compare(records, baseline), len(records) > 1
    write_page(records, out, comparison if several else None)
    if as_json:
        print(json.dumps({"report": str(out), **comparison.as_json()}, ensure_ascii=False, indent=1))
        return
    if several:
        print_comparison(Console(highlight=False), comparison)
    print(f"The report is in {out}.")
