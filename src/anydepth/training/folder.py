"""The folder of a run, before its training begins."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from anydepth.config import Config, dump, load
from anydepth.config_checks import check_validation
from anydepth.data.reading import files_of
from anydepth.errors import UserError
from anydepth.files import write_durably
from anydepth.training import checkpoint


@contextmanager
def opened_run(config: Config, out: Path, resume: bool) -> Iterator[None]:
    """Makes the run folder, or checks that the one to resume was made with these settings; other trainings are kept
    out of it meanwhile."""
    saved = out / "config.toml"
    if saved.exists() and not resume:
        raise UserError(f"{out} already holds a run: give --resume to go on with it, or another --out")
    if resume and not saved.exists():
        raise UserError(f"{out}: nothing to resume, there is no config.toml")
    if resume and (out / "model.safetensors").exists() and not (out / "metrics.jsonl").exists():
        raise UserError(f"{out}: nothing to resume, its model was not trained here; see training.start_from")
    if resume:
        before, now = asdict(load(saved)), asdict(config)
        changed = [part for part in before if part not in ("training", "decoding") and before[part] != now[part]]
        if changed:
            raise UserError(f"{out}: cannot resume with other settings in [{changed[0]}] than {saved} has")
    for corpus in (*config.data.train, *config.data.dev, *config.data.test):
        for file in files_of(corpus):
            if not file.exists():
                raise UserError(f"{file}: no such file")
    check_validation(config.training.validate_depths, config.model)
    out.mkdir(parents=True, exist_ok=True)
    with held_alone(out):
        checkpoint.remove_leftovers(out)
        write_durably(saved, dump(config))
        yield


@contextmanager
def held_alone(out: Path) -> Iterator[None]:
    """Two trainings in one folder would spoil each other's checkpoints. A crash lets go of it, too."""
    handle = os.open(out, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{out}: another training is at work in this folder; wait for it, or stop it") from None
        except OSError:
            pass  # a file system without locks keeps nobody out
        yield
    finally:
        os.close(handle)


@contextmanager
def no_run_if_refused(out: Path, new: bool) -> Iterator[None]:
    """Where data do not fit the settings, a new folder is free for the next try, with other settings."""
    try:
        yield
    except UserError:
        for file in (out / "config.toml", *out.glob("tokenizer*.json")) if new else ():
            file.unlink(missing_ok=True)
        raise
