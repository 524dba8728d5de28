"""Where the time of decoding on a GPU goes.

    python benchmarks/decoding_profile.py                                    6-6, width 512: one sentence, and 32
    python benchmarks/decoding_profile.py RUN --source test.de.gz --shapes 1x1,32x1,256x5

For each batch x beam: milliseconds by words allowed, from which, and from the words said, follow what a word takes and
what all else does; then, from a profile of one search, what each kind of kernel takes of it, and for how long the GPU
had nothing to do. Kernels that overlap (nn/overlap.py) are counted from the end of the one before. Without a run, a
model that nobody trained.
"""

import argparse
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from random_model import random_run, random_sentences
from torch.profiler import ProfilerActivity, profile
from windows import device_name, medians

import anydepth
from anydepth.decoding.decoder import changed
from anydepth.evaluation.texts import read_texts
from anydepth.training.distributed import pick_device

WORDS = (1, 9, 17, 33, 65)


class Kernel(NamedTuple):
    """When one ran, in microseconds."""

    name: str
    start: float
    end: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--source", type=Path, help="one sentence a line, also .gz; default: drawn words")
    parser.add_argument("--width", type=int, default=512, help="of the random model")
    parser.add_argument("--layers", type=int, default=6, help="of the random model, on both sides")
    parser.add_argument("--vocabulary", type=int, default=16_000, help="of the random model")
    parser.add_argument("--length", type=int, default=32, help="tokens of the sources that are drawn")
    parser.add_argument("--shapes", default="1x1,32x1", help="batch x beam")
    parser.add_argument("--speculate", action="store_true")
    parser.add_argument("--precision", default="bfloat16" if torch.cuda.is_available() else "float32")
    parser.add_argument("--most", type=int, default=20, help="kinds of kernels to tell of")
    args = parser.parse_args()
    device = pick_device("auto")
    if bool(args.run) != bool(args.source):
        parser.error("give a run and --source, or neither")
    run = anydepth.load(args.run) if args.run else random_run(args.layers, args.width, args.vocabulary, device)
    print(f"{device_name(device)}, {args.precision}", flush=True)
    for batch, beam in (map(int, shape.split("x")) for shape in args.shapes.split(",")):
        sources = sentences(run, args, batch)
        settings = {"beam": beam, "n_best": 1, "precision": args.precision, "speculate": args.speculate}
        searches = {words: partial(search, run, sources, settings, words) for words in WORDS}
        print(f"\nbatch {batch}, beam {beam}, sources of up to {max(map(len, sources))} tokens")
        tell_of_words(device, searches)
        if device.type == "cuda":
            tell_of_kernels(kernels_of(searches[WORDS[-2]]), args.most)


def sentences(run: anydepth.Run, args: argparse.Namespace, batch: int) -> list[list[int]]:
    if not args.source:
        return [
            ids[: args.length] + ids[:1] * (args.length - len(ids)) for ids in random_sentences(batch, args.vocabulary)
        ]
    return run.sources(read_texts(args.source)[:batch], run.key)


def search(run: anydepth.Run, sources: list[list[int]], settings: dict[str, Any], words: int) -> int:
    """How many words the longest translation has, the end mark included."""
    decoding = changed(run.config.decoding, settings | {"max_length": words, "max_ratio": 1.0, "max_extra": words})
    with torch.no_grad():
        found = run.search(sources, list(range(len(sources))), run.plan(), run.key, decoding)
    return min(words, 1 + max(len(best.tokens) for best, *_ in found))


def tell_of_words(device: torch.device, searches: dict[int, partial[int]]) -> None:
    said = {words: work() for words, work in searches.items()}  # records
    times = {words: 1000 * time for words, time in medians(device, searches, 9).items()}
    print("  ".join(f"{words} words {time:.3f} ms" for words, time in times.items()))
    for fewer, more in itertools.pairwise(WORDS):
        if said[more] > said[fewer]:
            each = (times[more] - times[fewer]) / (said[more] - said[fewer])
            words = f"words {said[fewer] + 1} to {said[more]}"
            print(f"  {words}: {1000 * each:.1f} us each; before them {times[fewer]:.3f} ms")
    print(flush=True)


def kernels_of(work: partial[int]) -> list[Kernel]:
    """In the order of their starts; none where nobody may profile."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        work()
        torch.cuda.synchronize()
    found = (event for event in profiled.events() if event.device_type == torch.autograd.DeviceType.CUDA)
    return sorted((Kernel(e.name, e.time_range.start, e.time_range.end) for e in found), key=lambda each: each.start)


def tell_of_kernels(kernels: list[Kernel], most: int) -> None:
    if not kernels:
        print("  the profiler saw no kernels")
        return
    spent, count = defaultdict[str, float](float), defaultdict[str, int](int)
    for name, time in shares(kernels):
        spent[name] += time
        count[name] += 1
    whole, idle = kernels[-1].end - kernels[0].start, sum(gaps(kernels))
    print(f"  {len(kernels)} kernels and copies in {whole / 1000:.3f} ms, {idle / 1000:.3f} ms of it nothing to do")
    print(f"  longest gaps, us: {', '.join(f'{gap:.1f}' for gap in sorted(gaps(kernels), reverse=True)[:8])}")
    for name in sorted(spent, key=spent.__getitem__, reverse=True)[:most]:
        mean = spent[name] / count[name]
        print(f"  {spent[name] / 1000:8.3f} ms  {count[name]:5d} x {mean:6.2f} us  {name[:90]}", flush=True)


def shares(kernels: Iterable[Kernel]) -> Iterator[tuple[str, float]]:
    """What each adds to the time of all before it."""
    until = -float("inf")
    for name, start, end in kernels:
        yield name, max(0.0, end - max(start, until))
        until = max(until, end)


def gaps(kernels: list[Kernel]) -> list[float]:
    """Between the end of all before and the next start."""
    found, until = [], kernels[0].start
    for _, start, end in kernels:
        found.append(max(0.0, start - until))
        until = max(until, end)
    return found


if __name__ == "__main__":
    main()
