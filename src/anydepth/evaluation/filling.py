"""From a run to its grid.json and its report, whatever it was trained for."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anydepth.errors import UserError
from anydepth.evaluation.texts import say_how_many_were_cut
from anydepth.progress import depths_shown

if TYPE_CHECKING:
    from anydepth.choosing.leaving import Rule
    from anydepth.data.corpora import CorpusConfig
    from anydepth.evaluation.grid import Progress as GridProgress
    from anydepth.evaluation.languages import TestSet
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
    from anydepth.config import dump
    from anydepth.evaluation.files import check_writable, write_atomically
    from anydepth.evaluation.report import write_report
    from anydepth.run import changed

    folder.mkdir(parents=True, exist_ok=True)
    check_writable(folder / "grid.json")
    decoding = changed(run.config.decoding, {"beam": beam, "batch": batch})
    with depths_shown() as show:
        grid = fill_grid(run, folder, test_sets, depths, decoding.beam, decoding.batch, show, lowercase, notes)
    if notes is not None:
        write_atomically(folder / "config.toml", dump(replace(run.config, decoding=decoding)))
    write_report([folder], folder / "report.html")
    return grid


def fill_grid(
    run: "Run",
    folder: Path,
    test_sets: dict[str, "TestSet"],
    depths: list[str] | None,
    beam: int,
    batch: int,
    progress: "GridProgress",
    lowercase: bool = False,
    notes: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The depth grid of the only test set, or of every language."""
    from anydepth.data.languages import known_languages
    from anydepth.evaluation.grid import evaluate
    from anydepth.evaluation.languages import evaluate_languages

    lowercase = lowercase or run.config.tokenizer.lowercase
    settings: dict[str, Any] = {"beam": beam, "batch": batch, "out": folder, "lowercase": lowercase, "notes": notes}
    settings["summaries"] = run.config.data.pairs == "summaries"
    for key, (source, _) in test_sets.items():
        say_how_many_were_cut(run, source, key)
    known = known_languages(run.config)
    if len(known) > 1 and "" not in test_sets:
        return evaluate_languages(run, test_sets, depths, progress=progress, **settings)
    if len(test_sets) > 1:
        raise UserError(f"{len(test_sets)} test sets: expected one, or keys of the training corpora for all of them")
    ((key, (source, reference)),) = test_sets.items()
    run = run.in_language(key) if key in known else run
    return evaluate(run, source, reference, depths or run.depths(), progress=progress, **settings)


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
    from anydepth.config import dump
    from anydepth.evaluation.files import check_writable, write_atomically
    from anydepth.evaluation.report import write_report

    folder.mkdir(parents=True, exist_ok=True)
    check_writable(folder / "grid.json")
    with depths_shown() as show:
        grid = fill_encoder_grid(run, folder, corpora, depths, show, batch, exits, texts, notes)
    if notes is not None:
        write_atomically(folder / "config.toml", dump(run.config))
    write_report([folder], folder / "report.html")
    return grid


def fill_encoder_grid(
    run: "Run",
    folder: Path,
    corpora: Sequence["CorpusConfig"],
    depths: list[str] | None,
    progress: "GridProgress",
    batch: int = 0,
    exits: Sequence["Rule"] = (),
    texts: Sequence[str] = (),
    notes: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The depth grid of a model without a decoder."""
    from anydepth.encoder_models import Classifier
    from anydepth.evaluation.accuracy import evaluate_labels
    from anydepth.evaluation.perplexity import evaluate_text

    if isinstance(run.model, Classifier):
        given: dict[str, Any] = {"batch": batch, "exits": exits, "texts": texts, "notes": notes, "progress": progress}
        return evaluate_labels(run, corpora, depths or run.depths(), out=folder, **given)
    return evaluate_text(run, corpora, depths, out=folder, notes=notes, progress=progress)


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
