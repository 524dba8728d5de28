"""The built-in corpus: real language without any download.

Dates, times, numbers and amounts in words, measures, durations, lists of countries and languages, put into phrases and
short sentences by CLDR (through Babel), num2words and a few sentence patterns of our own. A sentence is first drawn as
a meaning (drawing.py, meaning.py) and then put into each language (rendering.py, numerals.py, phrases.py), so that
every pair of languages is a parallel corpus, and line n says the same in all of them.

    for source, target in pairs("en", "de", "train", 100_000): ...
    for text in monolingual("fi", "train", 100_000): ...
    for label, text in labelled("en", "test", 1_000): ...
    for notice, line in notices("en", "train", 10_000): ...

What the source writes in figures the target writes in words and the other way round, as between written and spoken
language: 4,023 becomes viertausenddreiundzwanzig, May 23, 2024 becomes 23.5.2024. Word by word this cannot be
translated, which is why depth matters here.

The text depends on language, split, size and seed alone; a smaller size is the beginning of a larger one. No text of
one split is ever in another, whatever the seeds.
"""

import difflib
from collections.abc import Iterator
from random import Random

from anydepth.data.builtin.drawing import KINDS, draw, draw_event
from anydepth.data.builtin.meaning import Sentence, split_of
from anydepth.data.builtin.phrases import TEMPLATES
from anydepth.errors import UserError

LANGUAGES: tuple[str, ...] = tuple(TEMPLATES)
LABELS: tuple[str, ...] = KINDS
SPLITS = ("train", "dev", "test")


def pairs(source: str, target: str, split: str, size: int, seed: int = 1) -> Iterator[tuple[str, str]]:
    """`size` sentences in two languages."""
    _check(split, size, source, target)
    return _pairs(source, target, split, size, seed)


def monolingual(language: str, split: str, size: int, seed: int = 1) -> Iterator[str]:
    """`size` sentences in one language: one side of `pairs`."""
    _check(split, size, language)
    return (text for _, text in _labelled(language, split, size, seed))


def labelled(language: str, split: str, size: int, seed: int = 1) -> Iterator[tuple[str, str]]:
    """`size` times a label and a sentence; the labels (`LABELS`) are equally frequent.

    The label is the kind of what stands outside the brackets: "Finland or Malta (in 5 days)" is about places."""
    _check(split, size, language)
    return _labelled(language, split, size, seed)


def notices(language: str, split: str, size: int, seed: int = 1) -> Iterator[tuple[str, str]]:
    """`size` notices of several dated events of one year, in any order, each with the line that matters: what comes
    first, its figures in words and its words in figures. To find it, dates must be read and compared."""
    _check(split, size, language)
    return _notices(language, split, size, seed)


def _notices(language: str, split: str, size: int, seed: int) -> Iterator[tuple[str, str]]:
    from anydepth.data.builtin.rendering import render

    rng = Random(f"notices {split} {seed}")
    for _ in range(size):
        year, months = rng.randrange(2000, 2040), sorted(rng.sample(range(1, 13), rng.randint(3, 5)))
        first = draw_event(rng, year, months[0])
        while split_of(first) != split:  # the line decides: none is in two splits, and so no notice is
            first = draw_event(rng, year, months[0])
        events = [first, *(draw_event(rng, year, month) for month in months[1:])]
        notice = " ".join(render(language, event) for event in rng.sample(events, len(events)))
        yield notice, render(language, first, swap=True)


def _pairs(source: str, target: str, split: str, size: int, seed: int) -> Iterator[tuple[str, str]]:
    from anydepth.data.builtin.rendering import render

    for sentence in _sentences(split, size, seed):
        yield render(source, sentence), render(target, sentence, swap=True)


def _labelled(language: str, split: str, size: int, seed: int) -> Iterator[tuple[str, str]]:
    from anydepth.data.builtin.rendering import render

    for sentence in _sentences(split, size, seed):
        yield sentence.kind, render(language, sentence)


def _sentences(split: str, size: int, seed: int) -> Iterator[Sentence]:
    rng = Random(f"{split} {seed}")
    kinds: list[str] = []
    for _ in range(size):
        if not kinds:
            kinds = rng.sample(KINDS, len(KINDS))
        kind = kinds.pop()
        sentence = draw(rng, kind)
        while split_of(sentence) != split:
            sentence = draw(rng, kind)
        yield sentence


def _check(split: str, size: int, *languages: str) -> None:
    # before the first sentence is asked for, so that a mistake shows where it was made
    for language in languages:
        if language not in LANGUAGES:
            raise UserError(_unknown("language", language, LANGUAGES))
    if split not in SPLITS:
        raise UserError(_unknown("split", split, SPLITS))
    if size < 0:
        raise UserError(f"the size of the built-in corpus cannot be negative: {size}")


def _unknown(what: str, given: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"the built-in corpus has no {what} {given!r}{hint}: choose from {', '.join(known)}"
