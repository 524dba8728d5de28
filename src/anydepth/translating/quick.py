"""Decoder steps of a few words on a GPU by kernels of their own (nn/few_words.py, nn/word_attention.py).

The same computation as `Layer` with a cache of fixed places, for the layers that most models have; what it cannot do,
it leaves to them.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from anydepth.decoding.picking import Candidates, Next, candidates
from anydepth.models import Translator
from anydepth.nn import few_words, folded_source, word_attention
from anydepth.nn.cache import BeamSlot, FixedSlot
from anydepth.nn.few_words import Vectors
from anydepth.nn.layers import Layer

Weights = tuple[Tensor, Tensor | None]
QuickSlot = BeamSlot | FixedSlot


def fits(model: Translator) -> bool:
    """Whether there are kernels for the decoder of this model."""
    shape, layers = model.config.layer, (each for each in model.decoder.layers if isinstance(each, Layer))
    plain = shape.norm != "post" and model.decoder.mix is None and model.head is None
    has_kernels = few_words.takes(shape.width, shape.heads, model.output.weight)
    return has_kernels and plain and all(layer.context is None for layer in layers)


def takes(x: Tensor, gates: Tensor | None) -> bool:
    """Whether that holds of (B, q, D) words: not of a whole draft at once, nor where each sentence has its gates."""
    return x.shape[1] <= word_attention.QUERIES and (gates is None or gates.dim() == 1)


def vectors(model: Translator) -> Vectors | None:
    """What target words are embedded with, where there are kernels that do it."""
    target = model.target
    if not fits(model) or not isinstance(target.norm, nn.Identity):
        return None
    positions = target.waves if target.learned is None else target.learned.weight
    return Vectors(target.words.weight, positions, target.scale)


def next_words(model: Translator, rows: int) -> Next | None:
    """Where words that are picked for so many rows are embedded, if they are."""
    known = vectors(model)
    return known and Next(known, known.words.new_zeros(rows, 1, known.words.shape[1]))


def embed(model: Translator, tokens: Tensor, places: Tensor) -> Tensor:
    """(B, q) words, and their places, which broadcast to them → (B, q, D)."""
    known = vectors(model)
    if known is None:
        embedded: Tensor = model.target(tokens, places)
        return embedded
    return few_words.embed(tokens, places, known).view(*tokens.shape, -1)


def run(
    layers: Sequence[Layer],
    x: Tensor,
    gates: Tensor | None,
    slots: Sequence[QuickSlot],
    sees: Tensor,
    into: Tensor | None = None,
) -> Tensor:
    """(B, q, D) states below these layers → those above, perhaps into (B, q, D) places, which may be columns of a
    table where q is 1. The sources' words that are seen come as scores."""
    batch = len(x)
    words = x.flatten(0, 1)
    for number, (layer, slot) in enumerate(zip(layers, slots)):
        out = into.flatten(0, 1) if into is not None and number == len(layers) - 1 else None
        words = step(layer, words, batch, None if gates is None else gates[number], slot, sees, out)
    return words.view(x.shape) if into is None else into


def step(
    layer: Layer,
    x: Tensor,
    batch: int,
    gate: Tensor | None,
    slot: QuickSlot,
    sees: Tensor,
    out: Tensor | None = None,
) -> Tensor:
    """One layer, (B · q, D)."""
    attention, cross = layer.attention, layer.cross
    assert cross is not None
    assert layer.cross_norm is not None
    assert slot.memory.pair is not None
    qkv = few_words.project(x, *weights(attention.qkv), entered(layer, layer.attention_norm))
    qkv = qkv.view(batch, -1, 3, attention.heads, x.shape[1] // attention.heads)
    said = word_attention.attend_said(qkv, *slot.rooms(qkv[:, :, 0]), *slot.cache.standing)
    x = few_words.project(said, *weights(attention.out), residual=x, gate=gate)
    cross_norm = entered(layer, layer.cross_norm)
    if slot.memory.folded:
        x = folded_source.look(x, cross, slot.memory.folded, cross_norm, gate)
    else:
        query = few_words.project(x, *weights(cross.query), cross_norm)
        looked = word_attention.attend_source(query, *slot.memory.pair, sees)
        x = few_words.project(looked, *weights(cross.out), residual=x, gate=gate)
    inner = few_words.project(x, *weights(layer.grow), entered(layer, layer.ffn_norm), layer.activation)
    return few_words.project(inner, *weights(layer.shrink), residual=x, gate=gate, out=out)


def logits(model: Translator, states: Tensor) -> Tensor:
    """(B, q, D) states above the last layer → (B, q, V)."""
    if not fits(model):
        return model.logits(model.norm(states))
    found = few_words.project(states.flatten(0, 1), model.output.weight, model.output_bias, model.norm)
    return found.view(*states.shape[:2], -1)


def choices(model: Translator, states: Tensor, forbidden: tuple[int, int]) -> Tensor | Candidates:
    """What the best of the next words can be picked from: of few words a few candidates each, else the logits."""
    if fits(model) and states.shape[:2].numel() <= few_words.FEW:
        return candidates(states, model.output.weight, model.output_bias, model.norm, forbidden)
    return logits(model, states)


def weights(linear: nn.Linear) -> Weights:
    return linear.weight, linear.bias


def entered(layer: Layer, norm: nn.Module) -> nn.Module | None:
    return norm if layer.norm_first else None
