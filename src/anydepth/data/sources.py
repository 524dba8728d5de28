"""Source texts to token ids, the same way in training and afterwards; and which of them are read together."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from anydepth.data.corpora import DataConfig
from anydepth.data.tokenizer import Tokenizer

BETWEEN_SENTENCES = re.compile(r"(?<=[.!?…])\s+")


class Sources(NamedTuple):
    ids: list[list[int]]
    """Of each text, without the last end mark."""
    cut: int
    """Texts of which only the beginning is there."""


def encode_sources(texts: Sequence[str], tokenizer: Tokenizer, data: DataConfig, tag: Sequence[int] = ()) -> Sources:
    """Token ids behind the tag, if any; the first `data.max_source` of them where there is such a limit."""
    encoded = by_sentence(texts, tokenizer) if data.sentences else tokenizer.encode(list(texts))
    whole = [[*tag, *ids] for ids in encoded]
    if not data.max_source:
        return Sources(whole, 0)
    return Sources([ids[: data.max_source] for ids in whole], sum(len(ids) > data.max_source for ids in whole))


def by_sentence(texts: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """With an end mark between the sentences of each text."""
    sentences = [split_sentences(text) for text in texts]
    encoded = iter(tokenizer.encode([sentence for each in sentences for sentence in each]))
    found = []
    for each in sentences:
        ids = [token for _ in each for token in (*next(encoded), tokenizer.eos)]
        found.append(ids[:-1])
    return found


def split_sentences(text: str) -> list[str]:
    """Cut after full stops, question and exclamation marks that white space follows; also after those of
    abbreviations, which nobody can tell without knowing the language."""
    return [sentence for sentence in BETWEEN_SENTENCES.split(text.strip()) if sentence]


def batches(lengths: list[int], sentences: int, tokens: int) -> Iterator[list[int]]:
    """Numbers of texts of similar length, the longest first: at most so many, and so many tokens with padding."""
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    start = 0
    while start < len(order):
        count = max(1, min(sentences, tokens // (lengths[order[start]] + 1)))
        yield order[start : start + count]
        start += count
