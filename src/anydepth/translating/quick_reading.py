"""Sources of few words read on a GPU by kernels of their own, as decoder steps are (translating/quick.py).

The same computation as `Translator.encode` and `Layer.hold`, for the encoders that most models have; what it cannot do,
it leaves to them. An encoder layer takes five kernels instead of ten.
"""

from collections.abc import Sequence

from torch import Tensor

from anydepth.models import Translator
from anydepth.nn import few_words, folded_source, source_words
from anydepth.nn.attention import split_heads
from anydepth.nn.bridge import LastState, Memory
from anydepth.nn.few_words import Vectors
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
    words, seen = source_words.embed(source, Vectors(side.words.weight, positions, side.scale), model.pad)
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


def hold(
    model: Translator, plan: Plan, slots: Sequence[quick.QuickSlot], memories: Sequence[Memory], seen: Tensor
) -> None:
    """Prepares what the steps of a decoder attend to ahead of the first word: all at once where they read the same.
    The sources' words that are `seen` come as (B, 1, 1, S) scores."""
    for slot in slots:
        slot.memory.folded = None  # of other sources
    state = memories[0].state if memories else None
    alike = state is not None and all(memory.state is state for memory in memories)
    if not alike or state is None or not takes(model, state.shape[:2].numel()):
        for number, slot, memory in zip(plan.layers, slots, memories):
            model.decoder.hold(number, slot, memory)
        return
    layers = [model.decoder.layers[number] for number in plan.layers]
    crosses = [layer.cross for layer in layers if isinstance(layer, Layer) and layer.cross is not None]
    pairs = source_words.project_each(state.flatten(0, 1), [cross.key_value for cross in crosses])
    for slot, cross, pair in zip(slots, crosses, pairs):
        key, value = split_heads(pair.view(*state.shape[:2], -1), 2, cross.heads)
        slot.memory.pair = key, value
    shape = model.config.layer
    if len(state) == 1 and folded_source.takes(shape.heads, shape.width // shape.heads, state.shape[1]):
        for slot, folded in zip(slots, folded_source.fold(crosses, pairs, seen)):
            slot.memory.folded = folded
