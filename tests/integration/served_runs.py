"""Small runs for servers, all made of one that was trained on the built-in corpus."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import save_file

import anydepth
from anydepth.calibrating.calibration import Calibration, Timing, keep, origin_of
from anydepth.config import load as load_config
from anydepth.evaluation.grid import evaluate
from anydepth.serving.served import Pair
from anydepth.training.loop import train

GOLDEN = Path(__file__).parent.parent / "golden" / "model"
TEXTS = json.loads((GOLDEN.parent / "outputs.json").read_text())["sentences"]
ENGLISH_GERMAN = {Pair("en", "de"): ""}


def calibrated(folder: Path) -> Path:
    """With a depth grid and times that are given: 2-2 is the best and slowest."""
    shutil.copytree(GOLDEN, folder)
    run = anydepth.load(folder, "cpu")
    evaluate(run, TEXTS, run.translate(TEXTS), run.depths(), beam=5, batch=8, out=folder)
    timings = [
        Timing(depth=depth, batch=1, base=ms, slope=0.0, error=0.0, ratios=[1.0], lengths=[])
        for depth, ms in {"1-1": 10.0, "1-2": 20.0, "2-1": 30.0, "2-2": 80.0}.items()
    ]
    origin = origin_of(run, run.config.decoding.beam)
    keep(Calibration(origin=origin, made="", rounds=1, tokens=[10], timings=timings, speculation=[]), folder)
    return folder


def summarizing(folder: Path) -> Path:
    shutil.copytree(GOLDEN, folder)
    config = folder / "config.toml"
    config.write_text(config.read_text().replace("[data]\n", '[data]\npairs = "summaries"\n'))
    return folder


def classifying(folder: Path, labels: Sequence[str] = ("a", "b")) -> Path:
    """Untrained: it answers something."""
    folder.mkdir()
    shutil.copy(GOLDEN / "tokenizer.json", folder)
    (folder / "config.toml").write_text(f"""
[data]
train = [{{ type = "labelled", path = "none.tsv" }}]
dev = [{{ type = "labelled", path = "none.tsv" }}]
[model]
type = "classifier"
labels = {json.dumps(labels)}
layer = {{ width = 16, ffn = 32, heads = 2 }}
encoder = {{ layers = 2, depth = {{ type = "prefix" }} }}
""")
    tokenizer = anydepth.load(GOLDEN, "cpu").tokenizers.source
    model = load_config(folder / "config.toml").model.build(len(tokenizer), len(tokenizer), tokenizer.pad)
    save_file(dict(model.state_dict()), folder / "model.safetensors")
    return folder


def word_by_word(folder: Path) -> Path:
    """A classifier that gives each word a number of layers, trained for a moment on a few opinions."""
    folder.mkdir()
    opinions = {"good": ("wonderful", "lovely", "a joy"), "bad": ("dull", "awful", "a bore")}
    rows = [
        f"{label}\tthe {thing} was {word}{rest}"
        for label, words in opinions.items()
        for word in words
        for thing in ("film", "play", "music", "story", "ending")
        for rest in ("", " and we left", ", as they say")
    ]
    (folder / "rows.tsv").write_text("".join(f"{row}\n" for row in rows))
    (folder / "recipe.toml").write_text(f"""
[data]
train = [{{ type = "labelled", path = "{folder}/rows.tsv" }}]
dev = [{{ type = "labelled", path = "{folder}/rows.tsv" }}]
workers = 1
max_source = 40
tags = "begin"
[tokenizer]
vocabulary = 340
[batching]
tokens = 512
[model]
type = "classifier"
layer = {{ width = 16, ffn = 32, heads = 2 }}
[model.encoder]
layers = 4
depth = {{ type = "per-word", estimate = {{ type = "mutual-information", unit = "words" }} }}
[training]
steps = 40
device = "cpu"
validate_every = 40
save_every = 40
log_every = 40
objective = {{ type = "single" }}
optimizer = {{ learning_rate = 1e-2, warmup = 4 }}
""")
    return train(load_config(folder / "recipe.toml"), folder / "run", quiet=True)
