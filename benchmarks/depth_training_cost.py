"""What training every depth at once costs, against a plain step of the same model with the same loss kernel.

    python benchmarks/depth_training_cost.py --out cost.json

Width 512, feed-forward 1024, 4 heads, vocabulary 10,000, 16k target tokens a step, bfloat16 on a GPU. Two models: 6-6
with tied-multi's exit grid (all 36 pairs; 4 drawn), 12-6 with flexible depth's tasks (all 24; 2 x 2 drawn). Times are
means of a window of steps that draw their tasks as training does, after every set of tasks has been run once; the
memory is the most that was allocated in between.
"""

import argparse
import gc
import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from training_speed import PAD, packed, time_steps

from anydepth.data.collate import Batch
from anydepth.depth import DepthConfig
from anydepth.depth.full import FullConfig
from anydepth.depth.prefix import PrefixConfig
from anydepth.depth.subnetwork import SubnetworkConfig
from anydepth.models import StackConfig, Translator, TranslatorConfig
from anydepth.nn.layers import LayerConfig
from anydepth.objectives import ExitGridConfig, MultitaskConfig, ObjectiveConfig, SingleConfig
from anydepth.training.distributed import Ranks, pick_device
from anydepth.training.optim import OptimizerConfig, Optimizers
from anydepth.training.settings import TrainingConfig
from anydepth.training.step import Step


class Case(NamedTuple):
    name: str
    layers: tuple[int, int]
    depth: DepthConfig
    objective: ObjectiveConfig
    most_time: float
    """The bar, in plain steps of the same model."""


CASES = (
    Case("plain 6-6", (6, 6), FullConfig(), SingleConfig(), 1.0),
    Case("exit grid 6x6, all 36 pairs", (6, 6), PrefixConfig(), ExitGridConfig(), 7.5),
    Case("exit grid 6x6, 4 pairs drawn", (6, 6), PrefixConfig(), ExitGridConfig(pairs=4), 2.5),
    Case("plain 12-6", (12, 6), FullConfig(), SingleConfig(), 1.0),
    Case("flexible depth 12-6, all 24 tasks", (12, 6), SubnetworkConfig(), MultitaskConfig(), 7.5),
    Case(
        "flexible depth 12-6, 2x2 drawn",
        (12, 6),
        SubnetworkConfig(),
        MultitaskConfig(encoder_depths=2, decoder_depths=2),
        2.0,
    ),
)
MOST_MEMORY = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="steps in each timed window")
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--length", type=int, default=32, help="words a sentence")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=10_000)
    parser.add_argument("--together", type=int, default=1, help="encoder exits whose decoders run as one batch")
    parser.add_argument("--only", default="", help="cases whose names contain this, and the plain models")
    parser.add_argument("--profile", action="store_true", help="also print which kernels take the time")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    device = pick_device("auto")
    results: list[dict[str, object]] = []
    for case in CASES:
        if args.only not in case.name and not case.name.startswith("plain"):
            continue
        milliseconds, mebibytes = measure(case, args, device)
        if case.name.startswith("plain"):
            plain = milliseconds, mebibytes
        found = {
            "case": case.name,
            "milliseconds": milliseconds,
            "times_plain": milliseconds / plain[0],
            "most_time": case.most_time,
            "mebibytes": mebibytes,
            "memory_times_plain": mebibytes / plain[1],
            "most_memory": MOST_MEMORY,
        }
        results.append(found)
        print(
            f"{case.name:36s} {milliseconds:9.2f} ms  {milliseconds / plain[0]:6.2f} x (bar {case.most_time})"
            f"  {mebibytes:9.0f} MiB  {mebibytes / plain[1]:5.2f} x (bar {MOST_MEMORY})",
            flush=True,
        )
        if args.out:
            name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
            args.out.write_text(json.dumps({"device": name, "torch": torch.__version__, "cases": results}, indent=1))


def measure(case: Case, args: argparse.Namespace, device: torch.device) -> tuple[float, float]:
    """Milliseconds a step and the most memory allocated, in MiB."""
    gc.collect()  # the case before this one, whose step and graphs know each other
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(0)
    layer = LayerConfig(width=args.width, ffn=2 * args.width, heads=4, dropout=0.1)
    stacks = [StackConfig(layers=layers, depth=case.depth) for layers in case.layers]
    config = TranslatorConfig(layer=layer, encoder=stacks[0], decoder=stacks[1])
    model = Translator(config, args.vocabulary, args.vocabulary, PAD).to(device)
    optimizer = OptimizerConfig(type="adamw", learning_rate=1e-4, warmup=100, clip=1.0)
    objective = case.objective
    if not isinstance(objective, SingleConfig):
        objective = replace(objective, together=args.together)
    settings = TrainingConfig(optimizer=optimizer, objective=objective)
    step = Step(model, Optimizers(model, optimizer), settings, seed=1, ranks=Ranks(0, 1, device))
    words = [
        torch.randint(4, args.vocabulary, (args.tokens // args.length, args.length), device=device) for _ in range(2)
    ]
    batch = packed(*words)
    for tasks in () if isinstance(objective, SingleConfig) else objective.choices(model):
        if step.graphs is not None:
            step.graphs(batch, tasks, alone=True)
            model.zero_grad(set_to_none=True)

    def once(number: int) -> int:
        step(number, [batch])
        return batch.tokens

    rate = time_steps(args, device, once)
    if args.profile:
        profile(step, batch)
    most = torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else float("nan")
    return 1000 * batch.tokens / rate, most


def profile(step: Step, batch: Batch) -> None:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    with profiler(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        for number in range(1000, 1003):
            step(number, [batch])
    print(found.key_averages().table(sort_by="self_cuda_time_total", row_limit=25, max_name_column_width=90))


if __name__ == "__main__":
    main()
