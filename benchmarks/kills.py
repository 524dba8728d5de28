"""Kills a small training again and again, and shows that it ends as if nothing had happened.

    python benchmarks/kills.py                           50 SIGKILLs, at least 10 of them inside a save
    python benchmarks/kills.py --kills 200 --inside 50

One training runs undisturbed. Another one with the same recipe is killed at moments spread evenly over its steps, and
inside saves: while the half-written folder of a checkpoint is there, which is looked for again when the process is
dead. After each kill it is resumed. In the end both must have the same bits: the model, and the weights and the
optimizer of the last checkpoint.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from anydepth.data import builtin
from anydepth.files import checksum
from anydepth.training import checkpoint
from anydepth.training.journal import read_metrics

PATIENCE = 120.0
"""Seconds without a step after which something is wrong."""

RECIPE = """
[data]
train = [{{ type = "parallel", source = "{folder}/train.en", target = "{folder}/train.de" }}]
dev = {{ type = "parallel", source = "{folder}/dev.en", target = "{folder}/dev.de" }}
max_length = 100
[tokenizer]
vocabulary = 800
[batching]
tokens = 192
[model.layer]
width = 128
ffn = 512
heads = 4
[model.encoder]
layers = 2
depth = {{ type = "prefix" }}
[model.decoder]
layers = 2
depth = {{ type = "prefix" }}
[training]
steps = {steps}
save_every = {every}
keep = 3
average = 3
accumulate = 2
log_every = 1
validate_every = {validate}
validate_sentences = 0
device = "cpu"
[training.optimizer]
warmup = 50
"""


@dataclass(frozen=True)
class Moment:
    """When to kill."""

    step: float
    """After this step; what follows the point is the moment within the next."""
    files: int | None = None
    """In the first save after that, as soon as its folder has so many files; None: not in a save."""


@dataclass(frozen=True)
class Kill:
    """What a kill met with."""

    step: int
    """The last step in metrics.jsonl."""
    saved: int
    """The step of the newest checkpoint."""
    left: tuple[str, ...]
    """Files and folders of a save that was going on; empty if none was."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--inside", type=int, default=10, help="how many of them inside a save")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=15, help="steps between checkpoints")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        recipe = write_recipe(Path(folder), args.steps, args.every)
        expected = fingerprint(train_undisturbed(recipe, Path(folder) / "undisturbed"), args.steps)
        print(f"undisturbed: {args.steps} steps in {time.monotonic() - began:.0f} s\n")
        print("kill  last step  newest checkpoint  what a save left behind")
        moments = plan(args.steps, args.every, args.kills, args.inside, args.seed)
        kills = train_killed(recipe, Path(folder) / "killed", moments, args.every, verbose=True)
        found = fingerprint(Path(folder) / "killed", args.steps)
    inside, tenths = sum(bool(kill.left) for kill in kills), Counter(10 * kill.step // args.steps for kill in kills)
    print(f"\n{len(kills)} kills, {inside} of them inside a save; {time.monotonic() - began:.0f} s in all")
    print(f"after {len({kill.saved for kill in kills})} different checkpoints")
    print("in each tenth of the training:", *(tenths[tenth] for tenth in range(10)))
    for name in expected:
        same = "same" if found[name] == expected[name] else "DIFFERENT"
        print(f"{name:50} {expected[name][:16]} {found[name][:16]} {same}")
    sys.exit(found != expected or len(kills) < args.kills or inside < args.inside)


def plan(steps: int, every: int, kills: int, inside: int, seed: int = 1) -> list[Moment]:
    """One random moment in each of as many equal parts of the training; likewise for its saves, except the last few:
    a save that was missed is followed by an attempt at the next one."""
    draw = random.Random(seed)
    saves, others = max(1, steps // every - 3), kills - inside
    # a save has three files and their manifest
    moments = [
        Moment(every * (1 + int((part + draw.random()) / inside * saves)) - 0.5, files=part % 5)
        for part in range(inside)
    ]
    moments += [Moment((part + draw.random()) / others * (steps - 1)) for part in range(others)]
    return sorted(moments, key=moment_of)


def moment_of(moment: Moment) -> float:
    return moment.step


def write_recipe(folder: Path, steps: int, every: int) -> Path:
    """A recipe and its data. A save takes some tens of milliseconds, about as long as a step."""
    for split, size in (("train", 1000), ("dev", 20)):
        pairs = list(builtin.pairs("en", "de", split, size))
        for side, language in enumerate(("en", "de")):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
    path = folder / "kills.toml"
    path.write_text(RECIPE.format(folder=folder, steps=steps, every=every, validate=4 * every // 3))
    return path


def start(recipe: Path, run: Path) -> "subprocess.Popen[bytes]":
    """Begins a training, or goes on with it; what it says goes to a file beside the run."""
    command = [sys.executable, "-m", "anydepth", "train", str(recipe), "--out", str(run)]
    if (run / "config.toml").exists():
        command.append("--resume")
    with log_of(run).open("ab") as log:
        return subprocess.Popen(command, stderr=log, stdout=log, env=os.environ | {"OMP_NUM_THREADS": "1"})


def log_of(run: Path) -> Path:
    return run.with_name(f"{run.name}.log")


def train_undisturbed(recipe: Path, run: Path) -> Path:
    if start(recipe, run).wait():
        raise RuntimeError(log_of(run).read_text())
    return run


def train_killed(recipe: Path, run: Path, moments: list[Moment], every: int, verbose: bool = False) -> list[Kill]:
    """Trains to the end, but dies at these moments on the way."""
    moments, kills = list(moments), []
    while moments:
        moment = moments.pop(0)
        kills.append(kill := kill_once(recipe, run, moment))
        if verbose:
            print(f"{len(kills):4}{kill.step:11}{kill.saved:19}  {' '.join(kill.left)}", flush=True)
        if moment.files is not None and not kill.left:  # the save was quicker
            moments = sorted([*moments, Moment(kill.saved + every - 0.5, moment.files)], key=moment_of)
    train_undisturbed(recipe, run)
    if "falling back" in log_of(run).read_text():
        raise RuntimeError(f"a kill damaged a checkpoint:\n{log_of(run).read_text()}")
    return kills


def kill_once(recipe: Path, run: Path, moment: Moment) -> Kill:
    born = time.time()
    process = start(recipe, run)
    try:
        while process.poll() is None and not has_come(moment, run, born):
            if time.time() > born + PATIENCE:
                raise RuntimeError(f"no step {moment.step:.0f} in {PATIENCE:.0f} s:\n{log_of(run).read_text()}")
            time.sleep(0.002 if moment.files is None else 0.0005)
        if moment.files is None:
            time.sleep(moment.step % 1 * 0.05)  # about the time of a step
    finally:
        process.kill()
    if process.wait() != -signal.SIGKILL:
        raise RuntimeError(f"ended by itself with {process.returncode}:\n{log_of(run).read_text()}")
    saved = [checkpoint.step_of(path) for path in checkpoint.steps(run / "checkpoints")]
    return Kill(last_step(run, 0.0), max(saved, default=0), tuple(save_going_on(run, born) or ()))


def has_come(moment: Moment, run: Path, born: float) -> bool:
    if last_step(run, born) < int(moment.step):
        return False
    if moment.files is None:
        return True
    going_on = save_going_on(run, born)
    return going_on is not None and len(going_on) > moment.files


def last_step(run: Path, born: float) -> int:
    """The last step that this life has logged: what the file held before is not its own."""
    file = run / "metrics.jsonl"
    if not file.exists() or file.stat().st_mtime < born:
        return -1
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - 2000))
        whole = stream.read().rpartition(b"\n")[0].rpartition(b"\n")[2]
    return int(json.loads(whole)["step"]) if whole else -1


def save_going_on(run: Path, born: float) -> list[str] | None:
    """The folders that a save of this life has at work, with their files, or None."""
    found = []
    for part in (run / "checkpoints").glob(".part-*"):
        try:
            if part.stat().st_mtime >= born:  # else it was left by an earlier life
                found += [part.name, *sorted(file.name for file in part.iterdir())]
        except FileNotFoundError:  # renamed in between
            continue
    return found or None


def fingerprint(run: Path, steps: int) -> dict[str, str]:
    """The checksums that must not depend on kills, of a run whose metrics are complete."""
    logged = [line["step"] for line in read_metrics(run / "metrics.jsonl") if line["kind"] == "train"]
    if logged != list(range(1, steps + 1)):
        raise RuntimeError(f"{run / 'metrics.jsonl'} has steps {logged}")
    last = checkpoint.steps(run / "checkpoints")[-1]
    files = [run / "model.safetensors", last / "model.safetensors", last / "optimizer.safetensors"]
    return {str(file.relative_to(run)): checksum(file) for file in files}


if __name__ == "__main__":
    main()
