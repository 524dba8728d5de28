"""Draws meanings at random, kind by kind.

Left out is what the phrases could not say correctly in every language: the 1st, 8th and 11th of a month (1er, l'8,
l'11), eleven o'clock (об 11), counts that end in 1 or 2, which agree with their noun in many languages, and units and
currencies that are feminine in Spanish or Portuguese, where hundreds agree too.
"""

import datetime
from collections.abc import Callable
from random import Random
from typing import Literal

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

KINDS = ("date", "time", "number", "amount", "duration", "measure", "places", "languages")


def _codes(text: str) -> tuple[str, ...]:
    return tuple(text.split())


TERRITORIES = _codes(
    "AF AL AO AR AM AU AT AZ BD BE BT BO BA BR BG BI KH CM CA TD CL CN CO HR CU CY CZ DK DJ EG EE ET FI "
    "FR GA GE DE GH GR HT HN HU IS IN ID IR IQ IE IL IT JM JP JO KZ KE KG LV LB LR LY LI LT LU MG MW MY "
    "ML MT MR MX MD MN ME MA MZ NA NP NL NZ NE NG MK NO PK PG PY PE PH PL PT RO RU RW SA SN RS SK SI ZA "
    "ES LK SD SE CH SY TJ TZ TH TG TT TN TR TM UG UA AE GB US UY UZ VE VN YE ZM ZW"
)
LANGUAGE_NAMES = _codes(
    "af sq am ar hy az eu be bn bg my ca zh hr cs da nl en eo et fo fi fr gl ka de el gu he hi hu is id "
    "ga it ja kk km ko ku ky lo la lv lt lb mk mg ms mt mi mn ne no ps fa pl pt pa ro ru sa sr si sk sl "
    "es sw sv tg ta te th bo tr tk uk ur uz vi cy yi zu"
)
CITIES = _codes(
    "Africa/Addis_Ababa Africa/Cairo Africa/Casablanca Africa/Johannesburg Africa/Nairobi America/Bogota "
    "America/Caracas America/Chicago America/Havana America/Lima America/Los_Angeles America/New_York "
    "America/Santiago America/Toronto America/Vancouver Asia/Baghdad Asia/Bangkok Asia/Beirut "
    "Asia/Damascus Asia/Jakarta Asia/Jerusalem Asia/Manila Asia/Seoul Asia/Shanghai Asia/Tashkent "
    "Asia/Tbilisi Asia/Tehran Asia/Tokyo Asia/Vladivostok Asia/Yerevan Australia/Sydney Europe/Amsterdam "
    "Europe/Athens Europe/Belgrade Europe/Berlin Europe/Brussels Europe/Bucharest Europe/Budapest "
    "Europe/Copenhagen Europe/Dublin Europe/Helsinki Europe/Istanbul Europe/Lisbon Europe/London "
    "Europe/Madrid Europe/Oslo Europe/Paris Europe/Prague Europe/Riga Europe/Rome Europe/Sofia "
    "Europe/Stockholm Europe/Tallinn Europe/Vienna Europe/Vilnius Europe/Warsaw Europe/Zurich"
)
CURRENCIES = _codes("EUR USD CHF CAD AUD JPY CNY BRL PLN HUF RUB MXN ZAR KRW ILS RON ARS CLP COP MAD JOD THB")
LENGTHS = ("length-kilometer", "length-meter", "length-centimeter")
WEIGHTS = ("mass-kilogram", "mass-gram")
TIMES = ("week", "day", "hour", "minute", "second")

_DAYS = [day for day in range(2, 29) if day not in (8, 11)]
_HOURS = [7, 8, 9, 10, *range(13, 21)]
_DETAILS = ("opening", "train", "price", "journey", "film", "parcel", "distance")
"""Frames that say something short about an event."""
_FULL = {"week": 200, "day": 7, "hour": 24, "minute": 60, "second": 60}


def draw(rng: Random, kind: str) -> Sentence:
    """A sentence of this kind: from one to four clauses, the first of them of the kind itself."""
    count = rng.choices((1, 2, 3, 4), (35, 35, 20, 10))[0]
    main = rng.randint((count + 1) // 2, count)
    others = rng.sample([other for other in KINDS if other != kind], count - main)
    clauses: list[Clause] = []
    while len(clauses) < main:
        clause = _CLAUSES[kind](rng)
        if clause.frame is None or clause.frame not in [other.frame for other in clauses]:
            clauses.append(clause)
    asides = tuple(_CLAUSES[other](rng) for other in others)
    return Sentence(kind, tuple(clauses), asides, asides_first=rng.random() < 0.3)


def draw_event(rng: Random, year: int, month: int) -> Sentence:
    """Something at a place on a day of this month, and a detail of it."""
    day = Day(datetime.date(year, month, rng.choice(_DAYS)), _toss(rng))
    (city,) = _names(rng, "city", 1, 1)
    while (detail := _CLAUSES[rng.choice(("time", "amount", "duration", "measure"))](rng)).frame not in _DETAILS:
        pass
    return Sentence("date", (Clause(None, (Listing((city, day), "dash"),)), detail), (), asides_first=False)


def _toss(rng: Random) -> bool:
    return rng.random() < 0.5


def _count(rng: Random, below: int) -> int:
    """A number that does not agree with its noun."""
    while (count := rng.randrange(3, below)) % 10 in (1, 2):
        pass
    return count


def _large(rng: Random) -> int:
    """From two to six figures, more often many."""
    return 10 ** rng.choice((2, 3, 4, 5, 6, 6))


def _number(rng: Random) -> Number:
    limit = _large(rng)
    return Number(rng.randrange(limit // 10, limit), _toss(rng))


def _day(rng: Random) -> Day:
    return Day(datetime.date(rng.randrange(1900, 2100), rng.randrange(1, 13), rng.choice(_DAYS)), _toss(rng))


def _clock(rng: Random) -> Clock:
    return Clock(rng.choice(_HOURS), 10 + _count(rng, 50), _toss(rng))


def _timetable(rng: Random) -> tuple[Clock, ...]:
    """Two times, one after the other, in figures: in words, "from" and "to" would ask for cases."""
    times = sorted((rng.choice(_HOURS), rng.randrange(0, 60, 5)) for _ in range(2))
    return tuple(Clock(hour, minute, words=None) for hour, minute in times)


def _quantity(rng: Random, unit: str) -> Quantity:
    if rng.random() < 0.2:
        tenths = 10 * _count(rng, 100) + rng.randrange(1, 10)
        # amounts have two decimals, the second other than 0
        value = (10 * tenths + rng.randrange(1, 10)) / 100 if unit in CURRENCIES else tenths / 10
        return Quantity(unit, value, words=None)
    return Quantity(unit, _count(rng, _large(rng)), _toss(rng))


def _amount(rng: Random) -> Quantity:
    return _quantity(rng, rng.choice(CURRENCIES))


def _length(rng: Random) -> Quantity:
    return _quantity(rng, rng.choice(LENGTHS))


def _weight(rng: Random) -> Quantity:
    return _quantity(rng, rng.choice(WEIGHTS))


def _temperature(rng: Random) -> Quantity:
    return Quantity("temperature-celsius", _count(rng, 40), _toss(rng))


def _duration(rng: Random) -> Listing:
    """Two neighbouring units of time: three weeks and five days."""
    first, words = rng.randrange(len(TIMES) - 1), _toss(rng)
    return Listing(tuple(Quantity(unit, _count(rng, _FULL[unit]), words) for unit in TIMES[first : first + 2]))


def _several(rng: Random, least: int, most: int, thing: Callable[[Random], Meaning]) -> tuple[Meaning, ...]:
    return tuple(thing(rng) for _ in range(rng.randint(least, most)))


def _names(rng: Random, of: Literal["territory", "language", "city"], least: int, most: int) -> tuple[Name, ...]:
    codes = {"territory": TERRITORIES, "language": LANGUAGE_NAMES, "city": CITIES}[of]
    return tuple(Name(of, code) for code in rng.sample(codes, rng.randint(least, most)))


def _table(rng: Random, of: Literal["territory", "city"], thing: Callable[[Random], Meaning]) -> Listing:
    """Something for each of several places: Lisbon – 17 degrees Celsius and Tokyo – 23 degrees Celsius."""
    return Listing(tuple(Listing((name, thing(rng)), "dash") for name in _names(rng, of, 2, 4)))


def _either(rng: Random, frame: str, part: Meaning) -> Clause:
    """With its heading or, as often, without."""
    return Clause(frame if _toss(rng) else None, (part,))


def _date_clause(rng: Random) -> Clause:
    match rng.randrange(4):
        case 0:
            return Clause("deadline", (_day(rng),))
        case 1:
            first, last = sorted((_day(rng), _day(rng)), key=lambda day: day.date)
            return Clause("exhibition", (first, last))
        case 2:
            return _either(rng, "date", _day(rng))
    return _either(rng, "holidays", Listing(_several(rng, 2, 4, _day), rng.choice(("and", "or"))))


def _time_clause(rng: Random) -> Clause:
    match rng.randrange(3):
        case 0:
            return Clause(rng.choice(("opening", "train")), _timetable(rng))
        case 1:
            return _either(rng, "local-time", _table(rng, "city", _clock))
    return _either(rng, "clock", Listing(_several(rng, 2, 4, _clock), rng.choice(("comma", "or"))))


def _number_clause(rng: Random) -> Clause:
    # never joined by "and": one hundred and three, setenta y cinco mil
    match rng.randrange(4):
        case 0:
            return Clause("result", (_number(rng),))
        case 1:
            return Clause("answer", (Listing(_several(rng, 2, 3, _number), "or"),))
        case 2:
            return _either(rng, "votes", _table(rng, "territory", _number))
    return _either(rng, "numbers", Listing(_several(rng, 2, 4, _number), "dash"))


def _amount_clause(rng: Random) -> Clause:
    match rng.randrange(4):
        case 0:
            return Clause("price", (_amount(rng),))
        case 1:
            return Clause("total", (_amount(rng), _amount(rng)))
        case 2:
            return _either(rng, "prices", _table(rng, "territory", _amount))
    return Clause(None, (Listing(_several(rng, 2, 3, _amount), rng.choice(("and", "or"))),))


def _duration_clause(rng: Random) -> Clause:
    match rng.randrange(4):
        case 0:
            return Clause(rng.choice(("journey", "film")), (_duration(rng),))
        case 1:
            return Clause("begins", (FromNow(rng.choice(TIMES), _count(rng, 100)),))
        case 2:
            return Clause("ended", (FromNow(rng.choice(TIMES), -_count(rng, 100)),))
    return _either(rng, "waiting", _duration(rng))


def _measure_clause(rng: Random) -> Clause:
    match rng.randrange(5):
        case 0:
            return Clause("parcel", (_weight(rng),))
        case 1:
            return Clause("distance", (_length(rng),))
        case 2:
            return Clause("size", (_length(rng), _length(rng), _length(rng)))
        case 3:
            return _either(rng, "temperatures", _table(rng, "city", _temperature))
    return Clause(None, (Listing((_length(rng), _weight(rng)), rng.choice(("and", "or"))),))


def _places_clause(rng: Random) -> Clause:
    match rng.randrange(3):
        case 0:
            return _either(rng, "countries", Listing(_names(rng, "territory", 3, 6)))
        case 1:
            return _either(rng, "destinations", Listing(_names(rng, "territory", 2, 4), "or"))
    return _either(rng, "route", Listing(_names(rng, "city", 3, 6), "dash"))


def _languages_clause(rng: Random) -> Clause:
    match rng.randrange(3):
        case 0:
            return _either(rng, "languages", Listing(_names(rng, "language", 3, 6)))
        case 1:
            return _either(rng, "subtitles", Listing(_names(rng, "language", 2, 4), "or"))
    original, *translations = _names(rng, "language", 3, 6)
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
