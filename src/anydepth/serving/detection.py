"""Which language a text is in, and what people call it."""

from collections.abc import Collection
from typing import Any

UNKNOWN = {"confidence": 0.0, "language": "en"}
"""What LibreTranslate says of nothing."""


class Detector:
    def __init__(self) -> None:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier

        self.identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)

    def detect(self, text: str, among: Collection[str] = (), most: int = 3) -> list[dict[str, Any]]:
        """The likeliest languages with their confidence in percent, among some or all that are known."""
        if not text.strip():
            return [UNKNOWN]
        ranked = [(code, chance) for code, chance in self.identifier.rank(text) if not among or code in among]
        whole = sum(chance for _, chance in ranked) or 1.0
        return [{"confidence": round(100 * chance / whole, 1), "language": code} for code, chance in ranked[:most]]


def language_name(code: str) -> str:
    """In English; the code itself where nobody knows it."""
    from babel import Locale, UnknownLocaleError

    try:
        return Locale.parse(code, sep="-").english_name or code
    except (UnknownLocaleError, ValueError):
        return code
