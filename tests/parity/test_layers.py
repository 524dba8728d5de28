"""Our layers against PyTorch's own."""

import pytest
import torch
from torch import nn

from anydepth.nn.attention import Packed, Padded
from anydepth.nn.layers import Layer, LayerConfig, initialise


def copy_attention(ours: nn.Module, theirs: nn.MultiheadAttention) -> None:
    if hasattr(ours, "qkv"):
        ours.qkv.weight.data.copy_(theirs.in_proj_weight)
        ours.qkv.bias.data.copy_(theirs.in_proj_bias)
    else:
        width = ours.query.weight.shape[0]
        ours.query.weight.data.copy_(theirs.in_proj_weight[:width])
        ours.query.bias.data.copy_(theirs.in_proj_bias[:width])
        ours.key_value.weight.data.copy_(theirs.in_proj_weight[width:])
        ours.key_value.bias.data.copy_(theirs.in_proj_bias[width:])
    ours.out.load_state_dict(theirs.out_proj.state_dict())


def twins(norm: str, decoder: bool) -> tuple[Layer, nn.Module]:
    torch.manual_seed(0)
    ours = Layer(LayerConfig(width=32, ffn=48, heads=4, norm=norm, dropout=0.0), decoder)
    kind = nn.TransformerDecoderLayer if decoder else nn.TransformerEncoderLayer
    theirs = kind(32, 4, 48, dropout=0.0, batch_first=True, norm_first=norm == "pre")
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    copy_attention(ours.attention, theirs.self_attn)
    ours.attention_norm.load_state_dict(theirs.norm1.state_dict())
    if decoder:
        copy_attention(ours.cross, theirs.multihead_attn)
        ours.cross_norm.load_state_dict(theirs.norm2.state_dict())
        ours.ffn_norm.load_state_dict(theirs.norm3.state_dict())
    else:
        ours.ffn_norm.load_state_dict(theirs.norm2.state_dict())
    ours.grow.load_state_dict(theirs.linear1.state_dict())
    ours.shrink.load_state_dict(theirs.linear2.state_dict())
    return ours.double(), theirs.double()


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_encoder_layer_equals_pytorch(norm: str) -> None:
    ours, theirs = twins(norm, decoder=False)
    x = torch.randn(3, 7, 32, dtype=torch.double)
    real = torch.arange(7)[None] < torch.tensor([7, 4, 1])[:, None]
    got = ours(x, None, Padded(real[:, None, None, :]))
    expected = theirs(x, src_key_padding_mask=~real)
    assert torch.allclose(got[real], expected[real], atol=1e-12)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_decoder_layer_equals_pytorch(norm: str) -> None:
    ours, theirs = twins(norm, decoder=True)
    x, memory = torch.randn(2, 5, 32, dtype=torch.double), torch.randn(2, 6, 32, dtype=torch.double)
    real = torch.arange(6)[None] < torch.tensor([6, 2])[:, None]
    got = ours(x, None, Padded(None), memory, Padded(real[:, None, None, :]))
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
    expected = theirs(x, memory, tgt_mask=causal, memory_key_padding_mask=~real)
    assert torch.allclose(got, expected, atol=1e-12)


def test_a_gate_scales_every_branch() -> None:
    layer = Layer(LayerConfig(width=16, ffn=16, heads=2, dropout=0.0), decoder=False)
    layer.apply(initialise)
    x, sees = torch.randn(1, 3, 16), Padded(None)
    assert torch.equal(layer(x, torch.tensor(0.0), sees), x)
    assert torch.equal(layer(x, torch.tensor(1.0), sees), layer(x, None, sees))
    half = x + 0.5 * layer.attention(layer.attention_norm(x), sees)
    half = half + 0.5 * layer.feed_forward(layer.ffn_norm(half))
    assert torch.allclose(layer(x, torch.tensor(0.5), sees), half)


def test_packed_sentences_equal_padded_ones() -> None:
    torch.manual_seed(0)
    encoder = Layer(LayerConfig(width=16, ffn=16, heads=2, dropout=0.0), decoder=False).double()
    decoder = Layer(LayerConfig(width=16, ffn=16, heads=2, dropout=0.0), decoder=True).double()
    sources = [torch.randn(n, 16, dtype=torch.double) for n in (4, 1, 3)]
    targets = [torch.randn(n, 16, dtype=torch.double) for n in (2, 5, 1)]
    starts = torch.tensor([0, 4, 5, 8], dtype=torch.int32), torch.tensor([0, 2, 7, 8], dtype=torch.int32)
    memory = encoder(torch.cat(sources)[None], None, Packed(starts[0], starts[0], 4, 4))
    packed = decoder(
        torch.cat(targets)[None], None, Packed(starts[1], starts[1], 5, 5), memory, Packed(starts[1], starts[0], 5, 4)
    )
    alone = []
    for source, target in zip(sources, targets):
        memory = encoder(source[None], None, Padded(None))
        alone.append(decoder(target[None], None, Padded(None), memory, Padded(None))[0])
    assert torch.allclose(packed[0], torch.cat(alone), atol=1e-12)
