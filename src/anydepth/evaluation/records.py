"""What run folders tell: their configuration, training curves, depth grids and outputs.

A record is what a report shows under one name: a run, or several runs put together into one grid, such as one
separately trained model for each depth.
"""

import glob
import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anydepth.config_reader import flat
from anydepth.errors import UserError
from anydepth.evaluation.cells import Cell, deepest, depth_name, layers
from anydepth.evaluation.languages import LANGUAGES
from anydepth.evaluation.metrics import AnyStatistics, Statistics
from anydepth.evaluation.repeated import repeated
from anydepth.evaluation.rouge import RougeStatistics
from anydepth.evaluation.statistics import Progress, read_statistics
from anydepth.files import read_lines
from anydepth.training.log import TrainingLog, read_log

DIVERGED = "diverged.txt"
"""In the folder of a run that a chain has given up, what happened."""
ONE_WAY = {
    "signatures": "scored in another way",
    "test_set": "evaluated on another test set",
    "beam": "decoded with another beam",
}
"""What runs of one grid must have in common, and how to say that they have not."""


KINDS = {"perplexity": "masked language model", "accuracy": "classifier"}
"""By the score that a cell has."""


@dataclass(frozen=True)
class Folder:
    """One run folder, or one that `anydepth evaluate --out` made."""

    path: Path
    config_text: str
    log: TrainingLog
    grid: dict[str, Any] | None
    """Of a run that was evaluated in several languages each has its own instead."""
    languages: dict[str, "Folder"]

    @property
    def depths(self) -> list[str]:
        return [depth_name(cell) for cell in self.grid["cells"]] if self.grid else []

    @property
    def trained_here(self) -> bool:
        """Not so where `anydepth evaluate --out` wrote the evaluation of another folder's run."""
        return not (self.grid and "run" in self.grid)

    @property
    def weights(self) -> str:
        """Tells models apart: one may have been evaluated in parts, each in a folder of its own."""
        return str((self.grid or {}).get("weights") or self.path)


@dataclass(frozen=True)
class Record:
    name: str
    """As given, or the folder's name with as much of its path as tells it from the other runs of a report."""
    folders: tuple[Folder, ...]
    grid: dict[str, Any] | None
    """Of all folders together."""

    @property
    def cells(self) -> list[Cell]:
        return self.grid["cells"] if self.grid else []

    @property
    def depths(self) -> list[str]:
        return [depth_name(cell) for cell in self.cells]

    @property
    def deepest(self) -> str:
        return depth_name(deepest(self.cells))

    @property
    def main(self) -> Folder:
        """The folder whose training is shown: the only one, or that of the deepest model."""
        return self.folder_of(self.deepest) if self.grid else self.folders[0]

    @property
    def languages(self) -> dict[str, "Record"]:
        """Every language as a record of its own, where the run was evaluated in several."""
        each = self.folders[0].languages.items() if len(self.folders) == 1 else ()
        return {key: Record(self.name, (folder,), folder.grid) for key, folder in each if folder.grid}

    @property
    def kind(self) -> str:
        """What its cells tell: how good translations are, masked language models, or labels."""
        return next((KINDS[score] for cell in self.cells for score in KINDS if score in cell), "translation")

    @property
    def summaries(self) -> bool:
        """Whether it is scored by ROUGE."""
        return any("rouge1" in cell for cell in self.cells)

    @property
    def lowercase(self) -> bool:
        return "case:lc" in (self.grid or {}).get("signatures", {}).get("bleu", "")

    @property
    def models(self) -> dict[str, Folder]:
        """A folder of each model."""
        return {folder.weights: folder for folder in self.folders}

    def folder_of(self, depth: str) -> Folder:
        return next(folder for folder in self.folders if depth in folder.depths)

    def settings(self) -> dict[str, str]:
        """The configuration, flat: `model.width` → `512`. Where the folders differ, all their values."""
        each = [_settings(folder) for folder in self.folders]
        names = dict.fromkeys(name for one in each for name in one)
        return {name: _in_short(list(dict.fromkeys(one.get(name, "") for one in each))) for name in names}

    def test_set(self) -> tuple[list[str], list[str]] | None:
        """Source and reference of the grid, where they were kept."""
        return _test_set(self.main)

    def outputs(self, depths: Sequence[str]) -> dict[str, list[str]]:
        """The hypotheses of those depths that were kept."""
        files = {depth: self.folder_of(depth).path / "outputs" / f"{depth}.txt" for depth in depths}
        return {depth: read_lines(file) for depth, file in files.items() if file.exists()}

    def statistics(self, depths: Sequence[str], progress: Progress | None = None) -> dict[str, AnyStatistics]:
        """What the scores of those depths are computed from, where outputs were kept."""
        found: dict[str, AnyStatistics] = {}
        kind = RougeStatistics if self.summaries else Statistics
        for folder in self.folders:
            here = [depth for depth in depths if depth in folder.depths]
            if here and (folder.path / "outputs" / "reference.txt").exists():
                found |= read_statistics(folder.path, here, self.lowercase, progress, kind)
        return found


# ---- reading


def read_records(runs: Sequence[str | Path]) -> list[Record]:
    """Of run folders. NAME=RUN gives one another name, NAME=RUN,RUN,… puts several together; RUN may have wildcards."""
    given = [_parse(run) for run in runs]
    paths = [tuple(path.resolve() for path in paths) for _, paths in given]
    if len(set(paths)) < len(paths):
        raise UserError(f"the same run twice: {', '.join(map(str, runs))}")
    short = iter(_short_names([folders[0] for folders, (name, _) in zip(paths, given) if not name]))
    names = [name or next(short) for name, _ in given]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{name}: two runs have this name; give one another, as in other=RUN")
    return [_record(name, paths) for name, (_, paths) in zip(names, given, strict=True)]


def kind_of(records: Sequence[Record]) -> str:
    """What these runs are; scores of different kinds cannot be compared."""
    kinds = list(dict.fromkeys(record.kind for record in records if record.grid or record.languages))
    if len(kinds) > 1:
        raise UserError(f"some of these runs are for {kinds[0]}, others for {kinds[1]}: report them apart")
    return kinds[0] if kinds else "translation"


def read_folder(path: Path) -> Folder:
    config = path / "config.toml"
    if not config.is_file():
        raise UserError(f"{path}: not a run (it has no config.toml); expected a folder made by anydepth train")
    text = config.read_text(encoding="utf-8")
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{config}: not TOML: {error}") from None
    grid, languages = _read_grid(path / "grid.json"), {}
    if grid and "languages" in grid:
        languages = {key: read_folder(path / LANGUAGES / key) for key in grid["languages"]}
        grid = None
    return Folder(path, text, read_log(path / "metrics.jsonl"), grid, languages)


def _parse(run: str | Path) -> tuple[str, list[Path]]:
    """A name, if one is given, and the folders it stands for."""
    name, equals, rest = str(run).partition("=")
    if isinstance(run, Path) or not equals or Path(run).exists():
        return "", [Path(run)]
    folders = [folder for part in rest.split(",") if part for folder in sorted(glob.glob(part)) or [part]]
    if not name or not folders:
        raise UserError(f"{run}: expected NAME=RUN or NAME=RUN,RUN,…")
    return name, [Path(folder) for folder in folders]


def _record(name: str, paths: list[Path]) -> Record:
    folders = tuple(read_folder(path) for path in paths)
    return Record(name, folders, folders[0].grid if len(folders) == 1 else _one_grid(name, folders))


def _one_grid(name: str, folders: tuple[Folder, ...]) -> dict[str, Any]:
    """The grids of several runs as one: what they have in common, and all their cells; of classifiers their means."""
    if all(folder.grid and "accuracy" in folder.grid["cells"][0] for folder in folders):
        return repeated(name, [folder.grid for folder in folders if folder.grid])
    cells: dict[str, tuple[Folder, Cell]] = {}
    for folder in folders:
        if folder.languages:
            raise UserError(f"{name}: {folder.path} was evaluated in several languages: not one grid")
        if not folder.grid:
            raise UserError(f"{name}: {folder.path} has no depth grid yet; make it with anydepth evaluate")
        for cell in folder.grid["cells"]:
            other, _ = cells.setdefault(depth_name(cell), (folder, cell))
            if other is not folder:
                raise UserError(f"{name}: both {other.path} and {folder.path} have depth {depth_name(cell)}")
    grids = [folder.grid for folder in folders if folder.grid]
    for key, complaint in ONE_WAY.items():
        for folder, grid in zip(folders, grids):
            if grid.get(key) != grids[0].get(key) or (key == "test_set" and _test_set(folder) != _test_set(folders[0])):
                raise UserError(f"{name}: {folder.path} was {complaint} than {folders[0].path}: not one grid")
    common = {key: value for key, value in grids[0].items() if all(grid.get(key) == value for grid in grids)}
    ordered = sorted((cell for _, cell in cells.values()), key=lambda cell: (cell["encoder"], layers(cell)))
    return common | {"cells": ordered}


def _test_set(folder: Folder) -> tuple[list[str], list[str]] | None:
    files = [folder.path / "outputs" / f"{side}.txt" for side in ("source", "reference")]
    return (read_lines(files[0]), read_lines(files[1])) if all(file.exists() for file in files) else None


def _read_grid(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        grid: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: not JSON: {error}; write it again with anydepth evaluate") from None
    if not isinstance(grid, dict):
        raise UserError(f"{path}: expected a JSON object, not {grid!r:.40}; write it again with anydepth evaluate")
    for i, cell in enumerate(grid.get("cells", [])):
        if missing := _needed(cell) - cell.keys():
            raise UserError(f"{path}: cell {i + 1} has no {', '.join(sorted(missing))}")
    return grid if grid.get("cells") else None


def _needed(cell: Cell) -> set[str]:
    """What a cell must tell, by the scores that it has."""
    own = {score for score in KINDS if score in cell}
    if own:
        return {"encoder", *own, "seconds"}
    scores = RougeStatistics._fields if "rouge1" in cell else Statistics._fields
    return {"encoder", "decoder", *scores, "seconds"}


def _short_names(paths: list[Path]) -> list[str]:
    """The shortest ends of the paths that differ."""
    parts = [path.parts for path in paths]
    names: list[str] = []
    for length in range(1, max((len(part) for part in parts), default=0) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            break
    return names


def _in_short(values: list[str], most: int = 6) -> str:
    return " / ".join(values) if len(values) <= most else f"{' / '.join(values[:most])} / …"


def _settings(folder: Folder) -> dict[str, str]:
    values = flat(tomllib.loads(folder.config_text))
    return {name: json.dumps(value, ensure_ascii=False, default=str) for name, value in values.items()}
