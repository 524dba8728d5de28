"""Rows of text to token ids, by several threads, in order and in bounded memory."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from typing import NamedTuple, TypeVar

import numpy as np

from anydepth.data.corpora import DataConfig
from anydepth.data.reading import Row
from anydepth.data.sources import encode_sources
from anydepth.data.tokenizer import TokenizerPair

Array = np.ndarray
Item = TypeVar("Item")
Encode = Callable[[list[str]], list[list[int]]]
"""Texts to token ids without the end mark."""

CHUNK, CHUNK_CHARACTERS = 2048, 1 << 20  # pairs a thread gets at once, at most
PIECE, PIECE_CHARACTERS = 128, 1 << 15  # texts encoded at once: while it lives, an encoding takes 400 bytes a token


class Encoded(NamedTuple):
    """A chunk of rows as token ids, of one side or of two; over-long rows are left out of the ids."""

    ids: tuple[Array, ...]
    lengths: tuple[Array, ...]
    labels: list[str]
    """Of the rows that have one."""
    read: int
    over_long: list[str]
    cut: int
    """Sources of which only the beginning is there."""


def encode_all(
    rows: Iterator[Row], tokenizers: TokenizerPair, data: DataConfig, dtype: str, tag: list[int]
) -> Iterator[Encoded]:
    """Encoded chunks in order, made by threads (the tokenizers release Python's lock), few at a time.

    The tag, if any, stands in front of each source.
    """
    workers = data.workers or os.cpu_count() or 1
    chunks = _groups(rows, lambda row: len(row.source) + len(row.target or ""), CHUNK, CHUNK_CHARACTERS)
    waiting: deque[Future[Encoded]] = deque()
    with _one_thread_each(), ThreadPoolExecutor(workers) as pool:
        try:
            for chunk in chunks:
                waiting.append(pool.submit(_encode, chunk, tokenizers, data, dtype, tag))
                if len(waiting) > workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _groups(items: Iterable[Item], size: Callable[[Item], int], most: int, room: int) -> Iterator[list[Item]]:
    """Lists of at most `most` items, closed as soon as their sizes add up to `room`."""
    group: list[Item] = []
    taken = 0
    for item in items:
        group.append(item)
        taken += size(item)
        if len(group) == most or taken >= room:
            yield group
            group, taken = [], 0
    if group:
        yield group


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Keep the tokenizers library from starting threads of its own inside ours."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TOKENIZERS_PARALLELISM"]
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before


def _encode(rows: list[Row], tokenizers: TokenizerPair, data: DataConfig, dtype: str, tag: list[int]) -> Encoded:
    cut = 0

    def source_ids(texts: list[str]) -> list[list[int]]:
        nonlocal cut
        sources = encode_sources(texts, tokenizers.source, data, tag)
        cut += sources.cut
        return sources.ids

    sides = [_ids([row.source for row in rows], source_ids, tokenizers.source.eos, dtype)]
    limits = [data.max_source or data.max_length, data.max_length]
    if targets := [row.target for row in rows if row.target is not None]:
        sides.append(_ids(targets, tokenizers.target.encode, tokenizers.target.eos, dtype))
    fits = np.logical_and.reduce([lengths <= limit + 1 for (_, lengths), limit in zip(sides, limits)])
    return Encoded(
        ids=tuple(ids[np.repeat(fits, lengths)] for ids, lengths in sides),
        lengths=tuple(lengths[fits] for _, lengths in sides),
        labels=[row.label for row, kept in zip(rows, fits) if kept and row.label is not None],
        read=len(rows),
        over_long=[rows[number].place for number in np.flatnonzero(~fits)],
        cut=cut,
    )


def _ids(texts: list[str], encode: Encode, eos: int, dtype: str) -> tuple[Array, Array]:
    pieces: list[Array] = []
    lengths: list[int] = []
    for some in _groups(texts, len, PIECE, PIECE_CHARACTERS):
        encoded = [[*ids, eos] for ids in encode(some)]
        pieces.append(np.fromiter(chain.from_iterable(encoded), dtype=dtype))
        lengths.extend(len(ids) for ids in encoded)
    return np.concatenate(pieces), np.array(lengths, dtype=np.int32)
