"""Timing a run at many depths: real sentences, short and long, every setting in turn so that all share the moods of the
machine. What takes long is measured less often, and drafts that lose are given up (course.py, racing.py)."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from anydepth.calibrating.calibration import Calibration, Draft, Speculation, Timing, fitted, origin_of
from anydepth.calibrating.course import Course, Progress
from anydepth.calibrating.racing import Setting, Times, ratios
from anydepth.calibrating.timed import timed
from anydepth.decoding.decoder import Precision
from anydepth.errors import UserError
from anydepth.plan import parse_depth

if TYPE_CHECKING:
    from anydepth.run import Run

BATCHES = (1, 8, 32)
DRAFT_WORDS = (2, 4, 6)
LENGTHS = 4
ROUNDS, QUICK_ROUNDS = 12, 5
"""Measurements of a setting at each length, at most, unless they are quick (`Course`): with five there are 20, just
enough for the slowest of 20."""


class Text(NamedTuple):
    text: str
    tokens: int


Seconds = Callable[[list[str], Setting], float]
"""Decodes texts in a way and says how long it took."""
Measured = dict[Setting, Times]


def calibrate(
    run: "Run",
    texts: Sequence[str],
    depths: Sequence[str] | None = None,
    *,
    batches: Sequence[int] = BATCHES,
    beam: int | None = None,
    precision: Precision | None = None,
    drafts_at: Sequence[str] | None = (),
    rounds: int = ROUNDS,
    clock: Callable[[], float] = time.perf_counter,
    progress: Progress | None = None,
) -> Calibration:
    """Of these depths, or all; where the search is greedy speculation too, at the depths `drafts_at` (none: at all of
    them) or the deepest."""
    beam = run.config.decoding.beam if beam is None else beam
    for name, values in {"batches": batches, "rounds": [rounds], "beam": [beam]}.items():
        if not values or min(values) < 1:
            raise UserError(f"{name}: expected at least 1, not {', '.join(map(str, values)) or 'none'}")
    depths = list(dict.fromkeys([*(depths or run.depths()), *(drafts_at or ())]))
    for depth in depths:
        run.plan(depth)
    measured_texts = readable(run, texts)
    settings = [Setting(depth, batch) for depth in depths for batch in dict.fromkeys(batches)]
    if beam == 1 and run.engine_name == "native":
        deepest = max(depths, key=lambda depth: sum(parse_depth(depth)))
        for depth in depths if drafts_at is None else drafts_at or [deepest]:
            settings += drafts(run, depth, batches)
    tried = {setting.depth for setting in settings if setting.draft}
    missing = set(drafts_at or ()) - tried
    if missing or (drafts_at is None and not tried):
        expected = f"beam 1, not {beam}" if beam > 1 else "depths with shallower exits"
        if run.engine_name != "native":
            expected = f"the engine native, not {run.engine_name}"
        raise UserError(f"drafts at {', '.join(sorted(missing)) or 'all'}: expected {expected}")

    def seconds(some: list[str], setting: Setting) -> float:
        how: dict[str, Any] = {"beam": beam, "batch": setting.batch, "sample": False, "n_best": 1}
        how["precision"] = precision
        if setting.draft:
            how |= {"draft": setting.draft, "draft_words": setting.draft_words}
        return timed(run, lambda: run.outputs(some, setting.depth, speculate=setting.draft > 0, **how), clock)[1]

    measured = measure(seconds, measured_texts, settings, rounds, progress=progress)
    plain = {setting: some for setting, some in measured.items() if not setting.draft}
    run.guides.clear()  # what they have read is no longer true
    return Calibration(
        origin=origin_of(run, beam, precision=precision),
        made=date.today().isoformat(),
        rounds=rounds,
        tokens=[measured_texts[(2 * k + 1) * len(measured_texts) // 40].tokens for k in range(20)],
        timings=[fitted(setting.depth, setting.batch, some) for setting, some in plain.items()],
        speculation=compared(measured),
    )


def readable(run: "Run", texts: Sequence[str]) -> list[Text]:
    """Those that the run can decode, shortest first."""
    room = run.config.model.max_positions - 1
    lengths = [len(ids) for ids in run.sources(texts, run.key)]
    found = [Text(text, tokens) for text, tokens in zip(texts, lengths) if text.strip() and 0 < tokens <= room]
    if not found:
        raise UserError("no sentence to measure with: expected at least one that the run can read, better some hundred")
    return sorted(found, key=lambda one: one.tokens)


def drafts(run: "Run", depth: str, batches: Sequence[int]) -> Iterator[Setting]:
    """Every way to speculate at a depth; none where the run cannot."""
    if run.translator.decoder.mix is not None:
        return
    _, layers = parse_depth(depth)
    for batch in batches:
        for draft in sorted(run.model.policies["decoder"].plans(run.key)):
            if draft < layers:
                yield from (Setting(depth, batch, draft, words) for words in DRAFT_WORDS)


def measure(
    seconds: Seconds,
    texts: Sequence[Text],
    settings: Sequence[Setting],
    rounds: int,
    *,
    sparing: bool = True,
    progress: Progress | None = None,
) -> Measured:
    """Rounds over the lengths; at each, settings come in an order drawn anew, with sentences that are the same for all
    of a batch size. Before, a short batch of each depth warms up. `sparing`: not more often than needed (`Course`)."""
    draw = random.Random(1)
    groups = [texts[k * len(texts) // LENGTHS : (k + 1) * len(texts) // LENGTHS] for k in range(LENGTHS)]
    groups = [group for group in groups if group]
    course = Course(settings, [group[len(group) // 2].tokens for group in groups], rounds, sparing, progress)

    def milliseconds(setting: Setting, some: list[Text]) -> float:
        return 1000 * seconds([one.text for one in some], setting)

    for setting in course.plain:
        course.expect(setting, milliseconds(setting, neighbours(groups[0], setting.batch, 0.5)))
    for number in range(course.most_rounds):
        places = list(range(len(groups)))
        if number:  # in the first, short sentences come first: they tell enough about most drafts
            draw.shuffle(places)
        for place in places:
            start, todo = draw.random(), course.todo(number, place)
            for setting in draw.sample(todo, len(todo)):
                some = neighbours(groups[place], setting.batch, start)
                course.add(setting, place, max(one.tokens for one in some), milliseconds(setting, some))
            course.race()
        course.settle()
        if not course.left():
            break
    return course.measured


def neighbours(group: Sequence[Text], count: int, start: float) -> list[Text]:
    """So many texts of similar length, from a place between 0 and 1; if there are too few, again from the first."""
    first = int(start * max(1, len(group) - count + 1))
    return [group[(first + k) % len(group)] for k in range(count)]


def compared(measured: Measured) -> list[Speculation]:
    """For every batch size that was also decoded with drafts: how long plain search and each draft took."""
    found = []
    for setting in (one for one in measured if not one.draft):
        medians = [median(ms for _, ms in some) for some in measured[setting]]
        tried = [
            Draft(draft=draft.draft, draft_words=draft.draft_words, ms=round(drafted_ms(medians, by_length), 4))
            for draft, by_length in ((one, ratios(measured[setting], measured[one])) for one in measured)
            if draft.drafts_for(setting)
        ]
        if tried:
            one = Speculation(depth=setting.depth, batch=setting.batch, plain=round(sum(medians), 4), drafts=tried)
            found.append(replace(one, timing=timing_of(one, measured)))
    return found


def timing_of(speculation: Speculation, measured: Measured) -> Timing | None:
    """Of the best drafts."""
    if not (best := speculation.best):
        return None
    times = measured[Setting(speculation.depth, speculation.batch, best.draft, best.draft_words)]
    return fitted(speculation.depth, speculation.batch, times) if all(times) else None


def drafted_ms(plain: list[float], by_length: list[Any]) -> float:
    """What all lengths take with drafts: plain times, multiplied by ratios seen with the same batches, at the same
    length or, where drafts were given up before, at others."""
    anywhere = np.concatenate(by_length)
    return sum(ms * float(np.median(some if len(some) else anywhere)) for ms, some in zip(plain, by_length))
