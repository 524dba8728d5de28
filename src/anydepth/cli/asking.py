"""What several verbs ask for, and what it stands for."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anydepth.errors import UserError

if TYPE_CHECKING:
    from anydepth.run import Run


def load_for(engine: str, run: Path, device: str, settings: Sequence[str], language: str | None) -> "Run":
    """A run, in a language, that searches with an engine."""
    from anydepth.run import load

    if engine != "native" and device not in ("auto", "cpu"):
        raise UserError(f"--device {device}: --engine {engine} runs on the CPU")
    loaded = load(run, device if engine == "native" else "cpu", settings=settings).in_language(language)
    if engine == "native":
        return loaded
    from anydepth.interop.ctranslate2 import CTranslate2Run

    return CTranslate2Run.of(loaded)


def parse_depths(text: str) -> list[str] | None:
    """`6-6,6-2`; none for `all`."""
    return None if text == "all" else [depth.strip() for depth in text.split(",")]


def parse_numbers(flag: str, text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise UserError(f"{flag} {text}: expected whole numbers with commas between") from None


def automatic_depth(run: "Run", settings: dict[str, Any]) -> str:
    """What `--depth auto` stands for; says why on stderr."""
    from anydepth.choosing.schedule import AUTO, Choice, drafts_are_open
    from anydepth.decoding.decoder import changed

    decoding = changed(run.config.decoding, settings)
    choice = Choice(AUTO, None, drafts=drafts_are_open(settings))
    guide = run.guide(decoding.beam, precision=decoding.precision)
    found = choice.options(decoding, guide).automatic(decoding.batch)
    print(f"anydepth: {found.reason}", file=sys.stderr)
    return found.depth
