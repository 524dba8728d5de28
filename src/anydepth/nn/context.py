"""Attention to the running context of a multiscale encoder, as a part of a layer (Wei et al. 2020, Eq. 12 and 13)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anydepth.nn.attention import CrossAttention, Sees, SelfAttention, attend, split_heads
from anydepth.nn.cache import Held


class ContextAttention(nn.Module):
    """Fuses what a layer's own attention found, A_h, with what its words find in the context, A_c.

    By a gate, g = sigmoid(W_1 A_h + W_2 A_c + b): g · A_h + (1 − g) · A_c; or, as the paper's ablation, by addition.
    """

    def __init__(self, attention: CrossAttention, width: int, fusion: str) -> None:
        super().__init__()
        self.attention = attention
        self.gated = fusion == "gate"
        if self.gated:
            self.gate_own = nn.Linear(width, width)
            self.gate_context = nn.Linear(width, width, bias=False)

    def forward(self, own: Tensor, x: Tensor, context: Tensor, sees: Sees, held: Held | None = None) -> Tensor:
        """(B, T, D) of the own attention, (B, T, D) queries and (B, S, D) context → (B, T, D)."""
        return self.fuse(own, self.attention(x, context, sees, held))

    def beside(self, attention: SelfAttention, norm: nn.LayerNorm, x: Tensor, context: Tensor, sees: Sees) -> Tensor:
        """With the self-attention of an encoder layer and the norm before it; in training in one projection."""
        assert isinstance(self.attention, NormedCrossAttention)
        if self.training:
            return self.fuse(*self.attention.together(attention, norm, x, context, sees))
        return self(attention(norm(x), sees), x, context, sees)

    def fuse(self, own: Tensor, found: Tensor) -> Tensor:
        if not self.gated:
            return own + found
        gate = (self.gate_own(own) + self.gate_context(found)).sigmoid()
        return gate * own + (1 - gate) * found


class NormedCrossAttention(CrossAttention):
    """Cross-attention with a norm of its own before each of its three projections, as encoder layers read the context.

    The paper does not say how the context is normalised. These three norms a layer give the parameters it prints
    (1,536 at width 256), and what they compute is what Eq. 12 says of LN(H) and LN(C): a norm's scale and shift
    could as well be part of the projection behind it, and that is how it is computed here. The context comes already
    `normalised`, once for all layers of a block.
    """

    def __init__(self, width: int, heads: int, bias: bool, dropout: float, epsilon: float) -> None:
        super().__init__(width, heads, bias, dropout)
        self.query_norm, self.key_norm, self.value_norm = (nn.LayerNorm(width, epsilon) for _ in range(3))

    def queries(self, x: Tensor) -> Tensor:
        weight, bias = behind(self.query_norm, self.query.weight, self.query.bias)
        return F.linear(normalised(x, self.query_norm.eps), weight, bias).unflatten(2, (self.heads, -1))

    def keys_and_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        weights = self.key_value.weight.chunk(2)
        biases = (None, None) if self.key_value.bias is None else self.key_value.bias.chunk(2)
        norms = self.key_norm, self.value_norm
        weight, bias = in_one(*(behind(norm, *own) for norm, *own in zip(norms, weights, biases)))
        k, v = split_heads(F.linear(memory, weight, bias), 2, self.heads)
        return k, v

    def together(
        self, attention: SelfAttention, norm: nn.LayerNorm, x: Tensor, context: Tensor, sees: Sees
    ) -> tuple[Tensor, Tensor]:
        """What a self-attention finds and what this one does: their queries come from the same words."""
        own = behind(norm, attention.qkv.weight, attention.qkv.bias)
        weight, bias = in_one(own, behind(self.query_norm, self.query.weight, self.query.bias))
        q, k, v, asked = split_heads(F.linear(normalised(x, norm.eps), weight, bias), 4, self.heads)
        found = attend(q, k, v, sees, causal=False, dropout=attention.dropout)
        in_context = attend(asked, *self.keys_and_values(context), sees, causal=False, dropout=self.dropout)
        return attention.out(found.flatten(2)), self.out(in_context.flatten(2))


def normalised(x: Tensor, epsilon: float) -> Tensor:
    """As a norm does it, without scale and shift, which `behind` makes part of the projection."""
    return F.layer_norm(x, x.shape[-1:], eps=epsilon).to(x.dtype)  # autocast gives norms in single precision


def behind(norm: nn.LayerNorm, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """W (γ · x + β) + b as one projection of x: the gradients of γ and β are then sums over a matrix instead of over
    all words, and norms of the same words are one."""
    shift = weight @ norm.bias
    return weight * norm.weight, shift if bias is None else shift + bias


def in_one(*projections: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Several projections of the same words as one."""
    weights, biases = zip(*projections)
    return torch.cat(weights), torch.cat(biases)
