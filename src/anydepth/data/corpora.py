"""Where sentences and pairs come from: text, parallel text, TSV, JSONL or the built-in corpus, read as a stream.
Texts with labels are in labelled.py.

Files are UTF-8, one record a line; a name ending in .gz is decompressed on the way. A byte order mark at the
start and the line end (LF or CRLF) are not part of the text, everything else is; line breaks inside the strings of JSON
become spaces. A pair that cannot be used
is skipped and counted with its file and line; what can only be a mistake of the whole file is an error.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from anydepth.config_class import config
from anydepth.data.labelled import BuiltinLabelled, Labelled, read_builtin_labelled, read_labelled
from anydepth.data.lines import NOT_UTF8, Line, count_lines, read_lines
from anydepth.errors import UserError

Split = Literal["train", "dev", "test"]
LINE_BREAKS = re.compile(r"\s*[\r\n]\s*")
EMPTY, MALFORMED = "empty line", "malformed row"


@config
class ParallelText:
    """Two files, one sentence a line; line n of one translates line n of the other."""

    type: Literal["parallel"] = "parallel"
    source: str
    """Path of the source sentences, plain or .gz."""
    target: str
    """Path of the target sentences, plain or .gz."""
    key: str = ""
    """Language pair or task, for methods whose depth depends on it."""


@config
class Tsv:
    """One file with a pair in each row, columns separated by tabs (no quoting)."""

    type: Literal["tsv"] = "tsv"
    path: str
    """Path of the file, plain or .gz."""
    source_column: int = 0
    """Column of the source sentence, counted from 0."""
    target_column: int = 1
    """Column of the target sentence, counted from 0."""
    key: str = ""
    """Language pair or task, for methods whose depth depends on it."""

    def __post_init__(self) -> None:
        for name in ("source_column", "target_column"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")


@config
class Jsonl:
    """One file with a JSON object in each line."""

    type: Literal["jsonl"] = "jsonl"
    path: str
    """Path of the file, plain or .gz."""
    source_field: str = "source"
    """Name of the source sentence in each object."""
    target_field: str = "target"
    """Name of the target sentence in each object."""
    key: str = ""
    """Language pair or task, for methods whose depth depends on it."""


@config
class Builtin:
    """The corpus that comes with the library, made on the fly."""

    type: Literal["builtin"] = "builtin"
    source: str = "en"
    """Source language."""
    target: str = "de"
    """Target language."""
    size: int = 20_000
    """Number of pairs."""
    seed: int = 1
    """Another seed gives another corpus of the same kind."""
    key: str = ""
    """Language pair or task, for methods whose depth depends on it."""

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size must be at least 1, not {self.size}")


@config
class BuiltinNotices:
    """Notices of several dated events in one language, each with the one line that matters, made on the fly."""

    type: Literal["builtin-notices"] = "builtin-notices"
    language: str = "en"
    """Language of notices and summaries."""
    size: int = 20_000
    """Number of notices."""
    seed: int = 1
    """Another seed gives another corpus of the same kind."""
    key: str = ""
    """Language or task, for methods whose depth depends on it."""

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size must be at least 1, not {self.size}")


@config
class Text:
    """One file in one language, one sentence a line; or one of the columns of a TSV file, or of the fields of JSONL."""

    type: Literal["text"] = "text"
    path: str
    """Path of the file, plain or .gz."""
    column: int | None = None
    """Of a file with columns separated by tabs: that of the text, counted from 0."""
    field: str = ""
    """Of a file with a JSON object in each line: the name of the text."""
    key: str = ""
    """Language, for methods whose depth depends on it."""

    def __post_init__(self) -> None:
        if self.column is not None and self.column < 0:
            raise ValueError(f"column must be 0 or more, not {self.column}")
        if self.column is not None and self.field:
            raise ValueError("field: the file has columns or JSON objects, not both")


@config
class BuiltinText:
    """One language of the corpus that comes with the library, made on the fly."""

    type: Literal["builtin-text"] = "builtin-text"
    language: str = "en"
    """Its language."""
    size: int = 20_000
    """Number of sentences."""
    seed: int = 1
    """Another seed gives another corpus of the same kind."""
    key: str = ""
    """Language, for methods whose depth depends on it."""

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size must be at least 1, not {self.size}")


PairCorpus = ParallelText | Tsv | Jsonl | Builtin | BuiltinNotices
"""Of sentences and their translations, or documents and their summaries."""
TextCorpus = Text | BuiltinText
"""Of sentences alone."""
LabelledCorpus = Labelled | BuiltinLabelled
"""Of texts with labels."""
CorpusConfig = PairCorpus | TextCorpus | LabelledCorpus


@config
class DataConfig:
    train: tuple[CorpusConfig, ...]
    """The training corpora."""
    dev: tuple[CorpusConfig, ...] = ()
    """Pairs for validation during training: one corpus, or a list of them, each validated by itself."""
    test: tuple[CorpusConfig, ...] = ()
    """Pairs for the final evaluation: one corpus, or a list of one for each language."""
    pairs: Literal["translations", "summaries"] = "translations"
    """What the second side of a pair is to the first, which decides how a model is scored: by BLEU and chrF, or by
    ROUGE."""
    tags: Literal["none", "target", "begin"] = "none"
    """What stands in front of every source text: nothing; a token such as <2de> that names the target language, the
    last part of the corpus's key, which one-to-many and many-to-many translation need; or the token that begins a text
    (`begin`, in BERT [CLS])."""
    mixing: Literal["temperature", "turns"] = "temperature"
    """With several corpora: each batch is from one drawn by `temperature`; or the keys take turns, batch by batch, so
    that with training.accumulate = the number of keys an update adds up one batch of each (latent depth,
    Algorithm 2)."""
    temperature: float = 1.0
    """With several corpora a batch comes from one of them with probability ∝ size^(1/temperature): 1 takes
    them as they are, a large number evenly."""
    max_length: int = 256
    """Tokens a side, the end of sentence not counted; longer pairs are skipped and counted."""
    max_source: int = 0
    """Tokens of a source; the rest of longer ones is cut off, and these are counted. Then max_length holds for targets
    alone. 0 cuts nothing."""
    sentences: bool = False
    """Whether an end mark follows every sentence of a source, as model.sentence_layers needs."""
    workers: int = 0
    """Threads that tokenize; 0 is one per core."""
    cache: str = ""
    """Folder for tokenized data, to be shared by runs; empty keeps them inside the run."""

    def __post_init__(self) -> None:
        if not self.train:
            raise ValueError("train must name at least one corpus")
        for split in ("train", "dev", "test") if self.tags == "target" else ():
            for number, corpus in enumerate(getattr(self, split)):
                if not corpus.key:
                    raise ValueError(f"{split}.{number}.key: tags need a key that ends with the target language: en-de")
        if self.temperature <= 0:
            raise ValueError(f"temperature must be above 0, not {self.temperature}")
        if self.max_length < 1:
            raise ValueError(f"max_length must be at least 1, not {self.max_length}")
        if self.max_source < 0:
            raise ValueError(f"max_source must be 0 or more, not {self.max_source}")
        if self.workers < 0:
            raise ValueError(f"workers must be 0 or more, not {self.workers}")

    @property
    def longest(self) -> int:
        """Tokens of the longest text on either side, the end mark not counted."""
        return max(self.max_length, self.max_source)


def target_language(key: str) -> str:
    """en-de → de; a key of one language is that language."""
    return key.rpartition("-")[2]


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
        return f"skipped {self.total} pairs: " + "; ".join(parts)


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
        case Builtin():
            return _read_builtin(corpus, split)
        case BuiltinNotices():
            return _read_builtin_notices(corpus, split)
        case Text():
            return _read_text(corpus, skips)
        case BuiltinText():
            return _read_builtin_text(corpus, split)
        case Labelled():
            return (Row(place, text, label=label) for place, text, label in read_labelled(corpus, skips))
        case BuiltinLabelled():
            return (Row(place, text, label=label) for place, text, label in read_builtin_labelled(corpus, split))


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
    if isinstance(corpus, Builtin | BuiltinNotices | BuiltinText | BuiltinLabelled):
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
            skips.add(MALFORMED, line.place)
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
            skips.add(MALFORMED, line.place)
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
        skips.add(MALFORMED, line.place)
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


def _read_builtin(corpus: Builtin, split: Split) -> Iterator[Row]:
    from anydepth.data import builtin

    pairs = builtin.pairs(corpus.source, corpus.target, split, corpus.size, corpus.seed)
    for number, (source, target) in enumerate(pairs, start=1):
        yield Row(f"{name_of(corpus)}:{number}", source, target)


def _read_builtin_notices(corpus: BuiltinNotices, split: Split) -> Iterator[Row]:
    from anydepth.data import builtin

    pairs = builtin.notices(corpus.language, split, corpus.size, corpus.seed)
    for number, (notice, line) in enumerate(pairs, start=1):
        yield Row(f"{name_of(corpus)}:{number}", notice, line)


def _read_builtin_text(corpus: BuiltinText, split: Split) -> Iterator[Row]:
    from anydepth.data import builtin

    texts = builtin.monolingual(corpus.language, split, corpus.size, corpus.seed)
    for number, text in enumerate(texts, start=1):
        yield Row(f"{name_of(corpus)}:{number}", text)
