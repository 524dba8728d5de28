"""What `anydepth evaluate` does: from a run to its grid.json and its report."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anydepth.errors import UserError
from anydepth.evaluation.filling import fill_encoder_grid, fill_grid
from anydepth.progress import steps_shown

if TYPE_CHECKING:
    from anydepth.classifying.leaving import Rule
    from anydepth.config import Config
    from anydepth.data.corpora import CorpusConfig
    from anydepth.evaluation.grid import Progress as GridProgress
    from anydepth.evaluation.texts import TestSet
    from anydepth.run import Run


def evaluate_run(
    run: "Run",
    folder: Path,
    test_sets: dict[str, "TestSet"],
    depths: list[str] | None = None,
    beam: int | None = None,
    batch: int | None = None,
    lowercase: bool = False,
    notes: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Fills grid.json with a progress bar, then writes report.html.

    With `notes` the folder is not the run's own, and gets a config.toml that says how the run was decoded.
    """
    from anydepth.decoding.decoder import changed

    decoding = changed(run.config.decoding, {"beam": beam, "batch": batch})
    given = test_sets, depths, decoding.beam, decoding.batch
    config = replace(run.config, decoding=decoding)
    return reported(folder, config, notes, lambda show: fill_grid(run, folder, *given, show, lowercase, notes))


def evaluate_encoder(
    run: "Run",
    folder: Path,
    corpora: Sequence["CorpusConfig"],
    depths: list[str] | None = None,
    batch: int = 0,
    exits: Sequence["Rule"] = (),
    texts: Sequence[str] = (),
    notes: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """As `evaluate_run`: the perplexity of a masked language model on all of these, or the accuracy of a classifier."""
    given, further = (run, folder, corpora, depths), (batch, exits, texts, notes)
    return reported(folder, run.config, notes, lambda show: fill_encoder_grid(*given, show, *further))


def reported(
    folder: Path, config: "Config", notes: dict[str, Any] | None, fill: Callable[["GridProgress"], dict[str, Any]]
) -> dict[str, Any]:
    """The grid that `fill` makes in a folder, and its report; its settings, too, if the folder is not the run's own."""
    from anydepth.config import dump
    from anydepth.files import check_writable, write_atomically
    from anydepth.reporting.report import write_report

    folder.mkdir(parents=True, exist_ok=True)
    check_writable(folder / "grid.json")
    with steps_shown("evaluating") as show:
        grid = fill(show)
    if notes is not None:
        write_atomically(folder / "config.toml", dump(config))
    write_report([folder], folder / "report.html")
    return grid


def notes_of(run: Path, settings: Sequence[str], out: Path | None) -> dict[str, Any] | None:
    """What a grid in a folder of its own says of the run it belongs to; nothing where it stays with the run."""
    from anydepth.describe import describe_training

    if not out:
        if settings:
            raise UserError("--set changes the run for this call: give --out DIR for what is measured then")
        return None
    if (out / "model.safetensors").exists() or (out / "checkpoints").exists():
        raise UserError(f"--out {out}: a run is there; give a folder for the evaluation alone")
    return {"run": str(run), "changes": list(settings), **describe_training(run)}
