"""Which pairs go together: an endless, resumable stream of batches of pair numbers.

Each corpus is cut into chunks of neighbouring pairs; every epoch takes the chunks in a new order, a window of
them at a time, shuffles the pairs of the window and cuts them into batches by token budget (cutting.py).
Memory is bounded by the window, and a place in the stream is three small numbers a corpus, from which the
window at hand is made again. All randomness comes from (seed, corpus, epoch, window), none from a state.

No text and no torch here: `collate.py` turns pair numbers into tensors.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from anydepth.data.cutting import BatchingConfig, Limits, cut
from anydepth.data.store import Store
from anydepth.errors import UserError

Array = np.ndarray


class IndexBatch(NamedTuple):
    """The pairs of one batch: `pairs` are numbers in the corpus number `corpus`."""

    corpus: int
    pairs: Array


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
            batches = cut(self.store, pairs, self.limits)
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
