"""Rows of text to token ids, by several threads, in order and in bounded memory."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from typing import NamedTuple, TypeVar

import numpy as np

from anydepth.data.corpora import Row
from anydepth.data.tokenizer import Tokenizer, TokenizerPair

Array = np.ndarray
Item = TypeVar("Item")

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


def encode_all(
    rows: Iterator[Row],
    tokenizers: TokenizerPair,
    max_length: int,
    dtype: str,
    workers: int,
    tag: list[int],
    max_source: int = 0,
) -> Iterator[Encoded]:
    """Encoded chunks in order, made by threads (the tokenizers release Python's lock), few at a time.

    The tag, if any, stands in front of each source; `max_source` tokens of it are kept, 0 means all.
    """
    workers = workers or os.cpu_count() or 1
    chunks = _groups(rows, lambda row: len(row.source) + len(row.target or ""), CHUNK, CHUNK_CHARACTERS)
    waiting: deque[Future[Encoded]] = deque()
    with _one_thread_each(), ThreadPoolExecutor(workers) as pool:
        try:
            for chunk in chunks:
                waiting.append(pool.submit(_encode, chunk, tokenizers, max_length, dtype, tag, max_source))
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


def _encode(
    rows: list[Row], tokenizers: TokenizerPair, max_length: int, dtype: str, tag: list[int], max_source: int
) -> Encoded:
    sides = [_ids([row.source for row in rows], tokenizers.source, dtype, tag, max_source or None)]
    limits = [max_source or max_length, max_length]
    if targets := [row.target for row in rows if row.target is not None]:
        sides.append(_ids(targets, tokenizers.target, dtype, [], None))
    fits = np.logical_and.reduce([lengths <= limit + 1 for (_, lengths), limit in zip(sides, limits)])
    return Encoded(
        ids=tuple(ids[np.repeat(fits, lengths)] for ids, lengths in sides),
        lengths=tuple(lengths[fits] for _, lengths in sides),
        labels=[row.label for row, kept in zip(rows, fits) if kept and row.label is not None],
        read=len(rows),
        over_long=[rows[number].place for number in np.flatnonzero(~fits)],
    )


def _ids(
    texts: list[str], tokenizer: Tokenizer, dtype: str, first: list[int], longest: int | None
) -> tuple[Array, Array]:
    pieces: list[Array] = []
    lengths: list[int] = []
    for some in _groups(texts, len, PIECE, PIECE_CHARACTERS):
        encoded = [[*[*first, *ids][:longest], tokenizer.eos] for ids in tokenizer.encode(some)]
        pieces.append(np.fromiter(chain.from_iterable(encoded), dtype=dtype))
        lengths.extend(len(ids) for ids in encoded)
    return np.concatenate(pieces), np.array(lengths, dtype=np.int32)
