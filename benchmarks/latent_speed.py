"""What latent depth saves and costs: a decoder step against the layers selected, a training step against a plain one.

    python benchmarks/latent_speed.py --out latent.json

Decoding: one sentence, word by word, with a model of 12 encoder and 24 decoder layers whose logits select 1 to 24 of
the latter. Every plan takes the same path, the one that `translate` takes; only the number of layers differs. A line is
fitted to the milliseconds a word: the slope is what a layer costs, the intercept what is paid in any case (embedding,
final norm, output matrix). It is linear if R² > 0.98.

Training: the same model with soft gates and all terms of the loss, against plain; at most 5 % more is the aim. Times
are medians of windows that take turns.
"""

import argparse
import json
from functools import partial
from pathlib import Path

import numpy as np
import torch
from random_model import never_end
from training_speed import PAD, packed
from windows import device_name, medians

from anydepth.decoding.decoder import DecodingConfig, Marks
from anydepth.depth.full import FullConfig
from anydepth.depth.latent import Latent, LatentConfig
from anydepth.models import StackConfig, Translator, TranslatorConfig
from anydepth.nn.layers import LayerConfig
from anydepth.objectives import LatentObjectiveConfig, SingleConfig
from anydepth.plan import Plans
from anydepth.training.distributed import Ranks, pick_device
from anydepth.training.optim import OptimizerConfig, Optimizers
from anydepth.training.settings import TrainingConfig
from anydepth.training.step import Step
from anydepth.translating.searching import Asked, Searcher

BOS, EOS = 1, 2
LEAST_FIT, MOST_COST = 0.98, 1.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--encoder", type=int, default=12, help="encoder layers")
    parser.add_argument("--decoder", type=int, default=24, help="decoder layers")
    parser.add_argument("--vocabulary", type=int, default=10_000)
    parser.add_argument("--length", type=int, default=32, help="words a sentence")
    parser.add_argument("--steps", type=int, default=20, help="training steps in each window")
    parser.add_argument("--tokens", type=int, default=8192, help="target words of a training step")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch._dynamo.config.fail_on_recompile_limit_hit = True  # several models at once: none may fall back in silence
    device = pick_device("auto")
    result = {"device": device_name(device), "torch": torch.__version__}
    result |= decoding(args, device) | training(args, device)
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


# ---- decoding


def decoding(args: argparse.Namespace, device: torch.device) -> dict[str, object]:
    """Milliseconds a word by layers selected, and the line through them."""
    numbers = sorted({max(1, round(eighths * args.decoder / 8)) for eighths in range(9)})
    model = never_end(build(args, latent=True), EOS).to(device).eval()
    plans = {number: selected(model, number) for number in numbers}
    source, searcher = torch.randint(4, args.vocabulary, (1, args.length)), Searcher(model, Marks(BOS, EOS, PAD))

    def translate(number: int, words: int) -> None:
        with torch.no_grad():
            searcher.search(Asked(source, torch.tensor([words]), plans[number], "", DecodingConfig(beam=1)))

    few, many = args.length // 2, args.length * 3 // 2  # their difference leaves out the encoder
    works = {(number, words): partial(translate, number, words) for number in numbers for words in (few, many)}
    for work in works.values():
        work()
    found = medians(device, works, args.windows)
    words = [1000 * (found[number, many] - found[number, few]) / (many - few) for number in numbers]
    slope, intercept = np.polyfit(numbers, words, 1)
    fit = 1 - np.var(np.array(words) - slope * np.array(numbers) - intercept) / np.var(words)
    for number, milliseconds in zip(numbers, words):
        print(f"{number:3d} of {args.decoder} layers {milliseconds:9.3f} ms a word", flush=True)
    print(f"{slope:.4f} ms a layer, {intercept:.4f} ms in any case, R² {fit:.4f} (bar {LEAST_FIT})", flush=True)
    measured = dict(zip(map(str, numbers), words))
    line = {"milliseconds_a_layer": float(slope), "intercept": float(intercept), "r_squared": float(fit)}
    return {"decoding": {"milliseconds_a_word": measured, **line, "least_r_squared": LEAST_FIT}}


def selected(model: Translator, number: int) -> Plans:
    """The plans of logits that are above 0 for so many layers, evenly spread."""
    policy = model.decoder_depth
    assert isinstance(policy, Latent)
    chosen = {layer * policy.layers // number for layer in range(number)}
    with torch.no_grad():
        policy.logits[0].copy_(torch.tensor([1.0 if layer in chosen else -1.0 for layer in range(policy.layers)]))
    plans = model.plan()
    assert len(plans.decoder) == number
    return plans


# ---- training


def training(args: argparse.Namespace, device: torch.device) -> dict[str, object]:
    """Milliseconds a step, with soft gates and without."""
    words = [torch.randint(4, args.vocabulary, (args.tokens // args.length, args.length), device=device) for _ in "st"]
    batch = packed(*words)
    works = {}
    for name in ("plain", "soft gates"):
        model = build(args, latent=name != "plain").to(device)
        objective = LatentObjectiveConfig(decoder_layers=args.decoder // 2) if name != "plain" else SingleConfig()
        optimizer = OptimizerConfig(type="adamw", learning_rate=1e-4, warmup=100, clip=1.0)
        settings = TrainingConfig(optimizer=optimizer, objective=objective)
        step = Step(model, Optimizers(model, optimizer), settings, seed=1, ranks=Ranks(0, 1, device))
        works[name] = lambda step=step: [step(number, [batch]) for number in range(1, args.steps + 1)]
    found = {name: 1000 * spent / args.steps for name, spent in medians(device, works, args.windows).items()}
    ratio = found["soft gates"] / found["plain"]
    for name, milliseconds in found.items():
        print(f"{name:12s} {milliseconds:9.2f} ms a training step", flush=True)
    print(f"soft gates cost {ratio:.3f} x plain (bar {MOST_COST})", flush=True)
    return {"training": {"milliseconds_a_step": found, "times_plain": ratio, "most_times_plain": MOST_COST}}


def build(args: argparse.Namespace, latent: bool) -> Translator:
    layer = LayerConfig(width=args.width, ffn=2 * args.width, heads=4, dropout=0.1)
    decoder = StackConfig(layers=args.decoder, depth=LatentConfig() if latent else FullConfig())
    config = TranslatorConfig(layer=layer, encoder=StackConfig(layers=args.encoder), decoder=decoder, tie="all")
    return Translator(config, args.vocabulary, args.vocabulary, PAD)


if __name__ == "__main__":
    main()
