"""Whole numbers in words: num2words, with its known slips put right.

Every rule below is about numbers under a million, the range the corpus uses. What num2words gets wrong there:
it glues the Czech hundreds (`dvěstě`), writes German 101,000 as `einhunderteinstausend`, Spanish 21,000 as
`veintiuno mil`, Swedish 1,000 as `etttusen`, keeps the Dutch accent inside compounds, loses the Italian accent
at their end, and drops the one of Turkish 141,000. Commas between thousands are left out: the corpus puts
numbers into lists.
"""

import re
from collections.abc import Callable

LIMIT = 1_000_000

_REPAIRS: dict[str, tuple[tuple[str, str], ...]] = {
    "en": ((",", ""),),
    "de": (("einstausend", "eintausend"),),
    "es": (("veintiuno mil", "veintiún mil"), (r"\buno mil", "un mil")),
    "it": (("(?<=.)tre$", "tré"),),
    "pt": ((",", ""),),
    "nl": (("(?<=.)één|één(?=.)", "een"), (r"duizend(?=\w)", "duizend ")),
    "sv": (("tttusen", "ttusen"),),
    "cs": (("dvěstě", "dvě stě"), ("(?<=i)sta", " sta"), ("(?<=[tm])set", " set")),
    "uk": (("'", "ʼ"),),
    "hu": (("kettőezer", "kétezer"),),
}
_TURKISH_WORD = re.compile(
    "sıfır|bir|iki|üç|dört|beş|altı|yedi|sekiz|dokuz|on|yirmi|otuz|kırk|elli|altmış|yetmiş|seksen|doksan|yüz"
)


def cardinal(language: str, number: int) -> str:
    """The number in words, in the form used for counting: twenty-one, einundzwanzig, vingt et un."""
    if not 0 <= number < LIMIT:
        raise ValueError(f"only numbers from 0 to {LIMIT - 1} are put into words, not {number}")
    from num2words import num2words

    if language == "tr":
        return _turkish(number, num2words)
    words: str = num2words(number, lang="pt_BR" if language == "pt" else language)
    for pattern, replacement in _REPAIRS.get(language, ()):
        words = re.sub(pattern, replacement, words)
    return words


def feminine_ordinal(language: str, number: int) -> str:
    """The number that names an hour in Polish and Ukrainian: czternasta, чотирнадцята."""
    from num2words import num2words

    words: str = num2words(number, lang=language, to="ordinal")
    if language == "pl":
        return re.sub(r"y\b", "a", words).replace("trzeci", "trzecia")
    return re.sub(r"ий\b", "а", words).replace("третій", "третя").replace("'", "ʼ")


def _turkish(number: int, num2words: Callable[..., str]) -> str:
    # written apart, as in running text; below a thousand num2words is right except for the spaces
    thousands, rest = divmod(number, 1000)
    words = [] if thousands < 2 else _TURKISH_WORD.findall(num2words(thousands, lang="tr"))
    if thousands:
        words.append("bin")
    if rest or not thousands:
        words += _TURKISH_WORD.findall(num2words(rest, lang="tr"))
    return " ".join(words)
