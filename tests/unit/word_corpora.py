"""Small corpora in which every word is one token, for tests that need to know the lengths."""

from pathlib import Path

import numpy as np
import tokenizers

from anydepth.data.corpora import DataConfig, ParallelText
from anydepth.data.store import Store, tokenize
from anydepth.data.tokenizer import Tokenizer, TokenizerPair

WORDS = [chr(ord("a") + number // 26) + chr(ord("a") + number % 26) for number in range(200)]


def word_tokenizer(words: list[str] = WORDS) -> TokenizerPair:
    vocabulary = {word: number for number, word in enumerate(["<pad>", "<bos>", "<eos>", "<unk>", *words])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer = Tokenizer(inner.to_str())
    return TokenizerPair(tokenizer, tokenizer)


def write_corpus(folder: Path, pairs: int, longest: int = 30, seed: int = 0, key: str = "") -> ParallelText:
    """Random sentences of 1 to `longest` words; both sides have about the same length."""
    random = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    lengths = random.integers(1, longest + 1, pairs)
    others = np.clip(lengths + random.integers(-2, 3, pairs), 1, longest)
    for name, counts in (("source", lengths), ("target", others)):
        lines = (" ".join(random.choice(WORDS, count)) for count in counts)
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return ParallelText(source=str(folder / "source"), target=str(folder / "target"), key=key)


def word_store(folder: Path, pairs: int, longest: int = 30, seed: int = 0, key: str = "") -> Store:
    corpus = write_corpus(folder, pairs, longest, seed, key)
    data = DataConfig(train=(corpus,), max_length=longest, workers=1)
    return tokenize(corpus, "train", word_tokenizer(), folder / "store", data)
