"""What a decoder remembers between words: one slot per plan step, never per layer (recurrent plans visit a layer
several times, each time with other keys and values).

`Cache` grows with the longest hypothesis: all rows are at the same word. In the two others nothing ever moves, and a
step is the same computation whatever its position, which is what CUDA graphs replay. In a `FixedCache` every row is at
a word of its own, and can take words back. A `BeamCache` holds the hypotheses of a beam side by side.
"""

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

GROWTH = 64
"""Positions a slot grows by when it is full."""


class Folded(NamedTuple):
    """Attention to one source as two products (nn/folded_source.py), P places for its words."""

    keys: Tensor
    """(H · P, D) that states are multiplied by: keys by the projection of queries."""
    shift: Tensor
    """(H · P,) added to that: 0 or so, -∞ where there is no word."""
    values: Tensor
    """(D, H · P) that shares of attention are multiplied by: the output projection by values."""


class Held:
    """Keys and values of what is the same for every word of a translation, (R, S, H, d): computed once."""

    def __init__(self) -> None:
        self.pair: tuple[Tensor, Tensor] | None = None
        self.folded: Folded | None = None
        """The same with the projections around it, if anything has made that."""

    def reorder(self, rows: Tensor) -> None:
        self.folded = None
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
            # with the room behind what is filled: to make it anew for every word of a beam costs more than to copy it
            self.keys, self.values = self.keys.index_select(0, rows), self.values.index_select(0, rows)
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


def as_scores(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """What attention adds for keys that are seen, 0, and for others, -inf. (A mask of truth values means the same, and
    is turned into this one for every attention anew.)"""
    return torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, -torch.inf)


RoomFor = Callable[[tuple[int, ...], Tensor], Tensor]
"""Gives a tensor of this shape, like that one."""


def new_room(shape: tuple[int, ...], like: Tensor) -> Tensor:
    return like.new_zeros(shape)


class SharedRooms:
    """Memory for the caches of searches that never run at the same time: all of them begin with the first room, and the
    next is the next one's. What another search has left there is never looked at."""

    def __init__(self) -> None:
        self.rooms: list[Tensor] = []

    def search(self) -> RoomFor:
        """The rooms of one search, from the first."""
        numbers = itertools.count()
        return lambda shape, like: self.room(next(numbers), shape, like)

    def room(self, number: int, shape: tuple[int, ...], like: Tensor) -> Tensor:
        size = math.prod(shape)
        if number == len(self.rooms):
            self.rooms.append(like.new_zeros(size))
        if self.rooms[number].numel() < size or self.rooms[number].dtype != like.dtype:
            self.rooms[number] = like.new_zeros(size)  # earlier searches keep the smaller one
        return self.rooms[number][:size].view(shape)


class FixedSlot:
    """As `Slot`, (R, T, H, d) from the beginning; words are written where the cache says they stand."""

    def __init__(self, cache: "FixedCache") -> None:
        self.cache = cache
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.memory, self.context = Held(), Held()

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        cache, (keys, values) = self.cache, self.rooms(key)
        keys[cache.rows, cache.positions] = key
        values[cache.rows, cache.positions] = value
        return keys[:, : cache.used], values[:, : cache.used], cache.seen

    def rooms(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and all values; `like` those of some words, (R, n, H, d)."""
        if self.keys is None or self.values is None:
            self.keys, self.values = self.room_for(like), self.room_for(like)
        return self.keys, self.values

    def begin_with(self, key: Tensor, value: Tensor) -> None:
        """(R, n, H, d) of the first words, known from an earlier search."""
        self.keys, self.values = self.room_for(key), self.room_for(value)
        self.keys[:, : key.shape[1]] = key
        self.values[:, : value.shape[1]] = value

    def room_for(self, like: Tensor) -> Tensor:
        return self.cache.room_for((like.shape[0], self.cache.room, *like.shape[2:]), like)


class FixedCache:
    """Slots with room for `room` words in each of R rows."""

    rows: Tensor
    """(R, 1)"""
    positions: Tensor
    """(R, q) where the words of this pass stand."""
    used: int
    """Places that may hold a word."""

    def __init__(
        self, steps: int, room: int, dtype: torch.dtype, device: torch.device, room_for: RoomFor = new_room
    ) -> None:
        self.room_for = room_for
        self.room = 8 * -(-room // 8)  # so that attention can read rows of `earlier` as they stand
        self.slots = [FixedSlot(self) for _ in range(steps)]
        places = torch.arange(self.room, device=device)
        self.earlier = as_scores(places <= places[:, None], dtype)
        self.rows = places[:0, None]

    def stand_at(self, positions: Tensor, used: int) -> None:
        """Where the words of the next pass stand, (R, q), all below `used`."""
        if len(self.rows) != len(positions):
            self.rows = torch.arange(len(positions), device=positions.device)[:, None]
        self.positions, self.used = positions, used
        self.known_seen: Tensor | None = None

    @property
    def seen(self) -> Tensor:
        """(R, 1, q, used) which words each of them sees, as scores: those not after it."""
        if self.known_seen is None:
            self.known_seen = F.embedding(self.positions, self.earlier)[:, None, :, : self.used]
        return self.known_seen

    @property
    def standing(self) -> tuple[Tensor, None]:
        """Where the first word of each row stands, (R,); and that the others, which follow it, see those before."""
        return self.positions[:, 0], None

    def reorder(self, rows: Tensor) -> None:
        """Row i goes on with what row rows[i] was; there may be fewer."""
        for slot in self.slots:
            if slot.keys is not None and slot.values is not None:
                slot.keys, slot.values = slot.keys[rows], slot.values[rows]
            slot.memory.reorder(rows)
            slot.context.reorder(rows)


class BeamSlot:
    """Keys and values (B, T, K, H, d) of the words that stood in each of K places of a beam."""

    def __init__(self, cache: "BeamCache") -> None:
        self.cache = cache
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.memory, self.context = Held(), Held()

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Those of K hypotheses, (B, K, H, d), which look like K words of a sentence; and all that any of them sees."""
        cache, (keys, values) = self.cache, self.rooms(key)
        keys.index_copy_(1, cache.at, key[:, None])
        values.index_copy_(1, cache.at, value[:, None])
        return keys[:, : cache.used].flatten(1, 2), values[:, : cache.used].flatten(1, 2), cache.mask

    def rooms(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and all values; `like` those of one step, (B, K, H, d)."""
        if self.keys is None or self.values is None:
            shape = (len(like), self.cache.room, *like.shape[1:])
            self.keys, self.values = self.cache.room_for(shape, like), self.cache.room_for(shape, like)
        return self.keys, self.values


class BeamCache:
    """Slots for K hypotheses of each of B sentences, all at the same word.

    When hypotheses change places, keys and values stay where they are: only the table of who sees what is reordered.
    All K attend to the words of all K, and see their own: that reads less than copying the caches would. What K
    hypotheses need of their source is there once, because they are K queries of one sentence.
    """

    def __init__(
        self,
        steps: int,
        sentences: int,
        beam: int,
        room: int,
        dtype: torch.dtype,
        device: torch.device,
        room_for: RoomFor = new_room,
    ) -> None:
        self.room_for = room_for
        self.room = self.used = room
        self.slots = [BeamSlot(self) for _ in range(steps)]
        self.at = torch.zeros(1, dtype=torch.long, device=device)
        """(1,) where the words of this step stand."""
        # (B, K, T, K) whether hypothesis k sees the word at t in place j, as scores; one row for all where K is 1
        self.seen = torch.full((sentences if beam > 1 else 1, beam, room, beam), -torch.inf, dtype=dtype, device=device)
        itself = as_scores(torch.eye(beam, dtype=torch.bool, device=device), dtype)
        self.itself = itself[None, :, None].expand(len(self.seen), -1, -1, -1)
        self.noted = False

    def forget(self) -> None:
        """Back to the first word."""
        self.at.zero_()
        self.seen.fill_(-torch.inf)

    def stand(self, used: int) -> None:
        """Before a step, at most the `used`-th: every hypothesis sees the word it reads."""
        self.used, self.noted = used, False

    def note(self) -> Tensor:
        """The table, with the words that are read."""
        if not self.noted:
            self.seen.index_copy_(2, self.at, self.itself)
            self.noted = True
        return self.seen

    @property
    def standing(self) -> tuple[Tensor, Tensor | None]:
        """Where all stand, (1,), and what each hypothesis sees; alone, all there is."""
        return self.at, self.note() if self.seen.shape[1] > 1 else None

    @property
    def mask(self) -> Tensor:
        """(B or 1, 1, K, used · K)"""
        return self.note()[:, :, : self.used].flatten(2)[:, None]

    def follow(self, parents: Tensor) -> None:
        """After a step: hypothesis k, (B, K), goes on with what hypothesis parents[k] was."""
        seen = self.seen[:, :, : self.used]
        seen.copy_(seen.gather(1, parents[:, :, None, None].expand_as(seen)))


AnySlot = Slot | FixedSlot | BeamSlot
AnyCache = Cache | FixedCache | BeamCache
