"""What the verbs print: outputs line by line, tables, what is compared."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from anydepth.errors import UserError
from anydepth.evaluation.texts import naming_lines, read_texts
from anydepth.progress import progress_bar

if TYPE_CHECKING:
    from anydepth.classifying.labels import Labelling
    from anydepth.estimating.command import Estimated
    from anydepth.run import Translation


def print_outputs(
    decode: Callable[..., list[list["Translation"]]],
    file: Path | None,
    n_best: int | None,
    output: Path | None,
    title: str,
) -> list[str]:
    """What a run makes of the lines of a file, or of stdin, to stdout or another file; gives the lines back. At a
    terminal every line is answered at once."""
    from anydepth.files import write_atomically

    if file is None and sys.stdin.isatty():
        for number, line in enumerate(sys.stdin, start=1):
            with naming_lines(file, number):
                found = decode([line.rstrip("\n")])
            print(*render(found, n_best, number), sep="\n", flush=True)
        return []
    texts = read_texts(file)
    with naming_lines(file), progress_bar(title, visible=output is not None) as bar:
        task = bar.add_task("", total=len(texts))
        found = decode(texts, progress=lambda done, total: bar.update(task, completed=done))
    lines = "".join(f"{line}\n" for line in render(found, n_best))
    if output:
        write_atomically(output, lines)
    else:
        sys.stdout.write(lines)
    return texts


def render(found: list[list["Translation"]], n_best: int | None, first: int = 1) -> list[str]:
    """Output lines: the texts alone, or all n-best with line number and score."""
    return [
        (f"{number}\t{one.score:.4f}\t" if n_best is not None else "") + one.text.replace("\n", " ")
        for number, translations in enumerate(found, start=first)
        for one in translations
    ]


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


def show_grid(grid: dict[str, Any]) -> None:
    """The grid and some translations, on stdout; of several languages their scores."""
    from anydepth.evaluation.accuracy import is_accuracy
    from anydepth.evaluation.perplexity import is_perplexity
    from anydepth.reporting.encoder_tables import print_accuracies, print_perplexities
    from anydepth.reporting.terminal import print_grid, print_languages, print_samples

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
    from anydepth.evaluation.accuracy import is_accuracy
    from anydepth.evaluation.records import read_records
    from anydepth.reporting.encoder_tables import print_accuracies

    if not all((run / "grid.json").exists() for run in runs):
        return
    if is_accuracy(json.loads((runs[0] / "grid.json").read_text(encoding="utf-8"))):
        (record,) = read_records([f"{name}={','.join(map(str, runs))}"])
        assert record.grid is not None
        print_accuracies(Console(highlight=False), record.grid)


def render_label(found: "Labelling", text: str) -> str:
    """Three columns, the first two empty where a text has no label."""
    sure = "" if found.probability is None else f"{found.probability:.4f}"
    return f"{found.label or ''}\t{sure}\t{text}"


def show_words(found: Sequence["Labelling"], layers: int) -> None:
    """Each text with its label, its words in the colour of their depth."""
    from rich.text import Text

    from anydepth.reporting.coloured import for_terminal

    console = Console(highlight=False, soft_wrap=True)
    for one in found:
        if one.label is None:
            console.print()
            continue
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
    from anydepth.evaluation.accuracies import accuracies
    from anydepth.evaluation.comparison import compare
    from anydepth.evaluation.records import kind_of, read_records
    from anydepth.reporting.report import write_page
    from anydepth.reporting.terminal import print_comparison

    records = read_records(runs)
    if (kind := kind_of(records)) == "classifier" and as_json:
        write_page(records, out, None, baseline=baseline)
        rows, against = accuracies(records, baseline)
        rows = [row | {"apart": row["apart"] and row["apart"]._asdict()} for row in rows]
        return print(json.dumps({"report": str(out), "against": against, "rows": rows}, ensure_ascii=False, indent=1))
    if kind != "translation":
        if as_json or (baseline and kind != "classifier"):
            raise UserError(f"--json, --baseline: not for a {kind}, whose scores are in its grid.json")
        write_page(records, out, None, baseline=baseline)
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
