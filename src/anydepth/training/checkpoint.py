"""Checkpoints that survive a kill at any moment.

A checkpoint is a folder `step-00001000` of safetensors and JSON files. It is written under another name, with a
manifest of checksums, flushed to disk, and renamed: a folder with the right name is whole, or its manifest says it is
not. No pickle is ever written or read.
"""

import json
import os
import shutil
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from anydepth.errors import UserError
from anydepth.files import checksum, flush, put_in_place, write_durably

MANIFEST = "manifest.json"
STATE = "state.json"
FINISHED = "finished"


class Checkpoint(NamedTuple):
    step: int
    tensors: dict[str, dict[str, Tensor]]
    """By file: "model", "optimizer"."""
    state: dict[str, Any]


def save(
    folder: Path,
    step: int,
    tensors: dict[str, dict[str, Tensor]],
    state: dict[str, Any],
    keep: int,
    notes: dict[str, str] | None = None,
    every: int = 1,
) -> Path:
    """Writes one checkpoint, then takes away those no longer needed (`prune`). The notes stand in each safetensors
    file."""
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    part = folder / f".part-{step:08d}"
    part.mkdir()
    try:
        for name, named in tensors.items():
            save_tensors(named, part / f"{name}.safetensors", notes)
        (part / STATE).write_text(json.dumps(state, indent=1))
        sums = {file.name: checksum(file) for file in sorted(part.iterdir())}
        (part / MANIFEST).write_text(json.dumps({"step": step, "sha256": sums}, indent=1))
        for file in part.iterdir():
            flush(file)
    except (OSError, SafetensorError) as error:  # most likely a full disk: give back what was taken
        shutil.rmtree(part)
        raise UserError(f"{part}: cannot save a checkpoint: {error}; earlier ones are kept") from None
    flush(part)
    for path in steps(folder):
        if step_of(path) >= step:  # damaged, or a resume would have gone on from there
            set_aside(path)
    final = folder / f"step-{step:08d}"
    os.replace(part, final)
    flush(folder)
    prune(folder, keep, every)
    return final


def prune(folder: Path, keep: int, every: int = 1) -> None:
    """Keeps the newest checkpoint and the `keep` - 1 newest before it whose step is a multiple of `every`.

    The others were saved because a training was interrupted. Without them, the checkpoints of a resumed training,
    and so their mean, are those of an uninterrupted one.
    """
    *older, _ = steps(folder)
    scheduled = [path for path in reversed(older) if step_of(path) % every == 0]
    for path in set(older).difference(scheduled[: keep - 1]):
        set_aside(path)
    remove_leftovers(folder)


def set_aside(path: Path) -> None:
    """A folder that loses its name first is never found half removed."""
    os.replace(path, path.with_name(f".part-old-{path.name}"))


def remove_leftovers(folder: Path) -> None:
    """What was set aside, or what a kill left half written."""
    for part in folder.glob(".part-*"):
        if part.is_dir():
            shutil.rmtree(part)
        else:
            part.unlink()


def newest(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint."""
    return next((read(path) for path in reversed(steps(folder)) if is_whole(path)), None)


def steps(folder: Path) -> list[Path]:
    """Finished checkpoints, oldest first."""
    return sorted((path for path in folder.glob("step-*") if path.name[5:].isdigit()), key=step_of)


def step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def read(path: Path) -> Checkpoint:
    state = json.loads((path / STATE).read_text())
    tensors = {file.stem: load_file(file) for file in path.glob("*.safetensors")}
    return Checkpoint(step_of(path), tensors, state)


def is_whole(path: Path) -> bool:
    """Whether a checkpoint can be used; a damaged one is passed over with a warning."""
    problem = damage(path)
    if problem:
        warnings.warn(f"{path}: {problem}; falling back to other checkpoints", stacklevel=2)
    return problem is None


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        sums = dict(json.loads((path / MANIFEST).read_text())["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return "its manifest is missing or unreadable"
    present = {file.name for file in path.iterdir()} - {MANIFEST}
    for name in sorted(present | sums.keys() | {STATE}):
        if name not in present:
            return f"{name} is missing"
        if checksum(path / name) != sums.get(name):
            return f"{name} does not match its checksum"
    return None


def mark_finished(folder: Path, step: int, state: dict[str, Any]) -> None:
    """The training has come to its end: what has changed since the checkpoint of its last step."""
    write_durably(folder / FINISHED, json.dumps({"step": step, "state": state}))


def finished(folder: Path, step: int) -> dict[str, Any] | None:
    """What changed after this step, that of the newest checkpoint, if the training came to its end with it."""
    if not (folder / FINISHED).exists():
        return None
    mark = json.loads((folder / FINISHED).read_text())
    if isinstance(mark, int):  # the step alone, as it was written once
        mark = {"step": mark, "state": {}}
    return mark["state"] if mark["step"] == step else None


def weights_file(folder: Path, checkpoint: str) -> Path:
    """The weights meant by `best`, `last` or the number of a step."""
    if checkpoint == "best":
        file = folder / "model.safetensors"
        if not file.is_file():
            raise UserError(f"{file}: no such file; it appears with the first validation of a training")
        return file
    saved = {str(step_of(path)): path for path in steps(folder / "checkpoints")}
    step = next(reversed(saved), "") if checkpoint == "last" else checkpoint
    if step not in saved:
        choices = ", ".join(["best", *(["last"] if saved else []), *saved])
        raise UserError(f"checkpoint {checkpoint!r}: {folder} has {choices}")
    if problem := damage(saved[step]):
        raise UserError(f"{saved[step]} is damaged: {problem}")
    return saved[step] / "model.safetensors"


def save_tensors(tensors: dict[str, Tensor], file: Path, notes: dict[str, str] | None) -> None:
    """A safetensors file that others may read if they may read other new files; `save_file` alone forbids it."""
    file.touch()
    mode = file.stat().st_mode
    save_file({name: value.detach().contiguous() for name, value in tensors.items()}, file, notes)
    file.chmod(mode)


def write_weights(weights: dict[str, Tensor], path: Path, notes: dict[str, str] | None = None) -> None:
    """Replaces a safetensors file in one step."""
    # in a folder, because the safetensors library makes a temporary file beside it
    with TemporaryDirectory(prefix=".part-", dir=path.parent) as part:
        try:
            save_tensors(weights, Path(part) / path.name, notes)
        except (OSError, SafetensorError) as error:
            raise UserError(f"{path}: cannot be written: {error}") from None
        put_in_place(Path(part) / path.name, path)


def average(paths: list[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints, summed in double precision."""
    total: dict[str, Tensor] = {}
    for path in paths:
        for name, value in load_file(path / "model.safetensors").items():
            total[name] = value.double() + total[name] if name in total else value.double()
    return {name: (value / len(paths)).float() for name, value in total.items()}


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Parameters by name, each shared one once."""
    return dict(model.named_parameters())


def load_weights(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Copies weights into a model that has exactly these."""
    parameters = dict(model.named_parameters())
    for name in sorted(parameters.keys() ^ tensors.keys()):
        raise UserError(f"weights do not fit the model: {name} is {'missing' if name in parameters else 'unknown'}")
    with torch.no_grad():
        for name, parameter in parameters.items():
            if parameter.shape != tensors[name].shape:
                shapes = f"{tuple(tensors[name].shape)}, the model has {tuple(parameter.shape)}"
                raise UserError(f"weights do not fit the model: {name} is {shapes}")
            parameter.copy_(tensors[name])
