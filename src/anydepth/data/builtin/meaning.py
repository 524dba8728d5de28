"""What a sentence says, whatever the language: dates, amounts, names and lists of them, drawn at random.

A meaning is plain frozen data. `words` and `style` say how it is put (in figures or in words, with or without the
weekday); everything else is what it says. `facts` yields only the latter: two ways of putting the same thing, which
may well look alike in some language, always belong to the same split.
"""

import datetime
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Literal, TypeAlias

KINDS = ("date", "time", "number", "amount", "duration", "measure", "places", "languages")

TERRITORIES = [
    "AL",
    "AR",
    "AM",
    "AU",
    "AT",
    "BE",
    "BR",
    "BG",
    "CA",
    "CL",
    "CN",
    "CO",
    "HR",
    "CU",
    "CY",
    "CZ",
    "DK",
    "EG",
    "EE",
    "ET",
    "FI",
    "FR",
    "GE",
    "DE",
    "GR",
    "HU",
    "IS",
    "IN",
    "ID",
    "IR",
    "IE",
    "IL",
    "IT",
    "JP",
    "JO",
    "KZ",
    "KE",
    "LV",
    "LB",
    "LT",
    "LU",
    "MY",
    "MT",
    "MX",
    "MA",
    "NL",
    "NZ",
    "NG",
    "NO",
    "PK",
    "PE",
    "PH",
    "PL",
    "PT",
    "RO",
    "RU",
    "SA",
    "RS",
    "SK",
    "SI",
    "ZA",
    "ES",
    "SE",
    "CH",
    "TH",
    "TN",
    "TR",
    "UA",
    "AE",
    "GB",
    "US",
    "UY",
    "VN",
]
LANGUAGE_NAMES = [
    "sq",
    "ar",
    "hy",
    "eu",
    "be",
    "bg",
    "ca",
    "zh",
    "hr",
    "cs",
    "da",
    "nl",
    "en",
    "eo",
    "et",
    "fi",
    "fr",
    "gl",
    "ka",
    "de",
    "el",
    "he",
    "hi",
    "hu",
    "is",
    "id",
    "ga",
    "it",
    "ja",
    "ko",
    "la",
    "lv",
    "lt",
    "mk",
    "mt",
    "no",
    "fa",
    "pl",
    "pt",
    "ro",
    "ru",
    "sr",
    "sk",
    "sl",
    "es",
    "sw",
    "sv",
    "th",
    "tr",
    "uk",
    "vi",
    "cy",
]
CITIES = [
    "Europe/Lisbon",
    "Europe/Madrid",
    "Europe/Paris",
    "Europe/Rome",
    "Europe/Vienna",
    "Europe/Prague",
    "Europe/Warsaw",
    "Europe/Budapest",
    "Europe/Athens",
    "Europe/Bucharest",
    "Europe/Belgrade",
    "Europe/Helsinki",
    "Europe/Stockholm",
    "Europe/Copenhagen",
    "Europe/London",
    "Europe/Dublin",
    "Europe/Brussels",
    "Europe/Istanbul",
    "Europe/Zurich",
    "Europe/Berlin",
    "Asia/Tokyo",
    "Asia/Seoul",
    "Asia/Shanghai",
    "Asia/Bangkok",
    "Asia/Beirut",
    "Asia/Tehran",
    "Africa/Cairo",
    "Africa/Nairobi",
    "America/New_York",
    "America/Chicago",
    "America/Toronto",
    "America/Havana",
    "America/Lima",
    "Australia/Sydney",
]
CURRENCIES = [
    "EUR",
    "USD",
    "GBP",
    "CHF",
    "PLN",
    "CZK",
    "SEK",
    "NOK",
    "HUF",
    "RUB",
    "UAH",
    "TRY",
    "JPY",
    "INR",
    "BRL",
    "CAD",
]
LENGTHS = ("length-kilometer", "length-meter", "length-centimeter")
WEIGHTS = ("mass-tonne", "mass-kilogram", "mass-gram")
DURATIONS = ("week", "day", "hour", "minute", "second")

# Left out: what some language would inflect or elide (see phrases.py).
_DAYS = [day for day in range(2, 29) if day not in (8, 11)]
_HOURS = [hour for hour in range(7, 23) if hour != 11]
_SPOKEN_HOURS = [7, 8, 9, 10, *range(13, 21)]
_COUNTS = [count for count in range(3, 200) if count % 10 not in (1, 2)]


@dataclass(frozen=True, slots=True)
class Number:
    value: int
    words: bool


@dataclass(frozen=True, slots=True)
class Day:
    date: datetime.date
    words: bool  # the month, that is


@dataclass(frozen=True, slots=True)
class Clock:
    hour: int
    minute: int
    words: bool = False


@dataclass(frozen=True, slots=True)
class Quantity:
    """So many of a CLDR unit, of a currency (a code of three capitals) or of a unit of time."""

    unit: str
    value: int | float
    words: bool = False


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
    """One or two clauses of the kind, and asides of other kinds in brackets before or after them."""

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
            # in Spanish and Portuguese a time in words reads like the duration since midnight
            yield from (f"hour {hour}", f"minute {minute}")
        case Quantity(unit, value) | FromNow(unit, value):
            yield f"{unit} {value}"
        case Name(of, code):
            yield f"{of} {code}"


def split_of(sentence: Sentence) -> str:
    """One sentence in ten is for dev and one for test, by what it says: the same in every language and with every seed."""
    digest = hashlib.blake2b("|".join(facts(sentence)).encode(), digest_size=8).digest()
    return {0: "dev", 1: "test"}.get(int.from_bytes(digest, "big") % 10, "train")


def draw(rng: Random, kind: str) -> Sentence:
    """A sentence of this kind."""
    clauses = [_CLAUSES[kind](rng)]
    if rng.random() < 0.3:
        second = _CLAUSES[kind](rng)
        clauses += [second] if second.frame != clauses[0].frame else []
    others = rng.sample([other for other in KINDS if other != kind], rng.choice((0, 1, 1, 2)))
    asides = tuple(_CLAUSES[other](rng) for other in others)
    return Sentence(kind, tuple(clauses), asides, asides_first=rng.random() < 0.3)


def _toss(rng: Random) -> bool:
    return rng.random() < 0.5


def _number(rng: Random) -> Number:
    digits = rng.choice((2, 3, 4, 5, 6, 6))
    return Number(rng.randrange(10 ** (digits - 1), 10**digits), _toss(rng))


def _day(rng: Random) -> Day:
    return Day(datetime.date(rng.randrange(1900, 2100), rng.randrange(1, 13), rng.choice(_DAYS)), _toss(rng))


def _clock(rng: Random) -> Clock:
    return Clock(rng.choice(_SPOKEN_HOURS), rng.choice([m for m in _COUNTS if 10 <= m < 60]), _toss(rng))


def _two_times(rng: Random) -> tuple[Clock, Clock]:
    first, last = sorted((_clock(rng), _clock(rng)), key=lambda clock: (clock.hour, clock.minute))
    return first, last


def _spoken_clock(rng: Random) -> Clock:
    return Clock(rng.choice(_SPOKEN_HOURS), rng.choice([m for m in _COUNTS if 10 <= m < 60]), _toss(rng))


def _quantity(rng: Random, unit: str) -> Quantity:
    """In words, as a whole number or with one decimal."""
    if rng.random() < 0.8:
        return Quantity(unit, rng.choice(_COUNTS), _toss(rng))
    return Quantity(unit, round(rng.randrange(3, 100) + rng.randrange(1, 10) / 10, 1))


def _amount(rng: Random) -> Quantity:
    if rng.random() < 0.6:
        while True:
            n = _number(rng)
            if n.value % 10 not in (1, 2):
                return Quantity(
                    rng.choice(["EUR", "USD", "CHF", "CAD", "JPY", "BRL", "PLN", "HUF", "RUB"]), n.value, n.words
                )
    quantity = _quantity(rng, rng.choice(CURRENCIES))
    if isinstance(quantity.value, float):  # an amount has no or two decimals
        return Quantity(quantity.unit, round(quantity.value + rng.randrange(1, 10) / 100, 2))
    return quantity


def _duration(rng: Random) -> Meaning:
    """One or two neighbouring units: three weeks and five days."""
    words = rng.random() < 0.7
    first = rng.randrange(len(DURATIONS) - 1)
    limits = {"day": 7, "hour": 24, "minute": 60, "second": 60}
    big = Quantity(DURATIONS[first], rng.choice([n for n in _COUNTS if n < limits.get(DURATIONS[first], 100)]), words)
    small = DURATIONS[first + 1]
    return Listing((big, Quantity(small, rng.choice([n for n in _COUNTS if n < limits[small]]), words)))


def _names(rng: Random, of: Literal["territory", "language", "city"], least: int, most: int) -> tuple[Name, ...]:
    codes = {"territory": TERRITORIES, "language": LANGUAGE_NAMES, "city": CITIES}[of]
    return tuple(Name(of, code) for code in rng.sample(codes, rng.randint(least, most)))


def _by_place(rng: Random, of: Literal["territory", "city"], value: Callable[[Random], Meaning]) -> Listing:
    """A little table: Lisbon – 17 degrees Celsius and Tokyo – 23 degrees Celsius."""
    return Listing(tuple(Listing((name, value(rng)), "dash") for name in _names(rng, of, 2, 4)))


def _date_clause(rng: Random) -> Clause:
    match rng.randrange(4):
        case 0:
            return Clause("deadline", (_day(rng),))
        case 1:
            first, last = sorted((_day(rng), _day(rng)), key=lambda day: day.date)
            return Clause("exhibition", (first, last))
        case 2:
            return Clause(rng.choice(("date", None)), (_day(rng),))
    days = tuple(_day(rng) for _ in range(rng.randint(2, 3)))
    return Clause(rng.choice(("holidays", None)), (Listing(days, rng.choice(("and", "or"))),))


def _time_clause(rng: Random) -> Clause:
    match rng.randrange(4):
        case 0:
            return Clause("opening", _two_times(rng))
        case 1:
            return Clause("train", _two_times(rng))
        case 2:
            return Clause(rng.choice(("local-time", None)), (_by_place(rng, "city", _clock),))
    times = tuple(_spoken_clock(rng) for _ in range(rng.randint(2, 3)))
    return Clause(rng.choice(("clock", None)), (Listing(times, rng.choice(("comma", "or"))),))


def _number_clause(rng: Random) -> Clause:
    match rng.randrange(4):
        case 0:
            return Clause("result", (_number(rng),))
        case 1:
            return Clause("answer", (Listing(tuple(_number(rng) for _ in range(rng.randint(2, 3))), "or"),))
        case 2:
            return Clause(rng.choice(("votes", None)), (_by_place(rng, "territory", _number),))
    return Clause(
        rng.choice(("numbers", None)), (Listing(tuple(_number(rng) for _ in range(rng.randint(2, 4))), "dash"),)
    )


def _amount_clause(rng: Random) -> Clause:
    match rng.randrange(4):
        case 0:
            return Clause("price", (_amount(rng),))
        case 1:
            return Clause("total", (_amount(rng), _amount(rng)))
        case 2:
            return Clause(rng.choice(("prices", None)), (_by_place(rng, "territory", _amount),))
    return Clause(None, (Listing(tuple(_amount(rng) for _ in range(rng.randint(2, 3))), rng.choice(("and", "or"))),))


def _duration_clause(rng: Random) -> Clause:
    match rng.randrange(4):
        case 0:
            return Clause(rng.choice(("journey", "film")), (_duration(rng),))
        case 1:
            return Clause("begins", (FromNow(rng.choice(DURATIONS), rng.choice(_COUNTS)),))
        case 2:
            return Clause("ended", (FromNow(rng.choice(DURATIONS), -rng.choice(_COUNTS)),))
    return Clause(rng.choice(("waiting", None)), (_duration(rng),))


def _measure_clause(rng: Random) -> Clause:
    match rng.randrange(5):
        case 0:
            return Clause("parcel", (_quantity(rng, rng.choice(WEIGHTS)),))
        case 1:
            return Clause("distance", (_quantity(rng, rng.choice(LENGTHS)),))
        case 2:
            unit = rng.choice(LENGTHS)
            return Clause("size", (_quantity(rng, unit), _quantity(rng, unit), _quantity(rng, unit)))
        case 3:
            return Clause(
                "temperatures",
                (_by_place(rng, "city", lambda r: Quantity("temperature-celsius", r.choice(_COUNTS[:30]), _toss(r))),),
            )
    return Clause(None, (Listing((_quantity(rng, rng.choice(LENGTHS)), _quantity(rng, rng.choice(WEIGHTS)))),))


def _places_clause(rng: Random) -> Clause:
    match rng.randrange(3):
        case 0:
            return Clause(rng.choice(("countries", None)), (Listing(_names(rng, "territory", 3, 6)),))
        case 1:
            return Clause(rng.choice(("destinations", None)), (Listing(_names(rng, "territory", 2, 4), "or"),))
    return Clause(rng.choice(("route", None)), (Listing(_names(rng, "city", 3, 5), "dash"),))


def _languages_clause(rng: Random) -> Clause:
    match rng.randrange(3):
        case 0:
            return Clause(rng.choice(("languages", None)), (Listing(_names(rng, "language", 3, 6)),))
        case 1:
            return Clause(rng.choice(("subtitles", None)), (Listing(_names(rng, "language", 2, 4), "or"),))
    original, *translations = _names(rng, "language", 3, 5)
    return Clause("original", (original, Listing(tuple(translations))))


_CLAUSES: dict[str, Callable[[Random], Clause]] = {
    "date": _date_clause,
    "time": _time_clause,
    "number": _number_clause,
    "amount": _amount_clause,
    "duration": _duration_clause,
    "measure": _measure_clause,
    "places": _places_clause,
    "languages": _languages_clause,
}
