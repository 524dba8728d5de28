"""Small classifiers and their batches, for several tests."""

from typing import Any

import torch
from conftest import FULL, PAD

from anydepth.classifying.labels import labelled
from anydepth.classifying.leaving import Rule
from anydepth.data.labelled_batch import LabelledBatch
from anydepth.depth import DepthConfig
from anydepth.encoder_models import Classifier, ClassifierConfig
from anydepth.models import StackConfig
from anydepth.nn.layers import LayerConfig

VOCABULARY = 23
LABELS = ("a", "b", "c")


def tiny_classifier(
    depth: DepthConfig = FULL, layers: int = 4, norm: Any = "pre", width: int = 16, **settings: Any
) -> Classifier:
    """A random model of a few thousand weights, without dropout."""
    layer = LayerConfig(width=width, ffn=24, heads=2, norm=norm, dropout=0.0)
    stack = StackConfig(layers=layers, depth=depth)
    model = Classifier(ClassifierConfig(labels=LABELS, layer=layer, encoder=stack, **settings), VOCABULARY, PAD)
    for parameter in model.parameters():  # also those that start at 0 or 1
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def undecided(depth: DepthConfig, layers: int, norm: Any, **settings: Any) -> Classifier:
    """Texts leave it at different exits."""
    model = tiny_classifier(depth, layers, norm, **settings)
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):  # or texts would be all alike
            module.weight.data.add_(1)
            module.bias.data.zero_()
    model.output_bias.data.zero_()
    return model


def sure(model: Classifier, ids: list[list[int]], share: float) -> Rule:
    """With a confidence that this share of the answers of all exits does not have."""
    batch = labelled(ids, PAD, "")
    answers = torch.stack([model.logits(model(batch, model.plan(depth))) for depth in model.depths()])
    return Rule(confidence=float(answers.softmax(-1).amax(-1).detach().quantile(share)))


def labelled_batch(lengths: list[int], only: int | None = None) -> LabelledBatch:
    """Padded random texts with random labels, or only one of them, without padding."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.full((len(lengths), max(lengths)), PAD)
    for row, size in zip(rows, lengths):
        row[:size] = torch.randint(4, VOCABULARY, (size,), generator=generator)
    labels = torch.randint(0, len(LABELS), (len(lengths),), generator=generator)
    if only is not None:
        rows, labels, lengths = rows[only : only + 1, : lengths[only]], labels[only : only + 1], [lengths[only]]
    return LabelledBatch(
        source=rows, target_out=labels, packing=None, key="", tokens=sum(lengths), sentences=len(lengths)
    )
