"""A small run with random weights, for tests of what is done with runs."""

from pathlib import Path

import torch

from anydepth.config import Config, dump
from anydepth.data.tokenizer import TokenizerConfig, TokenizerPair
from anydepth.data.tokenizer_training import train_tokenizer
from anydepth.depth.prefix import PrefixConfig
from anydepth.models import StackConfig, Translator, TranslatorConfig
from anydepth.nn.layers import LayerConfig
from anydepth.training import checkpoint


def write_random_run(folder: Path) -> None:
    """With depths up to 2-2 and a checkpoint of other weights. The end mark is probable: or hardly a translation would
    end."""
    tokenizer = train_tokenizer(["one two three"] * 9, TokenizerConfig(vocabulary=270))
    stack = StackConfig(layers=2, depth=PrefixConfig())
    layer = LayerConfig(width=16, ffn=24, heads=2)
    config = Config(model=TranslatorConfig(layer=layer, encoder=stack, decoder=stack, tie="none", max_positions=40))
    torch.manual_seed(0)
    model = Translator(config.model, len(tokenizer), len(tokenizer), tokenizer.pad)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
        model.output.weight[tokenizer.eos] = 0.7 * model.norm.bias
    (folder / "config.toml").write_text(dump(config))
    TokenizerPair(tokenizer, tokenizer).save(folder)
    weights = checkpoint.weights(model)
    checkpoint.write_weights(weights, folder / "model.safetensors")
    checkpoint.save(folder / "checkpoints", 7, {"model": {n: -w for n, w in weights.items()}}, {}, keep=2)
