"""Which pairs go together: an endless, resumable stream of batches of pair numbers.

Each corpus is cut into chunks of neighbouring pairs; every epoch takes the chunks in a new order, a window of
them at a time, shuffles the pairs of the window and cuts them into batches by token budget. Memory is bounded
by the window, and a place in the stream is three small numbers a corpus, from which the window at hand is
made again. All randomness comes from (seed, corpus, epoch, window), none from a state.

No text and no torch here: `collate.py` turns pair numbers into tensors.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

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


class IndexBatch(NamedTuple):
    """The pairs of one batch: `pairs` are numbers in the corpus number `corpus`."""

    corpus: int
    pairs: Array


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


def _batches(store: Store, pairs: Array, limits: Limits) -> list[Array]:
    source, target = store.source_lengths[pairs], store.target_lengths[pairs]
    if limits.layout == "packed":
        return [pairs[cut] for cut in _cut_packed(source, target, limits)]
    order = _by_length(source, target, limits.multiple)
    pairs = pairs[order]
    return [pairs[cut] for cut in _cut_padded(source[order], target[order], limits)]


class _Cursor:
    """A place in the endless batches of one corpus: the next one is (epoch, window, batch)."""

    def __init__(self, store: Store, window: int, limits: Limits, random: Callable[..., np.random.Generator]) -> None:
        self.store, self.limits, self.random = store, limits, random
        self.chunk = max(1, window // 64)
        chunks = -(-len(store) // self.chunk)
        self.windows = -(-chunks // max(1, window // self.chunk))
        self.place: tuple[int, int, int] = (0, 0, 0)
        self._made: tuple[int, int] | None = None
        self._window: list[Array] = []

    def advance(self) -> Array:
        epoch, window, batch = self.place
        batches = self._batches(epoch, window)
        if batch + 1 < len(batches):
            self.place = (epoch, window, batch + 1)
        else:
            self.place = (epoch, window + 1, 0) if window + 1 < self.windows else (epoch + 1, 0, 0)
        return batches[batch]

    @property
    def epoch(self) -> float:
        epoch, window, batch = self.place
        part = batch / len(self._batches(epoch, window)) if batch else 0.0
        return epoch + (window + part) / self.windows

    def _batches(self, epoch: int, window: int) -> list[Array]:
        if self._made != (epoch, window):
            random = self.random(epoch, window + 1)
            pairs = random.permutation(self._pairs(epoch, window))
            batches = _batches(self.store, pairs, self.limits)
            self._window = [batches[i] for i in random.permutation(len(batches))]
            self._made = (epoch, window)
        return self._window

    def _pairs(self, epoch: int, window: int) -> Array:
        chunks = self.random(epoch, 0).permutation(-(-len(self.store) // self.chunk))
        starts = np.array_split(chunks, self.windows)[window] * self.chunk
        pairs = (starts[:, None] + np.arange(self.chunk)).ravel()
        return pairs[pairs < len(self.store)]


class Batches:
    """The endless stream of training batches, the same on every rank: each step draws one corpus with
    probability ∝ size^(1/temperature), size in target tokens, and takes its next `world` batches, of which
    this rank gets one. With turns it draws among the corpora of one key, the next step among those of the next."""

    def __init__(
        self,
        stores: Sequence[Store],
        config: BatchingConfig,
        *,
        seed: int,
        temperature: float = 1.0,
        turns: bool = False,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.stores, self.config, self.seed = list(stores), config, seed
        self.rank, self.world, self.step = rank, world, 0
        self.limits = Limits.of(stores, config)
        sizes = np.array([store.target_tokens for store in stores], dtype=np.float64)
        weights = (sizes / sizes.max()) ** (1 / temperature)
        self.probabilities: Array = weights / weights.sum()
        self._shares = sizes / sizes.sum()
        keys = [store.key for store in stores]
        every = list(range(len(stores)))
        self._turns = [[n for n in every if keys[n] == key] for key in dict.fromkeys(keys)] if turns else [every]
        self._cursors = [
            _Cursor(store, config.window, self.limits, self._random_of(number + 1))
            for number, store in enumerate(stores)
        ]

    def __iter__(self) -> Iterator[IndexBatch]:
        return self

    def __next__(self) -> IndexBatch:
        corpus = self._draw()
        taken = [self._cursors[corpus].advance() for _ in range(self.world)]
        self.step += 1
        return IndexBatch(corpus, taken[self.rank])

    def _draw(self) -> int:
        corpora = self._turns[self.step % len(self._turns)]
        if len(corpora) == 1:
            return corpora[0]
        point = self._random_of(0)(self.step, 0).random()
        shares = self.probabilities[corpora] / self.probabilities[corpora].sum()
        return corpora[min(int(np.searchsorted(np.cumsum(shares), point, side="right")), len(corpora) - 1)]

    def _random_of(self, stream: int) -> Callable[..., np.random.Generator]:
        # Always four numbers: numpy fills shorter seeds up with zeros, so (1, 2) and (1, 2, 0) would be the
        # same.
        return lambda a, b: np.random.default_rng((self.seed, stream, a, b))

    @property
    def target_tokens(self) -> int:
        """Of all corpora."""
        return sum(store.target_tokens for store in self.stores)

    @property
    def epoch(self) -> float:
        """Passes over the data so far, averaged over the corpora by size."""
        return float(sum(share * cursor.epoch for share, cursor in zip(self._shares, self._cursors)))

    def position(self) -> dict[str, Any]:
        """The place after the last batch taken, as plain JSON; `epoch` is for information."""
        return {
            "step": self.step,
            "epoch": self.epoch,
            "places": [list(cursor.place) for cursor in self._cursors],
            "made_with": self._made_with(),
        }

    def seek(self, position: dict[str, Any]) -> None:
        """Go on from a `position()`, exactly; refused if data or settings would put other batches there."""
        now = self._made_with()
        for name, before in position["made_with"].items():
            if before != now[name]:
                raise UserError(
                    f"cannot continue at the recorded place in the data: {name} was {before}, now it is {now[name]}"
                )
        self.step = position["step"]
        for cursor, (epoch, window, batch) in zip(self._cursors, position["places"]):
            cursor.place = (epoch, window, batch)

    def _made_with(self) -> dict[str, Any]:
        return {
            "pairs": [len(store) for store in self.stores],
            "source_tokens": [store.source_tokens for store in self.stores],
            "target_tokens": [store.target_tokens for store in self.stores],
            "seed": self.seed,
            "tokens": self.config.tokens,
            "layout": self.limits.layout,
            "window": self.config.window,
            "lengths": self.config.lengths,
        }


def one_pass(store: Store, config: BatchingConfig, limits: Limits | None = None) -> Iterator[Array]:
    """Every pair once, in the same order each time, for validation: windows in file order, sorted by length.
    Give the `limits` of training to get the same packed shapes."""
    limits = limits or Limits.of([store], config)
    limits.check(store)
    for start in range(0, len(store), config.window):
        yield from _batches(store, np.arange(start, min(start + config.window, len(store))), limits)
