"""A small model with blocks, and a batch for it."""

from typing import Any

from conftest import PAD, random_batch
from torch import Tensor, nn

from anydepth.depth import DepthConfig
from anydepth.depth.full import FullConfig
from anydepth.models import BridgeConfig, StackConfig, Translator, TranslatorConfig
from anydepth.nn.layers import LayerConfig
from anydepth.plan import Plans

LENGTHS = [(5, 6), (2, 4), (7, 3)]
BATCH = random_batch(LENGTHS)
FULL = FullConfig()


def translator(
    bridge: BridgeConfig, encoder: int = 6, decoder: int = 3, depth: DepthConfig = FULL, **layer: Any
) -> Translator:
    """Random weights, float64, no dropout."""
    settings = LayerConfig(width=16, ffn=24, heads=2, dropout=0.0, **layer)
    stacks = {"encoder": StackConfig(layers=encoder), "decoder": StackConfig(layers=decoder, depth=depth)}
    model = Translator(TranslatorConfig(layer=settings, bridge=bridge, **stacks), 23, 23, PAD).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


def states(model: Translator, plans: Plans | None = None) -> Tensor:
    return model(BATCH, plans or model.plan())
