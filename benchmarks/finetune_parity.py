"""Is a BERT fine-tuned here as good as one fine-tuned with Hugging Face's `transformers`?

    python benchmarks/finetune_parity.py recipes/depth-adaptive/trec.toml --seeds 1,2,3
    python benchmarks/finetune_parity.py recipes/depth-adaptive/imdb.toml --seeds 1,2,3 --layers 12
    python benchmarks/finetune_parity.py recipes/depth-adaptive/trec.toml --set training.steps=300     minutes on a CPU

The plain model of a recipe is trained with `anydepth` and, with the same weights, texts, batches in the same order,
optimizer and schedule, by a plain PyTorch loop around `transformers`' BERT under the same head: ReLU of maximum and
mean over the words, one matrix. Dropout and the new head are drawn anew for each. Both keep the weights of the last
step and answer all test texts. The bar: the means over the seeds differ by one point at most.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anydepth.config import Config, load
from anydepth.data.batching import IndexBatch
from anydepth.data.collate import pad_rows
from anydepth.data.store import Store, tokenize_all
from anydepth.depth.full import FullConfig
from anydepth.encoder_models import ClassifierConfig
from anydepth.evaluation.labels import accuracy
from anydepth.run import load as load_run
from anydepth.tasks.classification import Classification, with_labels
from anydepth.training.data import TrainingData, prepare
from anydepth.training.distributed import join
from anydepth.training.loop import train
from anydepth.training.optim import learning_rate

BAR = 1.0
"""Points of accuracy."""
TEXTS = 64
"""Of the test set, answered together."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--layers", type=int, default=6, help="6, or a multiple: layers in a row several times")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="changes to the recipe")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    args = parser.parse_args()
    recipe = plain(load(args.recipe, args.set), args.layers)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        recipe = replace(recipe, data=replace(recipe.data, cache=recipe.data.cache or f"{scratch}/tokenized"))
        for seed in map(int, args.seeds.split(",")):
            config, row = replace(recipe, seed=seed), {"seed": float(seed)}
            for name, tune in (("ours", tune_ours), ("transformers", tune_theirs)):
                start = time.monotonic()
                row |= {name: tune(config, Path(scratch) / f"{name}-{seed}"), f"{name}_s": time.monotonic() - start}
            rows.append(row)
            print("  ".join(f"{name} {value:.2f}" for name, value in row.items()), flush=True)
    summary = summarise(rows)
    print("  ".join(f"{name} {value:.2f}" for name, value in summary.items()))
    print(f"the means differ by {summary['difference']:+.2f} points (bar: {BAR:.0f})")
    if args.json:
        facts = {"recipe": str(args.recipe), "layers": args.layers, "steps": recipe.training.steps, "set": args.set}
        args.json.write_text(json.dumps(facts | {"rows": rows} | summary, indent=1) + "\n", encoding="utf-8")


def plain(recipe: Config, layers: int) -> Config:
    """The plain model of a recipe, judged by its last weights."""
    assert isinstance(recipe.model, ClassifierConfig)
    encoder = replace(recipe.model.encoder, layers=layers, depth=FullConfig())
    training = replace(recipe.training, validate_every=0, save_every=recipe.training.steps)
    return with_labels(replace(recipe, model=replace(recipe.model, encoder=encoder), training=training))


def summarise(rows: list[dict[str, float]]) -> dict[str, float]:
    ours, theirs = ([row[name] for row in rows] for name in ("ours", "transformers"))
    apart = [mine - other for mine, other in zip(ours, theirs)]
    error = statistics.stdev(apart) / len(apart) ** 0.5 if len(apart) > 1 else float("nan")
    means = statistics.mean(ours), statistics.mean(theirs)
    return {"ours": means[0], "transformers": means[1], "difference": means[0] - means[1], "standard_error": error}


def tune_ours(config: Config, out: Path) -> float:
    train(config, out, quiet=True)
    run = load_run(out, config.training.device)
    task = Classification(run.config, run.tokenizers)
    found, right = task.predict(run.classifier, test_sets(config, out), run.plan())
    torch.compiler.reset()
    return accuracy(found, right)


def tune_theirs(config: Config, out: Path) -> float:
    out.mkdir()
    data = prepare(config, out, join(config.training.device), quiet=True)
    torch.manual_seed(config.seed)
    model = Tuned(config, data.tokenizers.source.pad).to(data.device)
    settings, model = config.training, model.train()
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    optimizer = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": settings.optimizer.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ],
        betas=settings.optimizer.betas,
        eps=settings.optimizer.epsilon,
        fused=True,
    )
    for step, (words, labels) in zip(range(1, settings.steps + 1), texts_of(data)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings.optimizer, step, settings.steps)
        with half(data.device):
            logits = model(words)
        F.cross_entropy(logits.float(), labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), settings.optimizer.clip)
        optimizer.step()
        optimizer.zero_grad()
    return score(model.eval(), test_sets(config, out), data)


class Tuned(nn.Module):
    """BERT of `transformers`, and the classifier's head."""

    def __init__(self, config: Config, pad: int) -> None:
        from transformers import AutoModel

        super().__init__()
        self.pad, layer = pad, config.model.layer
        self.bert = AutoModel.from_pretrained(
            config.training.start_from,
            add_pooling_layer=False,
            hidden_dropout_prob=layer.dropout,
            attention_probs_dropout_prob=layer.attention_dropout,
            attn_implementation="sdpa",
            dtype=torch.float32,
        )
        there, wanted = self.bert.encoder.layer, config.model.encoder.layers
        self.bert.encoder.layer = nn.ModuleList(deepcopy(there[n * len(there) // wanted]) for n in range(wanted))
        assert isinstance(config.model, ClassifierConfig)
        self.output = nn.Linear(2 * layer.width, len(config.model.labels))
        nn.init.normal_(self.output.weight, std=0.02)
        nn.init.zeros_(self.output.bias)

    def forward(self, words: Tensor) -> Tensor:
        real = words != self.pad
        states = self.bert(input_ids=words, attention_mask=real.long()).last_hidden_state.float()
        highest = states.masked_fill(~real[:, :, None], float("-inf")).amax(1)
        mean = (states * real[:, :, None]).sum(1) / real.sum(1, keepdim=True)
        return self.output(F.relu(torch.cat([highest, mean], 1)))


def half(device: torch.device) -> Any:
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def texts_of(data: TrainingData) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches of our training, padded."""
    for corpus, texts in data.batches:
        yield padded(data, data.batches.stores[corpus], IndexBatch(corpus, texts).pairs)


def padded(data: TrainingData, store: Store, texts: np.ndarray) -> tuple[Tensor, Tensor]:
    assert isinstance(data.task, Classification)
    words = pad_rows(*store.source(texts), store.source_pad, 8)
    labels = torch.from_numpy(data.task.numbers(store)[store.labels(texts)])
    return words.to(data.device, non_blocking=True), labels.to(data.device, non_blocking=True)


@torch.inference_mode()
def score(model: nn.Module, stores: list[Store], data: TrainingData) -> float:
    found, right = [], []
    for store in stores:
        order = np.argsort(store.source_lengths, kind="stable")
        for start in range(0, len(order), TEXTS):
            words, labels = padded(data, store, order[start : start + TEXTS])
            with half(data.device):
                found.append(model(words).argmax(-1))
            right.append(labels)
    return accuracy(torch.cat(found).cpu().numpy(), torch.cat(right).cpu().numpy())


def test_sets(config: Config, out: Path) -> list[Store]:
    from anydepth.data.tokenizer import TokenizerPair

    return tokenize_all(config.data, "test", TokenizerPair.load(out), out / "data")


if __name__ == "__main__":
    main()
