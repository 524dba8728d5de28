"""The lines of a text file, plain or gzip, without ever holding the file.

A byte order mark at the start and the line end (LF or CRLF) are not part of the text, everything else is.
"""

import codecs
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from anydepth.errors import UserError

NOT_UTF8, OVER_LONG = "invalid UTF-8", "over-long"
LONGEST_LINE = 1 << 18  # bytes; a longer line is skipped without being held in memory


class Line(NamedTuple):
    """A line and the place it comes from, as file:line."""

    place: str
    text: str
    problem: str  # a reason to skip it, or empty


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of a file without their ends. Only LF and CRLF end a line, whatever else Unicode calls a line
    break."""
    with _open(path) as file:
        number = 0
        while raw := file.readline(LONGEST_LINE):
            number += 1
            place = f"{path}:{number}"
            if len(raw) == LONGEST_LINE and not raw.endswith(b"\n"):
                while raw and not raw.endswith(b"\n"):
                    raw = file.readline(LONGEST_LINE)
                yield Line(place, "", OVER_LONG)
                continue
            if number == 1:
                raw = raw.removeprefix(b"\xef\xbb\xbf")
            try:
                yield Line(place, raw.removesuffix(b"\n").removesuffix(b"\r").decode(), "")
            except UnicodeDecodeError:
                yield Line(place, "", NOT_UTF8)


def count_lines(path: Path) -> int:
    lines, block = 0, b"\n"
    with _open(path) as file:
        while more := file.read(1 << 20):
            lines, block = lines + more.count(b"\n"), more
    return lines + (not block.endswith(b"\n"))


def check_encoding(beginning: bytes, name: str) -> None:
    """Refuses UTF-16, half of whose lines would pass for UTF-8: NUL is a character, too."""
    if beginning.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError(f"{name} is UTF-16; expected UTF-8: convert it with iconv -f UTF-16 -t UTF-8")


@contextmanager
def _open(path: Path) -> Iterator[gzip.GzipFile | BufferedReader]:
    """The bytes of a file, decompressed if it ends in .gz; what goes wrong names the file."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            check_encoding(file.peek(2), str(path))
            yield file
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder; a file was expected") from None
    except gzip.BadGzipFile:
        raise UserError(f"{path} ends in .gz but is not a gzip file") from None
    except (EOFError, zlib.error):
        raise UserError(f"{path} is damaged or cut short: its gzip data ends early") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
