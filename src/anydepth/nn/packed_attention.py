"""Attention inside short packed sentences, on a GPU: one Triton program per sentence and head.

A sentence of up to BLOCK words fits into one tile: its scores are computed once and stay on the chip, forward and
backward. Longer sentences loop over tiles, with the online softmax of FlashAttention (Dao et al. 2022, algorithm 1).
No program shares an output with another, so there are no atomic additions and the result is deterministic.

Words of sentence i are rows starts[i]:starts[i+1]. Logarithms are to base 2, the one that the hardware has.
"""

# mypy: disallow-untyped-defs=False
# (kernels are written in Triton's language, in which an annotation means something else)

import math
import warnings
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

try:
    import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]

    jit = triton.jit
except ImportError:  # the module can still be imported and asked whether it is `available`
    triton, tl = None, SimpleNamespace(constexpr=None)

    def jit(function):
        return function


KERNEL_HEADS = (16, 32, 64, 128)
"""Sizes of a head that the kernel takes."""
SMALL = 32
"""Sentences up to this many words take a tile of this size."""
BLOCK = 64
"""Sentences up to this many words take one tile of this size."""
LOOP = 32
"""Longer sentences loop over tiles of this size: small, so that the rare path does not cost the others registers."""
FORWARD_WARPS = 4
FORWARD_REGISTERS = 128
"""A thread's at most: four programs fit into a multiprocessor of an H100, and only the loops spill (two values)."""
BACKWARD_WARPS = 4
BACKWARD_REGISTERS = 168
"""Three programs fit, and at most four values spill."""
STAGES = 1
"""More stages would buy the loops of long sentences speed with shared memory that all programs have to reserve."""


def available() -> bool:
    """Whether this machine can run kernels such as `short_attention`."""
    return triton is not None and torch.cuda.is_available() and torch.version.hip is None and launches()


@cache
def launches() -> bool:
    """Whether Triton can start kernels: it builds what does with a C compiler, and keeps it in the user's folder. A
    small container may have neither."""
    try:
        return triton.runtime.driver.active is not None
    except Exception as error:  # of the compiler, of the file system …
        warnings.warn(f"slower than it could be: Triton cannot start kernels here ({error})", stacklevel=2)
        return False


def short_attention(q: Tensor, k: Tensor, v: Tensor, query_starts: Tensor, key_starts: Tensor, causal: bool) -> Tensor:
    """softmax(q kᵀ / √d) v over (N, H, d) queries and (M, H, d) keys and values → (N, H, d), sentence by sentence.

    The last axis is contiguous, the others may have any stride; d is 16, 32, 64 or 128; starts are int32 and cover
    all rows. Correct for any length, fast for sentences of at most BLOCK words.
    """
    return forward(q, k, v, query_starts, key_starts, causal)[0]


# What follows are the kernels. `rows` are query words and `columns` key words, counted from the sentence's first.
# Rows and columns past the end are read as zero. Such a column gets the score -∞, thus probability 0; such a row has
# a finite score and a zero gradient and is not stored, so that no masked value ever becomes ∞ − ∞.


@jit
def load_words(base, stride, words, length, WIDTH: tl.constexpr):
    places = base + words[:, None] * stride + tl.arange(0, WIDTH)[None, :]
    return tl.load(places, mask=(words < length)[:, None], other=0.0)


@jit
def store_words(base, stride, words, length, values, WIDTH: tl.constexpr):
    places = base + words[:, None] * stride + tl.arange(0, WIDTH)[None, :]
    tl.store(places, values.to(base.dtype.element_ty), mask=(words < length)[:, None])


@jit
def place(query_starts, key_starts, HEADS: tl.constexpr):
    """This program's head, its first query and key (as 64 bits: large packs pass 2³¹ numbers) and how many it has."""
    sentence, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    row, column = tl.load(query_starts + sentence), tl.load(key_starts + sentence)
    queries, keys = tl.load(query_starts + sentence + 1) - row, tl.load(key_starts + sentence + 1) - column
    return head.to(tl.int64), row.to(tl.int64), column.to(tl.int64), queries, keys


@jit
def product(a, b):
    return tl.dot(a, b, input_precision="ieee")  # float32 stays float32 instead of tf32


@jit
def masked(scores, rows, columns, keys, CAUSAL: tl.constexpr):
    """The arguments `rows` and `columns` broadcast to the scores; -∞ where the row may not see the column."""
    seen = (columns < keys) & (columns <= rows) if CAUSAL else (columns < keys)
    return tl.where(seen, scores, float("-inf"))


@jit
def one_tile_forward(
    q, k, v, out, lse, q_word, k_word, v_word, out_word, queries, keys, scale,
    CAUSAL: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    words = tl.arange(0, TILE)
    q_tile = load_words(q, q_word, words, queries, WIDTH)
    k_tile = load_words(k, k_word, words, keys, WIDTH)
    v_tile = load_words(v, v_word, words, keys, WIDTH)
    scores = product(q_tile, tl.trans(k_tile)) * scale
    scores = masked(scores, words[:, None], words[None, :], keys, CAUSAL)
    highest = tl.maximum(tl.max(scores, 1), -1e30)  # finite even for a sentence without keys
    p = tl.exp2(scores - highest[:, None])
    total = tl.sum(p, 1)
    total = tl.where(total > 0, total, 1.0)
    attended = product(p.to(v_tile.dtype), v_tile) / total[:, None]
    store_words(out, out_word, words, queries, attended, WIDTH)
    tl.store(lse + words, highest + tl.log2(total), mask=words < queries)


@jit
def looped_forward(
    q, k, v, out, lse, q_word, k_word, v_word, out_word, queries, keys, scale,
    CAUSAL: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    for first_row in range(0, queries, TILE):
        rows = first_row + tl.arange(0, TILE)
        q_tile = load_words(q, q_word, rows, queries, WIDTH)
        highest = tl.full((TILE,), -1e30, tl.float32)
        total = tl.zeros((TILE,), tl.float32)
        attended = tl.zeros((TILE, WIDTH), tl.float32)
        end = tl.minimum(keys, first_row + TILE) if CAUSAL else keys
        for first_column in range(0, end, TILE):
            columns = first_column + tl.arange(0, TILE)
            k_tile = load_words(k, k_word, columns, keys, WIDTH)
            v_tile = load_words(v, v_word, columns, keys, WIDTH)
            scores = product(q_tile, tl.trans(k_tile)) * scale
            scores = masked(scores, rows[:, None], columns[None, :], keys, CAUSAL)
            higher = tl.maximum(highest, tl.max(scores, 1))
            p = tl.exp2(scores - higher[:, None])
            shrink = tl.exp2(highest - higher)
            total = total * shrink + tl.sum(p, 1)
            attended = attended * shrink[:, None] + product(p.to(v_tile.dtype), v_tile)
            highest = higher
        total = tl.where(total > 0, total, 1.0)
        store_words(out, out_word, rows, queries, attended / total[:, None], WIDTH)
        tl.store(lse + rows, highest + tl.log2(total), mask=rows < queries)


@jit
def forward_kernel(
    q, k, v, out, lse, query_starts, key_starts, rows_in_all, scale,
    q_word, q_head, k_word, k_head, v_word, v_head,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, CAUSAL: tl.constexpr,
    SMALL: tl.constexpr, BLOCK: tl.constexpr, LOOP: tl.constexpr,
):  # fmt: skip
    head, row, column, queries, keys = place(query_starts, key_starts, HEADS)
    q += row * q_word + head * q_head
    k += column * k_word + head * k_head
    v += column * v_word + head * v_head
    out += (row * HEADS + head) * WIDTH
    lse += head * rows_in_all + row
    sentence = q, k, v, out, lse, q_word, k_word, v_word, HEADS * WIDTH, queries, keys, scale
    longest = tl.maximum(queries, keys)
    if longest > BLOCK:
        looped_forward(*sentence, CAUSAL, WIDTH, LOOP)
    elif longest > SMALL:
        one_tile_forward(*sentence, CAUSAL, WIDTH, BLOCK)
    elif longest > 0:
        one_tile_forward(*sentence, CAUSAL, WIDTH, SMALL)


@jit
def score_gradients(q, k, v, dout, lse, delta, rows, columns, keys, scale, CAUSAL: tl.constexpr):
    """The (columns, rows) probabilities and gradients of the scores, in the type that the next products take."""
    scores = masked(product(k, tl.trans(q)) * scale, rows[None, :], columns[:, None], keys, CAUSAL)
    p = tl.exp2(scores - lse[None, :])
    dscores = p * (product(v, tl.trans(dout)) - delta[None, :])
    return p.to(q.dtype), dscores.to(q.dtype)


@jit
def load_rows(q, out, dout, lse, q_word, out_word, dout_word, rows, queries, WIDTH: tl.constexpr):
    """What a tile of queries brings to the backward pass: q, dout, lse and delta, the sum of dout · out."""
    dout_tile = load_words(dout, dout_word, rows, queries, WIDTH)
    out_tile = load_words(out, out_word, rows, queries, WIDTH)
    delta = tl.sum(dout_tile.to(tl.float32) * out_tile.to(tl.float32), 1)
    lse_tile = tl.load(lse + rows, mask=rows < queries, other=0.0)
    return load_words(q, q_word, rows, queries, WIDTH), dout_tile, lse_tile, delta


@jit
def one_tile_backward(
    q, k, v, out, lse, dout, dq, dk, dv, q_word, k_word, v_word, out_word, dout_word, queries, keys, scale, factor,
    CAUSAL: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    words = tl.arange(0, TILE)
    k_tile = load_words(k, k_word, words, keys, WIDTH)
    v_tile = load_words(v, v_word, words, keys, WIDTH)
    q_tile, dout_tile, lse_tile, delta = load_rows(
        q, out, dout, lse, q_word, out_word, dout_word, words, queries, WIDTH
    )
    p, dscores = score_gradients(q_tile, k_tile, v_tile, dout_tile, lse_tile, delta, words, words, keys, scale, CAUSAL)
    store_words(dv, out_word, words, keys, product(p, dout_tile), WIDTH)
    store_words(dk, out_word, words, keys, product(dscores, q_tile) * factor, WIDTH)
    store_words(dq, out_word, words, queries, product(tl.trans(dscores), k_tile) * factor, WIDTH)


@jit
def looped_backward(
    q, k, v, out, lse, dout, dq, dk, dv, q_word, k_word, v_word, out_word, dout_word, queries, keys, scale, factor,
    CAUSAL: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Computes the scores twice, once by keys and once by queries, so that every sum stays in registers."""
    for first_column in range(0, keys, TILE):
        columns = first_column + tl.arange(0, TILE)
        k_tile = load_words(k, k_word, columns, keys, WIDTH)
        v_tile = load_words(v, v_word, columns, keys, WIDTH)
        dk_tile = tl.zeros((TILE, WIDTH), tl.float32)
        dv_tile = tl.zeros((TILE, WIDTH), tl.float32)
        for first_row in range(first_column if CAUSAL else 0, queries, TILE):
            rows = first_row + tl.arange(0, TILE)
            q_tile, dout_tile, lse_tile, delta = load_rows(
                q, out, dout, lse, q_word, out_word, dout_word, rows, queries, WIDTH
            )
            p, dscores = score_gradients(
                q_tile, k_tile, v_tile, dout_tile, lse_tile, delta, rows, columns, keys, scale, CAUSAL
            )
            dv_tile += product(p, dout_tile)
            dk_tile += product(dscores, q_tile)
        store_words(dk, out_word, columns, keys, dk_tile * factor, WIDTH)
        store_words(dv, out_word, columns, keys, dv_tile, WIDTH)
    for first_row in range(0, queries, TILE):
        rows = first_row + tl.arange(0, TILE)
        q_tile, dout_tile, lse_tile, delta = load_rows(
            q, out, dout, lse, q_word, out_word, dout_word, rows, queries, WIDTH
        )
        dq_tile = tl.zeros((TILE, WIDTH), tl.float32)
        for first_column in range(0, tl.minimum(keys, first_row + TILE) if CAUSAL else keys, TILE):
            columns = first_column + tl.arange(0, TILE)
            k_tile = load_words(k, k_word, columns, keys, WIDTH)
            v_tile = load_words(v, v_word, columns, keys, WIDTH)
            _, dscores = score_gradients(
                q_tile, k_tile, v_tile, dout_tile, lse_tile, delta, rows, columns, keys, scale, CAUSAL
            )
            dq_tile += product(tl.trans(dscores), k_tile)
        store_words(dq, out_word, rows, queries, dq_tile * factor, WIDTH)


@jit
def backward_kernel(
    q, k, v, out, lse, dout, dq, dk, dv, query_starts, key_starts, rows_in_all, scale, factor,
    q_word, q_head, k_word, k_head, v_word, v_head, dout_word, dout_head,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, CAUSAL: tl.constexpr,
    SMALL: tl.constexpr, BLOCK: tl.constexpr, LOOP: tl.constexpr,
):  # fmt: skip
    head, row, column, queries, keys = place(query_starts, key_starts, HEADS)
    q += row * q_word + head * q_head
    k += column * k_word + head * k_head
    v += column * v_word + head * v_head
    dout += row * dout_word + head * dout_head
    out += (row * HEADS + head) * WIDTH
    dq += (row * HEADS + head) * WIDTH
    dk += (column * HEADS + head) * WIDTH
    dv += (column * HEADS + head) * WIDTH
    lse += head * rows_in_all + row
    tensors = q, k, v, out, lse, dout, dq, dk, dv
    sentence = q_word, k_word, v_word, HEADS * WIDTH, dout_word, queries, keys, scale, factor
    longest = tl.maximum(queries, keys)
    if longest > BLOCK:
        looped_backward(*tensors, *sentence, CAUSAL, WIDTH, LOOP)
    elif longest > SMALL:
        one_tile_backward(*tensors, *sentence, CAUSAL, WIDTH, BLOCK)
    elif longest > 0:
        one_tile_backward(*tensors, *sentence, CAUSAL, WIDTH, SMALL)


# The operators around them: opaque to torch.compile, which needs to know no more than the shapes.


@torch.library.custom_op("anydepth::short_attention", mutates_args=())
def forward(
    q: Tensor, k: Tensor, v: Tensor, query_starts: Tensor, key_starts: Tensor, causal: bool
) -> tuple[Tensor, Tensor]:
    """The result and the (H, N) logarithm of each query's sum of exponentials."""
    rows, heads, width = q.shape
    if width not in KERNEL_HEADS or any(x.stride(2) != 1 for x in (q, k, v)):
        raise ValueError(f"short_attention needs heads of contiguous numbers, one of {KERNEL_HEADS}, got {width}")
    out = torch.empty((rows, heads, width), dtype=q.dtype, device=q.device)
    lse = torch.empty((heads, rows), dtype=torch.float32, device=q.device)
    forward_kernel[((len(query_starts) - 1) * heads,)](
        q, k, v, out, lse, query_starts, key_starts, rows, math.log2(math.e) / math.sqrt(width),
        *q.stride()[:2], *k.stride()[:2], *v.stride()[:2],
        heads, width, causal, SMALL, BLOCK, LOOP, num_warps=FORWARD_WARPS, num_stages=STAGES,
        maxnreg=FORWARD_REGISTERS,
    )  # fmt: skip
    return out, lse


@forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, query_starts: Tensor, key_starts: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)


@torch.library.custom_op("anydepth::short_attention_backward", mutates_args=())
def backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dout: Tensor,
    query_starts: Tensor, key_starts: Tensor, causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    rows, heads, width = q.shape
    dout = dout if dout.stride(2) == 1 else dout.contiguous()
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    backward_kernel[((len(query_starts) - 1) * heads,)](
        q, k, v, out, lse, dout, dq, dk, dv, query_starts, key_starts, rows,
        math.log2(math.e) / math.sqrt(width), 1 / math.sqrt(width),
        *q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *dout.stride()[:2],
        heads, width, causal, SMALL, BLOCK, LOOP, num_warps=BACKWARD_WARPS, num_stages=STAGES,
        maxnreg=BACKWARD_REGISTERS,
    )  # fmt: skip
    return dq, dk, dv


@backward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, dout: Tensor,
    query_starts: Tensor, key_starts: Tensor, causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, query_starts, key_starts, ctx.causal = inputs
    ctx.save_for_backward(q, k, v, *output, query_starts, key_starts)
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx: Any, dout: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, out, lse, query_starts, key_starts = ctx.saved_tensors
    return *backward(q, k, v, out, lse, dout, query_starts, key_starts, ctx.causal), None, None, None


forward.register_autograd(_gradients, setup_context=_remember)
