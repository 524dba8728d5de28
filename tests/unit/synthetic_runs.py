"""Run folders as training and evaluation leave them, made of toy translations that get better with depth."""

import json
import math
import random
from functools import cache
from pathlib import Path

from anydepth.config import dump, loads
from anydepth.data.tokenizer import TokenizerConfig, TokenizerPair
from anydepth.data.tokenizer_training import train_tokenizer
from anydepth.evaluation.cells import layers
from anydepth.evaluation.languages import summed_up
from anydepth.evaluation.metrics import Scorer
from anydepth.evaluation.samples import choose_samples

PLACES = [("Berlin", "Berlin"), ("Köln", "Cologne"), ("Wien", "Vienna"), ("München", "Munich"), ("Genf", "Geneva")]
THINGS = [("Brot", "bread"), ("Auto", "car"), ("Haus", "house"), ("Fahrrad", "bicycle"), ("Zimmer", "room")]
MONTHS = [("März", "March"), ("Mai", "May"), ("Juni", "June"), ("Oktober", "October"), ("Dezember", "December")]
NUMBERS = [("zwölf", "twelve"), ("vierzig", "forty"), ("siebzehn", "seventeen"), ("neunzig", "ninety")]


def toy_test_set(sentences: int = 60) -> tuple[list[str], list[str]]:
    draw = random.Random(1)
    pairs = []
    for _ in range(sentences):
        place, thing, month, number = (draw.choice(words) for words in (PLACES, THINGS, MONTHS, NUMBERS))
        day = draw.randint(1, 28)
        pairs.append(
            draw.choice(
                [
                    (
                        f"Am {day}. {month[0]} kostet das {thing[0]} in {place[0]} {number[0]} Euro.",
                        f"On {month[1]} {day} the {thing[1]} in {place[1]} costs {number[1]} euros.",
                    ),
                    (
                        f"Von {place[0]} bis zum {thing[0]} sind es {number[0]} Kilometer, sagte sie im {month[0]}.",
                        f"It is {number[1]} kilometres from {place[1]} to the {thing[1]}, she said in {month[1]}.",
                    ),
                ]
            )
        )
    return [source for source, _ in pairs], [reference for _, reference in pairs]


def toy_translation(reference: list[str], encoder: int, decoder: int, skill: float) -> list[str]:
    """The reference with errors: fewer with every layer, and the errors of a depth include those of deeper ones."""
    wrong = 0.4 - skill + 0.12 * math.exp(-0.6 * (encoder - 1)) + 0.1 * math.exp(-0.9 * (decoder - 1))
    words = sorted({word for sentence in reference for word in sentence.split()})
    outputs = []
    for line, sentence in enumerate(reference):
        said = []
        for position, word in enumerate(sentence.split()):
            draw = random.Random(f"{line} {position} {skill}")
            if draw.random() > wrong:
                said.append(word)
            elif draw.random() < 0.7:
                said.append(draw.choice(words))
        outputs.append(" ".join(said))
    return outputs


@cache
def toy_tokenizer() -> TokenizerPair:
    tokenizer = train_tokenizer(toy_test_set()[1], TokenizerConfig(vocabulary=300))
    return TokenizerPair(tokenizer, tokenizer)


def write_run(
    folder: Path,
    *,
    skill: float = 0.1,
    encoders: tuple[int, ...] = (1, 2, 3, 4, 5, 6),
    decoders: tuple[int, ...] = (1, 2, 3, 4, 5, 6),
    width: int = 512,
    sentences: int = 60,
    beam: int = 5,
    settings: tuple[str, ...] = (),
) -> Path:
    (folder / "outputs").mkdir(parents=True)
    stacks = "".join(
        f"[model.{side}]\nlayers = {layers[-1]}\ndepth = {{ type = {'full' if len(layers) == 1 else 'prefix'!r} }}\n"
        for side, layers in (("encoder", encoders), ("decoder", decoders))
    )
    (folder / "config.toml").write_text(dump(loads(f"{stacks}[model.layer]\nwidth = {width}\n", settings)))
    toy_tokenizer().save(folder)
    source, reference = toy_test_set(sentences)
    scorer = Scorer(reference)
    cells, outputs = [], {}
    noise = random.Random(2)
    for encoder in encoders:
        for decoder in decoders:
            hypotheses = toy_translation(reference, encoder, decoder, skill)
            scores = scorer.score(hypotheses)
            seconds = (1.1 + 1.35 * decoder + 0.14 * encoder) * noise.uniform(0.98, 1.02)
            cell = {"encoder": encoder, "decoder": decoder, "bleu": scores.bleu, "chrf": scores.chrf}
            cells.append(
                cell | {"seconds": seconds, "parameters": 5_120_000 + 3_150_000 * encoder + 4_200_000 * decoder}
            )
            outputs[f"{encoder}-{decoder}"] = hypotheses
    ordered = [f"{cell['encoder']}-{cell['decoder']}" for cell in sorted(cells, key=layers)]
    grid = {
        "signatures": scorer.signatures,
        "batch": 64,
        "beam": beam,
        "device": "cpu",
        "machine": {"name": "Toy CPU @ 2.00GHz", "threads": 2, "torch": "2.13.0"},
        "sentences": sentences,
        "cells": cells,
        "samples": choose_samples(source, reference, {depth: outputs[depth] for depth in ordered}),
    }
    (folder / "grid.json").write_text(json.dumps(grid))
    for name, lines in {"source": source, "reference": reference, **outputs}.items():
        (folder / "outputs" / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    write_metrics(folder / "metrics.jsonl", [ordered[0], ordered[-1]], skill)
    return folder


def write_multilingual_run(
    folder: Path,
    languages: tuple[str, ...],
    *,
    skill: float = 0.1,
    depths: tuple[tuple[int, int], ...] = ((6, 6),),
    latent: int = 0,
    sentences: int = 40,
) -> Path:
    """A run evaluated in several languages. With `latent` it has so many decoder layers, of which each language uses
    its own, and gradients of all of them; without it every language has the depths given."""
    for number, key in enumerate(languages):
        here = ((6, len(used_by(number, latent))),) if latent else depths
        encoders, decoders = (tuple(sorted({depth[side] for depth in here})) for side in (0, 1))
        part = folder / "languages" / key
        write_run(part, skill=skill - 0.02 * number, encoders=encoders, decoders=decoders, sentences=sentences)
        grid = json.loads((part / "grid.json").read_text())
        grid |= {"run": "../..", "language": key, "weights": None, "test_set": "toy"}
        (part / "grid.json").write_text(json.dumps(grid))
        (part / "metrics.jsonl").unlink()
    (folder / "grid.json").write_text(json.dumps(summed_up(folder, languages, newest=languages[0])))
    corpora = "".join(f"{{ type = 'builtin', source = 'en', target = 'de', key = {key!r} }}," for key in languages)
    depth = f"[model.decoder]\nlayers = {latent}\ndepth = {{ type = 'latent', per = 'target' }}\n" if latent else ""
    (folder / "config.toml").write_text(dump(loads(f"[data]\ntrain = [{corpora}]\n{depth}")))
    write_multilingual_metrics(folder / "metrics.jsonl", languages, skill, latent)
    return folder


def used_by(language: int, layers: int) -> list[int]:
    """Two of three layers, other ones for every second language."""
    return [layer for layer in range(layers) if (layer + language % 2) % 3]


def write_multilingual_metrics(path: Path, languages: tuple[str, ...], skill: float, layers: int) -> None:
    """Logits that leave 0 one after the other, and gradients that vanish towards the first layer."""
    noise, lines = random.Random(4), []
    for step in range(100, 3001, 100):
        entry = {
            "step": step,
            "kind": "train",
            "loss": 3.0,
            "nll": 2.5 + 5 * math.exp(-step / 700),
            "seconds": step / 5,
        }
        lines.append(entry | {"tokens": 900 * step, "tokens_per_second": 4500.0, "learning_rate": 1e-3})
        if layers:
            norms = [math.exp(noise.gauss(0.1 * (layer - layers), 0.2)) for layer in range(layers)]
            gradients: list[float | None] = [None if noise.random() < 0.02 else norm for norm in norms]
            lines.append({"step": step, "kind": "gradients", "stack": "decoder", "norms": gradients})
        if step % 200:
            continue
        logits = {
            key.rpartition("-")[2]: [
                (1 if layer in used_by(number, layers) else -1) * 6 * max(0.0, step / 3000 - 0.6 * layer / layers)
                for layer in range(layers)
            ]
            for number, key in enumerate(languages)
        }
        if layers:
            lines.append({"step": step, "kind": "logits", "stack": "decoder", "logits": logits})
        for number, key in enumerate(languages):
            depth = sum(alpha > 0 for alpha in logits[key.rpartition("-")[2]]) or 1
            loss = 2.3 - skill + 0.1 * number + 4.5 * math.exp(-step / 900)
            entry = {"step": step, "kind": "valid", "language": key, "depth": f"6-{depth if layers else 6}"}
            lines.append(entry | {"loss": loss, "perplexity": math.exp(loss), "bleu": 40 / loss, "seconds": step / 5})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_metrics(path: Path, depths: list[str], skill: float) -> None:
    noise = random.Random(3)
    with path.open("w") as file:
        for step in range(50, 10001, 50):
            rate = 1e-3 * min(step / 1000, math.sqrt(1000 / step))
            loss = 1.9 - skill + 6.5 * math.exp(-step / 900) + noise.gauss(0, 0.05)
            entry = {"step": step, "kind": "train", "loss": loss, "nll": loss - 1, "tokens_per_second": 21000.0}
            entry |= {"learning_rate": rate, "gradient_norm": 1.0, "seconds": step / 10, "epoch": step / 2000}
            file.write(json.dumps(entry) + "\n")
            for i, depth in enumerate(depths) if step % 500 == 0 else ():
                loss = 2.3 - skill - 0.35 * i + 4.5 * math.exp(-step / 1100)
                entry = {"step": step, "kind": "valid", "loss": loss, "perplexity": math.exp(loss), "depth": depth}
                bleu = (28 + 8 * i + 30 * skill) * (1 - math.exp(-step / 1800))
                file.write(json.dumps(entry | {"bleu": bleu, "chrf": bleu + 22, "seconds": step / 10}) + "\n")
