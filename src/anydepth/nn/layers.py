"""One Transformer layer. The residual additions live here, because a gate z scales each branch:

pre-norm    x + z · F(norm(x))          post-norm    norm(x + F(x))          no norm    x + z · F(x)
"""

from collections.abc import Iterable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anydepth.config_class import config
from anydepth.nn.attention import CrossAttention, Sees, SelfAttention
from anydepth.nn.cache import AnySlot
from anydepth.nn.context import ContextAttention, Folded, NormedCrossAttention
from anydepth.nn.gating import Ends, Projection, project

COMPILER: dict[str, Any] = {"triton.mix_order_reduction": False}
"""Layer-norm gradients by two reductions instead of one of mixed order: 9 % of a whole training step on an H200."""

Gate = Tensor | Ends | None
"""What scales a layer's branches: a 0-d tensor, (B, 1, 1) if sentences differ, (1, N, 1) if words do; the projections
at their ends with the gate in them; or None for 1."""


@config
class LayerConfig:
    """The shape of every layer, and its dropout."""

    width: int = 512
    """Size D of a word's state."""
    ffn: int = 2048
    """Inner size of the feed-forward part."""
    heads: int = 8
    """Attention heads; they divide the width."""
    norm: Literal["pre", "post", "none"] = "pre"
    """Where layer normalisation stands. Gated policies need `pre` or `none`."""
    norm_epsilon: float = 1e-5
    """Added to the variance in layer normalisation."""
    activation: Literal["relu", "gelu"] = "relu"
    """Non-linearity of the feed-forward part."""
    attention_bias: bool = True
    """Whether the attention projections have biases."""
    dropout: float = 0.1
    """Dropout on embeddings and on each residual branch."""
    attention_dropout: float = 0.0
    """Dropout on attention weights."""
    activation_dropout: float = 0.0
    """Dropout inside the feed-forward part."""

    def __post_init__(self) -> None:
        for name in ("width", "ffn", "heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.width % self.heads:
            raise ValueError(f"heads: {self.heads} does not divide the width {self.width}")
        if not self.norm_epsilon > 0:
            raise ValueError("norm_epsilon must be above 0")
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 0 and below 1")


class Layer(nn.Module):
    """Self-attention, cross-attention where there is a memory, feed-forward.

    With `fusion`, a second attention stands beside the one that looks at the source, and reads the context of a
    multiscale encoder (nn/multiscale.py).
    """

    def __init__(self, config: LayerConfig, decoder: bool, fusion: str | None = None) -> None:
        super().__init__()
        width, heads, bias, drop = config.width, config.heads, config.attention_bias, config.attention_dropout
        self.norm_first = config.norm == "pre"
        self.norm_last = config.norm == "post"
        self.dropout, self.activation_dropout = config.dropout, config.activation_dropout
        self.activation = F.relu if config.activation == "relu" else F.gelu
        self.attention = SelfAttention(width, heads, bias, drop, causal=decoder)
        self.attention_norm = make_norm(config)
        self.cross = CrossAttention(width, heads, bias, drop) if decoder else None
        self.cross_norm = make_norm(config) if decoder else None
        self.context = None
        if fusion:
            shape = width, heads, bias, drop
            attention = CrossAttention(*shape) if decoder else NormedCrossAttention(*shape, config.norm_epsilon)
            self.context = ContextAttention(attention, width, fusion)
        self.grow = nn.Linear(width, config.ffn)
        self.shrink = nn.Linear(config.ffn, width)
        self.ffn_norm = make_norm(config)

    def forward(
        self,
        x: Tensor,
        gate: Gate,
        sees: Sees,
        memory: Tensor | None = None,
        sees_memory: Sees | None = None,
        slot: AnySlot | None = None,
        context: Tensor | None = None,
        folded: Folded | None = None,
    ) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        x = self.begin(x, gate, sees, slot, context, folded)
        return self.finish(x, gate, memory, sees_memory, slot, context)

    def begin(
        self,
        x: Tensor,
        gate: Gate,
        sees: Sees,
        slot: AnySlot | None = None,
        context: Tensor | None = None,
        folded: Folded | None = None,
    ) -> Tensor:
        """Self-attention: what, in a decoder, does not depend on the source."""
        if self.context is None or self.cross is not None:
            end = gate.attention if isinstance(gate, Ends) else None
            branch = self.attention(self.enter(x, self.attention_norm), sees, slot, end)
        else:
            assert context is not None
            if folded is not None:
                branch = self.context.beside(self.attention, x, context, sees, folded)
            else:
                branch = self.context(self.attention(self.attention_norm(x), sees), x, context, sees)
        return self.leave(x, branch, gate, self.attention_norm)

    def finish(
        self,
        x: Tensor,
        gate: Gate,
        memory: Tensor | None,
        sees_memory: Sees | None,
        slot: AnySlot | None = None,
        context: Tensor | None = None,
    ) -> Tensor:
        """Cross-attention, where there is a memory, and feed-forward."""
        if self.cross is not None:
            assert self.cross_norm is not None
            assert memory is not None
            assert sees_memory is not None
            entered = self.enter(x, self.cross_norm)
            end = gate.cross if isinstance(gate, Ends) else None
            branch = self.cross(entered, memory, sees_memory, slot and slot.memory, end)
            if self.context is not None:
                assert context is not None
                branch = self.context(branch, entered, context, sees_memory, slot and slot.context)
            x = self.leave(x, branch, gate, self.cross_norm)
        branch = self.feed_forward(self.enter(x, self.ffn_norm), gate.ffn if isinstance(gate, Ends) else None)
        return self.leave(x, branch, gate, self.ffn_norm)

    @property
    def foldable(self) -> tuple[SelfAttention, nn.LayerNorm, NormedCrossAttention] | None:
        """The parts of an encoder layer that reads a context, for `fold`."""
        context = self.context.attention if self.context is not None else None
        if not (isinstance(context, NormedCrossAttention) and isinstance(self.attention_norm, nn.LayerNorm)):
            return None
        return self.attention, self.attention_norm, context

    @property
    def ends(self) -> tuple[nn.Linear, ...] | None:
        """The projections that end the branches, in the order of `Ends`; none where a branch ends otherwise."""
        if self.context is not None:
            return None
        return self.attention.out, self.shrink, *(() if self.cross is None else (self.cross.out,))

    def projections(self) -> list[nn.Linear]:
        """Those whose weights are used as they stand."""
        changed: list[nn.Module] = []
        if self.foldable:
            attention, _, context = self.foldable
            changed = [attention.qkv, context.query, context.key_value]
        return [part for part in self.modules() if isinstance(part, nn.Linear) and part not in changed]

    def hold(self, slot: AnySlot, memory: Tensor | None, context: Tensor | None) -> None:
        """Prepares what the words of a translation will attend to, before the first of them comes."""
        if self.cross is not None and memory is not None:
            slot.memory.pair = self.cross.keys_and_values(memory)
        if self.context is not None and context is not None:
            slot.context.pair = self.context.attention.keys_and_values(context)

    def remember(self, x: Tensor, slot: AnySlot) -> None:
        """Only the keys and values of words that skip the layer."""
        slot.append(*self.attention.keys_and_values(self.enter(x, self.attention_norm)))

    def enter(self, x: Tensor, norm: nn.Module) -> Tensor:
        return norm(x) if self.norm_first else x

    def leave(self, x: Tensor, branch: Tensor, gate: Gate, norm: nn.Module) -> Tensor:
        if self.training:  # to ask for none takes a CPU as long as an addition
            branch = F.dropout(branch, self.dropout)
        x = x + (gate.to(branch.dtype) * branch if isinstance(gate, Tensor) else branch)
        return norm(x) if self.norm_last else x

    def feed_forward(self, x: Tensor, end: Projection | None = None) -> Tensor:
        inner = self.activation(self.grow(x))
        return project(F.dropout(inner, self.activation_dropout) if self.training else inner, self.shrink, end)


class FinalNorm(nn.LayerNorm):
    """A norm outside the layers, such as the one that all exits of a stack share; compiled for training like these."""

    def __init__(self, width: int, epsilon: float = 1e-5) -> None:
        super().__init__(width, epsilon)
        self.train_normalise = FinalNorm.normalise

    def forward(self, x: Tensor) -> Tensor:
        return self.train_normalise(self, x) if self.training else self.normalise(x)

    def compile_for_training(self) -> None:
        self.train_normalise = torch.compile(FinalNorm.normalise, options=COMPILER)

    def normalise(self, x: Tensor) -> Tensor:
        # autocast gives norms in single precision; all that follows this one reads the compute type
        return super().forward(x).to(x.dtype)


def final_norm(layer: LayerConfig) -> nn.Module:
    """Pre-norm stacks need one more norm at the end; post-norm ones end normalised, those without norm stay so."""
    return FinalNorm(layer.width, layer.norm_epsilon) if layer.norm == "pre" else nn.Identity()


def make_norm(config: LayerConfig) -> nn.Module:
    return nn.Identity() if config.norm == "none" else nn.LayerNorm(config.width, config.norm_epsilon)


def initialise(module: nn.Module) -> None:
    """Xavier-uniform matrices, each D × D part of a fused projection by itself; biases 0."""
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    if isinstance(module, SelfAttention):
        for part in module.qkv.weight.chunk(3):
            nn.init.xavier_uniform_(part, gain=2**-0.5)
    if isinstance(module, CrossAttention):
        for part in module.key_value.weight.chunk(2):
            nn.init.xavier_uniform_(part, gain=2**-0.5)


def scale_by_depth(layers: Iterable[nn.Module]) -> None:
    """Depth-scaled initialisation (Zhang et al. 2019, with α = 1): the matrices of layer l start 1 / √l as large."""
    with torch.no_grad():
        for number, layer in enumerate(layers, 1):
            for parameter in layer.parameters():
                if parameter.dim() == 2:
                    parameter.div_(number**0.5)
