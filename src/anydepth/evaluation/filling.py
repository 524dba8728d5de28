"""From a run to its grid.json, whatever it was trained for."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anydepth.errors import UserError
from anydepth.evaluation.texts import TestSet, check_readable, say_how_many_were_cut

if TYPE_CHECKING:
    from anydepth.classifying.leaving import Rule
    from anydepth.data.corpora import CorpusConfig
    from anydepth.evaluation.grid import Progress as GridProgress
    from anydepth.run import Run


def fill_grid(
    run: "Run",
    folder: Path,
    test_sets: dict[str, TestSet],
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
    known = known_languages(run.config)
    for key, test_set in test_sets.items():
        check_readable(run, test_set, key if key in known else "")
        say_how_many_were_cut(run, test_set.source, key)
    if len(known) > 1 and "" not in test_sets:
        return evaluate_languages(run, test_sets, depths, progress=progress, **settings)
    if len(test_sets) > 1:
        raise UserError(f"{len(test_sets)} test sets: expected one, or keys of the training corpora for all of them")
    ((key, test_set),) = test_sets.items()
    run = run.in_language(key) if key in known else run
    return evaluate(run, test_set.source, test_set.reference, depths or run.depths(), progress=progress, **settings)


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
