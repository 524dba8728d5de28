"""A training of a few thousand weights that takes a second, and what there is to compare of its run."""

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from anydepth.config import Config, loads
from anydepth.data.builtin import pairs
from anydepth.files import checksum
from anydepth.training import checkpoint
from anydepth.training.journal import Journal, read_metrics

NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]

RECIPE = """
seed = 3
[data]
train = [
    { type = "parallel", source = "FOLDER/train.source", target = "FOLDER/train.target" },
    { type = "parallel", source = "FOLDER/more.source", target = "FOLDER/more.target" },
]
dev = { type = "parallel", source = "FOLDER/dev.source", target = "FOLDER/dev.target" }
temperature = 2.0
workers = 1
[tokenizer]
vocabulary = 300
[batching]
tokens = 128
window = 40
[model.layer]
width = 16
ffn = 32
heads = 2
dropout = 0.1
attention_dropout = 0.1
activation_dropout = 0.1
[model.encoder]
layers = 2
depth = { type = "prefix" }
[model.decoder]
layers = 2
depth = { type = "prefix" }
[training]
steps = 12
accumulate = 2
device = "cpu"
log_every = 1
log_gradients = true
save_every = 3
keep = 3
average = 2
validate_every = 5
validate_sentences = 0
[training.optimizer]
learning_rate = 1e-2
warmup = 4
clip = 1.0
"""


def write_corpora(folder: Path) -> None:
    """Numbers in words; the translation is in capitals and from right to left."""
    draw = random.Random(1)
    for name, size in (("train", 80), ("more", 30), ("dev", 20)):
        lines = [draw.choices(NUMBERS, k=draw.randint(1, 8)) for _ in range(size)]
        (folder / f"{name}.source").write_text("".join(f"{' '.join(line)}\n" for line in lines))
        (folder / f"{name}.target").write_text("".join(f"{' '.join(line[::-1]).upper()}\n" for line in lines))


def recipe(folder: Path) -> Path:
    path = folder / "tiny.toml"
    if not path.exists():
        write_corpora(folder)
        path.write_text(RECIPE.replace("FOLDER", str(folder)))
    return path


def config(folder: Path, *changes: str) -> Config:
    return loads(recipe(folder).read_text(), changes)


class Crash(Exception):
    """Stands for anything that ends a process in the middle."""


@contextmanager
def when(step: int, kind: str, happens: Any) -> Iterator[None]:
    """Calls `happens` once, right after the training has written this line of metrics.jsonl."""
    write, waiting = Journal.write, [happens]

    def write_and_call(journal: Journal, line: dict[str, Any]) -> None:
        write(journal, line)
        if (line["step"], line["kind"]) == (step, kind) and waiting:
            waiting.pop()()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "write", write_and_call)
        yield
    assert not waiting, f"the training never came to {kind} {step}"


def crash() -> None:
    raise Crash


def outcome(run: Path) -> dict[str, Any]:
    """All that must not depend on interruptions: everything in the run but its times."""
    found: dict[str, Any] = {"model": checksum(run / "model.safetensors"), "metrics": metrics(run)}
    for path in checkpoint.steps(run / "checkpoints"):
        assert checkpoint.damage(path) is None
        state = json.loads((path / "state.json").read_text())
        del state["progress"]["seconds"], state["metrics"]
        sums = [checksum(path / f"{name}.safetensors") for name in ("model", "optimizer")]
        found[path.name] = (*sums, state)
    return found


def metrics(run: Path) -> list[dict[str, Any]]:
    timed = ("seconds", "tokens_per_second")
    lines = read_metrics(run / "metrics.jsonl")
    return [{name: value for name, value in line.items() if name not in timed} for line in lines]


def all_files(run: Path) -> dict[str, str]:
    return {str(file.relative_to(run)): checksum(file) for file in run.rglob("*") if file.is_file()}


def shrunk(folder: Path) -> list[str]:
    """Settings that make any translation recipe tiny: narrow layers, a few short sentences written to the folder."""
    settings = []
    for split, size in (("train", 8), ("dev", 1), ("test", 4)):
        short = sorted(pairs("de", "en", split, 100), key=lambda pair: len("".join(pair)))[:size]
        for side, language in enumerate(("de", "en")):
            (folder / f"{split}.{language}").write_text("".join(f"{pair[side]}\n" for pair in short))
        corpus = f'{{type="parallel", source="{folder}/{split}.de", target="{folder}/{split}.en"}}'
        settings.append(f"data.{split}={f'[{corpus}]' if split == 'train' else corpus}")
    settings += ["data.workers=1", "tokenizer.vocabulary=300", "training.device=cpu", "training.optimizer.warmup=1"]
    settings += ["model.layer.width=16", "model.layer.ffn=16", "model.layer.heads=2", "training.validate_sentences=0"]
    return settings
