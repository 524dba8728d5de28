"""Attention, and what a query may see: a padded batch's real words, or its own sentence in a packed one.

A padded batch is (B, T) with padding on the right. A packed batch is (1, N): all sentences one after the other, no
padding, one shape for every step. Both compute the same function; on a GPU the packed one wastes nothing.
"""

import itertools
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anydepth.nn.cache import AnySlot, Held
from anydepth.nn.gating import Projection, project
from anydepth.nn.packed_attention import BLOCK, KERNEL_HEADS, short_attention

MOSTLY_SHORT = 512
"""Where no sentence can be longer and the mean is a tile at most, a kernel for short ones wins over flash attention."""


class Padded(NamedTuple):
    """Keys that may be seen: a (B, 1, 1, S) mask, True where there is a word, (B, 1, T, S) where queries differ; or the
    same as scores (`as_scores`). None means all."""

    keys: Tensor | None


class Packed(NamedTuple):
    """Sentence i owns the queries query_starts[i]:query_starts[i+1] and sees the keys key_starts[i]:key_starts[i+1]."""

    query_starts: Tensor
    key_starts: Tensor
    longest_query: int
    longest_key: int


Sees = Padded | Packed


def attend(q: Tensor, k: Tensor, v: Tensor, sees: Sees, causal: bool, dropout: float) -> Tensor:
    """softmax(q kᵀ / √d) v over (B, T, H, d) queries and (B, S, H, d) keys and values → (B, T, H, d)."""
    if isinstance(sees, Packed):
        return attend_packed(q, k, v, sees, causal, dropout)
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    # padding stands on the right, so a causal mask already hides it from every real query
    mask = None if causal else sees.keys
    return F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=causal).transpose(1, 2)


def attend_packed(
    q: Tensor, k: Tensor, v: Tensor, sees: Packed, causal: bool, dropout: float, short: int = MOSTLY_SHORT
) -> Tensor:
    """Sentences that cannot have more than `short` words, and are short on average, go to the kernel for short ones."""
    mostly_short = sees.longest_key <= short and k.shape[1] <= BLOCK * (len(sees.key_starts) - 1)
    own_kernel = q.is_cuda and dropout == 0 and q.shape[-1] in KERNEL_HEADS
    single = q.dtype == torch.float32  # which flash attention does not take
    if own_kernel and (single or mostly_short):
        return short_attention(q[0], k[0], v[0], sees.query_starts, sees.key_starts, causal).unsqueeze(0)
    if not q.is_cuda or single:
        return attend_one_by_one(q, k, v, sees, causal, dropout)
    # the public varlen function has no dropout; this is the operator behind it
    out = torch.ops.aten._flash_attention_forward(
        q[0], k[0], v[0], sees.query_starts, sees.key_starts, sees.longest_query, sees.longest_key,
        dropout, causal, False,
    )  # fmt: skip
    return out[0].unsqueeze(0)


def attend_one_by_one(q: Tensor, k: Tensor, v: Tensor, sees: Packed, causal: bool, dropout: float) -> Tensor:
    """One sentence after the other, which costs a CPU nothing. Queries after the last sentence are padding."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    rows, columns = (itertools.pairwise(starts.tolist()) for starts in (sees.query_starts, sees.key_starts))
    attended = [
        F.scaled_dot_product_attention(q[:, :, a:b], k[:, :, c:d], v[:, :, c:d], None, dropout, is_causal=causal)
        for (a, b), (c, d) in zip(rows, columns)
        if b > a
    ]
    padding = torch.zeros_like(q[:, :, int(sees.query_starts[-1]) :])
    return torch.cat([*attended, padding], 2).transpose(1, 2)


class SelfAttention(nn.Module):
    """Words attend to the words of their own side: all of them, or those not later than themselves (causal)."""

    def __init__(self, width: int, heads: int, bias: bool, dropout: float, causal: bool) -> None:
        super().__init__()
        self.heads, self.dropout, self.causal = heads, dropout, causal
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor, sees: Sees, slot: AnySlot | None = None, end: Projection | None = None) -> Tensor:
        """`end` is used instead of `out`."""
        q, k, v = split_heads(self.qkv(x), 3, self.heads)
        dropout = self.dropout if self.training else 0.0
        if slot is None:
            attended = attend(q, k, v, sees, self.causal, dropout)
        else:
            k, v, seen = slot.append(k, v)
            attended = attend(q, k, v, Padded(seen), causal=False, dropout=dropout)
        return project(attended.flatten(2), self.out, end)

    def keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Without the queries."""
        if not isinstance(self.qkv, nn.Linear):  # packed (translating/precision.py): it cannot be taken apart
            _, k, v = split_heads(self.qkv(x), 3, self.heads)
            return k, v
        width, bias = x.shape[-1], self.qkv.bias
        k, v = split_heads(F.linear(x, self.qkv.weight[width:], None if bias is None else bias[width:]), 2, self.heads)
        return k, v


class CrossAttention(nn.Module):
    """Target words attend to the encoder's states."""

    def __init__(self, width: int, heads: int, bias: bool, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query = nn.Linear(width, width, bias=bias)
        self.key_value = nn.Linear(width, 2 * width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)

    def forward(
        self, x: Tensor, memory: Tensor, sees: Sees, held: Held | None = None, end: Projection | None = None
    ) -> Tensor:
        q = self.queries(x)
        if held is None:
            k, v = self.keys_and_values(memory)
        else:
            if held.pair is None:
                held.pair = self.keys_and_values(memory)
            k, v = held.pair
        attended = attend(q, k, v, sees, causal=False, dropout=self.dropout if self.training else 0.0)
        return project(attended.flatten(2), self.out, end)

    def queries(self, x: Tensor) -> Tensor:
        return self.query(x).view(*x.shape[:2], self.heads, -1)

    def keys_and_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        k, v = split_heads(self.key_value(memory), 2, self.heads)
        return k, v


def split_heads(x: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """(B, T, parts·D) → parts tensors (B, T, H, D/H)."""
    return x.view(*x.shape[:2], parts, heads, -1).unbind(2)
