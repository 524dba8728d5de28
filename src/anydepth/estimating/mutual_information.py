"""Depths from mutual information (depth-adaptive Eq. 2 and 3): a word that tells much about the label needs few layers.

    MI(x) = Σ_y Σ_{i_x, i_y ∈ {0, 1}} P(i_x, i_y) log(P(i_x, i_y) / (P(i_x) P(i_y)))        s(x) = −log MI(x)

i_x says whether x occurs in a text, i_y whether the text has label y; training texts alone are counted. s is cut into
as many bins of equal width as there are layers, from the smallest to the largest s of a word that occurs; the depth is
the bin, counted from 1. Words that never occurred get all layers.

The paper smooths by 0.1 "to avoid zero division" without saying what. There are two readings. Every probability is
smoothed by itself, (count + 0.1) / (texts + 0.1): MI is then above 0 for all words. Or 0.1 is added to the four joint
counts, which are a distribution again: some words then have MI = 0 exactly, and s of FLOOR in the place of infinity
makes the range so wide that nearly all words fall into its first half. On IMDB (12 layers, MiniLM's pieces) the mean
depth of a word is 7.4 by the first reading, 3.1 by the second.

Not from the paper: bins with equally many words, and fewer bins than layers.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anydepth.depth.perword import MutualInformationConfig
from anydepth.errors import UserError
from anydepth.estimating.pieces import Pieces
from anydepth.files import write_durably

Array = np.ndarray
Word = tuple[int, ...]

FLOOR = 1e-12
"""The least MI: it may be 0, or a little below, because numbers smoothed one by one are no distribution."""
TOGETHER = 32
"""Labels taken at once: each needs some twenty numbers a word."""
HEADING = "word\tpieces\ttexts\tmutual_information\tdepth"


@dataclass(frozen=True)
class WordDepths:
    """A depth for every word that occurred in training."""

    layers: int
    whole_words: bool
    """Whether words, not their pieces, have depths."""
    texts: dict[Word, int]
    """Training texts that each occurs in."""
    information: dict[Word, float]
    depths: dict[Word, int]

    def of(self, ids: Array, lengths: Array, pieces: Pieces) -> Array:
        """The depth of every piece of some texts; words that are not known get all layers."""
        if not self.whole_words:
            table = np.full(len(pieces.names), self.layers, dtype=np.uint8)
            for (number,), depth in self.depths.items():
                table[number] = depth
            return table[ids]
        numbers = pieces.words(ids, lengths)
        found = [self.depths.get(word, self.layers) for word in words_of(ids, numbers)]
        return np.array(found, dtype=np.uint8)[numbers]

    def write(self, file: Path, pieces: Pieces) -> None:
        """A line for each word, those that tell most first."""
        kind = "words" if self.whole_words else "pieces"
        lines = [f"# {self.layers} layers, {kind}", HEADING]
        for word, value in sorted(self.information.items(), key=lambda item: (-item[1], item[0])):
            numbers = " ".join(map(str, word))
            lines.append(f"{pieces.name(word)}\t{numbers}\t{self.texts[word]}\t{value:.9g}\t{self.depths[word]}")
        write_durably(file, "\n".join(lines) + "\n")

    @classmethod
    def read(cls, file: Path) -> "WordDepths":
        try:
            first, heading, *lines = file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
            layers, kind = first.removeprefix("# ").split(" layers, ")
            rows = [line.split("\t") for line in lines]
            words = [tuple(map(int, row[1].split())) for row in rows]
            if heading != HEADING:
                raise ValueError(f"the second line should be {HEADING!r}")
            for row, word in zip(rows, words):
                if not 1 <= int(row[4]) <= int(layers) or (kind != "words" and len(word) != 1):
                    raise ValueError(f"{row[0]!r} has pieces {row[1]} and depth {row[4]}, of {first}")
            return cls(
                int(layers),
                kind == "words",
                {word: int(row[2]) for word, row in zip(words, rows)},
                {word: float(row[3]) for word, row in zip(words, rows)},
                {word: int(row[4]) for word, row in zip(words, rows)},
            )
        except FileNotFoundError:
            raise UserError(f"{file}: no such file; training makes it, and `anydepth depths`") from None
        except (ValueError, IndexError) as error:
            raise UserError(f"{file}: not a list of depths: {error}") from None


def words_of(ids: Array, numbers: Array) -> list[Word]:
    """The pieces of each word."""
    ends = np.flatnonzero(np.diff(numbers)) + 1
    return [tuple(part.tolist()) for part in np.split(ids, ends)]


def estimate(
    ids: Array, lengths: Array, labels: Array, pieces: Pieces, layers: int, settings: MutualInformationConfig
) -> WordDepths:
    """From training texts: their pieces one after the other, the length and the label of each text."""
    texts, whole_words = np.repeat(np.arange(len(lengths)), lengths), settings.unit == "words"
    layers = settings.deepest or layers
    if whole_words:
        numbers = pieces.words(ids, lengths)
        first = np.concatenate([[0], np.flatnonzero(np.diff(numbers)) + 1])
        index: dict[Word, int] = {}
        things = np.array([index.setdefault(word, len(index)) for word in words_of(ids, numbers)])
        texts, special, vocabulary = texts[first], pieces.special[ids[first]], list(index)
    else:
        things, special, vocabulary = (
            ids.astype(np.int64),
            pieces.special[ids],
            [(n,) for n in range(len(pieces.names))],
        )
    counts = presence(things[~special], texts[~special], labels, len(vocabulary))
    seen = np.flatnonzero(counts.sum(1))
    if not len(seen):
        raise UserError("data.train: no word to estimate a depth for")
    of_label = np.bincount(labels, minlength=counts.shape[1])
    information = mutual_information(counts[seen], of_label, settings.smoothing, settings.smoothed == "joint")
    depths = (bins if settings.bins == "width" else even_bins)(-np.log(information), layers)
    known = [vocabulary[number] for number in seen]
    return WordDepths(
        layers,
        whole_words,
        dict(zip(known, counts[seen].sum(1).tolist())),
        dict(zip(known, information.tolist())),
        dict(zip(known, depths.tolist())),
    )


def presence(things: Array, texts: Array, labels: Array, size: int) -> Array:
    """(size, labels) texts of each label in which each thing occurs."""
    count = int(labels.max()) + 1
    once = np.unique(texts * size + things)
    return np.bincount((once % size) * count + labels[once // size], minlength=size * count).reshape(size, count)


def mutual_information(counts: Array, texts: Array, smoothing: float = 0.1, joint: bool = False) -> Array:
    """(W,) of the (W, Y) texts in which each word occurs, and the (Y,) texts of each label."""
    occurs, number, found = counts.sum(1, keepdims=True), int(texts.sum()), np.zeros(len(counts))
    for first in range(0, len(texts), TOGETHER):
        some = slice(first, first + TOGETHER)
        found += of_labels(counts[:, some], texts[some], occurs, number, smoothing, joint)
    return np.maximum(found, FLOOR)


def of_labels(counts: Array, texts: Array, occurs: Array, number: int, smoothing: float, joint: bool) -> Array:
    """(W,) the terms of some labels, of words that occur in so many texts of a number of them."""
    both = np.stack([counts, occurs - counts, texts - counts, number - texts - occurs + counts]).astype(np.float64)
    if joint:
        both, smoothing = both + smoothing, 0.0
    word = (both[[0, 2]] + both[[1, 3]])[[0, 0, 1, 1]]
    label = (both[[0, 1]] + both[[2, 3]])[[0, 1, 0, 1]]
    p, p_word, p_label = ((count + smoothing) / (both.sum(0) + smoothing) for count in (both, word, label))
    return (p * np.log(p / (p_word * p_label))).sum((0, 2))


def bins(values: Array, layers: int) -> Array:
    """1 … layers: which of as many equal parts of their range each value is in."""
    low, high = values.min(), values.max()
    if high <= low:
        return np.full(len(values), layers)
    return np.minimum((layers * (values - low) / (high - low)).astype(np.int64) + 1, layers)


def even_bins(values: Array, layers: int) -> Array:
    """1 … layers: which of as many parts with equally many values each is in; equal values are in the same one."""
    return np.searchsorted(np.sort(values), values) * layers // len(values) + 1
