"""What a decoder remembers between words: one slot per plan step, never per layer (recurrent plans visit a layer
several times, each time with other keys and values)."""

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

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Adds (R, n, H, d) keys and values and gives all so far."""
        end = self.length + key.shape[1]
        self.keys, self.values = grown(self.keys, key, end), grown(self.values, value, end)
        self.keys[:, self.length : end] = key
        self.values[:, self.length : end] = value
        self.length = end
        return self.keys[:, :end], self.values[:, :end]

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
