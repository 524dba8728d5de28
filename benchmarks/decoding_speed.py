"""Decoding speed of a run against Hugging Face `generate` with the same weights, in one run on one machine.

    python benchmarks/decoding_speed.py runs/tied --source data/europarl-de-en/test.de.gz

The rival is the run's own full depth, exported, in its best form: scaled-dot-product attention, the same number type,
with a static cache and compiled where that works. Times are medians over interleaved repetitions, tokenization excluded
on both sides. Also measured: what a shallower decoder saves, and what speculation gains at several batch sizes, with
the sentences in which its words differ (bfloat16 rounds batches and single words differently).
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import anydepth
from anydepth.interop.huggingface import export
from anydepth.run import Run
from anydepth.texts import read_texts

Batches = list[list[list[int]]]
"""Batches of sentences of token ids."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--source", type=Path, required=True, help="one sentence a line, also .gz")
    parser.add_argument("--sentences", type=int, default=512)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--shapes", default="1x1,32x1,256x5", help="batch x beam, of which to compare with the rival")
    parser.add_argument("--batches", default="1,4,16,64", help="batch sizes for speculation")
    parser.add_argument("--drafts", default="1x3,1x5,2x4", help="draft layers x words, to try in speculation")
    parser.add_argument("--precision", default="bfloat16" if torch.cuda.is_available() else "float32")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    run = anydepth.load(args.run)
    run.model.to(getattr(torch, args.precision))
    texts = read_texts(args.source)[: args.sentences]
    sentences = sorted(run.sources(texts, run.key), key=len)
    result: dict[str, Any] = {"device": str(run.device), "precision": args.precision, "torch": torch.__version__}
    result["rival"] = against_rival(run, sentences, args)
    result["depths"] = shallower(run, sentences, args)
    result["speculation"] = speculation(run, sentences, args)
    if args.out:
        args.out.write_text(json.dumps(result, indent=1))


# ---- ours


def batched(sentences: list[list[int]], size: int) -> Batches:
    return [sentences[start : start + size] for start in range(0, len(sentences), size)]


def decode(run: Run, batches: Batches, depth: str | None = None, **settings: Any) -> list[list[int]]:
    decoding = anydepth.run.changed(run.config.decoding, {"n_best": 1, **settings})
    found = []
    with torch.no_grad():
        for batch in batches:
            found += run.search(batch, list(range(len(batch))), run.plan(depth), run.key, decoding)
    return [best.tokens for (best,) in found]


def seconds(work: Callable[[], object]) -> float:
    wait()
    start = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - start


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def interleaved(works: dict[str, Callable[[], object]], repetitions: int) -> dict[str, float]:
    """Seconds of each, the median over rounds in which each has a turn; after a warm-up."""
    for work in works.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repetitions):
        for name, work in works.items():
            times[name].append(seconds(work))
    return {name: statistics.median(each) for name, each in times.items()}


# ---- the rival


def against_rival(run: Run, sentences: list[list[int]], args: argparse.Namespace) -> list[dict[str, Any]]:
    from transformers import AutoModelForSeq2SeqLM

    with tempfile.TemporaryDirectory() as folder:
        export(anydepth.load(args.run, "cpu"), None, Path(folder) / "hf")
        model = AutoModelForSeq2SeqLM.from_pretrained(Path(folder) / "hf", attn_implementation="sdpa")
    model = model.eval().to(run.device, getattr(torch, args.precision))
    rows = []
    for batch, beam in (map(int, shape.split("x")) for shape in args.shapes.split(",")):
        # one sentence after the other is slow for the rival: fewer of them
        some = sentences[:: max(1, len(sentences) // 32)] if batch == 1 else sentences
        batches = batched(some, batch)
        works: dict[str, Callable[[], object]] = {"ours": lambda b=batches, k=beam: decode(run, b, beam=k)}
        for form in ({}, {"cache_implementation": "static"}) if torch.cuda.is_available() else ({},):
            work = lambda b=batches, k=beam, f=form: rival(model, run, b, k, f)  # noqa: E731
            try:
                work()
                works["rival " + ("static and compiled" if form else "as it comes")] = work
            except Exception as error:
                print(f"rival, {form}: {type(error).__name__}: {error}"[:200])
        times = interleaved(works, args.repetitions)
        best = min(value for name, value in times.items() if name != "ours")
        row = {"batch": batch, "beam": beam, "sentences": len(some), "seconds": times, "ratio": best / times["ours"]}
        rows.append(row)
        told = ", ".join(f"{name} {1000 * value / len(some):.2f}" for name, value in times.items())
        print(f"batch {batch}, beam {beam}: ms a sentence: {told}; ratio {row['ratio']:.2f}", flush=True)
    return rows


def rival(model: Any, run: Run, batches: Batches, beam: int, form: dict[str, Any]) -> None:
    target = run.tokenizers.target
    with torch.no_grad():
        for batch in batches:
            longest = max(map(len, batch)) + 1
            rows = torch.full((len(batch), longest), target.pad)
            for row, ids in zip(rows, batch):
                row[: len(ids) + 1] = torch.tensor(run.ended(ids))
            limit = int(run.config.decoding.max_lengths(torch.tensor(longest - 1)))
            rows = rows.to(run.device)
            settings = {"num_beams": beam, "do_sample": False, "max_new_tokens": limit, **form}
            model.generate(input_ids=rows, attention_mask=(rows != target.pad).long(), **settings)


# ---- depth and speculation


def shallower(run: Run, sentences: list[list[int]], args: argparse.Namespace) -> dict[str, Any]:
    """Greedy at batch 1 with every decoder depth: milliseconds a sentence and a word."""
    some = batched(sentences[:: max(1, len(sentences) // 64)], 1)
    encoder = max(run.model.encoder_depth.plans(run.key))
    depths = [f"{encoder}-{decoder}" for decoder in sorted(run.model.decoder_depth.plans(run.key))]
    words = {depth: sum(len(tokens) + 1 for tokens in decode(run, some, depth, beam=1)) for depth in depths}
    works = {depth: lambda d=depth: decode(run, some, d, beam=1) for depth in depths}
    times = interleaved(works, args.repetitions)
    rows = {}
    for depth in depths:
        rows[depth] = {
            "ms_a_sentence": 1000 * times[depth] / len(some),
            "ms_a_word": 1000 * times[depth] / words[depth],
        }
        print(f"{depth}: {rows[depth]['ms_a_sentence']:.2f} ms a sentence, {rows[depth]['ms_a_word']:.3f} ms a word")
    return rows


def speculation(run: Run, sentences: list[list[int]], args: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    for size in map(int, args.batches.split(",")):
        batches = batched(sentences[:: max(1, len(sentences) // (64 * size))], size)
        plain = decode(run, batches, beam=1)
        works: dict[str, Callable[[], object]] = {"plain": lambda b=batches: decode(run, b, beam=1)}
        different = {}
        for draft in args.drafts.split(","):
            layers, words = map(int, draft.split("x"))
            settings = {"beam": 1, "speculate": True, "draft": layers, "draft_words": words}
            works[draft] = lambda b=batches, s=settings: decode(run, b, **s)
            different[draft] = sum(a != b for a, b in zip(plain, decode(run, batches, **settings)))
        times = interleaved(works, args.repetitions)
        gains = {draft: times["plain"] / times[draft] for draft in different}
        rows.append({"batch": size, "sentences": len(plain), "seconds": times, "gains": gains, "different": different})
        told = ", ".join(f"{draft} {gain:.2f} x ({different[draft]} differ)" for draft, gain in gains.items())
        print(f"speculation, batch {size}, {len(plain)} sentences: {told}", flush=True)
    return rows


if __name__ == "__main__":
    main()
