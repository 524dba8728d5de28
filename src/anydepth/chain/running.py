"""Doing what is left of a chain, after a look at all of it."""

import time
import typing
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from anydepth.chain.planning import planned
from anydepth.chain.work import ENDED, Distillation, State, Training, Work
from anydepth.data.reading import files_of
from anydepth.errors import UserError
from anydepth.training.distributed import agree, stay

STATES: tuple[State, ...] = typing.get_args(State)


def run_chain(
    path: Path,
    folder: Path,
    *,
    recipe: Path | None = None,
    settings: Sequence[str] = (),
    only: Sequence[str] = (),
    quiet: bool = False,
) -> dict[str, Path]:
    """Does what is left to do; gives what each piece of work left.

    `recipe` takes the place of the chain's own, `settings` change every training, `only` names the stages or single
    runs to do. Recipes, files and depths are all checked before the first stage begins.
    """
    wanted = checked(path, folder, recipe, settings, only)
    do_all(wanted, folder, quiet)
    return {work.name: work.left for work in wanted}


def do_all(wanted: list[Work], folder: Path, quiet: bool = False) -> None:
    """One piece of work after the other; what is done is skipped, what was interrupted goes on."""
    folder.mkdir(parents=True, exist_ok=True)
    with stay(device_of(wanted)) as ranks:
        quiet = quiet or not ranks.first
        console = Console(stderr=True, quiet=quiet, highlight=False, markup=False, soft_wrap=True)
        for number, work in enumerate(wanted, start=1):
            # as the first process finds it: when another looks, the first may have begun already
            state = STATES[int(agree(STATES.index(work.state()) if ranks.first else 0, ranks))]
            if state in ENDED or not (ranks.first or work.shared):
                continue
            title = f"{number}/{len(wanted)} {work.kind} {work.name}"
            console.print(f"{title}: {'goes on' if state == 'interrupted' else 'begins'}")
            start = time.monotonic()
            try:
                work.do(state, quiet)
            except KeyboardInterrupt:
                console.print(f"{title}: interrupted; the same command goes on from there")
                raise
            ended = "diverged" if work.state() == "diverged" else "done"
            console.print(f"{title}: {ended} in {time.monotonic() - start:.1f} s")


def checked(path: Path, folder: Path, recipe: Path | None, settings: Sequence[str], only: Sequence[str]) -> list[Work]:
    """The work asked for, all of which can be done."""
    works = planned(path, folder, recipe, settings)
    wanted = chosen(works, only)
    check_all(works, wanted)
    folder.mkdir(parents=True, exist_ok=True)
    return wanted


def check_all(works: list[Work], wanted: list[Work] | None = None) -> None:
    """Before anything is done: nothing may be in the way of the work that is wanted, or of all of it."""
    wanted = works if wanted is None else wanted
    check_settings(wanted, works)
    check_needs(wanted, works)
    check_files(wanted, works)


def device_of(works: list[Work]) -> str:
    return next((work.config.training.device for work in works if isinstance(work, Training)), "auto")


def list_chain(
    path: Path, folder: Path, *, recipe: Path | None = None, settings: Sequence[str] = ()
) -> list[tuple[Work, State]]:
    """All work, and how far each has come."""
    return [(work, work.state()) for work in planned(path, folder, recipe, settings)]


def chosen(works: list[Work], only: Sequence[str]) -> list[Work]:
    """The work of these stages, or all."""
    for name in only:
        if not any(name in (work.stage, work.name) for work in works):
            stages = ", ".join(dict.fromkeys(work.stage for work in works))
            raise UserError(f"--only {name}: no such stage; there are {stages}")
    return [work for work in works if not only or work.stage in only or work.name in only]


def check_settings(wanted: list[Work], works: list[Work]) -> None:
    """Runs are found again by their folders: one with other settings must not pass for what the chain asks for."""
    used = {name for work in wanted for name in (work.name, *work.needs)}
    for work in works:
        if isinstance(work, Training) and work.name in used and work.state() == "made otherwise":
            changes = work.changes()
            more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
            raise UserError(
                f"{work.left} was made with other settings: {'; '.join(changes[:3])}{more}; "
                "remove it, or choose another --out"
            )


def check_needs(wanted: list[Work], works: list[Work]) -> None:
    """What is needed must be there or be coming."""
    by_name, coming = {work.name: work for work in works}, {work.name for work in wanted}
    for work in wanted:
        for need in work.needs:
            if need not in coming and not work.has(by_name[need]):
                state = by_name[need].state()
                raise UserError(f"--only: {work.name} needs {need}, which is {state}: name it as well")


def check_files(wanted: list[Work], works: list[Work]) -> None:
    """Files that are read must be there, or be made by a stage."""
    made = {work.left for work in works}
    for work in wanted:
        for file in files_read(work):
            if not (file.exists() or made.intersection((file, *file.parents))):
                raise UserError(f"{work.name}: {file}: no such file")


def files_read(work: Work) -> list[Path]:
    if isinstance(work, Distillation):
        return [Path(work.source)]
    if not isinstance(work, Training):
        return []
    data, tokenizer = work.config.data, work.config.tokenizer
    corpora = (*data.train, *data.dev, *data.test)
    named = tokenizer.path, tokenizer.source_path, tokenizer.target_path, work.config.training.start_from
    return [file for corpus in corpora for file in files_of(corpus)] + [Path(name) for name in named if name]
