"""Whole numbers under a million in words: num2words, joined and mended.

num2words gives the thousands and the rest, each once; putting them together here is fast, and spares us
what it gets wrong in longer numbers: it loses the one of Turkish 141,000 and writes German 101,000 as
`einhunderteinstausend`, Spanish 21,000 as `veintiuno mil`, Swedish 1,000 as `etttusen`, and glues the Czech hundreds
(`dvěstě`). There are no commas between thousands and rest, since the corpus puts numbers into lists.
"""

import re
from functools import cache

LIMIT = 1_000_000

_REPAIRS = {
    "de": (("einstausend", "eintausend"),),
    "es": (("veintiuno mil", "veintiún mil"), (r"\buno mil", "un mil")),
    "it": (("(?<=.)tre$", "tré"),),
    "nl": (("(?<=.)één|één(?=.)", "een"),),
    "sv": (("tttusen", "ttusen"),),
    "cs": (("dvěstě", "dvě stě"), ("(?<=i)sta", " sta"), ("(?<=[tm])set", " set")),
    "uk": (("'", "ʼ"),),
    "hu": (("kettőezer", "kétezer"),),
}
_TURKISH_WORD = (
    "sıfır|bir|iki|üç|dört|beş|altı|yedi|sekiz|dokuz|on|yirmi|otuz|kırk|elli|altmış|yetmiş|seksen|doksan|yüz"
)


def cardinal(language: str, number: int) -> str:
    """The number in words, in the form used for counting: twenty-one, einundzwanzig, vingt et un."""
    if not 0 <= number < LIMIT:
        raise ValueError(f"only numbers from 0 to {LIMIT - 1} are put into words, not {number}")
    thousands, rest = divmod(number, 1000)
    if not thousands:
        words = _words(language, number)
    elif not rest:
        words = _thousands(language, thousands)
    else:
        words = _thousands(language, thousands) + _joint(language, thousands, rest) + _words(language, rest)
    for pattern, replacement in _REPAIRS.get(language, ()):
        words = re.sub(pattern, replacement, words)
    return words


def feminine_ordinal(language: str, number: int) -> str:
    """The number that names an hour in Polish and Ukrainian: czternasta, чотирнадцята."""
    from num2words import num2words

    words = str(num2words(number, lang=language, to="ordinal"))
    if language == "pl":
        return re.sub(r"y\b", "a", words)
    return re.sub(r"ий\b", "а", words).replace("'", "ʼ")


@cache
def _words(language: str, number: int) -> str:
    from num2words import num2words

    words = str(num2words(number, lang="pt_BR" if language == "pt" else language))
    # Turkish is written apart, as in running text
    return " ".join(re.findall(_TURKISH_WORD, words)) if language == "tr" else words


def _thousands(language: str, thousands: int) -> str:
    if language == "tr":
        return "bin" if thousands == 1 else _words("tr", thousands) + " bin"
    return _words(language, 1000 * thousands)


def _joint(language: str, thousands: int, rest: int) -> str:
    match language:
        case "en":
            return " and " if rest < 100 else " "
        case "pt":
            return " e " if rest < 100 or rest % 100 == 0 else " "
        case "sv":
            return "" if rest < 100 else " "
        case "hu":
            return "" if thousands == 1 else "-"
        case "de" | "it":
            return ""
    return " "
