"""Are sentences answered within their budget, and how good are the answers?

    anydepth evaluate RUN && anydepth calibrate RUN --beam 1 --source SENTENCES
    python benchmarks/budget.py RUN --beam 1

Each sentence of the test set is translated alone: at every calibrated depth, and within each of several budgets, all in
an order drawn anew for every sentence. A budget is feasible if the fastest depth is predicted to fit 99 of 100
sentences. For each, the share of the sentences answered in time (the goal is 95 %), and BLEU and chrF beside those of
the best single depth that answers as many in time, which is known only afterwards, and of the one that would be fixed
beforehand: the best that the calibration predicts to answer as many. p tells how likely their difference in BLEU is by
chance (paired bootstrap). Calibrate with other sentences than those of the test set, so that nothing is known of them
beforehand.

A calibration is true for a machine that is as busy as it was then. Where other work comes and goes, `--processor-time`
counts the seconds of this process alone (one thread, no GPU) and calibrates anew that way, with the sentences given:

    OMP_NUM_THREADS=1 python benchmarks/budget.py RUN --beam 1 --processor-time SENTENCES
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import anydepth
from anydepth.calibrating.measuring import calibrate
from anydepth.calibrating.timed import timed
from anydepth.choosing.budget import Options, worthwhile_depths
from anydepth.errors import UserError
from anydepth.evaluation.metrics import Scorer, Statistics
from anydepth.evaluation.significance import paired_bootstrap
from anydepth.evaluation.texts import read_test_set, read_texts
from anydepth.run import Translation

GOAL = 0.95
FIXED = {"best fixed": "best", "beforehand": "fixed"}
FITTED = 0.99
"""Sentences that a feasible budget is enough for."""


class Way(NamedTuple):
    """A fixed depth, or a budget."""

    depth: str | None = None
    budget_ms: float | None = None
    speculate: bool = False


class Answers(NamedTuple):
    texts: list[str]
    milliseconds: list[float]
    depths: list[str]

    def share(self, budget: float) -> float:
        return sum(ms <= budget for ms in self.milliseconds) / len(self.milliseconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--source", type=Path, help="default: the recipe's test set")
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--budgets", type=float, nargs="+", help="milliseconds; default: five feasible ones")
    parser.add_argument("--beam", type=int, default=1)
    parser.add_argument("--speculate", action="store_true", help="wherever the calibration says that it pays")
    parser.add_argument("--depths", nargs="+", help="with --processor-time; default: all worth calibrating")
    parser.add_argument("--processor-time", type=Path, metavar="SENTENCES")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="write all numbers here, as JSON")
    args = parser.parse_args()
    run = anydepth.load(args.run, args.device)
    clock = time.process_time if args.processor_time else time.perf_counter
    if args.processor_time:
        depths = args.depths or worthwhile_depths(run)
        texts = read_texts(args.processor_time)
        made = calibrate(run, texts, depths, batches=[1], beam=args.beam, clock=clock)
        vars(run.guide(args.beam))["calibration"] = made  # instead of the one beside the run
        run.clock = clock
    source, reference, _ = read_test_set(args.run, args.source, args.reference)
    source, reference = source[: args.sentences], reference[: args.sentences]
    options = run.guide(args.beam).drafting if args.speculate else run.guide(args.beam).options
    budgets = args.budgets or feasible(run, source, options)
    ways = [way_of(depth, options) for depth in options.depths]
    ways += [Way(budget_ms=budget, speculate=args.speculate) for budget in budgets]
    known = {budget: fixed_for(budget, options) for budget in budgets}
    rows: list[dict[str, Any]] = []
    for answers in ask(run, source, ways, options, args.beam, clock):
        rows = rows_of(answers, known, reference, run.config.tokenizer.lowercase)
        if args.out:
            args.out.write_text(json.dumps(rows, indent=1) + "\n")
    show(rows)
    if late := [one["budget_ms"] for one in rows if one["in_time"] < GOAL]:
        sys.exit(f"less than {GOAL:.0%} of the sentences were in time for {late} ms")


def way_of(depth: str, options: Options) -> Way:
    return Way(depth, speculate=options.drafts and options.calibration.draft_at(depth, 1) is not None)


def feasible(run: anydepth.Run, source: list[str], options: Options, count: int = 5) -> list[float]:
    """From what the fastest depth needs for a very long sentence to what the best one needs for it."""
    lengths = sorted(len(ids) for ids in run.sources(source, run.key))
    long = lengths[int(FITTED * (len(lengths) - 1))]
    times = {depth: options.times(depth, 1).predict(depth, long) for depth in options.depths}
    least, most = min(times.values()), times[options.depths[0]]
    found = [round(1.02 * least * (most / least) ** (k / (count - 1)), 2) for k in range(count)]
    return list(dict.fromkeys(found))  # the fastest depth may be the best one


def fixed_for(budget: float, options: Options) -> Way:
    """The best of the depths that, by the calibration, answer so many sentences of its lengths in time."""

    def share(depth: str) -> float:
        lengths, times = options.calibration.tokens, options.times(depth, 1)
        return fmean(times.chance(depth, tokens, 1, budget) for tokens in lengths)

    return next((way_of(depth, options) for depth in options.depths if share(depth) >= GOAL), Way())


def ask(
    run: anydepth.Run, source: list[str], ways: list[Way], options: Options, beam: int, clock: Callable[[], float]
) -> Iterator[dict[Way, Answers]]:
    """Every sentence in every way; told after the first hundred, ten times as many and so on, and in the end."""
    answers = {way: Answers([], [], []) for way in ways}
    draw, warm_up, telling = random.Random(1), source[:3], 100
    for number, text in enumerate([*warm_up, *source], start=1 - len(warm_up)):
        for way in draw.sample(ways, len(ways)):
            [[best]], seconds = timed(run, partial(answer, run, text, way, options, beam), clock)
            if number > 0:
                answers[way].texts.append(best.text)
                answers[way].milliseconds.append(1000 * seconds)
                answers[way].depths.append(best.depth)
        if number in (telling, len(source)):
            telling *= 10 if number == telling else 1
            print(f"{number} of {len(source)} sentences", file=sys.stderr, flush=True)
            yield answers


def answer(run: anydepth.Run, text: str, way: Way, options: Options, beam: int) -> list[list[Translation]]:
    """A sentence that no depth is predicted to be in time for is answered at the fastest."""
    how: dict[str, Any] = {"beam": beam, "batch": 1}
    try:
        return run.translations([text], way.depth, budget_ms=way.budget_ms, speculate=way.speculate, **how)
    except UserError:
        if way.budget_ms is None:
            raise
        depth = options.within(way.budget_ms, len(run.sources([text], run.key)[0])).depth
        return run.translations([text], depth, speculate=way_of(depth, options).speculate, **how)


def rows_of(
    answers: dict[Way, Answers], budgets: dict[float, Way], reference: list[str], lowercase: bool
) -> list[dict[str, Any]]:
    """One for each budget, which comes with the way that would be fixed for it."""
    scorer = Scorer(reference[: len(next(iter(answers.values())).texts)], lowercase)
    counts = {way: scorer.statistics(one.texts) for way, one in answers.items()}
    return [row(answers, counts, budget, fixed) for budget, fixed in budgets.items()]


def row(answers: dict[Way, Answers], counts: dict[Way, Statistics], budget: float, fixed: Way) -> dict[str, Any]:
    (mine,) = (way for way in answers if way.budget_ms == budget)
    in_time = {way: one.share(budget) for way, one in answers.items()}
    enough = [way for way in answers if way.depth and in_time[way] >= GOAL]
    best = max(enough, key=lambda way: counts[way].scores()["bleu"], default=Way())
    found = {"budget_ms": budget, "sentences": len(answers[mine].texts), "in_time": in_time[mine]}
    found |= counts[mine].scores() | {"depths": len(set(answers[mine].depths))}
    for name, way in {"best": best, "fixed": fixed}.items():
        found[name] = way.depth and way.depth + (" drafted" if way.speculate else "")
        if way.depth:
            compared = paired_bootstrap({"it": counts[way], "budget": counts[mine]}).comparisons[1].estimates["bleu"]
            scores = {f"{name}_{metric}": score for metric, score in counts[way].scores().items()}
            found |= scores | {f"{name}_in_time": in_time[way], f"{name}_p": compared.p_value}
    return found


def show(rows: list[dict[str, Any]]) -> None:
    print("budget ms  in time   BLEU   chrF  depths " + "".join(f"{name:>12}  in time   BLEU     p " for name in FIXED))
    for one in rows:
        told = f"{one['budget_ms']:9.2f}  {one['in_time']:7.1%}  {one['bleu']:5.2f}  {one['chrf']:5.2f}"
        told += f"  {one['depths']:6d}"
        for name in FIXED.values():
            if one[name]:
                told += f"  {one[name]:>11}  {one[f'{name}_in_time']:7.1%}  {one[f'{name}_bleu']:5.2f}"
                told += f"  {one[f'{name}_p']:4.2f} "
            else:
                told += f"  {'none':>11}{'':23}"
        print(told)


if __name__ == "__main__":
    main()
