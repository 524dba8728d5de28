"""Which pieces of a text belong to one word, and which are no words at all."""

import numpy as np

from anydepth.data.tokenizer import BYTES, Tokenizer

Array = np.ndarray


class Pieces:
    """What a tokenizer's pieces say about words: WordPiece marks those that go on with ##, ours those that begin with
    ▁; a sign of punctuation is a word of its own."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.names = tokenizer.tokens
        self.special = np.zeros(len(self.names), dtype=bool)
        self.special[list(tokenizer.special)] = True
        word_piece = any(name.startswith("##") for name in self.names)
        self.alone = np.array([is_sign(name) for name in self.names])
        if word_piece:
            self.begins = np.array([not name.startswith("##") for name in self.names])
        else:
            self.begins = np.array([name.startswith("▁") for name in self.names]) | self.alone

    def words(self, ids: Array, lengths: Array) -> Array:
        """The number of the word that each piece is in, from 0 over all texts; special tokens are words too."""
        starts = self.begins[ids] | self.special[ids]
        starts[1:] |= self.alone[ids[:-1]] | self.special[ids[:-1]]
        starts[np.cumsum(lengths)[:-1]] = True
        starts[:1] = True
        return np.cumsum(starts) - 1

    def name(self, ids: tuple[int, ...]) -> str:
        """A word as people write it."""
        return "".join(self.names[number].removeprefix("##") for number in ids).replace("▁", "")


def is_sign(name: str) -> bool:
    """Whether a piece is punctuation; a byte of a rare character may be part of any word."""
    return name not in BYTES and not name.lstrip("▁")[:1].isalnum()


def with_special(depths: Array, ids: Array, lengths: Array, pieces: Pieces, layers: int, deepest: bool) -> Array:
    """With depths for special tokens: that of the deepest word of their text, or all layers. As words of every text
    they would always get all layers, and no text would ever stop earlier."""
    special = pieces.special[ids]
    texts = np.repeat(np.arange(len(lengths)), lengths)
    most = np.ones(len(lengths), dtype=np.int64)
    np.maximum.at(most, texts[~special], depths[~special])
    return np.where(special, most[texts] if deepest else layers, depths).astype(np.uint8)
