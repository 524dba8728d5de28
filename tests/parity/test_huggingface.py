"""Our Translator against tiny random Hugging Face models with the same weights: Pegasus (pre-norm, sinusoids) and
MBart (the same with learned positions, which it counts from 2, and normalised embeddings)."""

from collections import Counter
from typing import Any, Literal

import pytest
import torch
from conftest import BOS, EOS, PAD, random_batch
from torch import Tensor, nn

from anydepth.data.collate import Batch
from anydepth.decoding.greedy import greedy
from anydepth.depth.prefix import PrefixConfig
from anydepth.models import StackConfig, Translator, TranslatorConfig
from anydepth.nn.layers import Layer, LayerConfig

VOCABULARY, LONGEST = 23, 40
ENCODER_LAYERS, DECODER_LAYERS = 3, 2
NEW_TOKENS = 12
LENGTHS = [(9, 7), (3, 5), (6, 2), (1, 9)]
Kind = Literal["pegasus", "mbart"]


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(params=["pegasus-relu", "pegasus-gelu", "mbart-relu", "mbart-gelu"])
def twins(request: pytest.FixtureRequest) -> tuple[Translator, Any]:
    """Our model and theirs, with one set of random weights."""
    kind, activation = request.param.split("-")
    theirs = random_model(kind, activation)
    ours = Translator(our_config(kind, activation), VOCABULARY, VOCABULARY, PAD).eval()
    copy_weights(theirs, ours)
    return ours, theirs


def random_model(kind: Kind, activation: str) -> Any:
    from transformers import MBartConfig, MBartForConditionalGeneration, PegasusConfig, PegasusForConditionalGeneration

    config, model = {
        "pegasus": (PegasusConfig, PegasusForConditionalGeneration),
        "mbart": (MBartConfig, MBartForConditionalGeneration),
    }[kind]
    theirs = model(
        config(
            vocab_size=VOCABULARY,
            d_model=32,
            encoder_layers=ENCODER_LAYERS,
            decoder_layers=DECODER_LAYERS,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            activation_function=activation,
            scale_embedding=True,
            max_position_embeddings=LONGEST,
            pad_token_id=PAD,
            bos_token_id=BOS,
            eos_token_id=EOS,
            decoder_start_token_id=BOS,
            forced_eos_token_id=None,
        )
    ).eval()
    # strong layers and weak words: otherwise greedy search only repeats a word
    for name, parameter in theirs.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(parameter, std=0.1)
        elif "norm" in name:
            nn.init.normal_(parameter, mean=1.0, std=0.3)
        elif parameter.requires_grad:  # not the sinusoids
            nn.init.normal_(parameter, std=0.1 if "shared" in name else 0.5)
    return theirs


def our_config(kind: Kind, activation: Any) -> TranslatorConfig:
    return TranslatorConfig(
        layer=LayerConfig(width=32, ffn=48, heads=4, activation=activation, dropout=0.0),
        encoder=StackConfig(layers=ENCODER_LAYERS, depth=PrefixConfig()),
        decoder=StackConfig(layers=DECODER_LAYERS, depth=PrefixConfig()),
        positions="learned" if kind == "mbart" else "sinusoidal",
        embedding_norm=kind == "mbart",
        max_positions=LONGEST,
    )


# ---- their weights in our places


def copy_weights(theirs: Any, ours: Translator) -> None:
    """All of them, and nothing of ours is left as it was."""
    left = {name for name, _ in ours.named_parameters()}
    for name, value in renamed(theirs).items():
        parameter = ours.get_parameter(name)
        assert parameter.shape == value.shape, name
        parameter.data.copy_(value)
        left.discard(name)
    assert not left


def renamed(theirs: Any) -> dict[str, Tensor]:
    """Their weights under our names."""
    model = theirs.model
    weights = {"source.words.weight": model.shared.weight}
    for side, part, stack in (("source", "encoder", model.encoder), ("target", "decoder", model.decoder)):
        if hasattr(stack, "layernorm_embedding"):  # MBart
            weights |= named(f"{side}.norm", stack.layernorm_embedding)
            weights[f"{side}.learned.weight"] = stack.embed_positions.weight[2:]
        for number, layer in enumerate(stack.layers):
            weights |= layer_weights(f"{part}.layers.{number}", layer)
    return weights | named("bridge.norm", model.encoder.layer_norm) | named("norm", model.decoder.layer_norm)


def layer_weights(prefix: str, layer: Any) -> dict[str, Tensor]:
    attention = layer.self_attn
    weights = {
        **fused(f"{prefix}.attention.qkv", attention.q_proj, attention.k_proj, attention.v_proj),
        **named(f"{prefix}.attention.out", attention.out_proj),
        **named(f"{prefix}.attention_norm", layer.self_attn_layer_norm),
        **named(f"{prefix}.grow", layer.fc1),
        **named(f"{prefix}.shrink", layer.fc2),
        **named(f"{prefix}.ffn_norm", layer.final_layer_norm),
    }
    if hasattr(layer, "encoder_attn"):
        cross = layer.encoder_attn
        weights |= named(f"{prefix}.cross.query", cross.q_proj)
        weights |= fused(f"{prefix}.cross.key_value", cross.k_proj, cross.v_proj)
        weights |= named(f"{prefix}.cross.out", cross.out_proj)
        weights |= named(f"{prefix}.cross_norm", layer.encoder_attn_layer_norm)
    return weights


def named(prefix: str, module: nn.Module) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": value for name, value in module.named_parameters()}


def fused(prefix: str, *projections: nn.Module) -> dict[str, Tensor]:
    """Several projections as one."""
    parts = [dict(projection.named_parameters()) for projection in projections]
    return {f"{prefix}.{name}": torch.cat([part[name] for part in parts]) for name in parts[0]}


# ---- the same function


@torch.no_grad()
def their_logits(theirs: Any, batch: Batch) -> Tensor:
    real = (batch.source != PAD).long()
    logits: Tensor = theirs(input_ids=batch.source, attention_mask=real, decoder_input_ids=batch.target_in).logits
    return logits


def test_the_same_logits(twins: tuple[Translator, Any]) -> None:
    ours, theirs = twins
    batch = random_batch(LENGTHS)
    real = batch.target_out != PAD
    with torch.no_grad():
        got = ours.logits(ours(batch, ours.plan()))
    expected = their_logits(theirs, batch)
    assert expected[real].std() > 0.5
    assert (got - expected)[real].abs().max() < 1e-4


def test_a_prefix_is_their_model_with_fewer_layers(twins: tuple[Translator, Any]) -> None:
    ours, theirs = twins
    batch = random_batch(LENGTHS)
    real = batch.target_out != PAD
    encoder, decoder = theirs.model.encoder.layers, theirs.model.decoder.layers
    assert len(ours.depths()) == ENCODER_LAYERS * DECODER_LAYERS
    for depth in ours.depths():
        plans = ours.plan(depth)
        theirs.model.encoder.layers = encoder[: len(plans.encoder)]
        theirs.model.decoder.layers = decoder[: len(plans.decoder)]
        with torch.no_grad():
            got = ours.logits(ours(batch, plans))
        assert (got - their_logits(theirs, batch))[real].abs().max() < 1e-4, depth


def test_the_same_greedy_tokens(twins: tuple[Translator, Any]) -> None:
    ours, theirs = twins
    source = random_batch(LENGTHS * 4).source
    endless = our_greedy(ours, source, EOS)
    # random models rarely choose the end mark: let one of the words they like be it
    end = Counter(token for tokens in endless for token in tokens[1:]).most_common(2)[1][0]
    for eos in (EOS, end):
        expected = their_greedy(theirs, source, eos)
        assert our_greedy(ours, source, eos) == expected
    assert len({tuple(tokens) for tokens in endless}) > 8
    assert len({len(tokens) for tokens in expected}) > 2


def our_greedy(ours: Translator, source: Tensor, eos: int) -> list[list[int]]:
    found = greedy(ours.start(source, ours.plan()), BOS, eos, PAD, torch.full((len(source),), NEW_TOKENS))
    return [hypothesis.tokens for hypothesis in found]


def their_greedy(theirs: Any, source: Tensor, eos: int) -> list[list[int]]:
    rows = theirs.generate(
        input_ids=source,
        attention_mask=(source != PAD).long(),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        num_beams=1,
        eos_token_id=eos,
        suppress_tokens=[BOS, PAD],  # as ours
    )
    return [[token for token in row[1:] if token not in (eos, PAD)] for row in rows.tolist()]


def test_every_weight_of_a_layer_is_compared() -> None:
    """A layer of ours has nothing that the mapping above does not know."""
    layer = random_model("pegasus", "relu").model.decoder.layers[0]
    expected = {
        f"x.{name}" for name, _ in Layer(LayerConfig(width=32, ffn=48, heads=4), decoder=True).named_parameters()
    }
    assert set(layer_weights("x", layer)) == expected
