"""Multiscale collaboration: by hand, at its limits, padded or packed, decoded word by word, and in training."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from conftest import PAD, packed_batch, random_batch
from multiscale_models import BATCH, LENGTHS, states, translator
from torch import Tensor, nn

from anydepth.config import Config, dump, loads
from anydepth.depth.prefix import PrefixConfig
from anydepth.models import StackConfig, Translator, TranslatorConfig
from anydepth.nn.attention import Padded
from anydepth.nn.bridge import LastStateConfig, Memory
from anydepth.nn.context import normalised
from anydepth.nn.layers import Layer, LayerConfig
from anydepth.nn.multiscale import GruCell, Multiscale, MultiscaleConfig
from anydepth.objectives.single import single
from anydepth.plan import Plan
from anydepth.training.checkpoint import load_weights
from anydepth.training.optim import OptimizerConfig, Optimizers

ALL = Padded(None)
VARIANTS = [
    MultiscaleConfig(),
    MultiscaleConfig(blocks=(1, 3, 2)),
    MultiscaleConfig(fusion="add"),
    MultiscaleConfig(context="ffn"),
    MultiscaleConfig(encoder_context=False),
    MultiscaleConfig(decoder_context=False),
    MultiscaleConfig(context="none"),
]


def name_of(bridge: MultiscaleConfig) -> str:
    changed = {name: value for name, value in vars(bridge).items() if value != getattr(MultiscaleConfig(), name)}
    return " ".join(f"{name}={value}" for name, value in changed.items()) or "paper"


every_variant = pytest.mark.parametrize("bridge", VARIANTS, ids=name_of)


# ---- what it computes


class Add(nn.Module):
    def forward(self, block: Tensor, context: Tensor) -> Tensor:
        return block + context


def test_blocks_and_contexts_by_hand() -> None:
    """Layers that add the same, and a cell that adds: C^n = x_0 + B^1 + … + B^n."""
    bridge = Multiscale(MultiscaleConfig(), nn.Identity(), LayerConfig(width=3, heads=1), (1, 2))
    bridge.cell, bridge.context_norm = Add(), nn.Identity()
    first, more = torch.tensor([10.0, 20.0, 40.0]), torch.tensor([1.0, 5.0, 0.0])
    seen: list[Any] = []

    def run(read: list[Memory]) -> Any:
        x = first
        yield x
        for step in range(3):
            seen.append(read[step].context)
            x = x + more
            yield x

    memories = bridge(run, Plan((0, 1)))
    second = first + (first + more)  # C^1
    for found, context in zip(seen, [first, second, second], strict=True):
        assert torch.allclose(found, nn.LayerNorm(3)(context))
    expected = [(first + more, second), (first + 3 * more, second + first + 3 * more)]
    for memory, (state, context) in zip(memories, expected, strict=True):
        assert torch.equal(memory.state, state)
        assert torch.equal(memory.context, context)


def test_the_cell_is_a_gru() -> None:
    ours, theirs = GruCell(LayerConfig(width=8, heads=1)), nn.GRUCell(8, 8)
    theirs.load_state_dict(
        {
            "weight_ih": ours.block.weight,
            "bias_ih": ours.block.bias,
            "weight_hh": ours.context.weight,
            "bias_hh": ours.context.bias,
        }
    )
    block, context = torch.randn(2, 3, 8), torch.randn(2, 3, 8)
    expected = theirs(block.flatten(0, 1), context.flatten(0, 1)).unflatten(0, (2, 3))
    assert torch.allclose(ours(block, context), expected, atol=1e-6)


def test_an_encoder_layer_by_its_equation() -> None:
    """Eq. 12, written out."""
    layer = translator(MultiscaleConfig()).encoder.layers[0]
    x, c = torch.randn(1, 4, 16).double(), torch.randn(1, 4, 16).double()
    found = layer.begin(x, None, ALL, None, normalised(c, 1e-5))
    in_training = layer.train().begin(x, None, ALL, None, normalised(c, 1e-5))
    attention = layer.eval().context.attention
    a_h = layer.attention(layer.attention_norm(x), ALL)
    twin = nn.MultiheadAttention(16, 2, batch_first=True).double()
    key, value = attention.key_value.weight.chunk(2), attention.key_value.bias.chunk(2)
    twin.in_proj_weight.data = torch.cat([attention.query.weight, *key])
    twin.in_proj_bias.data = torch.cat([attention.query.bias, *value])
    twin.out_proj.load_state_dict(attention.out.state_dict())
    a_c = twin(attention.query_norm(x), attention.key_norm(c), attention.value_norm(c))[0]
    w_1, w_2, b = layer.context.gate_own.weight, layer.context.gate_context.weight, layer.context.gate_own.bias
    g = torch.sigmoid(a_h @ w_1.T + a_c @ w_2.T + b)
    expected = g * a_h + (1 - g) * a_c + x
    assert torch.allclose(found, expected, atol=1e-12)
    assert torch.allclose(in_training, expected, atol=1e-12)


def test_all_norms_have_the_epsilon_of_the_settings() -> None:
    layer = LayerConfig(width=16, ffn=24, heads=2, norm_epsilon=0.1)
    model = Translator(TranslatorConfig(layer=layer, bridge=MultiscaleConfig(), embedding_norm=True), 23, 23, PAD)
    norms = {name: part.eps for name, part in model.named_modules() if isinstance(part, nn.LayerNorm)}
    assert len(norms) == 2 + 6 * (2 + 3) + 6 * 3 + 3  # embeddings, layers of both stacks; blocks, contexts and the end
    assert set(norms.values()) == {0.1}


# ---- its limits


def shared_weights(model: Translator, into: Translator) -> Translator:
    own = dict(into.named_parameters())
    load_weights(into, {name: value for name, value in model.named_parameters() if name in own})
    return into


def test_a_gate_of_one_is_block_scale_collaboration() -> None:
    model = translator(MultiscaleConfig())
    with torch.no_grad():
        for layer in (*model.encoder.layers, *model.decoder.layers):
            layer.context.gate_own.weight.zero_()
            layer.context.gate_context.weight.zero_()
            layer.context.gate_own.bias.fill_(50.0)
    assert torch.equal(states(model), states(shared_weights(model, translator(MultiscaleConfig(context="none")))))


def test_one_block_without_context_is_the_plain_model() -> None:
    model = translator(MultiscaleConfig(context="none"), encoder=3, decoder=1)
    assert torch.equal(states(model), states(shared_weights(model, translator(LastStateConfig(), 3, 1))))


def test_decoder_layer_n_attends_to_block_n() -> None:
    """Without context a block's final state is all that its decoder layer reads: zero the others' cross-attention."""
    model = translator(MultiscaleConfig(context="none"))
    for number, layer in enumerate(model.decoder.layers):
        layer.cross.out.weight.data.mul_(number == 1)
    lower = states(model)
    for layer in model.encoder.layers[4:]:
        layer.shrink.bias.data.mul_(3)
    assert torch.equal(states(model), lower)
    model.encoder.layers[3].shrink.bias.data.mul_(3)
    assert not torch.allclose(states(model), lower)


def test_gradients_reach_the_bottom_block_by_both_paths() -> None:
    """Eq. 8: through the top of the encoder, and through the decoder layer that reads the block itself."""
    model = translator(MultiscaleConfig(context="none"))
    bottom = model.encoder.layers[0].shrink.bias

    def gradient(*silent: int) -> Tensor:
        for number, layer in enumerate(model.decoder.layers):
            layer.cross.out.weight.requires_grad_(True).data.copy_(torch.eye(16) * (number not in silent))
        return torch.autograd.grad(states(model).square().sum(), bottom)[0]

    assert bool((gradient(1, 2) != 0).all())  # block 1 is read directly
    assert bool((gradient(0, 1) != 0).all())  # only the top is read
    assert not bool(gradient(0, 1, 2).any())


@every_variant
def test_every_parameter_learns(bridge: MultiscaleConfig) -> None:
    model = translator(bridge)
    states(model).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.any()) or "key_value.bias" in name, name


@every_variant
def test_gradients_are_right(bridge: MultiscaleConfig) -> None:
    model = translator(replace(bridge, blocks=()), encoder=2, decoder=2)
    batch = random_batch([(3, 2), (2, 2)])
    names = ("context", "cell", "bridge")
    own = [p for name, p in model.named_parameters() if any(part in name for part in names)]
    own += [model.encoder.layers[1].attention.out.weight]

    def total(*_: Tensor) -> Tensor:
        return single(model, batch, model.plan(), 0.1).total

    assert torch.autograd.gradcheck(total, own, fast_mode=True)


# ---- padding, packing, decoding


@every_variant
def test_packed_sentences_and_single_ones_equal_padded_ones(bridge: MultiscaleConfig) -> None:
    model = translator(bridge)
    padded, packed = states(model), model(packed_batch(LENGTHS), model.plan())[0]
    start = 0
    for row, (source, target) in enumerate(LENGTHS):
        assert torch.allclose(packed[start : start + target], padded[row, :target], atol=1e-12)
        alone = BATCH._replace(source=BATCH.source[row : row + 1, :source], target_in=BATCH.target_in[row : row + 1])
        assert torch.allclose(model(alone, model.plan())[0, :target], padded[row, :target], atol=1e-12)
        start += target


@every_variant
def test_word_by_word_is_as_at_once(bridge: MultiscaleConfig) -> None:
    model = translator(bridge, depth=PrefixConfig())
    for name in model.depths():
        expected = model.logits(states(model, model.plan(name)))
        decoder = model.start(BATCH.source, model.plan(name))
        rows = torch.arange(3)
        for position in range(BATCH.target_in.shape[1]):
            words = BATCH.target_in[rows, position]
            real = words != PAD
            assert torch.allclose(decoder.step(words)[real], expected[rows, position][real], atol=1e-10)
            if position == 1:  # as beam search does
                rows = torch.tensor([2, 0, 0, 1])
                decoder.reorder(rows)


def test_keys_and_values_are_made_once() -> None:
    model, calls = translator(MultiscaleConfig()), []
    for layer in model.decoder.layers:
        for linear in (layer.cross.key_value, layer.context.attention.key_value):
            linear.register_forward_hook(lambda *_: calls.append(1))
    decoder = model.start(BATCH.source, model.plan())
    for _ in range(4):
        decoder.step(torch.tensor([4, 5, 6]))
    assert len(calls) == 2 * 3


# ---- training


def test_l2_on_the_encoder_alone() -> None:
    """Adam's first step on the gradient 2 λ W alone moves every matrix of the encoder's layers, and nothing else."""
    model = translator(MultiscaleConfig())
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizers = Optimizers(model, OptimizerConfig(weight_decay=2e-5, decays="encoder", warmup=0, epsilon=1e-12))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizers.update(1, 10)
    for name, parameter in model.named_parameters():
        moved = not torch.equal(parameter, before[name])
        assert moved == (name.startswith("encoder.layers.") and parameter.dim() == 2), name


@pytest.mark.filterwarnings("default")  # the compiler's own, which as errors would stop it
def test_the_layers_compile_once_per_stack() -> None:
    """Whatever the block: what differs from layer to layer are tensors."""
    torch._dynamo.reset()
    model = translator(MultiscaleConfig(blocks=(1, 3, 2))).train()
    for stack in (model.encoder, model.decoder):
        compiled = torch.compile(Layer.__call__, backend="eager")
        stack.compiled = {Layer.__call__: compiled}
    expected = states(model.eval())
    counters = torch._dynamo.utils.counters
    counters.clear()
    found = states(model.train())
    assert torch.allclose(found, expected, atol=1e-12)
    assert counters["stats"]["unique_graphs"] == 2


def test_recomputed_activations_give_the_same_gradients() -> None:
    model = translator(MultiscaleConfig()).train()

    def gradients() -> list[Tensor]:
        return list(torch.autograd.grad(states(model).square().sum(), list(model.parameters())))

    kept = gradients()
    model.encoder.recompute = model.decoder.recompute = True
    assert all(torch.allclose(one, other, atol=1e-12) for one, other in zip(kept, gradients()))


def test_the_settings_go_through_a_file() -> None:
    bridge = MultiscaleConfig(blocks=(2, 4), context="ffn", fusion="add", encoder_context=False)
    decoder = StackConfig(layers=2)
    config = Config(model=TranslatorConfig(bridge=bridge, decoder=decoder))
    assert loads(dump(config)).model == config.model
