"""The corpora that come with the library, as recipes name them; builtin/ makes their sentences."""

from collections.abc import Iterator
from typing import Literal

from anydepth.config_class import config

Made = tuple[str, str | None, str | None]
"""A source, and its target or its label."""


def check_size(size: int) -> None:
    if size < 1:
        raise ValueError(f"size must be at least 1, not {size}")


@config
class Builtin:
    """The corpus that comes with the library, made on the fly."""

    type: Literal["builtin"] = "builtin"
    source: str = "en"
    """Source language."""
    target: str = "de"
    """Target language."""
    size: int = 20_000
    """Number of pairs."""
    seed: int = 1
    """Another seed gives another corpus of the same kind."""
    key: str = ""
    """Language pair or task, for methods whose depth depends on it."""

    def __post_init__(self) -> None:
        check_size(self.size)


@config
class BuiltinNotices:
    """Notices of several dated events in one language, each with the one line that matters, made on the fly."""

    type: Literal["builtin-notices"] = "builtin-notices"
    language: str = "en"
    """Language of notices and summaries."""
    size: int = 20_000
    """Number of notices."""
    seed: int = 1
    """Another seed gives another corpus of the same kind."""
    key: str = ""
    """Language or task, for methods whose depth depends on it."""

    def __post_init__(self) -> None:
        check_size(self.size)


@config
class BuiltinText:
    """One language of the corpus that comes with the library, made on the fly."""

    type: Literal["builtin-text"] = "builtin-text"
    language: str = "en"
    """Its language."""
    size: int = 20_000
    """Number of sentences."""
    seed: int = 1
    """Another seed gives another corpus of the same kind."""
    key: str = ""
    """Language, for methods whose depth depends on it."""

    def __post_init__(self) -> None:
        check_size(self.size)


@config
class BuiltinLabelled:
    """The corpus that comes with the library: sentences and what they are about (a date, an amount, a place …)."""

    type: Literal["builtin-labelled"] = "builtin-labelled"
    language: str = "en"
    """Its language."""
    size: int = 20_000
    """Number of sentences."""
    seed: int = 1
    """Another seed gives another corpus of the same kind."""
    key: str = ""
    """Domain or task, for methods whose depth depends on it."""

    def __post_init__(self) -> None:
        check_size(self.size)


BuiltinCorpus = Builtin | BuiltinNotices | BuiltinText | BuiltinLabelled


def make(corpus: BuiltinCorpus, split: Literal["train", "dev", "test"]) -> Iterator[Made]:
    """Its rows, made on the fly."""
    from anydepth.data import builtin

    made = split, corpus.size, corpus.seed
    match corpus:
        case Builtin():
            return ((source, target, None) for source, target in builtin.pairs(corpus.source, corpus.target, *made))
        case BuiltinNotices():
            return ((notice, line, None) for notice, line in builtin.notices(corpus.language, *made))
        case BuiltinText():
            return ((text, None, None) for text in builtin.monolingual(corpus.language, *made))
        case BuiltinLabelled():
            return ((text, None, label) for label, text in builtin.labelled(corpus.language, *made))
