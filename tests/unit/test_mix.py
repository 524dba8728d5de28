"""DLCL: by hand, at its limits, and decoded word by word."""

import pytest
import torch
from conftest import FULL, PAD, assert_exits_equal_separate_runs, random_batch, tiny_translator

from anydepth.config import Config
from anydepth.depth.prefix import PrefixConfig
from anydepth.interop.extract import extracted
from anydepth.models import StackConfig, Translator, TranslatorConfig
from anydepth.nn.layers import LayerConfig
from anydepth.nn.mix import LinearMix
from anydepth.objectives import ExitGridConfig
from anydepth.run import Run
from anydepth.training.checkpoint import load_weights
from anydepth.training.settings import TrainingConfig

BATCH = random_batch([(5, 6), (2, 4), (7, 3)])


def dlcl(norm: str = "pre", layers: int = 3) -> Translator:
    layer = LayerConfig(width=16, ffn=24, heads=2, norm=norm, dropout=0.0)
    stack = StackConfig(layers=layers, mix="dlcl")
    return Translator(TranslatorConfig(layer=layer, encoder=stack, decoder=stack), 23, 23, PAD).double().eval()


def test_mixtures_start_as_averages() -> None:
    mix = LinearMix(LayerConfig(width=4, heads=1, norm="none"), 2)
    earlier: list[torch.Tensor] = []
    states = [torch.full((1, 1, 4), value) for value in (1.0, 2.0, 6.0)]
    assert [float(mix(earlier, state)[0, 0, 0].detach()) for state in states] == pytest.approx([1.0, 1.5, 3.0])


def test_a_mixture_by_hand() -> None:
    """The embedding stays as it is, the outputs of layers are normalised."""
    mix = LinearMix(LayerConfig(width=2, heads=1), 1)
    with torch.no_grad():
        mix.weights[1].copy_(torch.tensor([10.0, 3.0]))
    earlier: list[torch.Tensor] = []
    assert mix(earlier, torch.tensor([[[5.0, 7.0]]])).tolist() == [[[5.0, 7.0]]]
    found = mix(earlier, torch.tensor([[[-8.0, 8.0]]]))  # normalised: −1, 1
    assert found.flatten().tolist() == pytest.approx([50 - 3, 70 + 3], abs=1e-3)


def test_weight_on_the_last_state_alone_is_residual() -> None:
    mixed, plain = dlcl("none"), tiny_translator(FULL, layers=3, norm="none").double()
    with torch.no_grad():
        for stack in (mixed.encoder, mixed.decoder):
            for weights in stack.mix.weights:
                weights.copy_(torch.eye(len(weights))[-1])
    own = {name: weight for name, weight in mixed.named_parameters() if ".mix." not in name}
    load_weights(plain, own)
    assert torch.equal(mixed(BATCH, mixed.plan()), plain(BATCH, plain.plan()))


def test_every_weight_learns() -> None:
    model = dlcl()
    model(BATCH, model.plan()).square().sum().backward()
    for stack in (model.encoder, model.decoder):
        for parameter in stack.mix.parameters():
            assert parameter.grad is not None
            assert bool(parameter.grad.any())


def test_word_by_word_is_as_at_once() -> None:
    model = dlcl()
    expected = model.logits(model(BATCH, model.plan()))
    decoder = model.start(BATCH.source, model.plan())
    for position in range(BATCH.target_in.shape[1]):
        words = BATCH.target_in[:, position]
        assert torch.allclose(decoder.step(words)[words != PAD], expected[:, position][words != PAD], atol=1e-10)


def test_an_export_keeps_the_mixture() -> None:
    model = dlcl()
    config, tensors = extracted(Run(Config(model=model.config), model, tokenizers=None), model.plan())
    assert config.model == model.config
    assert tensors.keys() == dict(model.named_parameters()).keys()


def test_plans_that_leave_layers_out_are_refused() -> None:
    with pytest.raises(ValueError, match="mix: dlcl combines the states of all layers, and prefix may leave some out"):
        StackConfig(mix="dlcl", depth=PrefixConfig())


def test_objectives_that_share_decoder_layers_are_refused() -> None:
    mixed = StackConfig(mix="dlcl")
    model = TranslatorConfig(encoder=StackConfig(depth=PrefixConfig()), decoder=mixed)
    with pytest.raises(ValueError, match=r"exit-grid shares decoder layers, which model\.decoder\.mix forbids"):
        Config(model=model, training=TrainingConfig(objective=ExitGridConfig()))


def test_a_mixed_encoder_serves_several_decoder_depths() -> None:
    layer = LayerConfig(width=16, ffn=24, heads=2, dropout=0.0)
    stacks = {"encoder": StackConfig(layers=3, mix="dlcl"), "decoder": StackConfig(layers=2, depth=PrefixConfig())}
    model = Translator(TranslatorConfig(layer=layer, **stacks), 23, 23, PAD).double()
    assert_exits_equal_separate_runs(model, BATCH)
