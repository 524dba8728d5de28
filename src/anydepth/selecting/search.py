"""The search for a selector's network, over its size and its loss (tied-multi §4.2): every candidate learns from some
of the labelled sentences, the best then from all. A search that was killed goes on: finished candidates are kept."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from anydepth.errors import UserError
from anydepth.selecting.labels import Labels
from anydepth.selecting.model import Kind, SelectorConfig
from anydepth.selecting.training import Fitted, Progress, Source, fit, split

SIZES = ((2, 4), (4, 2), (8, 8))
"""Layers and heads of the paper's four classifiers (tied-multi, Table 2)."""
ALPHAS, BETAS, BALANCES = (0.0, 1.0), (0.5, 1.0), (0.5, 0.9)
"""The paper searches these too, but names no values."""
SENTENCES = 10_000
"""That candidates are compared on: 27 networks that learn from 60,000 each would take a GPU a quarter of an hour."""
JOURNAL = "search.jsonl"

Work = Sequence[tuple[Kind, SelectorConfig]]
"""Networks to train."""


def candidates(base: SelectorConfig, kind: Kind, width: int) -> list[SelectorConfig]:
    """The default search around some settings: of a regression its size alone, α, β and λ being those of the ties."""
    width = base.width or width
    sized = [replace(base, layers=layers, heads=heads) for layers, heads in SIZES if width % heads == 0]
    if not sized:
        raise UserError(f"selector: no candidate's heads divide the width {width}")
    if kind == "quality":
        return sized
    losses = list(product(ALPHAS, BETAS, BALANCES))
    return [replace(one, alpha=a, beta=b, balance=c) for one in sized for a, b, c in losses]


def search(
    work: Work,
    source: Source,
    labels: Labels,
    jobs: int = 1,
    *,
    sentences: int = SENTENCES,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> tuple[dict[Kind, Fitted], list[dict[str, Any]]]:
    """The best network of each kind, and the figures of all candidates. They are compared by their losses on the same
    sentences, so many at most (0: all); a kind's only candidate needs no comparison. `jobs` are trained at a time.
    `folder` keeps what is finished; `progress` counts epochs, or networks where there are jobs."""
    kinds = list(dict.fromkeys(kind for kind, _ in work))
    tried: list[dict[str, Any]] = []
    winners, total = work, len(work)
    if len(work) > len(kinds):
        total += len(kinds)
        tried = compare(work, source, some(labels, sentences), jobs, folder, shifted(progress, 0, len(work), total))
        best = [min((one for one in tried if one["kind"] == kind), key=lambda one: one["loss"]) for kind in kinds]
        winners = [work[tried.index(one)] for one in best]
    after = shifted(progress, total - len(winners), len(winners), total)
    fitted = [one for _, one in sorted(fit_each(winners, source, labels, jobs, after), key=lambda both: both[0])]
    found = {kind: one for (kind, _), one in zip(winners, fitted)}
    return found, tried or [figures(kind, one) for kind, one in found.items()]


def some(labels: Labels, sentences: int) -> Labels:
    """So many of them at random."""
    if not 0 < sentences < len(labels.ids):
        return labels
    return labels.take(np.random.default_rng(0).permutation(len(labels.ids))[:sentences])


def compare(
    work: Work, source: Source, labels: Labels, jobs: int, folder: Path | None, progress: Progress | None
) -> list[dict[str, Any]]:
    """The figures of every candidate; those in the folder's journal are not trained again."""
    journal = Journal(folder / JOURNAL if folder else None, origin(source, labels))
    left = [one for one in work if journal.find(*one) is None]
    show = shifted(progress, len(work) - len(left), len(left), len(work))
    for number, fitted in fit_each(left, source, labels, jobs, show):
        journal.add(figures(left[number][0], fitted))
    return [found for one in work if (found := journal.find(*one))]


def figures(kind: Kind, fitted: Fitted) -> dict[str, Any]:
    return {"kind": kind, "loss": fitted.yardstick, "losses": fitted.losses, **asdict(fitted.config)}


class Journal:
    """The figures of finished candidates, a line each. What was learnt from other labels does not count."""

    def __init__(self, file: Path | None, made_from: str) -> None:
        self.file, self.made_from = file, made_from
        self.known = [line["figures"] for line in self.read() if line.get("made_from") == made_from]

    def read(self) -> Iterator[dict[str, Any]]:
        if self.file is None or not self.file.exists():
            return
        for line in self.file.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(line)
            except ValueError:  # the last one, of a process that was killed
                continue

    def find(self, kind: Kind, config: SelectorConfig) -> dict[str, Any] | None:
        wanted = {"kind": kind, **asdict(config)}
        return next((one for one in self.known if wanted.items() <= one.items()), None)

    def add(self, found: dict[str, Any]) -> None:
        self.known.append(found)
        if self.file is not None:
            with self.file.open("a", encoding="utf-8") as file:
                file.write("\n" + json.dumps({"made_from": self.made_from, "figures": found}))  # after a broken line


def origin(source: Source, labels: Labels) -> str:
    """Of what candidates learn from, and start with."""
    made_from = [labels.depths, labels.ids, source.longest]
    content = repr(made_from).encode() + labels.chrf.tobytes() + source.words.numpy().tobytes()
    return hashlib.sha256(content).hexdigest()


def fit_each(
    work: Work, source: Source, labels: Labels, jobs: int, progress: Progress | None
) -> Iterator[tuple[int, Fitted]]:
    """Each with its number, as they are finished."""
    if jobs == 1 or len(work) < 2:
        for number, (kind, config) in enumerate(work):
            train, valid = split(labels, config.validation, config.seed)
            yield number, fit(kind, config, source, train, valid, progress=shifted(progress, number, 1, len(work)))
        return
    from anydepth.selecting.side_by_side import fit_side_by_side

    for done, finished in enumerate(fit_side_by_side(work, source, labels, jobs), start=1):
        yield finished
        if progress:
            progress(done, len(work))


def shifted(progress: Progress | None, before: int, networks: int, total: int) -> Progress | None:
    """Progress of some networks, counted in whatever, as that of all: so many come before them."""
    return progress and (lambda done, of: progress(before * of // networks + done, total * of // networks))
