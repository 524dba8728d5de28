"""What `anydepth selector` does, for a run in a folder."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from anydepth.config_reader import read
from anydepth.data.distillation import BLOCK
from anydepth.data.distilled_parts import read_json
from anydepth.errors import UserError
from anydepth.evaluation.texts import TestSet, check_readable
from anydepth.files import read_lines, write_lines
from anydepth.run import Run
from anydepth.selecting.judgement import Judgement, judge
from anydepth.selecting.labels import decode_depths, read_labels, seen_in_training
from anydepth.selecting.model import SelectorConfig
from anydepth.selecting.search import SENTENCES
from anydepth.selecting.selector import Selector, load_selector, networks, save, train_selector
from anydepth.selecting.side_by_side import label_side_by_side
from anydepth.training.distributed import stay

Show = Callable[[str, str], Any]
"""A title and what is counted → a context that gives a `Progress`."""


def keep_pairs(pairs: TestSet, folder: Path) -> tuple[Path, Path]:
    """As files, which labels are made of; those of other pairs are not overwritten."""
    if not pairs.source:
        raise UserError(
            "no sentence to learn from: expected at least one pair of source and reference, better thousands"
        )
    folder.mkdir(parents=True, exist_ok=True)
    files = folder / "source.txt", folder / "reference.txt"
    for file, lines in zip(files, pairs):
        if not file.exists():
            write_lines(file, lines)
        elif read_lines(file) != lines:
            raise UserError(f"{folder} has labels of other sentences: remove it, or give another --out")
    return files


def refuse_labels_of_others(run: Run, folder: Path) -> None:
    """Of other weights: before the first depth is decoded, not at each that is there."""
    for file in sorted((folder / "outputs").glob("*.json")):
        made_from = (read_json(file) or {}).get("made_from", {})
        if made_from.get("weights", run.weights_hash) != run.weights_hash:
            raise UserError(f"{folder} has labels of other weights than those of {run.folder}: remove it")


def make_selector(
    run: Run,
    pairs: TestSet,
    folder: Path,
    show: Show,
    *,
    settings: Sequence[str] = (),
    wide: bool = False,
    searched: int = SENTENCES,
    dev: TestSet | None = None,
    beam: int | None = None,
    batch: int | None = None,
    block: int = BLOCK,
    jobs: int = 1,
) -> Selector | None:
    """Labels the pairs, trains a selector on them and keeps it in the folder; nothing comes back to the other processes
    of torchrun, which only label. `wide` and `searched` are those of `train_selector`; `dev` are pairs to fine-tune on;
    `jobs` processes label, and train networks."""
    config = read(SelectorConfig, {}, settings, "selector")
    networks(run, config, wide)  # complains about settings that do not fit before any time is spent
    parts = {"labels": pairs} | ({} if dev is None else {"dev": dev})
    for name in parts:
        refuse_labels_of_others(run, folder / name)
    files = {name: keep_pairs(part, folder / name) for name, part in parts.items()}
    how: dict[str, Any] = {"beam": beam, "batch": batch, "block": block}
    with stay(str(run.device)) as ranks:
        if jobs > 1 and ranks.world > 1:
            raise UserError("--jobs: not under torchrun, whose processes share the work already")
        for name, (source, reference) in files.items():
            if jobs > 1:
                with show(f"labelling {name}", "depths") as progress:
                    label_side_by_side(run, source, reference, folder / name, jobs, progress=progress, **how)
                continue
            with show(f"decoding {name}", "sentences") as progress:
                decode_depths(run, source, folder / name, progress=progress, **how)
    if not ranks.first:
        return None
    each = {}
    for name, both in files.items():
        with show(f"scoring {name}", "depths") as progress:
            each[name] = read_labels(run, *both, folder / name, progress)
    labels = each["labels"]
    share, seen = seen_in_training(run.config, labels.texts)
    notes = {"seen": seen} | ({} if share is None else {"seen_share": share})
    with show("training the selector", "epochs" if jobs == 1 else "networks") as progress:
        how = {"wide": wide, "searched": searched, "folder": folder, "jobs": jobs, "progress": progress}
        selector, tried = train_selector(run, labels, config, dev=each.get("dev"), notes=notes, **how)
    save(selector, folder, tried)
    return selector


def judge_selector(run: Run, pairs: TestSet, folder: Path, show: Show, beam: int | None = None) -> Judgement:
    """Judges the selector in a folder on a test set."""
    selector = load_selector(run, folder)
    check_readable(run, pairs)
    with show("judging", "sentences") as progress:
        return judge(run, selector, pairs.source, pairs.reference, folder, beam=beam, progress=progress)
