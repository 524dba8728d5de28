"""Speculation on real sentences: is it exact, and is it never slower?

    python benchmarks/speculation.py exactness RUN --source data/europarl-de-en/test.de.gz --out exact.json
    anydepth calibrate RUN --depths 6-6 --batches 1,2,4,8,16,32,64 --beam 1
    python benchmarks/speculation.py speed RUN --source data/europarl-de-en/test.de.gz --out speed.json

`exactness` compares every draft depth and length with plain greedy search, at several batch sizes. Where a sentence
differs, it looks at the first word that does: by how much the full depth prefers one of the two (the difference of
their logits, in float32, computed word by word). Below 1e-4 it is a tie that rounding decides.

`speed` takes plain search and `--speculate` with what calibration found best, or nothing where it found none to pay, in
turns; medians of five. The bars: 1.5 times as fast at batch 1 on a GPU, nowhere more than 3 % slower.
"""

import argparse
import json
import time
import warnings
from collections.abc import Iterator
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from windows import device_name, medians

import anydepth
from anydepth.evaluation.texts import read_texts
from anydepth.run import Run

TIE = 1e-4
BAR, SLACK = 1.5, 1.03


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("section", choices=["exactness", "speed"])
    parser.add_argument("run", type=Path)
    parser.add_argument("--source", type=Path, required=True, help="one sentence a line, also .gz")
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--depth", help="default: the deepest")
    parser.add_argument("--drafts", type=int, nargs="+", help="decoder layers; default: all that are fewer")
    parser.add_argument("--words", type=int, nargs="+", default=[1, 2, 3, 4, 6, 8])
    parser.add_argument("--batches", type=int, nargs="+", help="default: 1 4 16; for speed 1 2 4 8 16 32 64")
    parser.add_argument("--precision", help="default: float32; for speed the run's own")
    parser.add_argument("--alone", type=int, default=64, help="speed: batches of each size")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    run = anydepth.load(args.run, args.device)
    texts = [text for text in read_texts(args.source) if text.strip()][: args.sentences]
    found: dict[str, Any] = {
        "device": device_name(run.device),
        "torch": torch.__version__,
        "sentences": len(texts),
        "rows": [],
    }
    for row in (exactness if args.section == "exactness" else speed)(run, texts, args):
        found["rows"].append(row)
        if args.out:
            args.out.write_text(json.dumps(found, indent=1) + "\n")


def exactness(run: Run, texts: list[str], args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    precision = args.precision or "float32"
    layers = len(run.plan(args.depth).decoder)
    drafts = args.drafts or [one for one in sorted(run.translator.decoder_depth.plans(run.key)) if one < layers]
    for batch in args.batches or [1, 4, 16]:
        how: dict[str, Any] = {"beam": 1, "batch": batch, "precision": precision}
        plain = tokens(run, texts, args.depth, **how)
        for draft, words in ((draft, words) for draft in drafts for words in args.words):
            start = time.perf_counter()
            found = tokens(run, texts, args.depth, speculate=True, draft=draft, draft_words=words, **how)
            different = [place for place, (one, other) in enumerate(zip(plain, found)) if one != other]
            gaps = [gap(run, texts[place], args.depth, plain[place], found[place]) for place in different]
            row = {"batch": batch, "draft": draft, "words": words, "precision": precision, "sentences": len(texts)}
            row |= {"different": len(different), "ties": sum(each < TIE for each in gaps), "gaps": gaps}
            told = f"{len(different)} of {len(texts)} differ, {row['ties']} of them at ties below {TIE:g}"
            spent = time.perf_counter() - start
            print(f"{precision}, batch {batch}: {draft} layers draft {words}: {told} ({spent:.0f} s)", flush=True)
            yield row


def tokens(run: Run, texts: list[str], depth: str | None, **how: Any) -> list[list[int]]:
    return [best.tokens for (best,) in run.outputs(texts, depth, **how)]


@torch.no_grad()
def gap(run: Run, text: str, depth: str | None, one: list[int], other: list[int]) -> float:
    """By how much the logits of the first words that differ do."""
    target, plans = run.tokenizers.target, run.plan(depth)
    (ids,) = run.sources([text], run.key)
    padded, _ = run.prepared([ids], run.config.decoding)
    decoder = run.translator.start(padded.to(run.device), plans, run.key)
    same = [pair[0] for pair in takewhile(lambda pair: pair[0] == pair[1], zip(one, other))]
    logits = torch.empty(0)
    for token in [target.bos, *same]:
        logits = decoder.step(torch.tensor([token], device=run.device))[0]
    first, second = ([*each, target.eos][len(same)] for each in (one, other))
    return abs(float(logits[first] - logits[second]))


def speed(run: Run, texts: list[str], args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    how = {"precision": args.precision} if args.precision else {}
    depth = run.plan(args.depth).name
    for batch in args.batches or [1, 2, 4, 8, 16, 32, 64]:
        some = texts[: args.alone * batch]
        known = run.guide(1, precision=args.precision).calibration.speculation_at(depth, batch)
        best = known.best if known and known.batch >= batch else None
        ask = partial(tokens, run, some, depth, beam=1, batch=batch, **how)
        works = {"plain": ask, "speculate": partial(ask, speculate=True)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says where speculation is off
            found = {name: work() for name, work in works.items()}
            spent = medians(run.device, works, 5)
        gain = spent["plain"] / spent["speculate"]
        chosen = f"{best.draft} layers draft {best.draft_words}" if best else "off"
        row = {"batch": batch, "sentences": len(some), "chosen": chosen, "seconds": spent, "gain": gain}
        row |= {"different": sum(a != b for a, b in zip(*found.values()))}
        wanted = BAR if batch == 1 and run.device.type == "cuda" else 1 / SLACK
        verdict = "" if gain >= wanted else "  MISSED"
        told = f"{1000 * spent['plain'] / len(some):.3f} ms a sentence plain, {chosen}: {gain:.3f} times as fast"
        print(f"batch {batch}: {told}, {row['different']} of {len(some)} differ{verdict}", flush=True)
        yield row


if __name__ == "__main__":
    main()
