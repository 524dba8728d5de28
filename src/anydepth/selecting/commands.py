"""What `anydepth selector` does, for a run in a folder."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from anydepth.config_reader import read
from anydepth.data.distillation import BLOCK
from anydepth.data.distilled_parts import read_json
from anydepth.errors import UserError
from anydepth.evaluation.cells import depth_name
from anydepth.evaluation.texts import TestSet, check_readable
from anydepth.files import read_lines, write_lines
from anydepth.run import Run
from anydepth.selecting.judgement import Judgement, judge
from anydepth.selecting.labels import decode_depths, read_labels, seen_in_training
from anydepth.selecting.model import SelectorConfig
from anydepth.selecting.selector import Selector, load_selector, networks, save, train_selector
from anydepth.selecting.side_by_side import label_side_by_side
from anydepth.training.distributed import stay

Show = Callable[[str, str], Any]
"""A title and what is counted → a context that gives a `Progress`."""


def keep_pairs(pairs: TestSet, folder: Path) -> tuple[Path, Path]:
    """As files, which labels are made of; those of other pairs are not overwritten."""
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
    dev: TestSet | None = None,
    times: Path | None = None,
    beam: int | None = None,
    batch: int | None = None,
    block: int = BLOCK,
    jobs: int = 1,
) -> Selector | None:
    """Labels the pairs, trains a selector on them and keeps it in the folder; nothing comes back to the other processes
    of torchrun, which only label. `dev` are pairs to fine-tune on; `jobs` processes label, and train networks."""
    config, ms = read(SelectorConfig, {}, settings, "selector"), read_times(run, times)
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
        selector, tried = train_selector(
            run, labels, config, wide=wide, dev=each.get("dev"), ms=ms, notes=notes, jobs=jobs, progress=progress
        )
    save(selector, folder, tried)
    return selector


def judge_selector(run: Run, pairs: TestSet, folder: Path, show: Show, beam: int | None = None) -> Judgement:
    """Judges the selector in a folder on a test set."""
    selector = load_selector(run, folder)
    check_readable(run, pairs)
    with show("judging", "sentences") as progress:
        return judge(run, selector, pairs.source, pairs.reference, folder, beam=beam, progress=progress)


def read_times(run: Run, file: Path | None) -> dict[str, float] | None:
    """Milliseconds of a sentence at each depth: from a JSON table, or from the run's depth grid if it has all."""
    if file is not None:
        return complete(run, parse_times(file), str(file))
    grid_file = (run.folder or Path()) / "grid.json"
    try:
        grid = json.loads(grid_file.read_text(encoding="utf-8"))
        times = {depth_name(cell): 1000 * cell["seconds"] / grid["sentences"] for cell in grid["cells"]}
        return complete(run, times, str(grid_file))
    except (OSError, ValueError, KeyError, UserError):
        return None  # not evaluated yet, or in other languages or at fewer depths


def parse_times(file: Path) -> dict[str, float]:
    try:
        times = json.loads(file.read_text(encoding="utf-8"))
        return {str(depth): float(ms) for depth, ms in times.items()}
    except FileNotFoundError:
        raise UserError(f"{file}: no such file") from None
    except (ValueError, AttributeError, TypeError):
        raise UserError(f'{file}: expected a JSON table of milliseconds, such as {{"6-6": 20, "6-2": 9.5}}') from None


def complete(run: Run, times: dict[str, float], where: str) -> dict[str, float]:
    if missing := [depth for depth in run.depths() if depth not in times]:
        raise UserError(f"{where}: no time for depth {missing[0]}")
    return {depth: times[depth] for depth in run.depths()}
