"""Models that nobody trained, for benchmarks of speed: what they say is nonsense, as long as is wanted."""

import random
from pathlib import Path

import tokenizers
import torch

from anydepth.config import loads
from anydepth.data.tokenizer import SPECIAL, Tokenizer, TokenizerPair
from anydepth.models import Translator
from anydepth.nn.layers import FinalNorm
from anydepth.run import Run

FAR = 1.5
"""Times the length of a normalised state."""


@torch.no_grad()
def never_end(model: Translator, eos: int) -> Translator:
    """Changes the weights so that no state makes the end mark probable: its vector points away from a bias of the final
    norm that is longer than all that is added to it. An export ends as seldom."""
    assert isinstance(model.norm, FinalNorm)
    away = torch.nn.functional.normalize(torch.randn(model.config.layer.width), dim=0).to(model.output.weight)
    model.norm.bias.copy_(FAR * model.config.layer.width**0.5 * away)
    model.output.weight[eos] = -away
    return model


def random_tokenizer(vocabulary: int) -> Tokenizer:
    words = [*SPECIAL, *(f"w{number}" for number in range(vocabulary - len(SPECIAL)))]
    names = {name: number for number, name in enumerate(words)}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(names, unk_token=SPECIAL[-1]))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return Tokenizer(inner.to_str())


def random_run(layers: int, width: int, vocabulary: int, device: torch.device, file: Path | None = None) -> Run:
    """With as many layers on both sides and every depth up to them; outputs have one word more than their sources. The
    words are those of a tokenizer's file, if one is given."""
    tokenizer = Tokenizer(file.read_text(encoding="utf-8")) if file else random_tokenizer(vocabulary)
    vocabulary = len(tokenizer)
    stack = f'{{layers = {layers}, depth = {{type = "prefix"}}}}'
    config = loads(
        f"""
        [model]
        type = "translator"
        encoder = {stack}
        decoder = {stack}
        [model.layer]
        width = {width}
        ffn = {4 * width}
        [data]
        train = [{{type = "builtin", source = "en", target = "de", size = 1}}]
        [decoding]
        max_ratio = 1.0
        max_extra = 1
        """
    )
    torch.manual_seed(1)
    model = config.model.build(vocabulary, vocabulary, tokenizer.pad).eval()
    return Run(config, never_end(model, tokenizer.eos).to(device), TokenizerPair(tokenizer, tokenizer))


def random_sentences(count: int, vocabulary: int) -> list[list[int]]:
    """Of token ids, as long as those of a text: 27 words in the median, a tenth of them above 60."""
    draw = random.Random(1)
    lengths = [min(100, max(4, round(draw.lognormvariate(3.3, 0.6)))) for _ in range(count)]
    return [[draw.randrange(len(SPECIAL), vocabulary) for _ in range(length)] for length in lengths]
