"""Depth grids of a run that has several languages: one for each, in a folder of its own that can be reported like any
evaluation, and `grid.json` with the cells of all and the mean over languages, as papers report it.

    RUN/languages/en-de/grid.json, outputs/, statistics/, config.toml
    RUN/grid.json                  languages, average, cells that say their language
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from anydepth.evaluation.cells import Cell, deepest
from anydepth.evaluation.grid import Progress, evaluate
from anydepth.evaluation.metrics import metrics_of
from anydepth.evaluation.texts import TestSet
from anydepth.files import write_atomically

if TYPE_CHECKING:
    from anydepth.run import Run

LANGUAGES = "languages"
ONE_WAY = ("signatures", "batch", "beam", "device", "machine", "weights")
"""What the grids of all languages must have in common to be summed up."""


def evaluate_languages(
    run: "Run",
    test_sets: dict[str, TestSet],
    depths: list[str] | None = None,
    *,
    beam: int,
    batch: int,
    out: Path,
    lowercase: bool = False,
    summaries: bool = False,
    notes: dict[str, Any] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Decode the test set of each language, at all its depths unless told; see `evaluate`. Returns what it leaves in
    `out/grid.json`, which has those languages, too, that were evaluated before in the same way."""
    from anydepth.config import dump
    from anydepth.data.languages import known_languages
    from anydepth.describe import describe_training

    of_run = notes or {"run": "../..", **(describe_training(run.folder) if run.folder else {})}
    config = replace(run.config, decoding=replace(run.config.decoding, beam=beam, batch=batch))
    for key, test_set in test_sets.items():
        speaking, folder = run.in_language(key), out / LANGUAGES / key

        def show(done: int, total: int, depth: str, key: str = key) -> None:
            if progress:
                progress(done, total, f"{key} {depth}" if depth else "")

        evaluate(
            speaking,
            test_set.source,
            test_set.reference,
            depths or speaking.depths(),
            beam=beam,
            batch=batch,
            out=folder,
            lowercase=lowercase,
            summaries=summaries,
            notes={"language": key} | of_run,
            progress=show,
        )
        write_atomically(folder / "config.toml", dump(config))
    grid = summed_up(out, known_languages(run.config), newest=list(test_sets)[-1]) | (notes or {})
    write_atomically(out / "grid.json", json.dumps(grid, ensure_ascii=False, indent=1) + "\n")
    return grid


def summed_up(out: Path, keys: Sequence[str], newest: str) -> dict[str, Any]:
    """The cells of all languages that were evaluated like the newest, and their mean at the deepest of each."""
    files = {key: out / LANGUAGES / key / "grid.json" for key in keys}
    grids = {key: json.loads(file.read_text(encoding="utf-8")) for key, file in files.items() if file.exists()}
    common = {name: grids[newest][name] for name in ONE_WAY}
    alike = {key: grid for key, grid in grids.items() if grid | common == grid}
    return common | {
        "languages": list(alike),
        "sentences": sum(grid["sentences"] for grid in alike.values()),
        "average": average([deepest(grid["cells"]) for grid in alike.values()]),
        "cells": [{"language": key} | cell for key, grid in alike.items() for cell in grid["cells"]],
    }


def average(cells: Sequence[Cell]) -> Cell:
    """The mean over languages; of the layers, too, which need not be as many for all."""
    names = ("encoder", "decoder", *metrics_of(cells[0]), "seconds")
    return {name: fmean(cell[name] for cell in cells) for name in names}
