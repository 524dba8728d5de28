"""Pair numbers to tensors, ahead of the training step and off its thread.

A padded batch has one sentence a row. A packed one has them one after the other in a single row of fixed
size; what is left of the row is padding, cut into segments of its own. Segment i of the target belongs to
segment i of the source. Every padding segment has a token on both sides, so that no query ever meets an empty
set of keys; the entries of `starts` that are not needed repeat the end of the row, segments without tokens on
either side.
"""

import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from anydepth.data.batching import Batches, IndexBatch
from anydepth.data.cutting import Limits
from anydepth.data.store import Store
from anydepth.plan import BothNoises, Part

Array = np.ndarray
Item = TypeVar("Item")


class Packing(NamedTuple):
    """Where the segments of a packed row are: segment i is starts[i] : starts[i + 1]."""

    starts: Tensor
    """(segments + 1,) int32, from 0 to the size of the row."""
    longest: int
    """No segment has more tokens; the same for every batch of a run."""
    positions: Tensor
    """(1, N) int64, the place of each token in its segment."""


class Batch(NamedTuple):
    """Sentence pairs as tensors; padding, on the right, has the pad id (in `target_out` too)."""

    source: Tensor
    """(B, S) int64, each sentence with eos; (1, N) if packed."""
    target_in: Tensor
    """(B, T) int64: bos and the sentence without eos."""
    target_out: Tensor
    """(B, T) int64: the sentence with eos."""
    source_packing: Packing | None
    target_packing: Packing | None
    key: str
    """Language pair or task; a batch has only one, unless it was joined."""
    tokens: int
    """Target tokens that are not padding."""
    sentences: int
    noise: BothNoises = (None, None)
    """What the gates of a training step are drawn with; none for inference."""
    parts: tuple[Part, ...] = ()
    """What it was joined of, if it was (`data/any_batch.py`)."""

    @property
    def predictions(self) -> int:
        """What the loss is a mean over."""
        return self.tokens

    @property
    def packed(self) -> bool:
        return self.source_packing is not None

    def to(self, device: torch.device | str) -> "Batch":
        """On another device; the copy does not wait if the batch is pinned."""
        return mapped(lambda tensor: tensor.to(device, non_blocking=True), self)

    def pin_memory(self) -> "Batch":
        return mapped(Tensor.pin_memory, self)


def mapped(change: Callable[[Tensor], Tensor], value: Item) -> Item:
    """With each tensor of a batch changed, however deep in its tuples."""
    if isinstance(value, Tensor):
        return change(value)  # type: ignore[return-value]
    if isinstance(value, tuple):
        parts = [mapped(change, part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors of a batch, in an order of their own."""
    if isinstance(value, Tensor):
        return [value]
    return [tensor for part in value for tensor in tensors_of(part)] if isinstance(value, tuple) else []


def collate(store: Store, pairs: Array, limits: Limits) -> Batch:
    """The batch of these pairs."""
    source, source_lengths = store.source(pairs)
    target_out, target_lengths = store.target(pairs)
    target_in = np.empty_like(target_out)
    target_in[1:] = target_out[:-1]
    target_in[np.cumsum(target_lengths) - target_lengths] = store.target_bos
    if limits.layout == "packed":
        return Batch(
            source=one_row(source, limits.source, store.source_pad),
            target_in=one_row(target_in, limits.target, store.target_pad),
            target_out=one_row(target_out, limits.target, store.target_pad),
            source_packing=pack(source_lengths, limits.source, limits),
            target_packing=pack(target_lengths, limits.target, limits),
            key=store.key,
            tokens=len(target_out),
            sentences=len(pairs),
        )
    return Batch(
        source=pad_rows(source, source_lengths, store.source_pad, limits.multiple),
        target_in=pad_rows(target_in, target_lengths, store.target_pad, limits.multiple),
        target_out=pad_rows(target_out, target_lengths, store.target_pad, limits.multiple),
        source_packing=None,
        target_packing=None,
        key=store.key,
        tokens=len(target_out),
        sentences=len(pairs),
    )


def collate_sources(sequences: Sequence[Sequence[int]], pad: int) -> Tensor:
    """(B, S) int64 from lists of ids, padded on the right, for decoding."""
    lengths = np.array([len(ids) for ids in sequences], dtype=np.int64)
    flat = np.fromiter(itertools.chain.from_iterable(sequences), dtype=np.int64, count=lengths.sum())
    return pad_rows(flat, lengths, pad, 1)


def pad_rows(flat: Array, lengths: Array, pad: int, multiple: int) -> Tensor:
    width = -(-int(lengths.max()) // multiple) * multiple
    rows = np.full((len(lengths), width), pad, dtype=np.int64)
    rows[np.arange(width) < lengths[:, None]] = flat
    return torch.from_numpy(rows)


def one_row(flat: Array, size: int, pad: int) -> Tensor:
    row = np.full((1, size), pad, dtype=np.int64)
    row[0, : len(flat)] = flat
    return torch.from_numpy(row)


def pack(lengths: Array, size: int, limits: Limits) -> Packing:
    segments = np.zeros(limits.sentences + limits.padding, dtype=np.int64)
    segments[: len(lengths)] = lengths
    rest = size - int(lengths.sum())
    # As even as possible: at least one token each and none longer than `longest`, see `Limits`.
    share = np.full(limits.padding, rest // limits.padding)
    share[: rest % limits.padding] += 1
    segments[len(lengths) : len(lengths) + limits.padding] = share
    starts = np.concatenate([[0], np.cumsum(segments)])
    positions = np.arange(size) - np.repeat(starts[:-1], segments)
    return Packing(torch.from_numpy(starts.astype(np.int32)), limits.longest, torch.from_numpy(positions[None]))


def stream(
    batches: Batches, pin: bool = False, make: Callable[[Batches, IndexBatch], Any] | None = None
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Endless (batch, position after it): the position to save once the batch has been used. Batches are those of
    pairs, or what `make` makes of their numbers."""
    for taken in batches:
        batch = make(batches, taken) if make else collate(batches.stores[taken.corpus], taken.pairs, batches.limits)
        yield batch.pin_memory() if pin else batch, batches.position()


def prefetch(iterator: Iterator[Item], depth: int = 4) -> "Ahead[Item]":
    """Iterate in a background thread, at most `depth` items ahead."""
    return Ahead(iterator, depth)


class Ahead(Generic[Item]):
    """The items of `iterator`, fetched by a thread. What the iterator raises reaches the consumer; `close()`, or
    leaving a `with`, stops the thread."""

    def __init__(self, iterator: Iterator[Item], depth: int) -> None:
        # the current device is a property of the thread: pinning must not wake up another rank's
        self._device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
        self._items: queue.Queue[tuple[Item | None, BaseException | None]] = queue.Queue(depth)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._fill, args=(iterator,), name="prefetch", daemon=True)
        self._thread.start()

    def _fill(self, iterator: Iterator[Item]) -> None:
        try:
            if self._device is not None:
                torch.cuda.set_device(self._device)
            for item in iterator:
                self._put(item, None)
                if self._stopped.is_set():
                    return
            self._put(None, StopIteration())
        except BaseException as error:
            self._put(None, error)

    def _put(self, item: Item | None, error: BaseException | None) -> None:
        while not self._stopped.is_set():
            try:
                return self._items.put((item, error), timeout=0.1)
            except queue.Full:
                continue

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        if self._stopped.is_set():
            raise StopIteration
        item, error = self._items.get()
        if error is not None:
            self.close()
            raise error
        return item  # type: ignore[return-value]

    def close(self) -> None:
        self._stopped.set()
        with suppress(queue.Empty):
            self._items.get_nowait()  # a thread that waits for room need not wait any longer
        self._thread.join()

    def __enter__(self) -> "Ahead[Item]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
