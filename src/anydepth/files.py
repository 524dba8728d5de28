"""Small files and new folders, read and written whole: whoever is killed while writing leaves the old or the new."""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from anydepth.errors import UserError


def read_lines(path: Path) -> list[str]:
    """Lines end at line feeds alone: str.splitlines would also cut at characters that text may contain."""
    return path.read_bytes().decode("utf-8").split("\n")[:-1]


def write_lines(path: Path, lines: Iterable[str]) -> None:
    write_atomically(path, "".join(f"{line}\n" for line in lines))


def write_atomically(path: Path, content: str | bytes) -> None:
    """Readers see the old file or the new one, never half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        os.replace(temporary, path)
    except OSError as error:  # people know the file by its own name
        with suppress(OSError):  # where nothing can be written, nothing can be removed
            temporary.unlink()
        raise UserError(f"{path} cannot be written: {error.strerror}") from None


def check_writable(path: Path) -> None:
    """Refuses a file that could not be written once the work for it is done."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; a file was expected")
    if not path.parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.parent}")
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"{path} cannot be written: no permission to write in {path.parent}")


def write_durably(path: Path, text: str) -> None:
    """The same, and on the disk when this comes back."""
    part = path.with_name(f".part-{path.name}")
    part.write_text(text, encoding="utf-8")
    put_in_place(part, path)


def put_in_place(part: Path, path: Path) -> None:
    """Renames, and lets the disk keep first the content and then the name."""
    flush(part)
    os.replace(part, path)
    flush(path.parent)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, under another name; it becomes `path` at the end, or nothing where anything goes wrong.

    An empty one that is there already stays, as others may have mounted it, and is filled from a folder inside.
    """
    there = path.is_dir()
    part = path / ".part" if there else path.with_name(f".{path.name}.{os.getpid()}")
    if path.exists() and (not there or any(entry != part for entry in path.iterdir())):
        raise UserError(f"{path} is not empty: give another --out")
    shutil.rmtree(part, ignore_errors=True)  # of one who was killed
    try:
        part.mkdir(parents=True)
        yield part
        if there:
            for entry in [*part.iterdir()]:
                put_in_place(entry, path / entry.name)
        else:
            put_in_place(part, path)
    except OSError as error:  # people know the folder by its own name
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from None
    except UserError as error:
        raise UserError(str(error).replace(str(part), str(path))) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def locked(folder: Path, if_possible: bool = False) -> Iterator[None]:
    """Others who lock it wait. A crash lets go of it, too. `if_possible` goes on without where there are no locks."""
    with ExitStack() as held:
        try:
            fcntl.flock(held.enter_context(open(folder / "lock", "w")), fcntl.LOCK_EX)
        except OSError:
            if not if_possible:
                raise
        yield


def flush(path: Path) -> None:
    """Asks the disk to keep what was written."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checksum(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
