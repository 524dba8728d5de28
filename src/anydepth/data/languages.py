"""Which language is meant: the keys of the training corpora, and what people call them."""

from anydepth.config import Config
from anydepth.errors import UserError


def known_languages(config: Config) -> list[str]:
    """The keys of the training corpora."""
    return list(dict.fromkeys(corpus.key for corpus in config.data.train if corpus.key))


def find_language(config: Config, language: str | None) -> str:
    """The key that a language is: itself, or the only one of which it is a part, so that `de` can mean `en-de`.

    Without a language: the only one there is, or "" if that leaves a choice.
    """
    known = known_languages(config)
    if language is None:
        return known[0] if len(known) == 1 else ""
    meant = [language] if language in known else [key for key in known if language in key.split("-")]
    if len(meant) > 1:
        raise UserError(f"language {language!r}: could be {' or '.join(meant)}")
    if not meant:
        there = f"it knows {', '.join(known)}" if known else "its training corpora have no keys"
        raise UserError(f"language {language!r}: unknown to this run; {there}")
    return meant[0]
