"""Multiscale collaboration for very deep encoders (Wei et al. 2020): layers in blocks, and a context over the blocks.

    B^n = encoder block n (B^{n-1}, C^{n-1})        C^n = cell(B^n, C^{n-1}), C^0 the embedded source (Eq. 9, 10)
    decoder layer n attends to B^n and to C^n, not to the top of the encoder (Eq. 7, 11)

So the loss reaches the bottom blocks by short paths of their own. What the paper leaves open is decided thus: decoder
and cell read B^n through the final norm that all exits of the encoder share, the decoder reads C^n through one more
norm, encoder layers read it normalised, each with a scale and a shift of its own (nn/context.py). C^0 has positions
and dropout in it.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from anydepth.config_class import config
from anydepth.errors import UserError
from anydepth.nn.bridge import Memory, Run
from anydepth.nn.context import normalised
from anydepth.nn.layers import FinalNorm, LayerConfig
from anydepth.nn.stack_config import StackConfig
from anydepth.plan import Plan, Plans


@config
class MultiscaleConfig:
    """Decoder layer n attends to encoder block n, and every layer to a context that runs over the blocks."""

    type: Literal["multiscale"] = "multiscale"
    blocks: tuple[int, ...] = ()
    """Layers of each encoder block, as many blocks as decoder layers; empty makes blocks of equal size."""
    context: Literal["gru", "ffn", "none"] = "gru"
    """The cell, one for all blocks, that makes the context; `none` leaves block-scale collaboration alone."""
    fusion: Literal["gate", "add"] = "gate"
    """How a layer joins what it finds in the context to what it finds elsewhere."""
    encoder_context: bool = True
    """Whether encoder layers attend to the context of the blocks before theirs."""
    decoder_context: bool = True
    """Whether decoder layers attend to the context of their block."""

    def __post_init__(self) -> None:
        if any(size < 1 for size in self.blocks):
            raise ValueError("blocks: every block has at least 1 layer")
        if self.context != "none" and not (self.encoder_context or self.decoder_context):
            raise ValueError('context: no layer attends to it; "none" says so')

    @property
    def fusion_in(self) -> dict[str, str]:
        """The stacks whose layers attend to the context, and how they fuse it."""
        wanted = {"encoder": self.encoder_context, "decoder": self.decoder_context}
        return {stack: self.fusion for stack, wants in wanted.items() if wants and self.context != "none"}

    def sizes(self, encoder: int, decoder: int) -> tuple[int, ...]:
        return self.blocks or (encoder // decoder,) * decoder

    def check(self, layer: LayerConfig, encoder: StackConfig, decoder: StackConfig) -> None:
        """Refuses what has no meaning."""
        if layer.norm != "pre":
            raise ValueError(f'bridge: multiscale collaboration needs layer.norm = "pre", not "{layer.norm}"')
        if encoder.depth.type not in ("full", "rezero"):
            raise ValueError(
                "bridge: multiscale blocks end at fixed encoder layers, and encoder.depth = "
                f'"{encoder.depth.type}" may leave these out; use "full", and flexible depth in the decoder alone'
            )
        if decoder.depth.type == "recurrent":
            raise ValueError(
                "bridge: each multiscale decoder layer attends to an encoder block of its own, and a recurrent "
                "decoder runs the same layer again and again"
            )
        sizes = self.sizes(encoder.layers, decoder.layers)
        if len(sizes) != decoder.layers:
            raise ValueError(f"bridge.blocks: {len(sizes)} blocks for {decoder.layers} decoder layers; one for each")
        if sum(sizes) != encoder.layers:
            equal = "" if self.blocks else "; blocks of equal size do not add up"
            raise ValueError(f"bridge.blocks: {sum(sizes)} layers in blocks, {encoder.layers} in the encoder{equal}")

    def build(self, norm: nn.Module, layer: LayerConfig, encoder: int, decoder: int) -> "Multiscale":
        return Multiscale(self, norm, layer, self.sizes(encoder, decoder))


class Multiscale(nn.Module):
    """Block n and its context to decoder layer n; the context so far to every encoder layer."""

    def __init__(self, config: MultiscaleConfig, norm: nn.Module, layer: LayerConfig, sizes: tuple[int, ...]) -> None:
        super().__init__()
        self.config, self.norm = config, norm
        self.ends = tuple(accumulate(sizes))
        cells = {"gru": GruCell, "ffn": FeedForwardCell}
        self.cell = cells[config.context](layer) if config.context != "none" else None
        encoder_reads, decoder_reads = ("encoder" in config.fusion_in), ("decoder" in config.fusion_in)
        self.context_norm = FinalNorm(layer.width, layer.norm_epsilon) if decoder_reads else None
        self.encoder_epsilon = layer.norm_epsilon if encoder_reads else None

    def reads(self, plans: Plans) -> Plan:
        """The encoder steps that the decoder's plan depends on: those up to its highest block."""
        return Plan(plans.encoder.layers[: self.end(plans.decoder)])

    def end(self, decoder: Plan) -> int:
        return self.ends[max(decoder.layers)] if decoder.layers else 0

    def products(self, plans: Plans) -> int:
        """Multiplications per source word between encoder and decoder."""
        if self.cell is None or not plans.decoder.layers:
            return 0
        contexts = max(plans.decoder.layers) + (self.context_norm is not None)
        return contexts * sum(parameter.numel() for parameter in self.cell.parameters() if parameter.dim() == 2)

    def alone(self, decoder: Sequence[int]) -> tuple[MultiscaleConfig, dict[str, Tensor]]:
        """The settings and parameters of a bridge to these decoder layers only."""
        if self.cell is not None and tuple(decoder) != tuple(range(len(decoder))):
            kept = ", ".join(str(layer + 1) for layer in decoder)
            raise UserError(
                f"decoder layers {kept} of a multiscale model cannot stand alone: their context runs through the "
                "blocks of the layers between them; only the first layers can"
            )
        ends = [0, *(self.ends[layer] for layer in decoder)]
        blocks = tuple(end - start for start, end in pairwise(ends))
        return replace(self.config, blocks=blocks), dict(self.named_parameters())

    def forward(self, run: Run, decoder: Plan) -> list[Memory]:
        """What encoder layers read is a function of the states so far: `read` gets each step's before it runs."""
        read: list[Memory] = []
        blocks: list[Memory] = []
        context, seen, last = None, None, self.end(decoder)
        for step, state in enumerate(run(read)):
            if step == 0:
                context = None if self.cell is None else state
            elif step in self.ends:
                block = self.norm(state)
                if self.cell is not None and (self.context_norm is not None or step != last):
                    context = self.cell(block, context)
                blocks.append(Memory(block, None if self.context_norm is None else self.context_norm(context)))
            if step == 0 or step in self.ends:
                seen = None if context is None else self.for_encoder(context)
            read.append(Memory(None, seen))
        return [blocks[layer] for layer in decoder.layers]

    def for_encoder(self, context: Tensor) -> Tensor | None:
        """As its layers read it, if they do."""
        return None if self.encoder_epsilon is None else normalised(context, self.encoder_epsilon)


class GruCell(nn.Module):
    """C^n from B^n as input and C^{n-1} as hidden state, position by position (Cho et al. 2014, as in PyTorch)."""

    def __init__(self, layer: LayerConfig) -> None:
        super().__init__()
        self.block, self.context = (nn.Linear(layer.width, 3 * layer.width) for _ in range(2))

    def forward(self, block: Tensor, context: Tensor) -> Tensor:
        parts = zip(self.block(block).chunk(3, -1), self.context(context).chunk(3, -1))
        (reset_block, reset_context), (update_block, update_context), (new_block, new_context) = parts
        reset, update = (reset_block + reset_context).sigmoid(), (update_block + update_context).sigmoid()
        new = (new_block + reset * new_context).tanh()
        return new + update * (context - new)


class FeedForwardCell(nn.Module):
    """The paper's ablation, read as FFN([B^n; C^{n-1}])."""

    def __init__(self, layer: LayerConfig) -> None:
        super().__init__()
        self.grow, self.shrink = nn.Linear(2 * layer.width, layer.ffn), nn.Linear(layer.ffn, layer.width)

    def forward(self, block: Tensor, context: Tensor) -> Tensor:
        return self.shrink(self.grow(torch.cat([block, context], -1)).relu())
