"""Products of a few rows inside a kernel: the tile that a program has, and the ways to multiply it.

A program reads its weights before it waits for the states (nn/overlap.py). Up to four or five rows are multiplied one
by one, by warps that have a few columns each: tensor cores take sixteen rows, and operands that go through shared
memory. With more rows tensor cores multiply all that is summed over at the same time, or a part of it by each warp, or
one part after the other where it does not fit. A norm of the states is a part of the product.
"""

# mypy: disallow-untyped-defs=False
# (kernels are written in Triton's language, in which an annotation means something else)

from functools import cache
from typing import NamedTuple

from anydepth.nn.overlap import FRESH, wait
from anydepth.nn.packed_attention import jit, tl, triton

MANY = 8192
"""Columns from which on they are taken for the words of a vocabulary, which have tiles of their own."""
FEWEST = 16
"""Rows and columns of the smallest product that tensor cores have."""


class Tile(NamedTuple):
    """How one program multiplies."""

    columns: int
    """Of the result."""
    inner: int
    """Of what is summed over, at a time."""
    warps: int
    rows: int = FEWEST
    """Of the result."""
    singly: int = 0
    """Rows that are multiplied one by one, if they are."""
    parts: int = 1
    """Of a sum, each by warps of their own: where it is long, has no norm before it and fits in one go."""

    def blocks(self, rows: int) -> int:
        """Programs for so many rows of the same columns."""
        return triton.cdiv(rows, self.singly or self.rows)

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """For a kernel."""
        return self.rows, self.columns, self.inner, self.singly, self.parts


@cache
def choose_tile(rows: int, columns: int, inner: int) -> Tile:
    """For a product of this shape, the fastest or nearly on an H200: narrow, so that all multiprocessors have something
    to read, and where it fits in one go, so that a program reads all its weights before it waits."""
    padded, width = triton.next_power_of_2(rows), max(FEWEST, triton.next_power_of_2(inner))
    wide, all_words = columns >= 1024, columns > MANY
    if rows <= (1 if all_words else 4 if wide else 5) and width <= (1024 if all_words else 8192):
        if all_words:
            narrow = 64 if columns > 8 * MANY else 16
        else:
            narrow = 4 if wide or (rows == 1 and width >= 2048) else 2
            narrow *= 2 if rows == 1 and columns >= 2048 else 1
        warps = max(1, narrow * width // (8192 if all_words else 4096))
        return Tile(narrow, width, warps, rows=padded, singly=rows)
    if all_words:
        return Tile(128, min(512, width), 8, rows=2 * FEWEST) if rows > FEWEST else Tile(64, min(512, width), 8)
    return Tile(32, width, 4) if inner <= 512 else Tile(16, min(2048, width), 4, parts=4 if width == 2048 else 1)


def tile_of_shares(rows: int, width: int) -> Tile:
    """For shares of attention: a few rows at a time, without tensor cores, which would round them."""
    singly = min(rows, 5)
    return Tile(4, width, max(1, width // 1024), rows=triton.next_power_of_2(singly), singly=singly)


@jit
def load_states(x, x_row, row, rows, first, WIDTH: tl.constexpr, INNER: tl.constexpr):
    inner = first + tl.arange(0, INNER)
    real = (row < rows)[:, None]
    if WIDTH % INNER:
        real = real & (inner < WIDTH)[None, :]
    return tl.load(x + row[:, None] * x_row + inner[None, :], mask=real, other=0.0)


@jit
def load_weights(weight, column, columns, first, WIDTH: tl.constexpr, INNER: tl.constexpr):
    inner = first + tl.arange(0, INNER)
    real = (column < columns)[None, :]
    if WIDTH % INNER:
        real = real & (inner < WIDTH)[:, None]
    at = weight + column[None, :].to(tl.int64) * WIDTH + inner[:, None]
    return tl.load(at, mask=real, other=0.0, cache_modifier=FRESH)


@jit
def rows_of(blocks, rows, ROWS: tl.constexpr, SINGLY: tl.constexpr):
    """The first row of a program's, and all of them, padded with such as there are none. Programs that read the same
    weights stand side by side."""
    first = tl.program_id(0) % blocks * (SINGLY if SINGLY else ROWS)
    row = first + tl.arange(0, ROWS)
    if SINGLY:
        row = tl.where(tl.arange(0, ROWS) < SINGLY, row, rows)
    return first, row


@jit
def load_row(row, first, WIDTH: tl.constexpr, INNER: tl.constexpr):
    inner = first + tl.arange(0, INNER)
    return tl.load(row + inner, mask=inner < WIDTH, other=0.0).to(tl.float32)


@jit
def moments(sums, squares, epsilon, WIDTH: tl.constexpr):
    """The mean of each row, and what its deviations are multiplied by, from parts of the sums of states and of their
    squares: what states in 16 bits leave of deviations much smaller than the mean is no better."""
    last: tl.constexpr = len(sums.shape) - 1
    mean = tl.sum(sums, last) / WIDTH
    return mean, tl.rsqrt(tl.maximum(tl.sum(squares, last) / WIDTH - mean * mean, 0.0) + epsilon)


@jit
def shares(scores, HEADS: tl.constexpr, INNER: tl.constexpr):
    """Of each head's attention, given logarithms to base 2: none where nothing is seen."""
    each = tl.reshape(scores, (HEADS, INNER // HEADS))
    p = tl.exp2(each - tl.maximum(tl.max(each, 1), -1e30)[:, None])
    total = tl.sum(p, 1)
    return tl.reshape(p / tl.where(total > 0, total, 1.0)[:, None], (INNER,))


@jit
def multiply_singly(
    x, weight, norm_scale, norm_shift, x_row, first, row, rows, column, columns, epsilon,
    WIDTH: tl.constexpr, INNER: tl.constexpr, NORM: tl.constexpr, HEADS: tl.constexpr, SINGLY: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """norm(x) weightᵀ, a row at a time."""
    weights = load_weights(weight, column, columns, 0, WIDTH, INNER)
    if NORM:
        scale = load_row(norm_scale, 0, WIDTH, INNER)
        shift = load_row(norm_shift, 0, WIDTH, INNER)
    wait(OVERLAP)
    states: tl.tuple = ()
    for number in tl.static_range(SINGLY):  # where there is none, the last one again
        states += (load_row(x + tl.minimum(first + number, rows - 1) * x_row, 0, WIDTH, INNER),)
    if NORM:  # of all rows first: one after the other they would wait for their sums
        normed: tl.tuple = ()
        for number in tl.static_range(SINGLY):
            mean, spread = moments(states[number], states[number] * states[number], epsilon, WIDTH)
            each = (states[number] - mean) * spread * scale + shift
            normed += (each.to(x.dtype.element_ty).to(tl.float32),)
        states = normed
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for number in tl.static_range(SINGLY):
        one = shares(states[number], HEADS, INNER) if HEADS else states[number]
        found = tl.sum(one[:, None] * weights.to(tl.float32), 0)
        total = tl.where((row == first + number)[:, None], found[None, :], total)
    return total


@jit
def multiply_at_once(
    x, weight, norm_scale, norm_shift, x_row, row, rows, column, columns, epsilon,
    WIDTH: tl.constexpr, INNER: tl.constexpr, NORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """norm(x) weightᵀ by tensor cores, all that is summed over at the same time: in chains that do not wait for each
    other, each of 256 numbers at most, which a warp reads at a time, so that it has whole rows of the states."""
    PART: tl.constexpr = INNER if INNER < 256 else 256
    CHAINS: tl.constexpr = (WIDTH + PART - 1) // PART  # no more: a chain of padding alone would not be masked
    weights: tl.tuple = ()
    scales: tl.tuple = ()
    shifts: tl.tuple = ()
    states: tl.tuple = ()
    for part in tl.static_range(CHAINS):
        weights += (load_weights(weight, column, columns, part * PART, WIDTH, PART),)
        if NORM:  # as often as there are rows, so that threads have them where they have states
            scales += (load_states(norm_scale, 0, row, rows, part * PART, WIDTH, PART),)
            shifts += (load_states(norm_shift, 0, row, rows, part * PART, WIDTH, PART),)
    wait(OVERLAP)
    for part in tl.static_range(CHAINS):
        states += (load_states(x, x_row, row, rows, part * PART, WIDTH, PART),)
    if NORM:
        sums = states[0].to(tl.float32)
        squares = sums * sums
        for part in tl.static_range(1, CHAINS):
            sums += states[part].to(tl.float32)
            squares += states[part].to(tl.float32) * states[part].to(tl.float32)
        mean, spread = moments(sums, squares, epsilon, WIDTH)
        normed: tl.tuple = ()
        for part in tl.static_range(CHAINS):
            deviation = (states[part].to(tl.float32) - mean[:, None]) * spread[:, None]
            normed += ((deviation * scales[part] + shifts[part]).to(x.dtype.element_ty),)
        states = normed
    total = tl.dot(states[0], weights[0])
    for part in tl.static_range(1, CHAINS):
        total = tl.fma(tl.dot(states[part], weights[part]), 1.0, total)  # a mere sum would become a chain again
    return total


@jit
def multiply_divided(
    x, weight, x_row, row, rows, column, columns,
    WIDTH: tl.constexpr, INNER: tl.constexpr, PARTS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """x weightᵀ by tensor cores, a part of the sum by each warp: if each had all of it for a part of the columns, all
    would read all states from shared memory."""
    PART: tl.constexpr = INNER // PARTS
    part, inner = tl.arange(0, PARTS)[:, None, None] * PART, tl.arange(0, PART)
    real = (column < columns)[None, None, :]
    if WIDTH % INNER:
        real = real & (part + inner[None, :, None] < WIDTH)
    at = weight + column[None, None, :].to(tl.int64) * WIDTH + part + inner[None, :, None]
    weights = tl.load(at, mask=real, other=0.0, cache_modifier=FRESH)
    wait(OVERLAP)
    real = (row < rows)[None, :, None]
    if WIDTH % INNER:
        real = real & (part + inner[None, None, :] < WIDTH)
    states = tl.load(x + row[None, :, None] * x_row + part + inner[None, None, :], mask=real, other=0.0)
    return tl.sum(tl.dot(states, weights), 0)


@jit
def multiply_in_parts(
    x, weight, norm_scale, norm_shift, x_row, row, rows, column, columns, epsilon,
    WIDTH: tl.constexpr, INNER: tl.constexpr, NORM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    sums = tl.zeros((ROWS, INNER), tl.float32)
    squares = tl.zeros((ROWS, INNER), tl.float32)
    if NORM:
        for first in range(0, WIDTH, INNER):
            some = load_states(x, x_row, row, rows, first, WIDTH, INNER).to(tl.float32)
            sums += some
            squares += some * some
        mean, spread = moments(sums, squares, epsilon, WIDTH)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, WIDTH, INNER):
        states = load_states(x, x_row, row, rows, first, WIDTH, INNER)
        if NORM:
            normed = (states.to(tl.float32) - mean[:, None]) * spread[:, None]
            normed = normed * load_row(norm_scale, first, WIDTH, INNER)[None, :]
            states = (normed + load_row(norm_shift, first, WIDTH, INNER)[None, :]).to(states.dtype)
        total = tl.dot(states, load_weights(weight, column, columns, first, WIDTH, INNER), total)
    return total


@jit
def multiply(
    x, weight, norm_scale, norm_shift, x_row, first, row, rows, column, columns, epsilon,
    WIDTH: tl.constexpr, INNER: tl.constexpr, NORM: tl.constexpr, HEADS: tl.constexpr, SINGLY: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PARTS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """norm(x) weightᵀ of some columns, once earlier kernels are done."""
    if SINGLY:
        found = multiply_singly(
            x, weight, norm_scale, norm_shift, x_row, first, row, rows, column, columns, epsilon,
            WIDTH, INNER, NORM, HEADS, SINGLY, ROWS, COLUMNS, OVERLAP,
        )  # fmt: skip
    elif PARTS > 1 and not NORM:
        found = multiply_divided(
            x, weight, x_row, row, rows, column, columns, WIDTH, INNER, PARTS, OVERLAP,
        )  # fmt: skip
    elif INNER >= WIDTH:
        found = multiply_at_once(
            x, weight, norm_scale, norm_shift, x_row, row, rows, column, columns, epsilon,
            WIDTH, INNER, NORM, OVERLAP,
        )  # fmt: skip
    else:
        wait(OVERLAP)
        found = multiply_in_parts(
            x, weight, norm_scale, norm_shift, x_row, row, rows, column, columns, epsilon,
            WIDTH, INNER, NORM, ROWS, COLUMNS,
        )  # fmt: skip
    return found
