"""Runs as a server holds them: what they do, between which languages, at which depths."""

import logging
import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from time import monotonic
from typing import Any, Literal, NamedTuple

from anydepth.calibrating.calibration import COVERAGE, Calibration
from anydepth.choosing.budget import Guide, Options
from anydepth.classifying.labels import ADAPTIVE, adaptive
from anydepth.data.builtin_corpora import Builtin
from anydepth.encoder_models import Classifier
from anydepth.errors import UserError
from anydepth.evaluation.cells import depth_name, pareto_front
from anydepth.models import Translator
from anydepth.run import Run, load
from anydepth.serving.jobs import Batch, Drafted, Job, Wish
from anydepth.serving.load import Ladder, LoadAware, Point, above_floor, layers, worthwhile
from anydepth.serving.scheduler import Done, Dropped, Scheduler
from anydepth.serving.worker import Worker
from anydepth.translating.refining import draft, draft_depth, refine

log = logging.getLogger("anydepth.serving")

Task = Literal["translate", "summarize", "classify"]
Quality = Literal["fast", "balanced", "best"]
TASKS: tuple[Task, ...] = ("translate", "summarize", "classify")


class Pair(NamedTuple):
    source: str
    target: str


class Asked(NamedTuple):
    """What a client says about depth."""

    depth: str | None = None
    quality: Quality | None = None
    budget_ms: float | None = None
    floor: str | None = None


class Served:
    """A run with its worker."""

    def __init__(
        self,
        name: str,
        run: Run,
        pairs: dict[Pair, str],
        *,
        batch: int | None = None,
        room: int = 1000,
        watch: Callable[[str, Done | Dropped], None] = lambda name, event: None,
    ) -> None:
        """`pairs` are the languages that it translates between, and the keys that the run knows them by."""
        self.name, self.run, self.pairs, self.task = name, run, pairs, task_of(run)
        self.keys = list(dict.fromkeys(pairs.values())) or [run.key]
        self.batch = batch or run.config.decoding.batch
        self.warnings: list[str] = []
        self.ladder = cache(self.make_ladder)
        self.automatic = cache(self.find_automatic)
        self.scheduler = Scheduler(
            batch=self.batch,
            room=room,
            load=self.load_aware(),
            within=self.within,
            draft_depth=cache(self.draft_depth),
            watch=lambda event: watch(name, event),
        )
        self.read_ahead()
        self.worker = Worker(name, self.compute, self.scheduler)

    def read_ahead(self) -> None:
        """All that answers may need of the run's folder: it can be deleted underneath."""
        for key in self.keys:
            if len(self.ladder(key)) > 1:
                self.automatic(key)

    def health(self) -> list[str]:
        """What an operator should look after."""
        gone = self.run.weights is not None and not self.run.weights.is_file()
        return [*self.warnings, *(["its files are gone; it goes on from memory"] if gone else [])]

    # ---- depths

    def make_ladder(self, key: str) -> Ladder:
        """The deepest depth, which a request gets unless told otherwise, and what is faster on the Pareto front. Only
        the deepest where the run was not evaluated and calibrated: then load changes nothing."""
        deepest = self.run.plan(None, key).name
        try:
            options = self.guide(key).options
            if deepest not in options.depths:
                raise UserError(f"{deepest}, its deepest, was not evaluated and calibrated")
        except UserError as error:
            log.warning("%s: load will not change the depth: %s", self.name, error)
            return [Point(deepest, math.nan, math.inf)]
        points = self.points(options)
        cells = [cell | {"seconds": points[depth_name(cell)].ms / 1000} for cell in options.cells]
        front = [points[depth_name(cell)] for cell in pareto_front(cells, options.metric)]
        return worthwhile([points[deepest], *reversed(front)])

    def points(self, options: Options) -> dict[str, Point]:
        batch = min(self.batch, options.calibration.batches[-1])
        names = {depth_name(cell): cell[options.metric] for cell in options.cells}
        return {
            depth: Point(depth, quality, 1000 * options.usual_seconds(depth, batch)) for depth, quality in names.items()
        }

    def guide(self, key: str) -> Guide:
        return self.run.guide(self.run.config.decoding.beam, key)

    def load_aware(self) -> LoadAware:
        """A batch should take no longer than 95 of 100 full-depth answers do when the server is idle: who waits for one
        and is in the next has an answer in twice that time."""
        for key in self.keys:
            if len(ladder := self.ladder(key)) > 1:
                known = self.guide(key).calibration
                longest = known.usual_p95(ladder[0].depth)
                return LoadAware(ladder, longest, partial(self.clear_ms, known), monotonic)
        return LoadAware(self.ladder(self.keys[0]), math.inf, lambda depth, texts, tokens: 0.0, monotonic)

    def clear_ms(self, known: Calibration, depth: str, texts: int, tokens: int) -> float:
        """0 where a depth was not calibrated: nothing is known to be cheaper."""
        return known.clear_ms(depth, texts, tokens, self.batch) if depth in known.by_depth else 0.0

    def find_automatic(self, key: str) -> Ladder:
        """The fastest depth that is not significantly worse than the best, and the steps below it."""
        options = self.guide(key).options
        first = self.points(options)[options.automatic(self.batch).depth]
        return [first, *(point for point in self.ladder(key) if point.ms < first.ms)]

    def within(self, budget_ms: float, tokens: int, texts: int, key: str) -> str:
        """The best depth that is safe within a budget for all texts together, or else the fastest."""
        options = self.guide(key).options
        return options.at_level(COVERAGE, budget_ms / texts, tokens, texts)[0]

    def wish(self, asked: Asked, key: str) -> Wish:
        """What a request may get; UserError where it asks for what this run cannot know or do."""
        given = [name for name in ("depth", "quality", "budget_ms") if getattr(asked, name) is not None]
        if len(given) > 1:
            raise UserError(f"{' and '.join(given)}: give one of them")
        if asked.floor is not None and given and asked.depth != "auto" and asked.quality != "balanced":
            raise UserError(f"floor: this {given[0]} is not lowered under load, so it has none")
        if asked.depth == ADAPTIVE and self.task == "classify":
            adaptive(self.run.classifier)  # refused now rather than by the worker
            return Wish(ladder=[Point(ADAPTIVE, math.nan, math.inf)])
        if asked.depth not in (None, "auto"):
            return Wish(ladder=[Point(self.run.plan(asked.depth, key).name, math.nan, math.inf)])
        ladder = self.ladder(key)
        if asked.budget_ms is not None:
            self.check_known("budget_ms", ladder)
            return Wish(ladder=ladder, budget_ms=asked.budget_ms)
        if asked.quality == "best":
            return Wish(ladder=ladder[:1])
        if asked.quality == "fast":
            self.check_known("quality fast", ladder)
            return Wish(ladder=ladder[-1:])
        if asked.quality == "balanced" or asked.depth == "auto":
            self.check_known("quality balanced" if asked.quality else "depth auto", ladder)
            ladder = self.automatic(key)
        if asked.floor is not None:
            self.run.plan(asked.floor, key)
            ladder = above_floor(ladder, layers(asked.floor))
        return Wish(ladder=ladder)

    def check_known(self, wanted: str, ladder: Ladder) -> None:
        """The reasons are in the log: clients need not know the server's folders."""
        if math.isinf(ladder[0].ms):
            raise UserError(f"{wanted}: {self.name} was not evaluated and calibrated for this server; give a depth")

    def draft_depth(self, depth: str, key: str) -> str | None:
        """To show something at once while the answer is computed."""
        return draft_depth(self.run, depth, key)

    # ---- work

    def job(
        self, texts: list[str], asked: Asked, key: str = "", deadline: float = math.inf, hurried: bool = False
    ) -> Job:
        """Texts ready to be submitted; UserError where one is too long or the wish cannot be granted."""
        key = key or self.run.key
        ids = self.run.sources(texts, key)
        self.run.check_lengths(ids)
        return Job(
            texts=texts,
            lengths=[len(one) for one in ids],
            wish=self.wish(asked, key),
            key=key,
            deadline=deadline,
            hurried=hurried,
        )

    def compute(self, batch: Batch) -> Sequence[Any]:
        """A batch that the scheduler has made."""
        texts, depth, key = batch.texts, batch.depth, batch.key
        if self.task == "classify":
            return self.run.classify(texts, depth)
        if batch.stage == "draft":
            return [Drafted(begun.text, begun) for begun in draft(self.run, texts, depth, key)]
        if batch.stage == "refine":
            return refine(self.run, [item.drafted.left for item in batch.items if item.drafted], depth, texts, key)
        found = self.run.outputs(texts, depth, key=key, batch=len(texts), n_best=1)
        return [best.text for (best,) in found]


def task_of(run: Run) -> Task:
    if isinstance(run.model, Classifier):
        return "classify"
    if not isinstance(run.model, Translator):
        raise UserError(f"{run.folder} is a {run.config.model.type}: there is nothing to serve")
    return "summarize" if run.config.data.pairs == "summaries" else "translate"


def load_served(argument: str, device: str, **settings: Any) -> Served:
    """A run from the command line: its folder, or SOURCE-TARGET=FOLDER where it does not know its languages."""
    languages, given, folder = argument.partition("=")
    if not given or Path(argument).exists():
        languages, folder = "", argument
    run = load(folder, device)
    pairs = pairs_of(run, languages) if task_of(run) == "translate" else {}
    return Served(Path(folder).resolve().name, run, pairs, **settings)


def pairs_of(run: Run, languages: str) -> dict[Pair, str]:
    """From the keys of its corpora, such as en-de, from the built-in corpus, or as given."""
    if languages:
        return {pair_from(languages): run.key}
    found: dict[Pair, str] = {}
    for corpus in run.config.data.train:
        if corpus.key:
            found[pair_from(corpus.key)] = corpus.key
        elif isinstance(corpus, Builtin):
            found[Pair(corpus.source, corpus.target)] = ""
    if not found:
        raise UserError(f"{run.folder} does not say its languages: give en-de={run.folder}, source-target")
    return found


def pair_from(text: str) -> Pair:
    source, dash, target = text.partition("-")
    if not (source and dash and target):
        raise UserError(f"{text}: expected two languages, such as en-de")
    return Pair(source, target)
