"""Does depth matter on the built-in corpus? A 1-1 and a 6-6 model, trained for the same steps, several seeds.

    python benchmarks/depth_matters.py --seeds 3        about a quarter of an hour a seed on two cores

The bar is 5 chrF on the test set between them, with every seed. Words are spelled out in short pieces (a vocabulary of
400), so that a model has to put them together before it can translate them. Results are kept in --out: call it again
to go on.
"""

import argparse
import json
import sys
from pathlib import Path

import anydepth
from anydepth.config import Config, loads
from anydepth.evaluation.metrics import score
from anydepth.evaluation.texts import read_test_set
from anydepth.training.loop import train

BAR = 5.0

RECIPE = """
[data]
train = [{ type = "builtin", source = "SOURCE", target = "TARGET", size = 100_000 }]
dev = { type = "builtin", source = "SOURCE", target = "TARGET", size = 200 }
test = { type = "builtin", source = "SOURCE", target = "TARGET", size = 500 }
[tokenizer]
vocabulary = 400
[model.layer]
ffn = 512
heads = 4
dropout = 0.0
[training]
validate_every = 1000
validate_sentences = 100
[training.optimizer]
type = "adamw"
learning_rate = 2e-3
warmup = 500
clip = 1.0
schedule = "linear"
[decoding]
beam = 1
batch = 256
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--pair", default="en-de", help="languages, source-target")
    parser.add_argument("--depths", type=int, nargs="+", default=[1, 6], help="layers of either stack")
    parser.add_argument("--out", type=Path, default=Path("runs/depth-matters"))
    args = parser.parse_args()
    table = {
        seed: {
            depth: measured(recipe(args, depth, seed), args.out / f"{depth}-{depth}-seed-{seed}")
            for depth in args.depths
        }
        for seed in range(1, args.seeds + 1)
    }
    print("seed  " + "  ".join(f"{depth}-{depth} chrF" for depth in args.depths) + "  difference")
    for seed, found in table.items():
        gap = found[args.depths[-1]] - found[args.depths[0]]
        print(f"{seed:4d}  " + "  ".join(f"{found[depth]:8.2f}" for depth in args.depths) + f"  {gap:10.2f}")
    gaps = [found[args.depths[-1]] - found[args.depths[0]] for found in table.values()]
    (args.out / "depth_matters.json").write_text(json.dumps(table, indent=1))
    if min(gaps) < BAR:
        sys.exit(f"the smallest difference is {min(gaps):.2f} chrF, below the bar of {BAR}")


def recipe(args: argparse.Namespace, depth: int, seed: int) -> Config:
    source, target = args.pair.split("-")
    return loads(
        RECIPE.replace("SOURCE", source).replace("TARGET", target),
        [
            f"seed={seed}",
            f"training.steps={args.steps}",
            f"training.save_every={args.steps}",
            f"batching.tokens={args.tokens}",
            f"model.layer.width={args.width}",
            f"model.encoder.layers={depth}",
            f"model.decoder.layers={depth}",
            f"data.cache={args.out / 'cache'}",
        ],
    )


def measured(config: Config, folder: Path) -> float:
    """chrF on the test set after training, or what an earlier call found."""
    result = folder / "result.json"
    if not result.exists():
        train(config, folder, resume=(folder / "config.toml").exists())
        source, reference, _ = read_test_set(folder)
        scores = score(anydepth.load(folder).translate(source), reference)
        result.write_text(json.dumps({"chrf": scores.chrf, "bleu": scores.bleu}))
    return float(json.loads(result.read_text())["chrf"])


if __name__ == "__main__":
    main()
