"""From a meaning to the words of a language: CLDR patterns through Babel, numerals, and our phrases.

Nothing here depends on the machine: the locale is always given, and no time zone or present moment is asked for.
"""

import datetime
import re
from functools import lru_cache

from babel import Locale
from babel.dates import format_date, format_skeleton, format_time, format_timedelta, get_timezone_location
from babel.numbers import format_decimal, get_currency_name
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


def render(language: str, sentence: Sentence, flip: bool = False) -> str:
    """The sentence as one line of text."""
    clauses = [_capitalized(language, phrase(language, clause, flip)) for clause in sentence.clauses]
    if sentence.asides:
        separator = " ; " if language == "fr" else "; "
        brackets = f"({separator.join(phrase(language, aside, flip) for aside in sentence.asides)})"
        if sentence.asides_first:
            clauses[0] = f"{brackets} {clauses[0]}"
        else:
            clauses[-1] += f" {brackets}"
    # abbreviations bring their own full stop: 3 марта 2025 г.
    return " ".join(clause if clause.endswith(".") else clause + "." for clause in clauses)


def phrase(language: str, meaning: Meaning, flip: bool) -> str:
    """Any part of a sentence as text."""
    match meaning:
        case Clause(None, (part,)):
            return phrase(language, part, flip)
        case Clause(str() as frame, parts):
            return TEMPLATES[language][frame].format(*(phrase(language, part, flip) for part in parts))
        case Listing(items, "dash" | "comma" as style):
            return {"dash": " – ", "comma": ", "}[style].join(phrase(language, item, flip) for item in items)
        case Listing(items, style):
            return _list(language, [phrase(language, item, flip) for item in items], style)
    return _atom(language, meaning, flip)


@lru_cache(maxsize=200_000)
def _atom(language: str, meaning: Meaning, flip: bool) -> str:
    match meaning:
        case Number(value, words):
            text = cardinal(language, value) if words != flip else format_decimal(value, locale=_locale(language))
        case Day(date, words):
            text = _day(language, date, "long" if words != flip else "numeric")
        case Clock(hour, minute, words):
            text = (
                _spoken_clock(language, hour, minute)
                if words != flip
                else format_time(datetime.time(hour, minute), "short", locale=_locale(language))
            )
        case Quantity():
            text = _quantity(language, Quantity(meaning.unit, meaning.value, meaning.words != flip))
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


def _day(language: str, date: datetime.date, style: str) -> str:
    if style == "numeric":
        return str(format_skeleton("yMd", date, locale=_locale(language)))
    return str(format_date(date, "full" if style == "weekday" else "long", locale=_locale(language)))


def _spoken_clock(language: str, hour: int, minute: int) -> str:
    pattern = CLOCK[language]
    ordinal = feminine_ordinal(language, hour) if "{ordinal}" in pattern else ""
    return pattern.format(
        hour=cardinal(language, hour),
        minute=cardinal(language, minute),
        ordinal=ordinal,
        hours=_quantity(language, Quantity("hour", hour, words=True)),
        minutes=_quantity(language, Quantity("minute", minute, words=True)),
    )


def _quantity(language: str, quantity: Quantity) -> str:
    unit, value = quantity.unit, quantity.value
    if unit.isupper():
        text = _amount(language, unit, value)
    elif unit in _SECONDS:
        text = _timedelta(language, unit, int(value), add_direction=False)
    else:
        text = format_unit(value, unit, "long", locale=_locale(language))
    text = text.translate(_PLAIN_SPACES)
    # a whole number under a thousand has the same figures everywhere, and the noun keeps the form they ask for
    return (
        text.replace(
            format_decimal(value, locale=_locale(language)).translate(_PLAIN_SPACES), cardinal(language, int(value))
        )
        if quantity.words and isinstance(value, int)
        else text
    )


def _amount(language: str, currency: str, value: int | float) -> str:
    # not format_currency(format_type="name"): it agrees with 5.00 as if it were 5, which Slavic languages do not
    name = get_currency_name(currency, count=value, locale=_locale(language))
    if language == "pt":
        name = name.lower()  # CLDR has Dólares americanos
    pattern = "#,##0" if isinstance(value, int) else "#,##0.00"
    return f"{format_decimal(value, pattern, locale=_locale(language))} {name}"


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
    patterns = _list_patterns(language, style)
    text, last = items[0], items[-1]
    for index, item in enumerate(items[1:-1]):
        text = patterns["middle" if index else "start"].format(text, item)
    closing = patterns["end" if len(items) > 2 else "2"]
    if language == "es":
        closing = _spanish_conjunction(closing, last)
    return closing.format(text, last)


def _spanish_conjunction(closing: str, last: str) -> str:
    # Francia e Italia, siete u ocho; CLDR leaves this to its users
    if re.match("h?i(?![ae])", last, re.IGNORECASE):
        return closing.replace(" y ", " e ")
    if re.match("h?o|8", last, re.IGNORECASE):
        return closing.replace(" o ", " u ")
    return closing


@lru_cache
def _list_patterns(language: str, style: str) -> dict[str, str]:
    patterns = _locale(language).list_patterns
    # not babel.lists.format_list: the "or" patterns lack what they inherit
    chosen = dict(patterns["standard"]) | dict(patterns["or"] if style == "or" else {})
    return {place: pattern.translate(_PLAIN_SPACES) for place, pattern in chosen.items()}


def _capitalized(language: str, text: str) -> str:
    first = "İ" if language == "tr" and text[0] == "i" else text[0].upper()
    return first + text[1:]
