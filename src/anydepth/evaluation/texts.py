"""The texts that a run is judged on: given as files, or those that its recipe names."""

import codecs
import gzip
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from anydepth.data.lines import check_encoding
from anydepth.errors import TextError, UserError

if TYPE_CHECKING:
    from anydepth.config import Config
    from anydepth.data.corpora import CorpusConfig, Split
    from anydepth.data.reading import Skips
    from anydepth.run import Run


class TestSet(NamedTuple):
    source: list[str]
    reference: list[str]
    places: list[str]
    """Of each pair, the file and line."""

    def place(self, number: int) -> str:
        return self.places[number - 1]


def read_texts(file: Path | None) -> list[str]:
    """The lines of a file, or of stdin, without a byte order mark."""
    name = name_of_texts(file)
    try:
        data = sys.stdin.buffer.read() if file is None else file.read_bytes()
        data = gzip.decompress(data) if file and file.suffix == ".gz" else data
        check_encoding(data, name)
        text = data.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except FileNotFoundError:
        raise UserError(f"{name}: no such file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise UserError(f"{name}: not a gzip file, or cut short") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{name}:{line}: invalid UTF-8") from None
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def name_of_texts(file: Path | None) -> str:
    return "stdin" if file is None else str(file)


@contextmanager
def naming(place: Callable[[int], str]) -> Iterator[None]:
    """What is wrong with a text is told with its place, which is asked for by its number, from 1."""
    try:
        yield
    except TextError as error:
        raise error.placed(place(error.number)) from None


def naming_lines(file: Path | None, first: int = 1) -> AbstractContextManager[None]:
    """Of texts that are the lines of a file, or of stdin, from the `first` on."""
    return naming(lambda number: f"{name_of_texts(file)}:{first - 1 + number}")


def read_test_sets(
    run: Path,
    source: Path | None = None,
    reference: Path | None = None,
    settings: Sequence[str] = (),
    language: str | None = None,
    on: "Split" = "test",
    sentences: int = 0,
) -> dict[str, TestSet]:
    """By language, "" where a run has only one: given as files, or those that the run's recipe names. `on` takes its
    dev or training corpora instead, `sentences` the first so many of each."""
    from anydepth.data.corpora import ParallelText
    from anydepth.data.reading import Skips, read_rows

    if (source is None) != (reference is None):
        raise UserError("--source and --reference: give both or neither")
    corpora: Sequence[CorpusConfig]
    if source and reference:
        _, key = config_and_language(run, settings, language)
        corpora = [ParallelText(source=str(source), target=str(reference), key=key)]
    else:
        corpora = corpora_for_test(run, settings, language, on)
    keys = [corpus.key for corpus in corpora]
    if twice := [key for key in keys if keys.count(key) > 1]:
        which = f" for {twice[0]}" if twice[0] else " without a key"
        raise UserError(f"{run}: its recipe names {len(twice)} {on} sets{which}; give --source and --reference")
    skips, found = Skips(), {}
    for corpus in corpora:
        rows = list(islice(read_rows(corpus, on, skips), sentences or None))
        texts = [row.source for row in rows], [row.target or "" for row in rows]
        found[corpus.key] = TestSet(*texts, [row.place for row in rows])
    say_skipped([skips])
    return found


def say_skipped(parts: "Iterable[Skips]") -> None:
    for summary in filter(None, (skips.summary() for skips in parts)):
        print(f"anydepth: {summary}", file=sys.stderr)


def read_test_set(run: Path, *given: Any, **more: Any) -> TestSet:
    """The only one that is given, or that the run's recipe names: see `read_test_sets`."""
    found = read_test_sets(run, *given, **more)
    if len(found) > 1:
        which = "give --language" if "language" in more else "expected one"
        raise UserError(f"{run}: its recipe names {len(found)} {more.get('on', 'test')} sets; {which}")
    (test_set,) = found.values()
    return test_set


def read_calibration_texts(run: Path, source: Path | None, language: str | None) -> list[str]:
    """Real sentences to measure with: of a file, of the recipe's test set or, if it has none, of its dev set."""
    if source:
        return read_texts(source)
    from anydepth.data.reading import Skips, read_pairs

    config, key = config_and_language(run, (), language)
    splits: dict[Split, Sequence[CorpusConfig]] = {"test": config.data.test, "dev": config.data.dev}
    for split, corpora in splits.items():
        for corpus in corpora:
            if not key or corpus.key == key:
                return [text for text, _ in read_pairs(corpus, split, Skips())]
    wanted = f" for {language}" if language else ""
    raise UserError(f"{run}: its recipe names no test or dev set{wanted}; give --source")


def corpora_for_test(
    run: Path, settings: Sequence[str] = (), language: str | None = None, on: "Split" = "test"
) -> list["CorpusConfig"]:
    """The test sets (or dev sets, or training corpora) that a run's recipe names, for a language or all."""
    config, key = config_and_language(run, settings, language)
    corpora = [corpus for corpus in getattr(config.data, on) if not key or corpus.key == key]
    if not corpora:
        wanted, flags = f" for {language}" if language else "", "--source and --reference"
        flags = flags if config.model.type == "translator" else "--data"
        raise UserError(f"{run}: its recipe names no {on} set{wanted}; give {flags}")
    return corpora


def config_and_language(run: Path, settings: Sequence[str], language: str | None) -> tuple["Config", str]:
    """A run's settings, and the key of the language that is meant."""
    from anydepth.config import load
    from anydepth.data.languages import find_language

    if not (run / "config.toml").is_file():
        raise UserError(f"{run} is not a run: it has no config.toml")
    config = load(run / "config.toml", settings)
    return config, find_language(config, language)


def check_readable(run: "Run", test_set: TestSet, key: str = "") -> None:
    """Refuses one with a text that is too long for the run, before anything is decoded."""
    with naming(test_set.place):
        run.check_lengths(run.sources(test_set.source, key or run.key))


def say_how_many_were_cut(run: "Run", texts: Sequence[str], key: str = "") -> None:
    """On stderr, where a run reads only the beginning of some texts."""
    limit = run.config.data.max_source
    if limit and (cut := run.count_cut(texts, key)):
        print(f"anydepth: only the first {limit} tokens of {cut} of {len(texts)} texts were read", file=sys.stderr)
