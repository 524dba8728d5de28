"""Greedy search of one sentence at a time on a CPU, at every depth: ours, Hugging Face `generate` and CTranslate2 with
the same weights, each in several number types, in turns on one machine. A section of benchmarks/decoding_speed.py.

Times are seconds of this process, of which other programs on the machine take less away than of the wall clock; set
OMP_NUM_THREADS=1, so that they are those of one thread on all sides. With `--wall` they are those of the clock, for
several threads on a machine that is idle. (Our decoder has one in any case; threads of the others, which wait busily
for more to do, are in the way of who comes next.)
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from windows import medians

from anydepth.decoding.decoder import changed
from anydepth.interop import ctranslate2, huggingface
from anydepth.interop.ctranslate2 import CTranslate2Run
from anydepth.run import Run

Outputs = list[list[int]]
Decode = Callable[[], Outputs]
OURS = ("float32", "bfloat16", "float16", "int8")


def table(
    run: Run, sentences: list[list[int]], depths: list[str], repetitions: int, wall: bool = False
) -> list[dict[str, Any]]:
    """A row a depth: milliseconds a sentence of each, and how many sentences each says differently than our float32."""
    clock = time.perf_counter if wall else time.process_time
    rows = []
    for depth in depths:
        with tempfile.TemporaryDirectory() as folder:
            works = {f"ours {name}": ours(run, sentences, depth, name) for name in OURS}
            works |= theirs(run, sentences, depth, Path(folder))
            found = {name: work() for name, work in works.items()}
            times = medians(run.device, works, repetitions, clock)
        exact = found["ours float32"]
        row = {
            "depth": depth,
            "words": sum(map(len, exact)) / len(exact),
            "milliseconds": {name: 1000 * spent / len(sentences) for name, spent in times.items()},
            "different": {name: sum(a != b for a, b in zip(exact, each)) for name, each in found.items()},
        }
        rows.append(row)
        told = ", ".join(
            f"{name} {value:.1f} ({row['different'][name]})" for name, value in row["milliseconds"].items()
        )
        print(f"{depth}: {row['words']:.1f} words; ms a sentence (sentences that differ): {told}", flush=True)
    return rows


def ours(run: Run, sentences: Outputs, depth: str, precision: str) -> Decode:
    decoding = changed(run.config.decoding, {"beam": 1, "n_best": 1, "precision": precision})
    return lambda: one_by_one(run, sentences, depth, decoding)


def one_by_one(run: Run, sentences: Outputs, depth: str, decoding: Any) -> Outputs:
    plans = run.plan(depth)
    with torch.no_grad():
        return [run.search([ids], [0], plans, run.key, decoding)[0][0].tokens for ids in sentences]


def theirs(run: Run, sentences: Outputs, depth: str, folder: Path) -> dict[str, Decode]:
    works: dict[str, Decode] = {}
    huggingface.export(run, depth, folder / "huggingface")
    for name in ("float32", "bfloat16"):
        works[f"huggingface {name}"] = generating(run, sentences, folder / "huggingface", name)
    decoding = changed(run.config.decoding, {"beam": 1, "n_best": 1})
    for name in ("float32", "int8"):
        at = ctranslate2.export(run, depth, folder / name, name)
        engine = CTranslate2Run.opened(run, at, depth)
        works[f"ctranslate2 {name}"] = translating(run, sentences, engine.engine(run.plan(depth), run.key))
        works[f"--engine ctranslate2 {name}"] = lambda engine=engine: one_by_one(engine, sentences, depth, decoding)
    return works


def generating(run: Run, sentences: Outputs, folder: Path, precision: str) -> Decode:
    from transformers import AutoModelForSeq2SeqLM

    kind = getattr(torch, precision)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, attn_implementation="sdpa").eval().to(kind)
    ends = {run.tokenizers.target.eos, run.tokenizers.target.pad}

    def generate(ids: list[int]) -> list[int]:
        rows, limits = run.prepared([ids], run.config.decoding)
        asked = {"num_beams": 1, "do_sample": False, "max_new_tokens": int(limits)}
        found = model.generate(input_ids=rows, attention_mask=torch.ones_like(rows), **asked)[0, 1:].tolist()
        return [token for token in found if token not in ends]

    def decode() -> Outputs:
        with torch.no_grad():
            return [generate(ids) for ids in sentences]

    return decode


def translating(run: Run, sentences: Outputs, engine: Any) -> Decode:
    """CTranslate2 as one would call it without us."""
    names, ids_of = run.tokenizers.source.tokens, run.tokenizers.target.ids
    sources = [[names[number] for number in run.ended(ids)] for ids in sentences]
    limits = [int(run.prepared([ids], run.config.decoding)[1]) for ids in sentences]

    def translate(source: list[str], limit: int) -> list[int]:
        (found,) = engine.translate_batch([source], beam_size=1, max_decoding_length=limit)
        return [ids_of[token] for token in found.hypotheses[0]]

    return lambda: [translate(source, limit) for source, limit in zip(sources, limits)]
