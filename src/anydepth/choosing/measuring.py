"""Timing a run at many depths: real sentences, short and long, every setting in turn so that all share the moods of the
machine."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from anydepth.choosing.calibration import Calibration, Draft, Speculation, fitted, origin_of
from anydepth.errors import UserError
from anydepth.plan import parse_depth

if TYPE_CHECKING:
    from anydepth.run import Run

Progress = Callable[[int, int], None]
"""Called with the number of measurements done and their total."""

BATCHES = (1, 8, 32)
DRAFT_WORDS = (2, 4, 6)
LENGTHS = 4
ROUNDS, QUICK_ROUNDS = 12, 5
"""Measurements of a setting at each length: with five there are 20, just enough for the slowest of 20."""


class Setting(NamedTuple):
    """One way to decode."""

    depth: str
    batch: int
    draft: int = 0
    """0: plain search."""
    draft_words: int = 0


class Text(NamedTuple):
    text: str
    tokens: int


Decode = Callable[[list[str], Setting], object]
Measured = dict[Setting, list[list[tuple[float, float]]]]
"""(tokens, milliseconds) of every measurement, by length."""


def calibrate(
    run: "Run",
    texts: Sequence[str],
    depths: Sequence[str] | None = None,
    *,
    batches: Sequence[int] = BATCHES,
    beam: int | None = None,
    rounds: int = ROUNDS,
    clock: Callable[[], float] = time.perf_counter,
    progress: Progress | None = None,
) -> Calibration:
    """Of these depths, or all; speculation too, at the deepest of them, where the search is greedy."""
    beam = run.config.decoding.beam if beam is None else beam
    for name, values in {"batches": batches, "rounds": [rounds], "beam": [beam]}.items():
        if not values or min(values) < 1:
            raise UserError(f"{name}: expected at least 1, not {', '.join(map(str, values)) or 'none'}")
    depths = list(depths or run.depths())
    for depth in depths:
        run.plan(depth)
    measured_texts = readable(run, texts)
    settings = [Setting(depth, batch) for depth in depths for batch in dict.fromkeys(batches)]
    if beam == 1 and run.engine_name == "native":
        settings += drafts(run, max(depths, key=lambda depth: sum(parse_depth(depth))), batches)

    def decode(some: list[str], setting: Setting) -> object:
        how: dict[str, Any] = {"beam": beam, "batch": setting.batch, "sample": False, "n_best": 1}
        if setting.draft:
            how |= {"draft": setting.draft, "draft_words": setting.draft_words}
        return run.outputs(some, setting.depth, speculate=setting.draft > 0, **how)

    measured = measure(decode, measured_texts, settings, rounds, clock, progress)
    plain = {setting: some for setting, some in measured.items() if not setting.draft}
    run.guides.clear()  # what they have read is no longer true
    return Calibration(
        origin=origin_of(run, beam),
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
        raise UserError("no sentence to measure with: expected at least one, better some hundred")
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
    decode: Decode,
    texts: Sequence[Text],
    settings: Sequence[Setting],
    rounds: int,
    clock: Callable[[], float],
    progress: Progress | None = None,
) -> Measured:
    """All settings in every round, in an order drawn anew, on sentences that are the same for all; the first round
    warms up and does not count."""
    draw = random.Random(1)
    groups = [texts[k * len(texts) // LENGTHS : (k + 1) * len(texts) // LENGTHS] for k in range(LENGTHS)]
    groups = [group for group in groups if group]
    measured: Measured = {setting: [[] for _ in groups] for setting in settings}
    total = (rounds + 1) * len(settings) * len(groups)
    done = 0
    for number in range(rounds + 1):
        starts = [draw.random() for _ in groups]
        order = [(setting, place) for setting in settings for place in range(len(groups))]
        draw.shuffle(order)
        for setting, place in order:
            some = neighbours(groups[place], setting.batch, starts[place])
            start = clock()
            decode([one.text for one in some], setting)
            seconds = clock() - start
            if number:
                measured[setting][place].append((max(one.tokens for one in some), 1000 * seconds))
            done += 1
            if progress:
                progress(done, total)
    return measured


def neighbours(group: Sequence[Text], count: int, start: float) -> list[Text]:
    """So many texts of similar length, from a place between 0 and 1; if there are too few, again from the first."""
    first = int(start * max(1, len(group) - count + 1))
    return [group[(first + k) % len(group)] for k in range(count)]


def compared(measured: Measured) -> list[Speculation]:
    """For every batch size that was also decoded with drafts: how long plain search and each draft took."""
    sums = {setting: sum(median(ms for _, ms in some) for some in groups) for setting, groups in measured.items()}
    plain = {setting: ms for setting, ms in sums.items() if not setting.draft}
    found = []
    for setting, ms in plain.items():
        tried = [
            Draft(draft=other.draft, draft_words=other.draft_words, ms=round(its, 4))
            for other, its in sums.items()
            if other.draft and other[:2] == setting[:2]
        ]
        if tried:
            found.append(Speculation(depth=setting.depth, batch=setting.batch, plain=round(ms, 4), drafts=tried))
    return found
