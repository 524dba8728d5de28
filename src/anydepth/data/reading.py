"""The rows of corpora as a stream, whatever they come from.

Files are UTF-8, one record a line; a name ending in .gz is decompressed on the way. A byte order mark at the start and
the line end (LF or CRLF) are not part of the text, everything else is; line breaks inside the strings of JSON become
spaces. A pair that cannot be used is skipped and counted with its file and line; what can only be a mistake of the
whole file is an error.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, cast

from anydepth.data.builtin_corpora import Builtin, BuiltinCorpus, BuiltinLabelled, BuiltinNotices, BuiltinText, make
from anydepth.data.corpora import CorpusConfig, Jsonl, ParallelText, Split, Text, Tsv
from anydepth.data.labelled import TOO_FEW, Labelled, read_labelled
from anydepth.data.lines import NOT_UTF8, Line, count_lines, read_lines
from anydepth.errors import UserError

LINE_BREAKS = re.compile(r"\s*[\r\n]\s*")
EMPTY, NOT_JSON = "empty line", "not JSON"


@dataclass
class Skips:
    """Pairs left out: how many for each reason, and where the first few were."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, reason: str, place: str) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < 3:
            examples.append(place)

    def __add__(self, other: "Skips") -> "Skips":
        total = Skips(dict(self.counts), {reason: list(places) for reason, places in self.examples.items()})
        for reason, count in other.counts.items():
            total.counts[reason] = total.counts.get(reason, 0) + count
            total.examples[reason] = (total.examples.get(reason, []) + other.examples[reason])[:3]
        return total

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def summary(self) -> str:
        """One line; empty when nothing was skipped."""
        if not self.counts:
            return ""
        parts = []
        for reason, count in self.counts.items():
            more = ", ..." if count > len(self.examples[reason]) else ""
            parts.append(f"{count} {reason} ({', '.join(self.examples[reason])}{more})")
        return f"skipped {self.total} lines: " + "; ".join(parts)


class Row(NamedTuple):
    """A pair, or a text alone, and the place it comes from, as file:line."""

    place: str
    source: str
    target: str | None = None
    label: str | None = None


def read_pairs(corpus: CorpusConfig, split: Split, skips: Skips) -> Iterator[tuple[str, str]]:
    """The usable pairs of a corpus, one at a time; of text alone the other side is empty. Only the built-in corpus
    looks at `split`."""
    for row in read_rows(corpus, split, skips):
        yield row.source, row.target or ""


def read_rows(corpus: CorpusConfig, split: Split, skips: Skips) -> Iterator[Row]:
    """As `read_pairs`, with the place of each pair."""
    match corpus:
        case ParallelText():
            return _read_parallel(corpus, skips)
        case Tsv():
            return _read_tsv(corpus, skips)
        case Jsonl():
            return _read_jsonl(corpus, skips)
        case Text():
            return _read_text(corpus, skips)
        case Labelled():
            return (Row(place, text, label=label) for place, text, label in read_labelled(corpus, skips))
        case _:
            return _read_builtin(corpus, split)


def files_of(corpus: CorpusConfig) -> list[Path]:
    """The files whose change changes the corpus; of the built-in one, the program that makes it."""
    match corpus:
        case ParallelText():
            return [Path(corpus.source), Path(corpus.target)]
        case Builtin() | BuiltinNotices() | BuiltinText() | BuiltinLabelled():
            from anydepth.data import builtin

            return sorted(Path(builtin.__file__).parent.glob("*.py"))
        case _:
            return [Path(corpus.path)]


def name_of(corpus: CorpusConfig) -> str:
    """What to call a corpus in messages."""
    match corpus:
        case ParallelText():
            return f"{corpus.source} and {corpus.target}"
        case Builtin():
            return f"builtin {corpus.source}-{corpus.target}"
        case BuiltinNotices():
            return f"builtin notices {corpus.language}"
        case BuiltinText() | BuiltinLabelled():
            return f"builtin {corpus.language}"
        case _:
            return corpus.path


def count_rows(corpus: CorpusConfig) -> int:
    """Lines of the corpus, those that will be skipped included; refuses files that are not parallel, before
    hours have been spent on them."""
    if isinstance(corpus, BuiltinCorpus):
        return corpus.size
    counts = [count_lines(path) for path in files_of(corpus)]
    if isinstance(corpus, Labelled):
        return -(-counts[0] * len(corpus.parts) // corpus.folds)
    if isinstance(corpus, ParallelText) and counts[0] != counts[1]:
        raise _unequal(corpus, *counts)
    return counts[0]


def _unequal(corpus: ParallelText, source: int, target: int) -> UserError:
    return UserError(
        f"{corpus.source} has {source} lines but {corpus.target} has {target}: "
        "parallel text needs the same number in both"
    )


def _read_parallel(corpus: ParallelText, skips: Skips) -> Iterator[Row]:
    sources, targets = read_lines(Path(corpus.source)), read_lines(Path(corpus.target))
    for read, (source, target) in enumerate(zip_longest(sources, targets)):
        if source is None or target is None:
            longer = read + 1 + sum(1 for _ in (targets if source is None else sources))
            counts = (read, longer) if source is None else (longer, read)
            raise _unequal(corpus, *counts)
        for side in (source, target):
            if problem := side.problem or (not side.text.strip() and EMPTY):
                skips.add(problem, side.place)
                break
        else:
            yield Row(source.place, source.text, target.text)


def _read_tsv(corpus: Tsv, skips: Skips) -> Iterator[Row]:
    for line in read_lines(Path(corpus.path)):
        columns = line.text.split("\t")
        if line.problem or not line.text.strip():
            skips.add(line.problem or EMPTY, line.place)
        elif len(columns) <= max(corpus.source_column, corpus.target_column):
            skips.add(TOO_FEW, line.place)
        else:
            source, target = columns[corpus.source_column], columns[corpus.target_column]
            yield from _if_usable(Row(line.place, source, target), skips)


def _read_jsonl(corpus: Jsonl, skips: Skips) -> Iterator[Row]:
    for line in read_lines(Path(corpus.path)):
        for record in _json_record(line, skips):
            names = (corpus.source_field, corpus.target_field)
            source, target = (_json_text(record, name, line.place) for name in names)
            yield from _if_usable(Row(line.place, source, target), skips)


def _read_text(corpus: Text, skips: Skips) -> Iterator[Row]:
    for line in read_lines(Path(corpus.path)):
        if corpus.field:
            for record in _json_record(line, skips):
                yield from _if_usable(Row(line.place, _json_text(record, corpus.field, line.place)), skips)
        elif line.problem or not line.text.strip():
            skips.add(line.problem or EMPTY, line.place)
        elif corpus.column is None:
            yield Row(line.place, line.text)
        elif len(columns := line.text.split("\t")) <= corpus.column:
            skips.add(TOO_FEW, line.place)
        else:
            yield from _if_usable(Row(line.place, columns[corpus.column]), skips)


def _json_record(line: Line, skips: Skips) -> list[Any]:
    """What a line holds; nothing if that is not JSON."""
    if line.problem or not line.text.strip():
        skips.add(line.problem or EMPTY, line.place)
        return []
    try:
        return [json.loads(line.text)]
    except (ValueError, RecursionError):
        skips.add(NOT_JSON, line.place)
        return []


def _json_text(record: Any, name: str, place: str) -> str:
    if not isinstance(record, dict) or name not in record:
        found = ", ".join(sorted(record)) if isinstance(record, dict) else type(record).__name__
        raise UserError(f"{place}: no field {name!r} (found: {found})")
    if not isinstance(record[name], str):
        raise UserError(f"{place}: field {name!r} must be a string, not {type(record[name]).__name__}")
    # a text is one line, in the files of an evaluation too
    return LINE_BREAKS.sub(" ", cast(str, record[name]))


def _if_usable(row: Row, skips: Skips) -> Iterator[Row]:
    texts = [text for text in (row.source, row.target) if text is not None]
    if not all(text.strip() for text in texts):
        skips.add(EMPTY, row.place)
    elif not all(_is_unicode(text) for text in texts):
        skips.add(NOT_UTF8, row.place)
    else:
        yield row


def _is_unicode(text: str) -> bool:
    """False for half a surrogate pair, which JSON can write ("\\ud800") and UTF-8 cannot."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _read_builtin(corpus: BuiltinCorpus, split: Split) -> Iterator[Row]:
    for number, made in enumerate(make(corpus, split), start=1):
        yield Row(f"{name_of(corpus)}:{number}", *made)
