"""Small files of an evaluation, read and written whole."""

import os
from collections.abc import Iterable
from pathlib import Path


def read_lines(path: Path) -> list[str]:
    """Lines end at line feeds alone: str.splitlines would also cut at characters that text may contain."""
    return path.read_bytes().decode("utf-8").split("\n")[:-1]


def write_lines(path: Path, lines: Iterable[str]) -> None:
    write_atomically(path, "".join(f"{line}\n" for line in lines))


def write_atomically(path: Path, content: str | bytes) -> None:
    """Readers see the old file or the new one, never half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    os.replace(temporary, path)
