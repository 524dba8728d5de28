"""A wider run that says what a trained one says, for benchmarks: the time of a large model, with the words, the drafts
and the exits of a small one, which is trained in minutes.

    python benchmarks/wider.py runs/small --times 2 --ffn 2048 --vocabulary 16000 --out runs/wide

Every state is there several times side by side, which layer norms do not see; a product sums over all copies of its
input and divides by their number. Words that are added to the vocabulary have logits of 0 and stand in no text. For
translators with pre-norm layers, one tokenizer, and none but the usual parts (no multiscale contexts).
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

import anydepth
from anydepth.data.tokenizer import Tokenizer, TokenizerPair
from anydepth.interop.extract import write
from anydepth.nn.embeddings import Embedding
from anydepth.run import Run
from anydepth.training.checkpoint import weights

SECTIONS = {"qkv": 3, "key_value": 2}
"""Vectors that one projection makes; each is widened by itself."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--times", type=int, default=2, help="the width and the heads")
    parser.add_argument("--ffn", type=int, required=True, help="a multiple of the run's")
    parser.add_argument("--vocabulary", type=int, required=True, help="no smaller than the run's")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    run = anydepth.load(args.run, "cpu")
    layer, words = run.config.model.layer, len(run.tokenizers.target)
    if layer.norm != "pre" or args.ffn % layer.ffn or args.vocabulary < words:
        parser.error(f"expected pre-norm layers, a multiple of {layer.ffn} and at least {words} words")
    wide = widened(run, args.times, args.ffn, args.vocabulary)
    write(wide, wide.config, weights(wide.model), args.out)


@torch.no_grad()
def widened(run: Run, times: int, ffn: int, vocabulary: int) -> Run:
    tokenizer, layer = more_words(run.tokenizers.target, vocabulary), run.config.model.layer
    layer = replace(layer, width=times * layer.width, heads=times * layer.heads, ffn=ffn)
    # waves of another width would be others; and embeddings and output need different factors
    config = replace(run.config, model=replace(run.config.model, layer=layer, positions="learned", tie="none"))
    model = config.model.build(vocabulary, vocabulary, tokenizer.pad).eval()
    parts = dict(run.translator.named_modules())
    for name, part in model.named_modules():
        if isinstance(part, nn.Linear):
            widen_linear(parts[name], part, SECTIONS.get(name.rpartition(".")[2], 1))
        elif isinstance(part, nn.LayerNorm):
            part.weight.copy_(parts[name].weight.repeat(times))
            part.bias.copy_(parts[name].bias.repeat(times))
    for name in ("source", "target"):
        widen_embedding(getattr(run.translator, name), getattr(model, name), times)
    fill(model.output.weight, run.translator.output.weight.repeat(1, times) / times)
    return Run(config, model, TokenizerPair(tokenizer, tokenizer))


def widen_linear(small: nn.Module, wide: nn.Linear, sections: int) -> None:
    assert isinstance(small, nn.Linear)
    copies_out, copies_in = wide.out_features // small.out_features, wide.in_features // small.in_features
    rows = small.weight.view(sections, -1, small.in_features).repeat(1, copies_out, copies_in) / copies_in
    wide.weight.copy_(rows.flatten(0, 1))
    if wide.bias is not None:
        wide.bias.copy_(small.bias.view(sections, -1).repeat(1, copies_out).flatten())


def widen_embedding(small: Embedding, wide: Embedding, times: int) -> None:
    fill(wide.words.weight, small.words.weight.repeat(1, times) * (small.scale / wide.scale))
    assert wide.learned is not None
    wide.learned.weight.copy_(small.places(torch.arange(small.longest)).repeat(1, times))


def fill(matrix: Tensor, first: Tensor) -> None:
    matrix.zero_()
    matrix[: len(first)] = first


def more_words(tokenizer: Tokenizer, count: int) -> Tokenizer:
    content = json.loads(tokenizer.json)
    words: dict[str, int] = content["model"]["vocab"]
    words |= {f"unused {number}": number for number in range(len(words), count)}
    return Tokenizer(json.dumps(content, ensure_ascii=False))


if __name__ == "__main__":
    main()
