"""What a decoder remembers between words: one slot per plan step, never per layer (recurrent plans visit a layer
several times, each time with other keys and values).

`Cache` grows with the longest hypothesis: all rows are at the same word. In a `FixedCache` every row is at a word of
its own, and nothing ever moves: rows can take words back, and a step is the same computation whatever its position,
which is what CUDA graphs replay.
"""

import torch
from torch import Tensor

GROWTH = 64
"""Positions a slot grows by when it is full."""


class Held:
    """Keys and values of what is the same for every word of a translation, (R, S, H, d): computed once."""

    def __init__(self) -> None:
        self.pair: tuple[Tensor, Tensor] | None = None

    def reorder(self, rows: Tensor) -> None:
        if self.pair is not None:
            self.pair = self.pair[0].index_select(0, rows), self.pair[1].index_select(0, rows)


class Slot:
    """Keys and values of one plan step, (R, T, H, d), and those of the encoder's memory and context."""

    def __init__(self) -> None:
        self.length = 0
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.memory, self.context = Held(), Held()

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Adds (R, n, H, d) keys and values and gives all so far; and which of them each query sees, if not all."""
        end = self.length + key.shape[1]
        self.keys, self.values = grown(self.keys, key, end), grown(self.values, value, end)
        self.keys[:, self.length : end] = key
        self.values[:, self.length : end] = value
        self.length = end
        return self.keys[:, :end], self.values[:, :end], None

    def reorder(self, rows: Tensor, sentences_change: bool) -> None:
        if self.keys is not None and self.values is not None:
            # only what is filled; the buffers grow again with the next word
            self.keys = self.keys[:, : self.length].index_select(0, rows)
            self.values = self.values[:, : self.length].index_select(0, rows)
        if sentences_change:
            self.memory.reorder(rows)
            self.context.reorder(rows)


def grown(buffer: Tensor | None, like: Tensor, length: int) -> Tensor:
    """A buffer with room for `length` positions, what it held kept."""
    if buffer is not None and buffer.shape[1] >= length:
        return buffer
    room = like.new_zeros(like.shape[0], GROWTH * -(-length // GROWTH), *like.shape[2:])
    if buffer is not None:
        room[:, : buffer.shape[1]] = buffer
    return room


class Cache:
    """The slots of one plan, and how many words they hold."""

    def __init__(self, steps: int) -> None:
        self.slots = [Slot() for _ in range(steps)]
        self.length = 0

    def reorder(self, rows: Tensor, sentences_change: bool) -> None:
        for slot in self.slots:
            slot.reorder(rows, sentences_change)


class FixedSlot:
    """As `Slot`, (R, T, H, d) from the beginning; words are written where the cache says they stand."""

    def __init__(self, cache: "FixedCache") -> None:
        self.cache = cache
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.memory, self.context = Held(), Held()

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        cache = self.cache
        if self.keys is None or self.values is None:
            self.keys, self.values = self.room_for(key), self.room_for(value)
        self.keys[cache.rows, cache.positions] = key
        self.values[cache.rows, cache.positions] = value
        return self.keys[:, : cache.used], self.values[:, : cache.used], cache.seen

    def begin_with(self, key: Tensor, value: Tensor) -> None:
        """(R, n, H, d) of the first words, known from an earlier search."""
        self.keys, self.values = self.room_for(key), self.room_for(value)
        self.keys[:, : key.shape[1]] = key
        self.values[:, : value.shape[1]] = value

    def room_for(self, like: Tensor) -> Tensor:
        return like.new_zeros(like.shape[0], self.cache.room, *like.shape[2:])


class FixedCache:
    """Slots with room for `room` words in each of R rows."""

    rows: Tensor
    """(R, 1)"""
    positions: Tensor
    """(R, q) where the words of this pass stand."""
    seen: Tensor
    """(R, 1, q, used) which words each of them sees: those not after it."""
    used: int
    """Places that may hold a word."""

    def __init__(self, steps: int, room: int) -> None:
        self.room = room
        self.slots = [FixedSlot(self) for _ in range(steps)]
        self.places: Tensor | None = None

    def stand_at(self, positions: Tensor) -> None:
        """Where the words of the next pass stand, (R, q)."""
        if self.places is None or len(self.rows) != len(positions):
            self.places = torch.arange(self.room, device=positions.device)
            self.rows = torch.arange(len(positions), device=positions.device)[:, None]
        self.positions = positions
        # the host knows how far a CPU has got; to ask a GPU would make it wait
        self.used = self.room if positions.is_cuda else int(positions.max()) + 1
        self.seen = (self.places[: self.used] <= positions[:, :, None])[:, None]

    def reorder(self, rows: Tensor) -> None:
        """Row i goes on with what row rows[i] was; there may be fewer."""
        for slot in self.slots:
            if slot.keys is not None and slot.values is not None:
                slot.keys, slot.values = slot.keys[rows], slot.values[rows]
            slot.memory.reorder(rows)
            slot.context.reorder(rows)


AnySlot = Slot | FixedSlot
AnyCache = Cache | FixedCache
