"""Transparent attention by hand, at its limits and decoded word by word; depth-scaled initialisation."""

import math

import pytest
import torch
from conftest import PAD, assert_exits_equal_separate_runs, packed_batch, random_batch
from torch import Tensor, nn

from anydepth.config import Config
from anydepth.depth import DepthConfig
from anydepth.depth.full import FullConfig
from anydepth.depth.prefix import PrefixConfig
from anydepth.depth.subnetwork import SubnetworkConfig
from anydepth.interop.extract import extracted
from anydepth.models import StackConfig, Translator, TranslatorConfig
from anydepth.nn.bridge import LastStateConfig, Transparent, TransparentConfig
from anydepth.nn.layers import LayerConfig
from anydepth.objectives.single import single
from anydepth.plan import Plan
from anydepth.run import Run
from anydepth.training.checkpoint import load_weights

LENGTHS = [(5, 6), (2, 4), (7, 3)]
BATCH = random_batch(LENGTHS)
FULL = FullConfig()


def transparent(depth: DepthConfig = FULL, norm: str = "pre") -> Translator:
    layer = LayerConfig(width=16, ffn=24, heads=2, dropout=0.0, norm=norm)
    stacks = {"encoder": StackConfig(layers=4), "decoder": StackConfig(layers=3, depth=depth)}
    model = Translator(TranslatorConfig(layer=layer, bridge=TransparentConfig(), **stacks), 23, 23, PAD).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


def states(*values: float) -> list[Tensor]:
    return [torch.full((1, 1, 2), float(value)) for value in values]


def test_mixtures_start_as_averages_and_follow_their_weights() -> None:
    bridge = Transparent(nn.Identity(), 2, encoder_layers=2, decoder_layers=2, dropout=0.0)
    first, second = bridge(lambda _: states(1, 2, 6), Plan((0, 1)))
    assert first.state.flatten().tolist() == second.state.flatten().tolist() == pytest.approx([3, 3])
    bridge.weights[1].data = torch.tensor([0.0, math.log(2), math.log(5)])
    first, second = bridge(lambda _: states(1, 2, 6), Plan((0, 1)))
    assert first.state.flatten().tolist() == pytest.approx([3, 3])
    assert second.state.flatten().tolist() == pytest.approx([(1 + 4 + 30) / 8] * 2)


def test_dropout_is_on_the_weights() -> None:
    bridge = Transparent(nn.Identity(), 2, encoder_layers=1, decoder_layers=1, dropout=0.5).train()
    found = {float(bridge(lambda _: states(1, 10), Plan((0,)))[0].state[0, 0, 0].detach()) for _ in range(100)}
    assert found == {0, 1, 10, 11}  # either state twice as strong or not at all, for all words alike
    assert float(bridge.eval()(lambda _: states(1, 10), Plan((0,)))[0].state[0, 0, 0].detach()) == 5.5


@pytest.mark.parametrize("norm", ["pre", "post", "none"])
@pytest.mark.parametrize("state", [0, 2, 4])
def test_one_hot_weights_are_that_state(norm: str, state: int) -> None:
    model = transparent(norm=norm)
    for weights in model.bridge.weights:
        weights.data = torch.where(torch.arange(5) == state, 0.0, -torch.inf).double()
    layer, decoder = model.config.layer, model.config.decoder
    encoder = StackConfig(layers=4, depth=PrefixConfig())
    config = TranslatorConfig(layer=layer, bridge=LastStateConfig(), encoder=encoder, decoder=decoder)
    plain = Translator(config, 23, 23, PAD).double().eval()
    load_weights(plain, {name: value for name, value in model.named_parameters() if "bridge.weights" not in name})
    plans = plain.plan()._replace(encoder=Plan(tuple(range(state))))
    assert torch.allclose(model(BATCH, model.plan()), plain(BATCH, plans), atol=1e-12)


def test_gradients_are_right() -> None:
    model = transparent()
    own = [*model.bridge.parameters(), model.encoder.layers[0].shrink.bias]
    assert torch.autograd.gradcheck(lambda *_: single(model, BATCH, model.plan(), 0.1).total, own, fast_mode=True)
    for gradient in torch.autograd.grad(single(model, BATCH, model.plan()).total, list(model.bridge.weights)):
        assert bool((gradient != 0).all())


def test_packed_sentences_equal_padded_ones() -> None:
    model = transparent()
    padded, packed = model(BATCH, model.plan()), model(packed_batch(LENGTHS), model.plan())[0]
    starts = (0, 6, 10)
    for row, (start, (_, target)) in enumerate(zip(starts, LENGTHS)):
        assert torch.allclose(packed[start : start + target], padded[row, :target], atol=1e-12)


def test_word_by_word_is_as_at_once() -> None:
    model = transparent(PrefixConfig())
    for name in model.depths():
        expected = model.logits(model(BATCH, model.plan(name)))
        decoder = model.start(BATCH.source, model.plan(name))
        for position in range(BATCH.target_in.shape[1]):
            words = BATCH.target_in[:, position]
            assert torch.allclose(decoder.step(words)[words != PAD], expected[:, position][words != PAD], atol=1e-10)


def test_decoder_depths_trained_together_equal_separate_runs() -> None:
    model = transparent(PrefixConfig())
    assert_exits_equal_separate_runs(model, BATCH)


def test_encoders_that_leave_layers_out_are_refused() -> None:
    with pytest.raises(ValueError, match="transparent attention mixes the states of all"):
        TranslatorConfig(bridge=TransparentConfig(), encoder=StackConfig(depth=PrefixConfig()))


def test_depth_scaled_weights_shrink_with_the_root_of_the_depth() -> None:
    def encoder(initialisation: str) -> list[dict[str, Tensor]]:
        torch.manual_seed(1)
        stack = StackConfig(layers=4, initialisation=initialisation)
        model = Translator(TranslatorConfig(layer=LayerConfig(width=8, ffn=8, heads=1), encoder=stack), 9, 9, PAD)
        return [dict(layer.named_parameters()) for layer in model.encoder.layers]

    for number, (plain, scaled) in enumerate(zip(encoder("xavier"), encoder("depth-scaled")), 1):
        for name, weight in plain.items():
            assert torch.allclose(scaled[name], weight / (math.sqrt(number) if weight.dim() == 2 else 1)), name


def test_an_export_keeps_the_weights_of_its_decoder_layers() -> None:
    model = transparent(SubnetworkConfig())
    run = Run(Config(model=model.config), model, tokenizers=None)
    for name in model.depths():
        config, tensors = extracted(run, model.plan(name))
        smaller = Translator(config.model, 23, 23, PAD).double().eval()
        load_weights(smaller, tensors)
        assert torch.equal(smaller(BATCH, smaller.plan()), model(BATCH, model.plan(name)))
