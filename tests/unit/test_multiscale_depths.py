"""Multiscale collaboration with flexible decoder depth: trained, extracted, and refused where it has no meaning."""

from typing import Any

import pytest
import torch
from conftest import PAD
from multiscale_models import BATCH, states, translator

from anydepth.config import Config
from anydepth.depth import DepthConfig
from anydepth.depth.latent import LatentConfig
from anydepth.depth.layerdrop import LayerDropConfig
from anydepth.depth.prefix import PrefixConfig
from anydepth.depth.recurrent import RecurrentConfig
from anydepth.depth.rezero import ReZeroConfig
from anydepth.depth.subnetwork import SubnetworkConfig
from anydepth.errors import UserError
from anydepth.interop.extract import extracted, without_the_rest
from anydepth.models import StackConfig, Translator, TranslatorConfig
from anydepth.nn.layers import LayerConfig
from anydepth.nn.multiscale import MultiscaleConfig
from anydepth.objectives import ExitGridConfig, MultitaskConfig
from anydepth.objectives.cross_entropy import losses_and_gradient
from anydepth.objectives.single import single
from anydepth.objectives.tasks import SharedPass
from anydepth.run import Run
from anydepth.training.checkpoint import load_weights

# ---- flexible depth


@pytest.mark.parametrize("depth", [PrefixConfig(), SubnetworkConfig()], ids=lambda depth: depth.type)
@pytest.mark.parametrize("objective", [ExitGridConfig(), MultitaskConfig()], ids=lambda objective: objective.type)
def test_decoder_depths_trained_together_equal_separate_runs(
    depth: DepthConfig, objective: ExitGridConfig | MultitaskConfig
) -> None:
    model = translator(MultiscaleConfig(blocks=(1, 2, 1, 2)), decoder=4, depth=depth)
    (tasks,) = objective.choices(model)
    assert len(tasks) > 1
    loss = SharedPass(model, BATCH, 0.1, losses_and_gradient).backward(tasks)
    together = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    total = sum((weight * single(model, BATCH, plans, 0.1).total for plans, weight in tasks), start=torch.zeros(()))
    total.backward()
    assert float(loss.total) * sum(weight for _, weight in tasks) == pytest.approx(float(total.detach()))
    for name, parameter in model.named_parameters():
        assert torch.allclose(together[name], parameter.grad, atol=1e-9), name


def test_a_shallow_decoder_does_not_compute_the_blocks_above() -> None:
    model, calls = translator(MultiscaleConfig(blocks=(1, 2, 3)), depth=PrefixConfig()), []
    for number, layer in enumerate(model.encoder.layers):
        layer.register_forward_hook(lambda *_, number=number: calls.append(number))
    states(model, model.plan("6-2"))
    assert calls == [0, 1, 2]


@pytest.mark.parametrize("bridge", [MultiscaleConfig(), MultiscaleConfig(encoder_context=False)], ids=str)
def test_gates_of_blocks_that_a_shallow_decoder_does_not_read(bridge: MultiscaleConfig) -> None:
    """Training may fold gates into weights; inference multiplies branches by them."""
    layer = LayerConfig(width=16, ffn=24, heads=2, dropout=0.0)
    stacks = {
        "encoder": StackConfig(layers=6, depth=ReZeroConfig()),
        "decoder": StackConfig(layers=3, depth=PrefixConfig()),
    }
    model = Translator(TranslatorConfig(layer=layer, bridge=bridge, **stacks), 23, 23, PAD).double()
    torch.nn.init.normal_(model.encoder_depth.scale)
    plans = model.plan("6-2")
    torch.testing.assert_close(states(model.train(), plans), states(model.eval(), plans))


@pytest.mark.parametrize("depth", [SubnetworkConfig(), LayerDropConfig(), LatentConfig(), ReZeroConfig()], ids=str)
def test_decoder_layers_keep_their_blocks_under_every_policy(depth: DepthConfig) -> None:
    model = translator(MultiscaleConfig(), depth=depth)
    for name in model.depths():
        assert bool(states(model, model.plan(name)).isfinite().all())


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"encoder": StackConfig(depth=PrefixConfig())}, 'encoder.depth = "prefix" may leave these out'),
        ({"encoder": StackConfig(depth=LayerDropConfig())}, 'encoder.depth = "layerdrop" may leave these out'),
        ({"decoder": StackConfig(layers=6, depth=RecurrentConfig(depth=6))}, "runs the same layer again and again"),
        ({"layer": LayerConfig(norm="post")}, 'needs layer.norm = "pre", not "post"'),
        ({"encoder": StackConfig(layers=7)}, "6 layers in blocks, 7 in the encoder; blocks of equal size"),
        ({"bridge": MultiscaleConfig(blocks=(3, 3))}, "2 blocks for 6 decoder layers"),
        ({"bridge": MultiscaleConfig(blocks=(1, 1, 1, 1, 1, 2))}, "7 layers in blocks, 6 in the encoder"),
    ],
)
def test_what_has_no_meaning_is_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=f"bridge.*{reason}"):
        TranslatorConfig(**{"bridge": MultiscaleConfig(), **settings})


def test_settings_that_contradict_themselves() -> None:
    with pytest.raises(ValueError, match="context: no layer attends to it"):
        MultiscaleConfig(encoder_context=False, decoder_context=False)
    with pytest.raises(ValueError, match="blocks: every block has at least 1 layer"):
        MultiscaleConfig(blocks=(2, 0))


# ---- a smaller model out of it


def run_of(model: Translator) -> Run:
    return Run(Config(model=model.config), model, tokenizers=None)


@pytest.mark.parametrize(
    ("bridge", "depth"),
    [
        (MultiscaleConfig(blocks=(1, 3, 2)), PrefixConfig()),
        (MultiscaleConfig(), ReZeroConfig()),
        (MultiscaleConfig(blocks=(1, 3, 2), context="none"), SubnetworkConfig()),
    ],
    ids=lambda setting: setting.type,
)
def test_an_extracted_model_computes_what_the_large_one_does(bridge: MultiscaleConfig, depth: DepthConfig) -> None:
    model = translator(bridge, depth=depth)
    for name in model.depths():
        config, tensors = extracted(run_of(model), model.plan(name))
        smaller = Translator(config.model, 23, 23, PAD).double().eval()
        load_weights(smaller, tensors)
        assert len(smaller.encoder.layers) == len(model.bridge.reads(model.plan(name)))
        assert torch.equal(states(smaller), states(model, model.plan(name)))


def test_mixtures_of_layers_that_are_left_out_stay_behind() -> None:
    """DLCL in the encoder, of which a shallow decoder reads the first blocks alone."""
    layer = LayerConfig(width=16, ffn=24, heads=2, dropout=0.0)
    stacks = {"encoder": StackConfig(layers=6, mix="dlcl"), "decoder": StackConfig(layers=3, depth=PrefixConfig())}
    model = Translator(TranslatorConfig(layer=layer, bridge=MultiscaleConfig(), **stacks), 23, 23, PAD).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    for name, layers in (("6-1", 2), ("6-2", 4), ("6-3", 6)):
        config, tensors = extracted(run_of(model), model.plan(name))
        smaller = Translator(config.model, 23, 23, PAD).double().eval()
        load_weights(smaller, tensors)
        assert len(smaller.encoder.layers) == layers
        assert torch.equal(states(smaller), states(model, model.plan(name)))


def test_gaps_in_a_context_cannot_be_extracted() -> None:
    model = translator(MultiscaleConfig(blocks=(1, 2, 1, 2)), decoder=4, depth=SubnetworkConfig(strategy="left"))
    with pytest.raises(UserError, match="decoder layers 1, 3 of a multiscale model cannot stand alone"):
        extracted(run_of(model), model.plan("6-2"))


def test_the_layers_that_any_language_uses_keep_their_blocks() -> None:
    model = translator(MultiscaleConfig(), depth=LatentConfig())
    with torch.no_grad():
        model.decoder_depth.logits[0].copy_(torch.tensor([1.0, 1.0, -1.0]))
    kept = {"decoder": model.decoder_depth.for_all_keys()}
    config, tensors = without_the_rest(run_of(model), kept)
    smaller = Translator(config.model, 23, 23, PAD).double().eval()
    load_weights(smaller, tensors)
    assert (config.model.encoder.layers, config.model.bridge.blocks) == (4, (2, 2))
    assert torch.equal(states(smaller), states(model))
