"""The files of a distillation: the output, and the parts it is made of.

Each finished block becomes a file in `OUT.parts/`, put there in one step, so that a kill loses the blocks in work and
nothing else. `OUT.parts/journal.json`, and later `OUT.json`, say what they were made from: parts of other weights,
settings or sources are never mixed.
"""

import gzip
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from anydepth.data.reading import Skips
from anydepth.errors import UserError
from anydepth.files import flush, put_in_place


@dataclass(frozen=True)
class Files:
    """The output and what stands beside it."""

    out: Path

    @property
    def report(self) -> Path:
        return self.out.with_name(f"{self.out.name}.json")

    @property
    def parts(self) -> Path:
        return self.out.with_name(f"{self.out.name}.parts")

    @property
    def journal(self) -> Path:
        return self.parts / "journal.json"

    def part(self, number: int) -> Path:
        return self.parts / f"{number:06d}.json"

    def missing(self, blocks: int) -> list[int]:
        present = set(os.listdir(self.parts))
        return [number for number in range(blocks) if self.part(number).name not in present]

    def aside(self) -> Path:
        """A name for a folder of parts that is not in use yet, or no longer."""
        return self.out.with_name(f".{self.parts.name}-{secrets.token_hex(8)}")

    def begin_parts(self, journal: dict[str, Any]) -> None:
        """A folder for parts, whole with its journal or not there at all."""
        draft = self.aside()
        draft.mkdir()
        with in_one_step(draft / self.journal.name, draft) as file:
            file.write(as_json(journal))
        try:
            os.rename(draft, self.parts)
        except OSError:  # another shard was faster
            shutil.rmtree(draft)
        flush(self.out.parent)

    def remove_parts(self) -> None:
        """Also what kills left. A folder that loses its name first is never found half removed."""
        with suppress(FileNotFoundError):  # another shard was faster
            os.rename(self.parts, self.aside())
        for path in self.out.parent.iterdir():
            if path.name.startswith(f".{self.parts.name}-"):
                shutil.rmtree(path, ignore_errors=True)


def is_finished(files: Files, made_from: dict[str, Any]) -> bool:
    report = read_json(files.report)
    if report is None or "made_from" not in report:
        for path in (files.out, files.report):
            if path.exists():
                raise UserError(f"{path} exists and is not the result of a distillation: choose another output")
        return False
    if not files.out.exists():
        return False
    refuse_changes(files.out, report, made_from)
    return True


def refuse_changes(path: Path, record: dict[str, Any], made_from: dict[str, Any]) -> None:
    """What was not recorded then may have been the same."""
    changes = [
        f"{name} was {brief(before)} and is {brief(made_from.get(name))}"
        for name, before in record["made_from"].items()
        if before != made_from.get(name)
    ]
    if changes:
        raise UserError(f"{path} was made otherwise: {', '.join(changes)}; remove it, or choose another output")


def brief(value: Any) -> str:
    """A value in a message; of a checksum, its beginning."""
    text = str(value)
    return f"{text[:8]}…" if len(text) == 64 else text or "empty"


def write_parts(files: Files, journal: dict[str, Any], file: BinaryIO) -> Skips:
    """All translations in order. Compressed without name and time: the same translations are the same bytes."""
    lines, skips = 0, Skips()
    with gzip.GzipFile("", "wb", 6, file, mtime=0) if files.out.suffix == ".gz" else nullcontext(file) as text:
        for number in range(journal["blocks"]):
            translations, more = read_part(files.part(number))
            if len(translations) != min(journal["made_from"]["block"], journal["lines"] - lines):
                raise damaged(files.part(number))
            text.write("".join(f"{line}\n" for line in translations).encode())
            lines, skips = lines + len(translations), skips + more
    return skips


def read_part(path: Path) -> tuple[list[str], Skips]:
    try:
        part = json.loads(path.read_bytes())
        return part["translations"], Skips(**part["skips"])
    except (ValueError, KeyError, TypeError):
        raise damaged(path) from None


def damaged(part: Path) -> UserError:
    return UserError(f"{part} is damaged: remove this file and run again")


@contextmanager
def in_one_step(path: Path, folder: Path) -> Iterator[BinaryIO]:
    """A file that is written in `folder` and gets its name when it is whole and on the disk."""
    scratch = folder / f".part-{secrets.token_hex(8)}"
    try:
        with scratch.open("wb") as file:
            yield file
        put_in_place(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


@contextmanager
def unless_finished(files: Files) -> Iterator[None]:
    """Of two processes that do the same, the slower one finds the parts gone and the output there: that is fine."""
    try:
        yield
    except FileNotFoundError:
        if files.parts.exists() or not files.out.exists():
            raise
    except OSError as error:  # most likely a full disk
        reason = error.strerror or error
        raise UserError(f"{files.parts}: cannot be written: {reason}; finished blocks are kept, run again") from None


def as_json(value: dict[str, Any], indent: int | None = None) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=indent).encode()


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None if there is no such file or no object in it."""
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, ValueError):
        return None
    return value if isinstance(value, dict) else None
