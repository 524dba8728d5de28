"""How much faster is depth per word than the plain encoder, and how much could it be?

    python benchmarks/perword.py                                   12 layers of width 384, on the CPU: some minutes
    python benchmarks/perword.py --device cuda --batches 1 8 32 128
    python benchmarks/perword.py --tiny                            a few seconds, to see that it works

Texts have the lengths of IMDB reviews. The plain encoder is ours, padded and packed, beside Hugging Face's BERT and
`torch.nn.TransformerEncoder` (its fast path) of the same shape; all compute the same layers on the same words. Words
with depths of their own stop after 4.5 layers on average (`--mean`): many early, some late. The bound is the ratio of
the FLOPs of all matrix products, attention included. On a GPU all run in bfloat16; packed and per-word passes are CUDA
graphs, as in `anydepth evaluate`, and for the per-word ones the same kernel by kernel stand beside: what launching
takes, which is the floor at small batches. Variants take turns, round after round, and the best round of each
counts. On a machine that others use too, `--threads 1 --clock process` counts the time of this program alone.

`anydepth evaluate` and `classify` ask a GPU about one batch after the other without waiting, and prepare the next one
while it is at work. So what counts there is a stream: 8 batches in a row, of which each takes an eighth. Beside it
stands the latency, the time of one batch from asking to answer with nothing before or after it. All variants are
measured both ways. On a CPU there is no difference.

The bars, on a GPU for streams: per-word at least 85 % of its bound against the fastest of our plain encoders, which
itself is not slower than the fastest of the others.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from anydepth.classifying.answering import Answering
from anydepth.data.labelled_batch import LabelledBatch
from anydepth.depth.full import FullConfig
from anydepth.depth.perword import PerWordConfig
from anydepth.encoder_models import Classifier, ClassifierConfig
from anydepth.models import StackConfig
from anydepth.nn.layers import LayerConfig
from anydepth.nn.perword import Words, lay_out

BAR = 0.85
STREAM = 8
"""Batches that a GPU is asked about in a row."""
VOCABULARY = 30_522
PLAIN = ("plain, padded", "plain, packed")
OTHERS = ("transformers BERT", "torch TransformerEncoder")


class Shape(NamedTuple):
    layers: int
    width: int
    ffn: int
    heads: int


class Texts(NamedTuple):
    source: Tensor
    lengths: np.ndarray
    depths: np.ndarray


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batches", type=int, nargs="+", help="texts read together, default 1 8 32")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--mean", type=float, default=4.5, help="mean depth of a word")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="0 leaves it to torch")
    parser.add_argument("--clock", choices=["wall", "process"], default="wall")
    parser.add_argument("--json", default="", metavar="FILE", help="write the figures there as well")
    parser.add_argument(
        "--picture", default="", metavar="FILE", help="texts a second by batch size (Fig. 4), .svg, .png"
    )
    parser.add_argument("--tiny", action="store_true", help="a small model, short texts and one round")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    shape = Shape(args.layers, args.width, 4 * args.width, args.width // 32)
    rounds, longest = args.rounds, 512
    if args.tiny:
        shape, rounds, longest = Shape(4, 64, 128, 2), 1, 32
    batches = args.batches or ([2] if args.tiny else [1, 8, 32])
    clock = time.process_time if args.clock == "process" else time.perf_counter
    mean = min(args.mean, shape.layers - 1)
    results = [
        measure(shape, draw(batch, shape.layers, mean, longest), args.device, rounds, clock) for batch in batches
    ]
    if args.picture:
        draw_speeds(results, args.picture)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


def measure(shape: Shape, texts: Texts, device: str, rounds: int, clock: Callable[[], float]) -> dict[str, Any]:
    batch, words = len(texts.lengths), int(texts.lengths.sum())
    variants, bounds = make_variants(shape, texts, torch.device(device))
    with torch.no_grad():
        latencies = take_turns(variants, rounds, device, clock)
        seconds = latencies if device == "cpu" else take_turns(variants, rounds, device, clock, STREAM)
    plain, others = (min(seconds[name] for name in names if name in seconds) for names in (PLAIN, OTHERS))
    print(f"\nbatch {batch}: {words} words, mean depth {texts.depths.mean():.2f} of {shape.layers}, {device}")
    for name, value in seconds.items():
        line = f"  {name:28}{1000 * value:9.2f} ms"
        if device != "cpu":
            line += f" (alone {1000 * latencies[name]:.2f})"
        if name in bounds:
            got = plain / value
            line += f"   {got:.2f}x of {bounds[name]:.2f}x possible: {got / bounds[name]:.0%} (bar {BAR:.0%})"
        print(line)
    print(f"  our plain encoder takes {plain / others:.2f} of the time of the fastest other one")
    return {
        "batch": batch,
        "device": torch.cuda.get_device_name() if device != "cpu" else f"cpu, {torch.get_num_threads()} threads",
        "words": words,
        "mean_depth": float(texts.depths.mean()),
        "milliseconds": {name: 1000 * value for name, value in seconds.items()},
        "latency_milliseconds": {name: 1000 * value for name, value in latencies.items()},
        "bounds": bounds,
        "shares": {name: plain / seconds[name] / bound for name, bound in bounds.items()},
        "plain_against_others": plain / others,
    }


def draw_speeds(results: list[dict[str, Any]], file: str) -> None:
    """Texts a second by batch size, a line for each variant."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot()
    for name in results[0]["milliseconds"]:
        points = [(one["batch"], 1000 * one["batch"] / one["milliseconds"][name]) for one in results]
        axes.plot(*zip(*points), marker="o", label=name)
    axes.set(xlabel="texts read together", ylabel="texts a second", title=results[0]["device"])
    axes.legend()
    figure.savefig(file)


def draw(batch: int, layers: int, mean: float, longest: int) -> Texts:
    """Reviews: 230 words, some 290 pieces, log-normal, cut at 512. Depths: a geometric distribution cut at the top."""
    random = np.random.default_rng(1)
    lengths = np.sort(np.clip(random.lognormal(math.log(longest / 2.05), 0.55, batch), 8, longest).astype(np.int64))
    low, high, depths = -2.0, 2.0, np.arange(1, layers + 1)
    for _ in range(60):  # the rate that gives the mean
        rate = (low + high) / 2
        shares = np.exp(-rate * depths)
        shares /= shares.sum()
        low, high = (rate, high) if (shares * depths).sum() > mean else (low, rate)
    source = np.zeros((batch, lengths.max()), dtype=np.int64)
    for row, length in zip(source, lengths):
        row[:length] = random.integers(1000, VOCABULARY, length)
    return Texts(torch.from_numpy(source), lengths, random.choice(depths, lengths.sum(), p=shares))


def make_variants(
    shape: Shape, texts: Texts, device: torch.device
) -> tuple[dict[str, Callable[[], Any]], dict[str, float]]:
    """What to time, and the speed-up that the FLOPs allow those that skip words."""
    width = texts.source.shape[1]
    everything, some = (
        lay_out(depths, texts.lengths, width) for depths in (np.full(len(texts.depths), shape.layers), texts.depths)
    )
    batch = LabelledBatch(texts.source, torch.zeros(len(texts.lengths)).long(), None, "", 0, len(texts.lengths))
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    plain, refresh, keep = (
        classifier(shape, depth).to(device)
        for depth in (FullConfig(), PerWordConfig(stopped="refresh"), PerWordConfig(stopped="keep"))
    )
    padded, packed, skipped = (batch._replace(words=words) for words in (None, everything, some))
    mask = (texts.source != 0).to(device)
    bert, torch_encoder = hugging_face(shape, device).to(kind), torch_stack(shape, device).to(kind)
    ids, states = padded.source.to(device), torch.randn(*texts.source.shape, shape.width, device=device, dtype=kind)
    variants: dict[str, Callable[[], Any]] = {
        "plain, padded": kernel_by_kernel(plain, padded, device),
        "plain, packed": passing(refresh, packed, device),
        "transformers BERT": lambda: bert(input_ids=ids, attention_mask=mask.long()),
        "torch TransformerEncoder": lambda: torch_encoder(states, src_key_padding_mask=~mask),
        "per-word, refresh": passing(refresh, skipped, device),
        "per-word, keep": passing(keep, skipped, device),
    }
    if device.type == "cuda":
        variants["refresh, kernel by kernel"] = kernel_by_kernel(refresh, skipped, device)
        variants["keep, kernel by kernel"] = kernel_by_kernel(keep, skipped, device)
    whole = flops(shape, everything, refresh=True)
    bounds = {
        "per-word, refresh": whole / flops(shape, some, refresh=True),
        "per-word, keep": whole / flops(shape, some, refresh=False),
    }
    return variants, bounds


def passing(model: Classifier, batch: LabelledBatch, device: torch.device) -> Callable[[], Any]:
    """As the product does it: recorded on a GPU, and given the batch on the host."""
    if device.type != "cuda":
        return kernel_by_kernel(model, batch, device)
    answering = Answering(model, half=True)
    return lambda: answering.ask(batch, model.plan())


def kernel_by_kernel(model: Classifier, batch: LabelledBatch, device: torch.device) -> Callable[[], Any]:
    model = deepcopy(model).bfloat16() if device.type == "cuda" else model
    given = batch.to(device)
    return lambda: model(given, model.plan())


def flops(shape: Shape, words: Words, refresh: bool) -> float:
    """Of all matrix products: every running word's projections, attention and feed-forward part, and the keys and
    values of stopped words where they are made again."""
    width, keys = shape.width, words.starts.diff().double()
    attention = sum(4 * width * float((step.starts.diff().double() * keys).sum()) for step in words.steps)
    each = 2 * (4 * width**2 + 2 * width * shape.ffn)
    again = words.sizes.refreshed_words * 2 * (2 * width**2) if refresh else 0
    return words.sizes.layer_words * each + again + attention


def classifier(shape: Shape, depth: Any) -> Classifier:
    layer = LayerConfig(
        width=shape.width, ffn=shape.ffn, heads=shape.heads, norm="post", norm_epsilon=1e-12, activation="gelu"
    )
    return (
        ClassifierConfig(
            labels=("negative", "positive"),
            layer=layer,
            encoder=StackConfig(layers=shape.layers, depth=depth),
            max_positions=512,
            embedding_norm=True,
            embedding_scale=False,
        )
        .build(VOCABULARY, 1, 0)
        .eval()
    )


def hugging_face(shape: Shape, device: torch.device) -> Any:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.ffn,
        attn_implementation="sdpa",
    )
    return BertModel(config, add_pooling_layer=False).eval().to(device)


def torch_stack(shape: Shape, device: torch.device) -> nn.Module:
    """Without embeddings: it starts ahead."""
    layer = nn.TransformerEncoderLayer(shape.width, shape.heads, shape.ffn, activation="gelu", batch_first=True)
    return nn.TransformerEncoder(layer, shape.layers, enable_nested_tensor=True).eval().to(device)


def take_turns(
    variants: dict[str, Callable[[], Any]], rounds: int, device: str, clock: Callable[[], float], batches: int = 1
) -> dict[str, float]:
    """The best time of each for a batch, asked about so many of them before anybody waits."""
    best = dict.fromkeys(variants, math.inf)
    for number in range(rounds + 1):
        for name, run in variants.items():
            start = clock()
            for _ in range(batches):
                run()
            if device != "cpu":
                torch.cuda.synchronize()
            if number:  # the first round warms up
                best[name] = min(best[name], (clock() - start) / batches)
    return best


if __name__ == "__main__":
    main()
