"""Is the choice of a depth per sentence worth it? Every way to choose on one test set, against the oracle and against
fixed depths that take as long (tied-multi, Table 2, with intervals)."""

import json
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

from anydepth.calibrating.timed import Timed, decode_timed
from anydepth.errors import UserError
from anydepth.evaluation.metrics import Array, Statistics, signatures
from anydepth.evaluation.significance import Resampling, interval, p_value
from anydepth.files import write_atomically
from anydepth.run import Progress, Run
from anydepth.selecting.labels import deepest_of, seen_in_training
from anydepth.selecting.oracle import fastest_of_the_best
from anydepth.selecting.rules import at_price, most_probable, within
from anydepth.selecting.selector import CHEAP, Selector
from anydepth.selecting.training import explained
from anydepth.selecting.verdict import FILE, Difference, Judgement, Row

PRICES = 12
"""Points of a curve of quality against time."""
OWN_TIME = 50
"""Sentences that the selector's own time is measured on."""


def judge(
    run: Run,
    selector: Selector,
    source: list[str],
    reference: list[str],
    folder: Path,
    *,
    beam: int | None = None,
    progress: Progress | None = None,
) -> Judgement:
    """Decodes the test set at every depth, one sentence at a time, and leaves judgement.json in the folder."""
    if len(source) < 2:
        raise UserError(f"{len(source)} test sentences: expected at least 2")
    beam = beam or run.config.decoding.beam
    timed = decode_timed(run, selector.depths, source, reference, folder / "test", beam, progress)
    ids = run.sources(source, run.key)
    seen = {"test": seen_in_training(run.config, source)[1], "labels": selector.facts.get("seen", "not known")}
    found = compare(timed, selector, ids, own_ms(selector, ids), seen, run.config.tokenizer.lowercase)
    write_atomically(folder / FILE, json.dumps(asdict(found), indent=1) + "\n")
    return found


def own_ms(selector: Selector, ids: list[list[int]]) -> float:
    """What the selector's network takes for a sentence, alone."""
    some = ids[:OWN_TIME]
    for tokens in some:  # warms up, and records what can be
        selector.probabilities([tokens])
    start = time.perf_counter()
    for tokens in some:
        selector.probabilities([tokens])
    return 1000 * (time.perf_counter() - start) / len(some)


def compare(
    timed: Timed, selector: Selector, ids: list[list[int]], own: float, seen: dict[str, str], lowercase: bool = False
) -> Judgement:
    """All ways to choose. The cheap ones and the budget-aware one get the time that the selector's choice takes."""
    chrf, ms = timed.chrf(), 1000 * timed.seconds.mean(axis=0)
    full, everyone = selector.full, len(ids)
    predicted = {name: one.gains(ids) for name, one in selector.cheap.items()} | {"budget-aware": selector.gains(ids)}
    names = {"ties": "selector", "tuned": "selector, fine-tuned"}
    by_ties = {name: most_probable(selector.probabilities(ids, name), full) for name in names if name in selector.nets}
    limit = float(ms[by_ties[selector.used]].mean())
    known = selector.facts.get("best", selector.depths[full])
    choices = {f"always full, {deepest_of(selector.depths)}": np.full(everyone, full)}
    choices[f"best fixed, {known}"] = np.full(everyone, selector.depths.index(known))
    choices |= {f"{name} only" if name == CHEAP[0] else name: within(predicted[name], ms, limit) for name in CHEAP}
    choices |= {names[name]: chosen for name, chosen in by_ties.items()}
    choices["budget-aware selector"] = within(predicted["budget-aware"], ms, limit)
    choices["oracle"] = fastest_of_the_best(chrf.T)
    table, asked = Table(timed), {*names.values(), "budget-aware selector"}
    truth = chrf - chrf[:, [full]]
    curves = {"fixed depths": [(float(ms[k]), timed.statistics[k].scores()["chrf"]) for k in range(len(ms))]}
    for name, gains in predicted.items():
        extra = own if name == "budget-aware" else 0.0
        curves[name] = curve(timed, gains, ms, extra)
    return Judgement(
        sentences=everyone,
        settings=timed.settings,
        signatures=signatures(lowercase),
        seen=seen,
        selector_ms=own,
        rows=[
            table.row(name, chosen, choices["oracle"], own if name in asked else 0.0)
            for name, chosen in choices.items()
        ],
        explained={name: explained(gains, truth) for name, gains in predicted.items()},
        curves=curves,
    )


def curve(timed: Timed, gains: Array, ms: Array, extra: float) -> list[tuple[float, float]]:
    """Time and chrF at prices from nothing to one at which time is all that counts."""
    span = float(np.ptp(ms)) or 1.0
    prices = np.concatenate([[0.0], np.geomspace(1e-3, 10, PRICES - 1) * float(np.ptp(gains)) / span])
    found = []
    for price in prices:
        counts, seconds = timed.chosen(at_price(gains, ms, float(price)))
        found.append((1000 * float(seconds.mean()) + extra, counts.scores()["chrf"]))
    return sorted(set(found))


class Table:
    """Makes the rows of a judgement: all resampled alike."""

    def __init__(self, timed: Timed) -> None:
        self.timed = timed
        self.resampling = Resampling(len(timed.seconds))
        self.ms = 1000 * timed.seconds.mean(axis=0)
        self.front = hull(self.ms, np.array([one.scores()["chrf"] for one in timed.statistics]))

    def row(self, name: str, chosen: Array, best: Array, extra: float) -> Row:
        """`best` is the oracle's choice, `extra` the milliseconds that choosing takes."""
        statistics, seconds = self.timed.chosen(chosen)
        mine, oracle = self.scores(statistics), self.scores(self.timed.chosen(best)[0])
        ms = 1000 * seconds + extra
        resampled = self.resampling.counts @ ms / len(ms)
        fixed = len(np.unique(chosen)) == 1 and not extra
        label, control = self.taking(float(ms.mean()))
        against = self.scores(control)
        counts = np.bincount(chosen, minlength=len(self.timed.depths)) / len(chosen)
        return Row(
            name=name,
            scores={metric: (value, *interval(samples)) for metric, (value, samples) in mine.items()},
            ms=(float(ms.mean()), *interval(resampled)),
            regret=difference(oracle["chrf"], mine["chrf"]),
            fixed="" if fixed else label,
            gain={} if fixed else {metric: difference(mine[metric], against[metric]) for metric in mine},
            shares={depth: float(share) for depth, share in zip(self.timed.depths, counts) if share},
        )

    def scores(self, statistics: Statistics) -> dict[str, tuple[float, Array]]:
        """By metric: the score, and that of every resampled test set."""
        resampled = self.resampling.scores(statistics)
        return {metric: (value, resampled[metric]) for metric, value in statistics.scores().items()}

    def taking(self, ms: float) -> tuple[str, Statistics]:
        """What fixed depths give in that time: the best of those on the hull, or a blind mixture of its two neighbours,
        which a coin could choose between. Counts add up, so that the mixture's are their weighted mean."""
        times = self.ms[self.front]
        place = int(np.searchsorted(times, ms))
        if place == 0 or place == len(times):
            one = self.front[min(place, len(times) - 1)]
            return self.timed.depths[one], self.timed.statistics[one]
        low, high = self.front[place - 1], self.front[place]
        share = (ms - self.ms[low]) / (self.ms[high] - self.ms[low])
        pairs = zip(self.timed.statistics[low], self.timed.statistics[high])
        mixed = Statistics(*((1 - share) * one + share * other for one, other in pairs))
        label = f"{100 * (1 - share):.0f} % {self.timed.depths[low]}, {100 * share:.0f} % {self.timed.depths[high]}"
        return label, mixed


def hull(ms: Array, chrf: Array) -> list[int]:
    """The depths that no other depth, and no mixture of two others, beats in the same time; fast ones first."""
    kept: list[int] = []
    for place in np.lexsort((-chrf, ms)).tolist():
        if kept and chrf[place] <= chrf[kept[-1]]:
            continue
        while len(kept) > 1 and slope(ms, chrf, kept[-2], place) >= slope(ms, chrf, kept[-2], kept[-1]):
            kept.pop()
        kept.append(place)
    return kept


def slope(ms: Array, chrf: Array, one: int, other: int) -> float:
    return float((chrf[other] - chrf[one]) / max(ms[other] - ms[one], 1e-12))


def difference(one: tuple[float, Array], other: tuple[float, Array]) -> Difference:
    """Of two scores, each with those of the same resampled test sets."""
    value = one[0] - other[0]
    return Difference(value, *interval(one[1] - other[1]), p_value(other[1], one[1], value))
