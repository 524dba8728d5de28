"""Texts into lines and back: a model translates a line at a time, as `anydepth translate` does with a file."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Lines(NamedTuple):
    texts: list[list[str]]
    """The lines of each text."""

    @classmethod
    def of(cls, texts: Sequence[str]) -> "Lines":
        return cls([[line.removesuffix("\r") for line in text.split("\n")] for text in texts])

    @property
    def to_do(self) -> list[str]:
        """All that have something to translate."""
        return [line for lines in self.texts for line in lines if line.strip()]

    def filled(self, translations: Iterable[str]) -> list[str]:
        """The texts with their lines translated."""
        left = iter(translations)
        return [
            "\n".join(next(left).replace("\n", " ") if line.strip() else "" for line in lines) for lines in self.texts
        ]
