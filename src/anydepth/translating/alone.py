"""One sentence on a CPU, a word at a time, in as few operations as that takes.

With the weights of a small model in the cache, or in int8, a word at batch 1 costs as much for what surrounds the
products (views, masks, module calls) as for the products themselves. This is the same computation as `Layer` with a
`Cache`, for the layers that most models have; what it cannot do, it leaves to them.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from anydepth.models import TranslatorDecoder
from anydepth.nn.bridge import Memory
from anydepth.nn.layers import Layer


class DecoderAlone:
    """A growing translation (the `Decoder` that greedy search drives): one row, which is never reordered."""

    def __init__(self, begun: TranslatorDecoder, room: int) -> None:
        """`room` words at most."""
        self.model, layers = begun.model, layers_of(begun)
        gates = [None] * len(layers) if begun.gates is None else begun.gates
        room = min(room, self.model.target.longest)
        self.places = self.model.target.places(torch.arange(room))
        self.steps = [LayerAlone(*given, room) for given in zip(layers, gates, begun.memories)]
        self.length = 0

    @staticmethod
    def fits(begun: TranslatorDecoder) -> bool:
        """Whether this computes the same."""
        plain = begun.model.decoder.mix is None and all(layer.context is None for layer in layers_of(begun))
        shared = begun.gates is None or begun.gates.dim() == 1
        return begun.rows == 1 and begun.sees.keys is None and plain and shared

    def step(self, tokens: Tensor) -> Tensor:
        model, at = self.model, self.length
        target = model.target
        target.check_length(at + 1)
        x = torch.add(self.places[at], F.embedding(tokens, target.words.weight), alpha=target.scale)
        x = target.norm.forward(x)
        for layer in self.steps:
            x = layer.step(x, at)
        self.length += 1
        return model.logits(model.norm(x))

    def reorder(self, rows: Tensor) -> None:
        raise NotImplementedError("a sentence alone has nothing to change places with")


def layers_of(begun: TranslatorDecoder) -> list[Layer]:
    """The layer of each step."""
    layers = [begun.model.decoder.layers[number] for number in begun.plans.decoder.layers]
    return [layer for layer in layers if isinstance(layer, Layer)]


class LayerAlone:
    """A decoder step with the keys and values that it attends to, (1, H, T, d) each. States are (1, D)."""

    def __init__(self, layer: Layer, gate: Tensor | None, memory: Memory, room: int) -> None:
        assert layer.cross is not None
        assert layer.cross_norm is not None
        assert memory.state is not None
        self.layer, self.first, self.last = layer, layer.norm_first, layer.norm_last
        self.gate = None if gate is None else gate.to(memory.state.dtype)
        # `forward` and not the module: what a call does besides, which is nothing here, takes longer than a small norm
        self.norms = [norm.forward for norm in (layer.attention_norm, layer.cross_norm, layer.ffn_norm)]
        self.qkv, self.out = layer.attention.qkv.forward, layer.attention.out.forward
        self.query, self.cross_out = layer.cross.query.forward, layer.cross.out.forward
        self.grow, self.shrink = layer.grow.forward, layer.shrink.forward
        self.keys, self.values = (
            part.transpose(1, 2).contiguous() for part in layer.cross.keys_and_values(memory.state)
        )
        _, heads, _, size = self.keys.shape
        self.one, self.three = (1, heads, 1, size), (3, 1, heads, 1, size)
        self.said = memory.state.new_empty(2, 1, heads, room, size)

    def step(self, x: Tensor, at: int) -> Tensor:
        """One word, in place `at`."""
        x = self.leave(x, self.listen(self.enter(x, 0), at), 0)
        x = self.leave(x, self.look(self.enter(x, 1)), 1)
        return self.leave(x, self.shrink(self.layer.activation(self.grow(self.enter(x, 2)))), 2)

    def enter(self, x: Tensor, branch: int) -> Tensor:
        return self.norms[branch](x) if self.first else x

    def leave(self, x: Tensor, found: Tensor, branch: int) -> Tensor:
        x = x + found if self.gate is None else torch.addcmul(x, found, self.gate)
        return self.norms[branch](x) if self.last else x

    def listen(self, x: Tensor, at: int) -> Tensor:
        """To what was said."""
        qkv = self.qkv(x).view(self.three)
        self.said[:, :, :, at].copy_(qkv[1:, :, :, 0])
        keys, values = self.said[:, :, :, : at + 1].unbind()
        return self.out(F.scaled_dot_product_attention(qkv[0], keys, values).view(x.shape))

    def look(self, x: Tensor) -> Tensor:
        """At the source."""
        query = self.query(x).view(self.one)
        return self.cross_out(F.scaled_dot_product_attention(query, self.keys, self.values).view(x.shape))
