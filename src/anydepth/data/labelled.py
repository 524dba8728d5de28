"""Texts with labels, for classification: a TSV file, all of it or some of its parts, or the built-in corpus.

`folds` cuts a file into equal parts at random, always the same ones, for cross-validation and for dev sets of corpora
that have none: `folds = 10, leave = [9]` trains on what `folds = 10, take = [9]` validates on. Of every `folds` rows in
a row each part gets one.
"""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple
from unicodedata import normalize

import numpy as np

from anydepth.config_class import config
from anydepth.data.builtin_corpora import BuiltinLabelled
from anydepth.data.lines import read_lines
from anydepth.errors import UserError

TOO_FEW = "with too few columns"

if TYPE_CHECKING:
    from anydepth.data.corpora import CorpusConfig
    from anydepth.data.reading import Skips


@config
class Labelled:
    """One file with a text and its label in each row, columns separated by tabs (no quoting)."""

    type: Literal["labelled"] = "labelled"
    path: str
    """Path of the file, plain or .gz."""
    label_column: int = 0
    """Column of the label, counted from 0."""
    text_column: int = 1
    """Column of the text, counted from 0."""
    folds: int = 1
    """Parts that the rows are cut into at random, always the same."""
    take: tuple[int, ...] = ()
    """The parts to take, counted from 0; empty takes all but those of `leave`."""
    leave: tuple[int, ...] = ()
    """The parts to leave out, instead of `take`."""
    key: str = ""
    """Domain or task, for methods whose depth depends on it."""

    def __post_init__(self) -> None:
        for name in ("label_column", "text_column"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")
        if self.label_column == self.text_column:
            raise ValueError("text_column: text and label cannot be the same column")
        if self.folds < 1:
            raise ValueError(f"folds must be at least 1, not {self.folds}")
        if self.take and self.leave:
            raise ValueError("leave: give the parts to take or those to leave, not both")
        for name in ("take", "leave"):
            for part in getattr(self, name):
                if not 0 <= part < self.folds:
                    raise ValueError(
                        f"{name}: there is no part {part}; folds = {self.folds} makes 0 to {self.folds - 1}"
                    )
        if not self.parts:
            raise ValueError("leave: no part is left")

    @property
    def parts(self) -> tuple[int, ...]:
        """The parts that belong to the corpus."""
        return self.take or tuple(part for part in range(self.folds) if part not in self.leave)


class LabelledRow(NamedTuple):
    place: str
    text: str
    label: str


def read_labelled(corpus: Labelled, skips: "Skips") -> Iterator[LabelledRow]:
    """The rows of its parts; those that cannot be used are skipped and counted."""
    parts = set(corpus.parts)
    for number, line in enumerate(read_lines(Path(corpus.path))):
        if corpus.folds > 1 and part_of(number, corpus.folds) not in parts:
            continue
        columns = line.text.split("\t")
        if line.problem or not line.text.strip():
            skips.add(line.problem or "empty line", line.place)
        elif len(columns) <= max(corpus.label_column, corpus.text_column):
            skips.add(TOO_FEW, line.place)
        elif not (columns[corpus.text_column].strip() and columns[corpus.label_column].strip()):
            skips.add("empty line", line.place)
        else:
            label = normalize("NFC", columns[corpus.label_column].strip())  # as tokenizers do with texts
            yield LabelledRow(line.place, columns[corpus.text_column], label)


def part_of(row: int, folds: int) -> int:
    """The part a row belongs to."""
    block, place = divmod(row, folds)
    return int(_shuffled(folds, block)[place])


@lru_cache(maxsize=4)
def _shuffled(folds: int, block: int) -> np.ndarray:
    return np.random.default_rng((folds, block)).permutation(folds)


def labels_of(corpora: "tuple[CorpusConfig, ...]") -> tuple[str, ...]:
    """The labels of some corpora, in order: as numbers where all are, else as text."""
    from anydepth.data.reading import Skips

    found, skips = set[str](), Skips()
    for corpus in corpora:
        if isinstance(corpus, BuiltinLabelled):
            from anydepth.data import builtin

            found.update(builtin.LABELS)
        elif isinstance(corpus, Labelled):
            found.update(row.label for row in read_labelled(corpus, skips))
    if len(found) < 2:
        labels = f"{len(found)} label{'' if len(found) == 1 else 's'} found{''.join(f', {name!r}' for name in found)}"
        summary = f"; {skips.summary()}" if skips.total else ""
        raise UserError(f"data.train: {labels}; expected two or more, each row a label, a tab and a text{summary}")
    if all(label.isdecimal() for label in found):
        return tuple(sorted(found, key=lambda label: (int(label), label)))  # 1 and 01 are two labels
    return tuple(sorted(found))
