"""What 72 encoder layers cost with multiscale collaboration: a training step and decoding, against 6 layers.

    python benchmarks/multiscale_speed.py --out multiscale.json

Width 256, feed-forward 512, 4 heads, vocabulary 10,152, 6 decoder layers. Training: 16k target words a step; the aim is
that 72 layers take at most 0.9 times as much longer as they have more FLOPs of weights (the paper: 30 hours against 17,
which does not follow from FLOPs). Decoding: 32 sentences, beam 5, of a fixed length, on the path that `translate`
takes; the paper has 1340 words a second with 72 layers, 1736 with 6 and 1800 with 6 plain ones (77 and 74 %). Times are
medians of windows that take turns.
"""

import argparse
import json
from pathlib import Path

import torch
from random_model import never_end
from training_speed import PAD, packed
from windows import device_name, medians

from anydepth.decoding.decoder import DecodingConfig, Marks
from anydepth.describe import describe_plan
from anydepth.models import BridgeConfig, StackConfig, Translator, TranslatorConfig
from anydepth.nn.bridge import LastStateConfig
from anydepth.nn.layers import LayerConfig
from anydepth.nn.multiscale import MultiscaleConfig
from anydepth.training.distributed import Ranks, pick_device
from anydepth.training.optim import OptimizerConfig, Optimizers
from anydepth.training.settings import TrainingConfig
from anydepth.training.step import Step
from anydepth.translating.searching import Asked, Searcher

BOS, EOS = 1, 2
MOST_OF_FLOPS = 0.9


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--shallow", type=int, default=6, help="encoder layers of the shallow model")
    parser.add_argument("--deep", type=int, default=72, help="encoder layers of the deep model")
    parser.add_argument("--decoder", type=int, default=6, help="decoder layers, and blocks")
    parser.add_argument("--vocabulary", type=int, default=10_152)
    parser.add_argument("--length", type=int, default=32, help="words a sentence")
    parser.add_argument("--tokens", type=int, default=16_384, help="target words of a training step")
    parser.add_argument("--steps", type=int, default=20, help="training steps in each window")
    parser.add_argument("--sentences", type=int, default=32, help="translated together")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--out", type=Path)
    return parser.parse_args(given)


def main() -> None:
    args = arguments()
    torch.manual_seed(0)
    torch._dynamo.config.fail_on_recompile_limit_hit = True  # several models at once: none may fall back in silence
    device = pick_device("auto")
    result = {"device": device_name(device), "torch": torch.__version__}
    built = models(args, device)
    result |= decoding(args, device, built) | training(args, device, built)
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


def models(args: argparse.Namespace, device: torch.device) -> dict[str, Translator]:
    """A plain one, a shallow and a deep one with multiscale collaboration."""
    built = {
        f"plain {args.shallow}": build(args, args.shallow, LastStateConfig()),
        f"multiscale {args.shallow}": build(args, args.shallow, MultiscaleConfig()),
        f"multiscale {args.deep}": build(args, args.deep, MultiscaleConfig()),
    }
    return {name: never_end(model, EOS).to(device).eval() for name, model in built.items()}


def build(args: argparse.Namespace, layers: int, bridge: BridgeConfig) -> Translator:
    layer = LayerConfig(width=args.width, ffn=2 * args.width, heads=4, dropout=0.1)
    stacks = {"encoder": StackConfig(layers=layers), "decoder": StackConfig(layers=args.decoder)}
    config = TranslatorConfig(layer=layer, bridge=bridge, tie="all", **stacks)
    return Translator(config, args.vocabulary, args.vocabulary, PAD)


def training(args: argparse.Namespace, device: torch.device, models: dict[str, Translator]) -> dict[str, object]:
    """Milliseconds a step, and how they grow against the FLOPs of the weights."""
    words = [torch.randint(4, args.vocabulary, (args.tokens // args.length, args.length), device=device) for _ in "st"]
    batch = packed(*words)
    works = {}
    for name, model in models.items():
        optimizer = OptimizerConfig(type="adamw", learning_rate=1e-4, warmup=100, clip=1.0)
        settings = TrainingConfig(optimizer=optimizer)
        step = Step(model.train(), Optimizers(model, optimizer), settings, seed=1, ranks=Ranks(0, 1, device))
        works[name] = lambda step=step: [step(number, [batch]) for number in range(1, args.steps + 1)]
    found = {name: 1000 * spent / args.steps for name, spent in medians(device, works, args.windows).items()}
    flops = {name: describe_plan(model, model.plan())["flops"] for name, model in models.items()}
    _, shallow, deep = models
    time, work = found[deep] / found[shallow], flops[deep] / flops[shallow]
    for name, milliseconds in found.items():
        print(f"{name:16s} {milliseconds:9.2f} ms a training step", flush=True)
    print(f"{deep} takes {time:.2f} x {shallow}, {work:.2f} x its FLOPs: {time / work:.3f} (bar {MOST_OF_FLOPS})")
    ratios = {"times": time, "times_flops": work, "of_flops": time / work, "most_of_flops": MOST_OF_FLOPS}
    return {"training": {"milliseconds_a_step": found, **ratios}}


# ---- decoding


def decoding(args: argparse.Namespace, device: torch.device, models: dict[str, Translator]) -> dict[str, object]:
    """Words a second, by the path that `translate` takes: on a GPU, one that replays."""
    source = torch.randint(4, args.vocabulary, (args.sentences, args.length))
    lengths, settings = torch.full((args.sentences,), args.length), DecodingConfig(beam=args.beam)
    searchers = {name: Searcher(model, Marks(BOS, EOS, PAD)) for name, model in models.items()}

    def translate(name: str) -> None:
        with torch.no_grad():
            searchers[name].search(Asked(source, lengths, models[name].plan(), "", settings))

    for name in models:
        translate(name)
    works = {name: lambda name=name: translate(name) for name in models}
    spent = medians(device, works, args.windows)
    found = {name: args.sentences * args.length / seconds for name, seconds in spent.items()}
    plain, shallow, deep = models
    for name, rate in found.items():
        print(f"{name:16s} {rate:9.0f} words a second", flush=True)
    shares = {f"of {name}": found[deep] / found[name] for name in (shallow, plain)}
    print(f"{deep} has {', '.join(f'{share:.1%} {name}' for name, share in shares.items())}", flush=True)
    return {"decoding": {"words_a_second": found, "shares": shares, "paper": {"of 6": 0.77, "of plain 6": 0.74}}}


if __name__ == "__main__":
    main()
