"""Small masked language models, their tokenizer and batches, for several tests."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from conftest import FULL, PAD

from anydepth.data.corpora import DataConfig, Text
from anydepth.data.cutting import BatchingConfig, Limits
from anydepth.data.masking import MaskedBatch
from anydepth.data.store import Store, tokenize
from anydepth.data.tokenizer import MASK, Tokenizer, TokenizerConfig, TokenizerPair
from anydepth.data.tokenizer_training import train_tokenizer
from anydepth.depth import DepthConfig
from anydepth.encoder_models import MaskedLM, MaskedLMConfig
from anydepth.models import StackConfig
from anydepth.nn.layers import LayerConfig

VOCABULARY = 23


def tiny_masked_lm(depth: DepthConfig = FULL, layers: int = 4, mix: Any = "residual") -> MaskedLM:
    """A random model of a few thousand weights, without dropout."""
    norm = "none" if depth.type == "rezero" else "pre"
    layer = LayerConfig(width=16, ffn=24, heads=2, norm=norm, dropout=0.0)
    stack = StackConfig(layers=layers, depth=depth, mix=mix)
    model = MaskedLM(MaskedLMConfig(layer=layer, encoder=stack), VOCABULARY, PAD)
    for parameter in model.parameters():  # also those that start at 0 or 1
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def masked_batch(lengths: list[int]) -> MaskedBatch:
    """Padded random sentences; the first and the third word of each are to be found, and one slot is free."""
    generator = torch.Generator().manual_seed(1)
    width = max(lengths)
    rows = torch.full((len(lengths), width), PAD)
    for row, size in zip(rows, lengths):
        row[:size] = torch.randint(4, VOCABULARY, (size,), generator=generator)
    slots = [row * width + place for row in range(len(lengths)) for place in (0, 2)]
    words = torch.randint(4, VOCABULARY, (len(slots),), generator=generator)
    return MaskedBatch(
        source=rows,
        slots=torch.tensor([*slots, 0]),
        target_out=torch.tensor([*words.tolist(), PAD]),
        packing=None,
        key="",
        tokens=sum(lengths),
        sentences=len(lengths),
        predictions=len(slots),
    )


def tokenizer() -> Tokenizer:
    texts = ["one two three four five six seven eight nine ten"] * 4
    return train_tokenizer(texts, TokenizerConfig(vocabulary=300)).with_tokens([MASK])


def text_store(folder: Path, tokens: Tokenizer, sentences: int = 400) -> Store:
    """Numbers in words, some sentences longer than others."""
    names = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    random = np.random.default_rng(1)
    lines = [" ".join(random.choice(names, random.integers(1, 20))) for _ in range(sentences)]
    file = folder / "text.txt"
    file.write_text("".join(f"{line}\n" for line in lines))
    corpus = Text(path=str(file), key="en")
    return tokenize(corpus, "train", TokenizerPair(tokens, tokens), folder / "store", DataConfig(train=(corpus,)))


def limits(store: Store, layout: Any, tokens: int = 512) -> Limits:
    return Limits.of([store], BatchingConfig(tokens=tokens, layout=layout))
