"""Attention to the running context of a multiscale encoder, as a part of a layer (Wei et al. 2020, Eq. 12 and 13)."""

from collections.abc import Sequence
from typing import NamedTuple

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

    def beside(self, attention: SelfAttention, x: Tensor, context: Tensor, sees: Sees, folded: "Folded") -> Tensor:
        """With the self-attention of an encoder layer: their queries come from the same words, in one projection."""
        q, k, v, asked = split_heads(F.linear(normalised(x, folded.epsilon), *folded.own), 4, attention.heads)
        keys, values = split_heads(F.linear(context, *folded.context), 2, attention.heads)
        own = attend(q, k, v, sees, causal=False, dropout=attention.dropout)
        found = attend(asked, keys, values, sees, causal=False, dropout=self.attention.dropout)
        return self.fuse(attention.out(own.flatten(2)), self.attention.out(found.flatten(2)))

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

    @property
    def norms(self) -> tuple[nn.LayerNorm, nn.LayerNorm, nn.LayerNorm]:
        return self.query_norm, self.key_norm, self.value_norm

    def queries(self, x: Tensor) -> Tensor:
        weight, bias = behind(self.query_norm, self.query.weight, self.query.bias)
        return F.linear(normalised(x, self.query_norm.eps), weight, bias).unflatten(2, (self.heads, -1))

    def keys_and_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        weights = self.key_value.weight.chunk(2)
        biases = (None, None) if self.key_value.bias is None else self.key_value.bias.chunk(2)
        weights, biases = zip(*(behind(norm, *own) for norm, *own in zip(self.norms[1:], weights, biases)))
        k, v = split_heads(F.linear(memory, torch.cat(weights), torch.cat(biases)), 2, self.heads)
        return k, v


class Folded(NamedTuple):
    """The projections of one encoder layer with the norms before them as a part of them."""

    own: tuple[Tensor, Tensor]
    """(4D, D) and (4D,): queries, keys and values of the words, and their queries to the context."""
    context: tuple[Tensor, Tensor]
    """(2D, D) and (2D,): keys and values of the context."""
    epsilon: float


def fold(layers: Sequence[tuple[SelfAttention, nn.LayerNorm, NormedCrossAttention]]) -> list[Folded]:
    """W (γ · x + β) + b as one projection of x, as `behind` does it, for all layers at once: one by one these are small
    kernels, and 72 layers have many. In the type that products are computed in."""
    projections = [part for own, _, asked in layers for part in (own.qkv, asked.query, asked.key_value)]
    norms = [norm for _, own, asked in layers for norm in (own, own, own, *asked.norms)]
    weight = torch.cat(tuple(part.weight for part in projections))
    kind, width = weight.device.type, weight.shape[1]
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
    squares = weight.view(len(norms), width, width)
    scaled = squares * torch.stack([norm.weight for norm in norms])[:, None]
    shift = (squares * torch.stack([norm.bias for norm in norms])[:, None]).sum(-1).flatten()
    biases = [part.bias for part in projections if part.bias is not None]
    shift = shift + torch.cat(tuple(biases)) if biases else shift
    weights = scaled.to(dtype).view(len(layers), 6 * width, width).split([4 * width, 2 * width], 1)
    shifts = shift.to(dtype).view(len(layers), 6 * width).split([4 * width, 2 * width], 1)
    own, context = (zip(weight.unbind(), bias.unbind()) for weight, bias in zip(weights, shifts))
    return [Folded(mine, shared, norm.eps) for mine, shared, (_, norm, _) in zip(own, context, layers)]


def normalised(x: Tensor, epsilon: float) -> Tensor:
    """As a norm does it, without scale and shift, which `behind` makes part of the projection."""
    return F.layer_norm(x, x.shape[-1:], eps=epsilon).to(x.dtype)  # autocast gives norms in single precision


def behind(norm: nn.LayerNorm, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """W (γ · x + β) + b as one projection of x: the gradients of γ and β are then sums over a matrix instead of over
    all words, and norms of the same words are one."""
    shift = weight @ norm.bias
    return weight * norm.weight, shift if bias is None else shift + bias
