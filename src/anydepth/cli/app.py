"""The command itself, its mistakes, and options that several verbs have."""

import errno
import io
import os
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import typer

from anydepth.errors import UserError

app = typer.Typer(
    help="One Transformer, trained once, run at any depth. A depth is written encoder-decoder layers: 6-2.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder made by `anydepth train`.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Change a setting of the recipe; may be repeated."),
]
RunSettings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=C", help="Change a setting of the run for this call; may be repeated."),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …; auto takes a GPU where there is one.")]
Beam = Annotated[int | None, typer.Option(help="Hypotheses kept per sentence; 1 is greedy. Default: the recipe's.")]
Batch = Annotated[int | None, typer.Option(help="Sentences decoded together. Default: the recipe's.")]
Precision = Annotated[
    Literal["float32", "bfloat16", "float16", "int8"] | None,
    typer.Option(
        help="Number type of the weights. Faster than float32: bfloat16 on a GPU; on a CPU, in wide models, int8, and "
        "float16 for single sentences. "
        "Default: the recipe's."
    ),
]
Language = Annotated[
    str | None,
    typer.Option(metavar="en-de", help="Language pair, of a run with several: a key of its training corpora."),
]
Engine = Annotated[
    Literal["native", "ctranslate2"],
    typer.Option(help="ctranslate2: that engine, on the CPU, with an export that the run's folder keeps."),
]
TextFile = Annotated[Path | None, typer.Argument(metavar="FILE", help="One text a line, also .gz. Default: stdin.")]
Output = Annotated[Path | None, typer.Option(metavar="FILE", help="Write here. Default: stdout.")]
Depth = Annotated[str | None, typer.Option(metavar="E-D", help="Depth, such as 6-2. Default: the deepest.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

DISK_TROUBLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""What a write can meet that is nobody's mistake in here; such errors often do not know their file."""


def main() -> None:
    """The entry point: mistakes become one line, Ctrl-C exit code 130."""
    warnings.showwarning = lambda message, *_: print(f"anydepth: warning: {message}", file=sys.stderr)
    # closed by the shell: whoever reads or writes it learns so
    if sys.stdin is None:
        sys.stdin = open(os.open(os.devnull, os.O_WRONLY))  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(os.open(os.devnull, os.O_RDONLY), "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")  # as all text we read is, whatever the locale
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()  # what cannot be written is told here, and not by Python when it ends
        sys.exit(code)
    except UserError as error:
        complain(str(error))
    except BrokenPipeError:  # whoever reads has enough
        write_no_more()
        sys.exit(1)
    except OSError as error:
        if error.errno in DISK_TROUBLE:
            write_no_more()
        if error.filename is None and error.errno not in DISK_TROUBLE:
            raise
        complain(f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror))
    except Exception as error:
        # typer's own complaints about flags; their class moves between its versions
        if not hasattr(error, "format_message"):
            raise
        complain(error.format_message().replace("Value error, ", ""))
    sys.exit(2)


def write_no_more() -> None:
    """Python would try again to write what is left when it ends, and complain in its own way."""
    with suppress(OSError):
        sys.stdout.flush()
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(text: str) -> None:
    for line in text.splitlines():
        print(f"anydepth: {line}", file=sys.stderr)


def version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version as installed

        print(installed("anydepth"))
        raise typer.Exit


@app.callback()
def anydepth(
    version: Annotated[bool, typer.Option("--version", callback=version, is_eager=True, help="Print it.")] = False,
) -> None:
    pass
