"""How much one batch holds: pairs cut into batches by token budget, padded or packed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from anydepth.config_class import config
from anydepth.data.store import Store
from anydepth.errors import UserError

Array = np.ndarray


@config
class BatchingConfig:
    tokens: int = 4096
    """Target tokens a batch (per device), end of sentence and padding included."""
    layout: Literal["auto", "padded", "packed"] = "auto"
    """`padded`: sentences of similar length, one a row, filled up with padding. `packed`: sentences one after
    the other in a single row of fixed size. `auto`: packed where the device has attention for it, otherwise
    padded."""
    window: int = 500_000
    """Pairs that are shuffled (and, when padded, sorted by length) together."""
    lengths: int = 8
    """Padded lengths are rounded up to a multiple of this, so that few shapes occur."""

    def __post_init__(self) -> None:
        for name in ("tokens", "window", "lengths"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")


@dataclass(frozen=True)
class Limits:
    """What one batch may hold. A padded batch stays within `source` and `target` tokens, padding included; a
    packed batch has exactly these sizes, so that kernels compile once."""

    layout: Literal["padded", "packed"]
    source: int
    """Source tokens a batch."""
    target: int
    """Target tokens a batch."""
    multiple: int
    """Padded lengths are multiples of this."""
    sentences: int
    """Packed: sentences a batch at most."""
    longest: int
    """Packed: tokens of the longest segment."""
    padding: int
    """Packed: segments of padding at the end. There is room for one token of each on both sides, so that no
    padding on one side ever attends to nothing on the other."""

    @classmethod
    def of(cls, stores: Sequence[Store], config: BatchingConfig) -> "Limits":
        """The limits for these corpora; `auto` means padded here, since no device is known."""
        shortest_mean = min(store.target_tokens / len(store) for store in stores)
        source_tokens = sum(store.source_tokens for store in stores)
        target_tokens = sum(store.target_tokens for store in stores)
        packed = config.layout == "packed"
        # Packed batches mix lengths, so the sides stay near their mean ratio; padded ones are sorted by
        # target length and need more room, or long sources would cut many batches short.
        slack = 1.02 if packed else 1.3
        longest = _round_up(max(store.max_length for store in stores) + 1, 64)
        source = _round_up(int(config.tokens * source_tokens / target_tokens * slack), 128)
        # Enough segments to cut a whole row of padding into pieces of at most `longest`.
        padding = max(source, config.tokens) // longest + 2 if packed else 0
        longest_source = _round_up(max(store.longest_source for store in stores), config.lengths)
        limits = cls(
            layout="packed" if packed else "padded",
            source=max(source, longest_source + padding),
            target=config.tokens,
            multiple=config.lengths,
            sentences=_round_up(int(config.tokens / shortest_mean * 1.5), 8),
            longest=longest,
            padding=padding,
        )
        for store in stores:
            limits.check(store)
        return limits

    def check(self, store: Store) -> None:
        """Raise an error unless each pair of the store fits into a batch of its own."""
        for side, limit, longest in (
            ("source", self.source, store.longest_source),
            ("target", self.target, store.longest_target),
        ):
            needed = longest + self.padding
            if self.layout == "padded":
                needed = _round_up(longest, self.multiple)
            if needed > limit:
                raise UserError(
                    f"a batch of {limit} {side} tokens cannot hold the longest {side} of {store.folder}: "
                    f"{longest} tokens, {needed} with padding; raise batching.tokens or lower data.max_length"
                )


def one_pass(store: Store, config: BatchingConfig, limits: Limits | None = None) -> Iterator[Array]:
    """Every pair once, in the same order each time, for validation: windows in file order, sorted by length.
    Give the `limits` of training to get the same packed shapes."""
    limits = limits or Limits.of([store], config)
    limits.check(store)
    for start in range(0, len(store), config.window):
        yield from cut(store, np.arange(start, min(start + config.window, len(store))), limits)


def cut(store: Store, pairs: Array, limits: Limits) -> list[Array]:
    """Pairs in batches, each within the limits."""
    source, target = store.source_lengths[pairs], store.target_lengths[pairs]
    if limits.layout == "packed":
        return [pairs[part] for part in _cut_packed(source, target, limits)]
    order = _by_length(source, target, limits.multiple)
    pairs = pairs[order]
    return [pairs[part] for part in _cut_padded(source[order], target[order], limits)]


def _round_up(number: Any, multiple: int) -> Any:
    return -(-number // multiple) * multiple


def _cut_padded(source: Array, target: Array, limits: Limits) -> Iterator[slice]:
    """Cut pairs sorted by target length so that rows x longest stays within both budgets."""
    source, target = _round_up(source, limits.multiple), _round_up(target, limits.multiple)
    start = 0
    while start < len(target):
        reach = slice(start, start + limits.target // int(target[start]))
        rows = np.arange(1, len(target[reach]) + 1)
        fits = rows * np.maximum.accumulate(target[reach]) <= limits.target
        fits &= rows * np.maximum.accumulate(source[reach]) <= limits.source
        end = start + int(fits.sum())
        yield slice(start, end)
        start = end


def _cut_packed(source: Array, target: Array, limits: Limits) -> Iterator[slice]:
    """Cut pairs in the order given where a side or the number of sentences is full."""
    source, target = (np.concatenate([[0], np.cumsum(side, dtype=np.int64)]) for side in (source, target))
    start, count = 0, len(target) - 1
    while start < count:
        end = min(
            int(np.searchsorted(source, source[start] + limits.source - limits.padding, side="right")) - 1,
            int(np.searchsorted(target, target[start] + limits.target - limits.padding, side="right")) - 1,
            start + limits.sentences,
        )
        yield slice(start, end)
        start = end


def _by_length(source: Array, target: Array, multiple: int) -> Array:
    """An order by padded target length, then source length: rising, falling, rising ..., so that neighbours
    stay alike where one target length ends and the next begins. Ties keep their (random) order."""
    padded = -(-target // multiple)
    return np.lexsort((np.where(padded % 2, -source, source), padded))
