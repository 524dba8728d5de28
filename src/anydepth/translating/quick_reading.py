"""Sources of few words read on a GPU by kernels of their own, as decoder steps are (translating/quick.py).

The same computation as `Translator.encode` and `Layer.hold`, for the encoders that most models have; what it cannot do,
it leaves to them. An encoder layer takes five kernels instead of eight or nine.
"""

from torch import Tensor

from anydepth.models import Translator
from anydepth.nn import few_words, source_words
from anydepth.nn.bridge import LastState, Memory
from anydepth.nn.cache import BeamSlot, FixedSlot
from anydepth.nn.layers import Layer
from anydepth.plan import Plan
from anydepth.translating import quick


def fits(model: Translator, source: Tensor) -> bool:
    """Whether there are kernels for the encoder of this model and so many words, (B, S)."""
    layers = (each for each in model.encoder.layers if isinstance(each, Layer))
    plain = model.encoder.mix is None and isinstance(model.bridge, LastState) and not model.config.sentence_layers
    return takes(model, source.numel()) and plain and all(layer.context is None for layer in layers)


def takes(model: Translator, words: int) -> bool:
    """Whether so many are few; with more, the products by themselves are what takes time."""
    return quick.fits(model) and words <= few_words.MOST


def embed(model: Translator, source: Tensor) -> tuple[Tensor, Tensor]:
    """(B, S) padded words → (B · S, D); and which of them are seen, as (B, 1, 1, S) scores."""
    side = model.source
    positions = side.waves if side.learned is None else side.learned.weight
    words, seen = source_words.embed(source, side.words.weight, positions, side.scale, model.pad)
    return source_words.normalise(words, side.norm), seen


def read(model: Translator, words: Tensor, plan: Plan, gates: Tensor | None, seen: Tensor) -> Tensor:
    """(B · S, D) embedded words → (B, S, D) what the decoder attends to."""
    assert isinstance(model.bridge, LastState)
    for step, number in enumerate(plan.layers):
        layer = model.encoder.layers[number]
        assert isinstance(layer, Layer)
        words = read_layer(layer, words, None if gates is None else gates[step], seen)
    return source_words.normalise(words, model.bridge.norm).view(len(seen), -1, words.shape[1])


def read_layer(layer: Layer, x: Tensor, gate: Tensor | None, seen: Tensor) -> Tensor:
    """One layer, (B · S, D)."""
    attention = layer.attention
    qkv = few_words.project(x, *quick.weights(attention.qkv), quick.entered(layer, layer.attention_norm))
    qkv = qkv.view(len(seen), -1, 3, attention.heads, x.shape[1] // attention.heads)
    attended = source_words.attend(qkv, seen)
    x = few_words.project(attended, *quick.weights(attention.out), residual=x, gate=gate)
    inner = few_words.project(x, *quick.weights(layer.grow), quick.entered(layer, layer.ffn_norm), layer.activation)
    return few_words.project(inner, *quick.weights(layer.shrink), residual=x, gate=gate)


def hold(model: Translator, number: int, slot: BeamSlot | FixedSlot, memory: Memory) -> None:
    """Prepares a memory for the attention of a decoder layer ahead of the first word."""
    layer, state = model.decoder.layers[number], memory.state
    if state is None or not takes(model, state.shape[:2].numel()):
        model.decoder.hold(number, slot, memory)
        return
    assert isinstance(layer, Layer)
    assert layer.cross is not None
    pair = few_words.project(state.flatten(0, 1), *quick.weights(layer.cross.key_value))
    key, value = pair.view(*state.shape[:2], 2, layer.cross.heads, -1).unbind(2)
    slot.memory.pair = key, value
