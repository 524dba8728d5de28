"""Checkpoints that survive a kill at any moment.

A checkpoint is a folder `step-00001000` of safetensors and JSON files. It is written under another name, with a
manifest of checksums, flushed to disk, and renamed: a folder with the right name is whole, or its manifest says it is
not. No pickle is ever written or read.
"""

import hashlib
import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from anydepth.errors import UserError

MANIFEST = "manifest.json"
STATE = "state.json"


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
) -> Path:
    """Writes one checkpoint, then removes all but the newest `keep`. The notes stand in each safetensors file."""
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    part = folder / f".part-{step:08d}"
    part.mkdir()
    for name, named in tensors.items():
        save_file(plain(named), part / f"{name}.safetensors", notes)
    (part / STATE).write_text(json.dumps(state, indent=1))
    sums = {file.name: checksum(file) for file in sorted(part.iterdir())}
    (part / MANIFEST).write_text(json.dumps({"step": step, "sha256": sums}, indent=1))
    for file in part.iterdir():
        flush(file)
    flush(part)
    final = folder / f"step-{step:08d}"
    if final.exists():  # a damaged one of the same step, or a replay
        shutil.rmtree(final)
    os.replace(part, final)
    flush(folder)
    for old in steps(folder)[:-keep]:
        shutil.rmtree(old)
    return final


def newest(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint; damaged ones are passed over with a warning."""
    for path in reversed(steps(folder)):
        problem = damage(path)
        if problem is None:
            return read(path)
        warnings.warn(f"{path}: {problem}; falling back to the checkpoint before it", stacklevel=2)
    return None


def steps(folder: Path) -> list[Path]:
    """Finished checkpoints, oldest first."""
    return sorted(folder.glob("step-*")) if folder.is_dir() else []


def read(path: Path) -> Checkpoint:
    state = json.loads((path / STATE).read_text())
    tensors = {file.stem: load_file(file) for file in path.glob("*.safetensors")}
    return Checkpoint(int(path.name.removeprefix("step-")), tensors, state)


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        sums = json.loads((path / MANIFEST).read_text())["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return "its manifest is missing or unreadable"
    for name, expected in sums.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if checksum(file) != expected:
            return f"{name} does not match its checksum"
    return None


def remove_leftovers(folder: Path) -> None:
    """What a killed save left behind."""
    for part in folder.glob(".part-*"):
        shutil.rmtree(part)


def checksum(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def flush(path: Path) -> None:
    """Asks the disk to keep what was written."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().contiguous() for name, value in tensors.items()}


def write_weights(weights: dict[str, Tensor], path: Path, notes: dict[str, str]) -> None:
    """Replaces a safetensors file in one step."""
    part = path.with_name(f".part-{path.name}")
    save_file(plain(weights), part, notes)
    flush(part)
    os.replace(part, path)


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
    for name in parameters.keys() ^ tensors.keys():
        raise UserError(f"weights do not fit the model: {name} is {'missing' if name in parameters else 'unknown'}")
    with torch.no_grad():
        for name, parameter in parameters.items():
            if parameter.shape != tensors[name].shape:
                shapes = f"{tuple(tensors[name].shape)}, the model has {tuple(parameter.shape)}"
                raise UserError(f"weights do not fit the model: {name} is {shapes}")
            parameter.copy_(tensors[name])


def write_text(text: str, path: Path) -> None:
    """Replaces a text file in one step."""
    part = path.with_name(f".part-{path.name}")
    part.write_text(text)
    flush(part)
    os.replace(part, path)
