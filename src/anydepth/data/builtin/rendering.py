"""From a meaning to the words of a language: CLDR patterns through Babel, numerals, and our phrases.

Nothing here depends on the machine: the locale is always given, and no time zone or present moment is asked for.
"""

import datetime
import re
from functools import lru_cache

from babel import Locale
from babel.dates import format_date, format_skeleton, format_time, format_timedelta, get_timezone_location
from babel.numbers import get_currency_name
from babel.units import format_unit

from anydepth.data.builtin.meaning import (
    Clause,
    Clock,
    Day,
    FromNow,
    Listing,
    Meaning,
    Name,
    Number,
    Quantity,
    Sentence,
)
from anydepth.data.builtin.numerals import cardinal, feminine_ordinal
from anydepth.data.builtin.phrases import CLOCK, TEMPLATES

_SECONDS = {"week": 604_800, "day": 86_400, "hour": 3_600, "minute": 60, "second": 1}
# CLDR writes fixed and narrow spaces; readers of plain text rarely do
_PLAIN_SPACES = str.maketrans({"\u00a0": " ", "\u202f": " ", "\u2009": " "})


def render(language: str, sentence: Sentence, *, swap: bool = False) -> str:
    """The sentence as one line of text; `swap` writes in figures what it has in words, and the other way round."""
    clauses = [_capitalized(language, _phrase(language, clause, swap)) for clause in sentence.clauses]
    if sentence.asides:
        separator = " ; " if language == "fr" else "; "
        brackets = f"({separator.join(_phrase(language, aside, swap) for aside in sentence.asides)})"
        if sentence.asides_first:
            clauses[0] = f"{brackets} {clauses[0]}"
        else:
            clauses[-1] += f" {brackets}"
    # abbreviations bring their own full stop: 3 марта 2025 г.
    return " ".join(clause if clause.endswith(".") else clause + "." for clause in clauses)


def _phrase(language: str, meaning: Meaning, swap: bool) -> str:
    match meaning:
        case Clause(frame, parts):
            texts = [_phrase(language, part, swap) for part in parts]
            return TEMPLATES[language][frame].format(*texts) if frame else texts[0]
        case Listing(items, style):
            return _list(language, [_phrase(language, item, swap) for item in items], style)
    return _atom(language, meaning, swap)


@lru_cache(maxsize=200_000)
def _atom(language: str, meaning: Meaning, swap: bool) -> str:
    match meaning:
        case Number(value, words):
            text = cardinal(language, value) if words != swap else _figures(language, value)
        case Day(date, words):
            text = _day(language, date, words != swap)
        case Clock(hour, minute, words):
            text = _clock(language, hour, minute, words is not None and words != swap)
        case Quantity(unit, value, words):
            text = _quantity(language, unit, value, words is not None and words != swap)
        case FromNow(unit, value):
            text = _timedelta(language, unit, value, add_direction=True)
        case Name(of, code):
            text = _name(language, of, code)
        case _:
            raise TypeError(f"no way to say {meaning!r}")
    return text.translate(_PLAIN_SPACES)


@lru_cache
def _locale(language: str) -> Locale:
    return Locale.parse(language)


def _figures(language: str, value: int | float) -> str:
    # decimals only come with numbers under a thousand
    group, decimal = _number_symbols(language)
    return f"{value:,}".replace(",", group) if isinstance(value, int) else str(value).replace(".", decimal)


@lru_cache
def _number_symbols(language: str) -> tuple[str, str]:
    symbols = _locale(language).number_symbols["latn"]
    return symbols["group"], symbols["decimal"]


def _day(language: str, date: datetime.date, words: bool) -> str:
    if words:
        return str(format_date(date, "long", locale=_locale(language)))
    return str(format_skeleton("yMd", date, locale=_locale(language)))


def _clock(language: str, hour: int, minute: int, words: bool) -> str:
    if not words:
        return str(format_time(datetime.time(hour, minute), "short", locale=_locale(language)))
    pattern = CLOCK[language]
    return pattern.format(
        hour=cardinal(language, hour),
        minute=cardinal(language, minute),
        ordinal=feminine_ordinal(language, hour) if "{ordinal}" in pattern else "",
        hours=_quantity(language, "hour", hour, True),
        minutes=_quantity(language, "minute", minute, True),
    )


def _quantity(language: str, unit: str, value: int | float, words: bool) -> str:
    if unit.isupper():
        text = _amount(language, unit, value)
    elif unit in _SECONDS:
        text = _timedelta(language, unit, int(value), add_direction=False)
    else:
        text = format_unit(value, unit, "long", locale=_locale(language))
    # the noun keeps the form that the figures ask for
    return text.replace(_figures(language, value), cardinal(language, int(value))) if words else text


def _amount(language: str, currency: str, value: int | float) -> str:
    # not format_currency(format_type="name"): it lets the noun agree with 5.00 as with 5, which Slavic languages do not
    name = str(get_currency_name(currency, count=value, locale=_locale(language)))
    if language == "pt":
        name = name.lower()  # CLDR has Dólares americanos
    return f"{_figures(language, value)} {name}"


def _timedelta(language: str, unit: str, value: int, *, add_direction: bool) -> str:
    seconds = value * _SECONDS[unit]
    # an endless threshold: 90 minutes stay 90 minutes
    return str(format_timedelta(seconds, unit, float("inf"), add_direction, locale=_locale(language)))  # type: ignore[arg-type]


def _name(language: str, of: str, code: str) -> str:
    locale = _locale(language)
    if of == "city":
        return str(get_timezone_location(code, locale=locale, return_city=True))
    return str(locale.territories[code] if of == "territory" else locale.languages[code])


def _list(language: str, items: list[str], style: str) -> str:
    if style in ("comma", "dash"):
        return (", " if style == "comma" else " – ").join(items)
    patterns = _list_patterns(language, style)
    text, last = items[0], items[-1]
    for index, item in enumerate(items[1:-1]):
        text = patterns["middle" if index else "start"].format(text, item)
    closing = patterns["end" if len(items) > 2 else "2"]
    if language == "es":
        closing = _spanish_conjunction(closing, last)
    return closing.format(text, last)


@lru_cache
def _list_patterns(language: str, style: str) -> dict[str, str]:
    patterns = _locale(language).list_patterns
    # not babel.lists.format_list: its "or" lacks what CLDR inherits
    chosen = dict(patterns["standard"]) | dict(patterns["or"] if style == "or" else {})
    return {place: pattern.translate(_PLAIN_SPACES) for place, pattern in chosen.items()}


def _spanish_conjunction(closing: str, last: str) -> str:
    # Francia e Italia, siete u ocho: CLDR leaves this to its users
    if re.match("h?i(?![ae])", last, re.IGNORECASE):
        return closing.replace(" y ", " e ")
    if re.match("h?o|8", last, re.IGNORECASE):
        return closing.replace(" o ", " u ")
    return closing


def _capitalized(language: str, text: str) -> str:
    first = "İ" if language == "tr" and text[0] == "i" else text[0].upper()
    return first + text[1:]
