"""What a sentence says, whatever the language: dates, amounts, names and lists of them, drawn at random.

A meaning is plain frozen data. `words` says whether a number (or the month of a date) is written in words or in
figures, or in figures only (None); `style` how a list is joined; everything else is what is said. `facts` yields only
the latter: two ways of putting the same thing, which may look alike in some language, belong to the same split.
"""

import datetime
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class Number:
    value: int
    words: bool


@dataclass(frozen=True, slots=True)
class Day:
    date: datetime.date
    words: bool


@dataclass(frozen=True, slots=True)
class Clock:
    hour: int
    minute: int
    words: bool | None


@dataclass(frozen=True, slots=True)
class Quantity:
    """So many of a CLDR unit, of a currency (a code of three capitals) or of a unit of time."""

    unit: str
    value: int | float
    words: bool | None


@dataclass(frozen=True, slots=True)
class FromNow:
    """A time before (negative) or after the present one: 3 hours ago, in 5 days."""

    unit: str
    value: int


@dataclass(frozen=True, slots=True)
class Name:
    of: Literal["territory", "language", "city"]
    code: str


@dataclass(frozen=True, slots=True)
class Listing:
    items: "tuple[Meaning, ...]"
    style: Literal["and", "or", "comma", "dash"] = "and"


@dataclass(frozen=True, slots=True)
class Clause:
    """A phrase of phrases.py around its parts; without a frame, its one part alone."""

    frame: str | None
    parts: "tuple[Meaning, ...]"


@dataclass(frozen=True, slots=True)
class Sentence:
    """Clauses of one kind, and asides of other kinds in brackets before or after them."""

    kind: str
    clauses: tuple[Clause, ...]
    asides: tuple[Clause, ...]
    asides_first: bool


Meaning: TypeAlias = Number | Day | Clock | Quantity | FromNow | Name | Listing | Clause


def facts(meaning: Meaning | Sentence) -> Iterator[str]:
    """What is said, without the way of putting it."""
    match meaning:
        case Sentence():
            for clause in meaning.clauses + meaning.asides:
                yield from facts(clause)
        case Clause(_, parts) | Listing(parts):
            for part in parts:
                yield from facts(part)
        case Number(value):
            yield str(value)
        case Day(date):
            yield date.isoformat()
        case Clock(hour, minute):
            # some languages read a time aloud like the duration since midnight
            yield from (f"hour {hour}", f"minute {minute}")
        case Quantity(unit, value) | FromNow(unit, value):
            yield f"{unit} {value}"
        case Name(of, code):
            yield f"{of} {code}"


def split_of(sentence: Sentence) -> str:
    """One sentence in ten is for dev and one for test, by its facts: whatever the language, the style and the seed."""
    digest = hashlib.blake2b("|".join(facts(sentence)).encode(), digest_size=8).digest()
    return {0: "dev", 1: "test"}.get(int.from_bytes(digest, "big") % 10, "train")
