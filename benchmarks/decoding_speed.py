"""Decoding speed of a run against Hugging Face `generate` with the same weights, in one run on one machine.

    python benchmarks/decoding_speed.py runs/tied --source data/europarl-de-en/test.de.gz --out speed.json
    python benchmarks/decoding_speed.py --random --out speed.json
    python benchmarks/decoding_speed.py --random --tokenizer tokenizer.json --source test.de.gz --sections compiled

The rival is the run's own full depth, exported: scaled-dot-product attention, the same number type. In the section
`compiled` it has a static cache, which compiles (all sources are padded alike, so that it does once); give that section
to a process of its own, since one that is stopped while it compiles may leave the GPU unusable. A rival whose first
pass takes longer than `--patience` is left out. Times are medians over interleaved repetitions, tokenization
excluded on both sides. Also measured: a word at every decoder depth; what speculation gains at several batch sizes; how
many sentences the number type or speculation changes; very deep multiscale encoders. `--random` takes a model of 6-6
layers that nobody trained and that never ends a sentence by itself: both sides say one word more than the source has.
Its sentences are drawn, or real ones where a tokenizer is given too.

A section that fails says why, and the others go on; the file is written after each, and after each row of one.
"""

import argparse
import json
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cpu_depths
import multiscale_speed
import torch
from random_model import random_run, random_sentences
from windows import device_name, medians

import anydepth
from anydepth.decoding.decoder import changed
from anydepth.evaluation.texts import read_texts
from anydepth.interop.huggingface import export
from anydepth.run import Batch, Run
from anydepth.training.distributed import pick_device
from anydepth.translating import searching

Sentences = list[list[int]]
"""Token ids."""
BARS = {"1x1": 12.0, "32x1": 12.0, "256x5": 5.0}
"""Times as fast as the rival, by batch x beam, on an H200."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--source", type=Path, help="one sentence a line, also .gz")
    parser.add_argument("--random", action="store_true", help="a model and sentences that nobody needs to make")
    parser.add_argument("--tokenizer", type=Path, help="for the random model to read --source with")
    parser.add_argument("--layers", type=int, default=6, help="of the random model, on both sides")
    parser.add_argument("--width", type=int, default=512, help="of the random model")
    parser.add_argument("--vocabulary", type=int, default=16_000, help="of the random model")
    parser.add_argument("--sentences", type=int, default=512)
    parser.add_argument("--alone", type=int, default=16, help="sentences where they are decoded one by one")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--shapes", default="1x1,32x1,256x5", help="batch x beam, of which to compare with the rival")
    parser.add_argument("--at-once", default="2,3", help="batches searched at the same time, compared with one")
    parser.add_argument("--batches", default="1,4,16,64", help="batch sizes for speculation")
    parser.add_argument("--drafts", default="1x3,1x5,2x4", help="draft layers x words, to try in speculation")
    parser.add_argument("--precision", default="bfloat16" if torch.cuda.is_available() else "float32")
    parser.add_argument("--sections", default="step,depths,rival,precision,speculation,multiscale")
    parser.add_argument("--depths", help="of the section cpu: all, or 6-6,6-2; default: every decoder depth")
    parser.add_argument("--wall", action="store_true", help="of the section cpu: seconds of the clock, not the process")
    parser.add_argument("--patience", type=int, default=120, help="seconds for the first pass of the rival")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    given = args.tokenizer if args.random else args.run
    if bool(given) != bool(args.source) or (args.random and args.run) or not (args.random or args.run):
        parser.error("give a run and --source, or --random, perhaps with --tokenizer and --source")
    bench = Bench(args)
    result: dict[str, Any] = {"device": device_name(bench.device), "torch": torch.__version__}
    result |= {"precision": args.precision, "random": args.random, "recorded": searching.RECORD}
    for name in args.sections.split(","):
        start = time.perf_counter()
        for found in so_far(getattr(bench, name)):
            result[name] = found
            if args.out:
                args.out.write_text(json.dumps(result, indent=1) + "\n")
        print(f"--- {name}: {time.perf_counter() - start:.0f} s in all", flush=True)


def so_far(section: Callable[[], Any]) -> Iterator[Any]:
    """What a section has found: all at once, or one row more each time. A first run on a machine should tell all that
    it can, so a failure is a finding too."""
    rows: list[Any] = []
    try:
        found = section()
        if not isinstance(found, Iterator):
            yield found
            return
        for row in found:
            rows.append(row)
            yield rows
    except Exception as error:
        traceback.print_exc()
        failed = {"failed": f"{type(error).__name__}: {error}"}
        yield [*rows, failed] if rows else failed


def batched(sentences: Sentences, size: int) -> list[Sentences]:
    return [sentences[start : start + size] for start in range(0, len(sentences), size)]


class Bench:
    """A method a section."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.device = args, pick_device("auto")
        if args.random:
            self.run = random_run(args.layers, args.width, args.vocabulary, self.device, args.tokenizer)
        else:
            self.run = anydepth.load(args.run)
        if args.source:
            sentences = self.run.sources(read_texts(args.source)[: args.sentences], self.run.key)
        else:
            sentences = random_sentences(args.sentences, args.vocabulary)
        self.sentences = sorted(sentences, key=len, reverse=True)  # as `translate` does

    def some(self, count: int) -> Sentences:
        """Of all lengths."""
        return self.sentences[:: max(1, len(self.sentences) // count)]

    def decode(self, batches: list[Sentences], depth: str | None = None, **settings: Any) -> list[list[int]]:
        settings = {"n_best": 1, "precision": self.args.precision, **settings}
        decoding, run = changed(self.run.config.decoding, settings), self.run
        asked = (Batch(some, list(range(len(some))), run.plan(depth), run.key, decoding) for some in batches)
        with torch.no_grad():
            return [
                best.tokens for found in run.searches(asked, decoding.precision, decoding.at_once) for (best,) in found
            ]

    def timed(self, works: dict[str, Callable[[], object]]) -> dict[str, float]:
        for work in works.values():
            work()  # the second time, the first of `medians`, replays what this one recorded
        return medians(self.device, works, self.args.repetitions)

    def depths_to_try(self) -> list[str]:
        encoder = max(self.run.model.encoder_depth.plans(self.run.key))
        return [f"{encoder}-{decoder}" for decoder in sorted(self.run.model.decoder_depth.plans(self.run.key))]

    # ---- depth

    def step(self) -> dict[str, Any]:
        """Microseconds a word takes at batch 1 and every decoder depth, without the encoder and the rest of a search:
        what 96 further words take."""
        eight = [[ids[:32]] for ids in self.sentences[:8]]  # of one length; a trained model may end some of them early
        depths, limits = self.depths_to_try(), (16, 112)

        def decode(depth: str, limit: int) -> list[list[int]]:
            return self.decode(eight, depth, beam=1, max_length=limit, max_ratio=1.0, max_extra=limit)

        pairs = [(depth, limit) for depth in depths for limit in limits]
        words = {pair: sum(map(len, decode(*pair))) for pair in pairs}
        spent = self.timed({f"{depth} {limit}": lambda d=depth, n=limit: decode(d, n) for depth, limit in pairs})
        found = {}
        for depth in depths:
            more = words[depth, limits[1]] - words[depth, limits[0]]
            if not more:
                raise ValueError(f"{depth} ends these sentences early: try others, or --random")
            found[depth] = 1e6 * (spent[f"{depth} {limits[1]}"] - spent[f"{depth} {limits[0]}"]) / more
            print(f"{depth}: {found[depth]:.0f} us a word", flush=True)
        ratio = found[depths[-1]] / found[depths[0]]
        print(f"a step of {depths[-1]} takes {ratio:.2f} x one of {depths[0]} (bar 3.8)")
        return {"microseconds": found, "ratio": ratio, "bar": 3.8}

    def depths(self) -> dict[str, Any]:
        """Greedy at batch 1 with every decoder depth: milliseconds a sentence."""
        some, depths = batched(self.some(64), 1), self.depths_to_try()
        times = self.timed({depth: lambda d=depth: self.decode(some, d, beam=1) for depth in depths})
        found = {depth: 1000 * times[depth] / len(some) for depth in depths}
        for depth in depths:
            print(f"{depth}: {found[depth]:.2f} ms a sentence", flush=True)
        ratio = found[depths[-1]] / found[depths[0]]
        print(f"{depths[-1]} takes {ratio:.2f} x as long as {depths[0]} (bar 2.5)")
        return {"milliseconds": found, "ratio": ratio, "bar": 2.5}

    # ---- the rival

    def rival(self) -> Iterator[dict[str, Any]]:
        return self.against_all("rival as it comes", {})

    def compiled(self) -> Iterator[dict[str, Any]]:
        return self.against_all("rival static and compiled", {"cache_implementation": "static"})

    def against_all(self, name: str, form: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The rival in one of its forms, shape by shape."""
        from transformers import AutoModelForSeq2SeqLM

        with tempfile.TemporaryDirectory() as folder:
            export(self.run, None, Path(folder) / "hf")
            model = AutoModelForSeq2SeqLM.from_pretrained(Path(folder) / "hf", attn_implementation="sdpa")
        model = model.eval().to(self.device, getattr(torch, self.args.precision))
        for shape in self.args.shapes.split(","):
            try:
                yield self.against(model, shape, name, form)
            except Exception as error:
                traceback.print_exc()
                yield {"shape": shape, "failed": f"{type(error).__name__}: {error}"}

    def against(self, model: Any, shape: str, name: str, form: dict[str, Any]) -> dict[str, Any]:
        batch, beam = map(int, shape.split("x"))
        some = self.some(self.args.alone) if batch == 1 else self.sentences
        batches = batched(some, batch)
        works: dict[str, Callable[[], object]] = {
            "ours": lambda: self.decode(batches, beam=beam),
            name: lambda: generate(model, self.run, batches, beam, form),
        }
        several = {
            f"ours, {n} at once": n for n in self.args.at_once.split(",") if len(batches) > 1 and batch > 1 and n
        }
        works |= {how: lambda n=n: self.decode(batches, beam=beam, at_once=int(n)) for how, n in several.items()}
        for ours in ("ours", *several):
            works[ours]()  # records; and the first of `medians` replays
        start = time.perf_counter()
        with at_most(self.args.patience):  # all of it: the rival may compile again at any batch
            works[name]()
        print(f"{name}: first pass in {time.perf_counter() - start:.1f} s", flush=True)
        times = medians(self.device, works, self.args.repetitions)
        ratios = {ours: times[name] / times[ours] for ours in ("ours", *several)}
        told = ", ".join(f"{work} {1000 * value / len(some):.3f}" for work, value in times.items())
        print(f"batch {batch}, beam {beam}: ms a sentence: {told}", flush=True)
        told = ", ".join(f"{ours} {ratio:.2f}" for ours, ratio in ratios.items())
        bar = BARS.get(shape) if self.device.type == "cuda" else None  # a CPU's bars are those of `cpu`
        print(f"  times as fast as {name}: {told} (bar {bar})", flush=True)
        found = {"shape": shape, "sentences": len(some), "seconds": times, "ratio": ratios["ours"]}
        return found | {"ratios": ratios, "bar": bar}

    # ---- exactness and speculation

    def precision(self) -> dict[str, Any]:
        """Sentences that come out differently than in float32."""
        found = {}
        for name, settings in {"greedy": {"beam": 1}, "beam 5": {"beam": 5}}.items():
            batches = batched(self.some(256), 64)
            exact, rounded = (self.decode(batches, precision=p, **settings) for p in ("float32", "bfloat16"))
            found[name] = sum(a != b for a, b in zip(exact, rounded)) / len(exact)
            print(f"{name}: bfloat16 changes {found[name]:.1%} of {len(exact)} sentences", flush=True)
        return found

    def speculation(self) -> Iterator[dict[str, Any]]:
        """Gains over plain greedy search. (A random model's drafts are never right: those are its costs.)"""
        for size in map(int, self.args.batches.split(",")):
            batches = batched(self.some(32 * size), size)
            plain = self.decode(batches, beam=1)
            works: dict[str, Callable[[], object]] = {"plain": lambda b=batches: self.decode(b, beam=1)}
            different = {}
            for draft in self.args.drafts.split(","):
                layers, words = map(int, draft.split("x"))
                settings = {"beam": 1, "speculate": True, "draft": layers, "draft_words": words}
                works[draft] = lambda b=batches, s=settings: self.decode(b, **s)
                different[draft] = sum(a != b for a, b in zip(plain, self.decode(batches, **settings)))
            times = self.timed(works)
            gains = {draft: times["plain"] / times[draft] for draft in different}
            told = ", ".join(f"{draft} {gain:.2f} x ({different[draft]} differ)" for draft, gain in gains.items())
            print(f"speculation, batch {size}, {len(plain)} sentences: {told}", flush=True)
            row = {"batch": size, "sentences": len(plain), "seconds": times}
            yield row | {"gains": gains, "different": different}

    def cpu(self) -> list[dict[str, Any]]:
        """Greedy at batch 1 and every depth against Hugging Face and CTranslate2: benchmarks/cpu_depths.py."""
        chosen = self.args.depths
        depths = self.run.depths() if chosen == "all" else chosen.split(",") if chosen else self.depths_to_try()
        return cpu_depths.table(self.run, self.some(self.args.alone), depths, self.args.repetitions, self.args.wall)

    def multiscale(self) -> dict[str, object]:
        """Very deep encoders: benchmarks/multiscale_speed.py, its decoding alone."""
        args = multiscale_speed.arguments([])
        if self.args.random:  # at the size of the random model, for trials
            args.width, args.vocabulary = min(256, self.args.width), min(10_152, self.args.vocabulary)
        return multiscale_speed.decoding(args, self.device, multiscale_speed.models(args, self.device))


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Ends what takes longer, with a TimeoutError."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def generate(model: Any, run: Run, batches: list[Sentences], beam: int, form: dict[str, Any]) -> None:
    target = run.tokenizers.target
    with torch.no_grad():
        for batch in batches:
            rows, limits = run.prepared(batch, run.config.decoding)
            if "cache_implementation" in form:  # the first batch is the longest
                longest = len(batches[0][0]) + 1
                rows = torch.nn.functional.pad(rows, (0, longest - rows.shape[1]), value=target.pad)
            rows = rows.to(run.device)
            settings = {"num_beams": beam, "do_sample": False, "max_new_tokens": int(limits.max()), **form}
            model.generate(input_ids=rows, attention_mask=(rows != target.pad).long(), **settings)


if __name__ == "__main__":
    main()
