"""What a run folder tells about a run: its configuration, training curves, depth grid and outputs."""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anydepth.errors import UserError
from anydepth.evaluation.cells import deepest, depth_name
from anydepth.evaluation.grid import read_lines
from anydepth.plan import parse_depth


@dataclass(frozen=True)
class Record:
    folder: Path
    name: str
    """The folder's name, with as much of its path as tells it from the other runs of a report."""
    config_text: str
    train: list[dict[str, Any]]
    """Training lines of metrics.jsonl by step; of a step done twice, before and after a resume, the last."""
    valid: dict[str, list[dict[str, Any]]]
    """Validation lines by depth, shallow depths first."""
    unreadable: int
    """Lines of metrics.jsonl that are no JSON, as a killed training may leave."""
    grid: dict[str, Any] | None

    @property
    def cells(self) -> list[dict[str, Any]]:
        return self.grid["cells"] if self.grid else []

    @property
    def deepest(self) -> str:
        return depth_name(deepest(self.cells))

    def settings(self) -> dict[str, str]:
        """The configuration, flat: `model.width` → `512`."""
        return _flat(tomllib.loads(self.config_text))

    def test_set(self) -> tuple[list[str], list[str]] | None:
        """Source and reference of the grid, where they were kept."""
        files = [self.folder / "outputs" / f"{side}.txt" for side in ("source", "reference")]
        return (read_lines(files[0]), read_lines(files[1])) if all(file.exists() for file in files) else None

    def outputs(self, depths: Sequence[str]) -> dict[str, list[str]]:
        """The hypotheses of those depths that were kept."""
        files = {depth: self.folder / "outputs" / f"{depth}.txt" for depth in depths}
        return {depth: read_lines(file) for depth, file in files.items() if file.exists()}


def read_records(folders: Sequence[Path]) -> list[Record]:
    return [_read(folder, name) for folder, name in zip(folders, _names(folders), strict=True)]


def _read(folder: Path, name: str) -> Record:
    config = folder / "config.toml"
    if not config.is_file():
        raise UserError(f"{folder}: not a run (it has no config.toml); expected a folder made by anydepth train")
    text = config.read_text(encoding="utf-8")
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{config}: not TOML: {error}") from None
    train, valid, unreadable = _read_metrics(folder / "metrics.jsonl")
    return Record(folder, name, text, train, valid, unreadable, _read_grid(folder / "grid.json"))


def _read_metrics(path: Path) -> tuple[list[dict[str, Any]], dict[str, list[dict[str, Any]]], int]:
    train: dict[int, dict[str, Any]] = {}
    valid: dict[str, dict[int, dict[str, Any]]] = {}
    unreadable = 0
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            entry = json.loads(line)
            if entry["kind"] == "train":
                train[entry["step"]] = entry
            elif entry["kind"] == "valid":
                valid.setdefault(entry["depth"], {})[entry["step"]] = entry
        except (ValueError, KeyError, TypeError):
            unreadable += 1

    def by_step(entries: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
        return [entries[step] for step in sorted(entries)]

    depths = sorted(valid, key=lambda depth: sum(parse_depth(depth)))
    return by_step(train), {depth: by_step(valid[depth]) for depth in depths}, unreadable


def _read_grid(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        grid: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not JSON: {error}; write it again with anydepth evaluate") from None
    needed = {"encoder", "decoder", "bleu", "chrf", "seconds"}
    for i, cell in enumerate(grid.get("cells", [])):
        if missing := needed - cell.keys():
            raise UserError(f"{path}: cell {i + 1} has no {', '.join(sorted(missing))}")
    return grid if grid.get("cells") else None


def _names(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that differ."""
    parts = [folder.resolve().parts for folder in folders]
    if len(set(parts)) < len(parts):
        raise UserError(f"the same run twice: {', '.join(str(folder) for folder in folders)}")
    for length in range(1, max(len(part) for part in parts) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            break
    return names


def _flat(config: dict[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = json.dumps(value, ensure_ascii=False, default=str)
    return flat
