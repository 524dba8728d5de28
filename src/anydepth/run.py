"""A trained run in Python: `anydepth.load(folder).translate(texts, depth="6-2")`."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, cached_property, partial
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from anydepth.choosing.budget import Guide
from anydepth.choosing.schedule import Choice, drafts_are_open, schedule
from anydepth.config import Config
from anydepth.config import load as load_config
from anydepth.data.collate import collate_sources
from anydepth.data.languages import find_language, known_languages
from anydepth.data.sources import Sources, encode_sources
from anydepth.data.tokenizer import TokenizerPair, tokens_in_front
from anydepth.decoding.decoder import NEVER, DecodingConfig, Hypothesis, Marks, Precision, changed
from anydepth.decoding.recorded import Found
from anydepth.encoder_models import Classifier, Model
from anydepth.errors import TextError, UserError
from anydepth.files import checksum
from anydepth.models import Translator
from anydepth.plan import Plans
from anydepth.training import checkpoint as checkpoints
from anydepth.training.distributed import pick_device
from anydepth.translating.precision import for_searching
from anydepth.translating.searching import Asked, Searcher

if TYPE_CHECKING:
    from anydepth.classifying.answering import Answering
    from anydepth.classifying.labels import Labelling
    from anydepth.estimating.sources import DepthSource
    from anydepth.selecting.selector import Selector

Progress = Callable[[int, int], None]
"""Called with the number of sentences done and their total."""

ONE = {"n_best": 1}


class Batch(NamedTuple):
    """Sentences that are searched together."""

    sources: list[list[int]]
    numbers: list[int]
    """Their places among all."""
    plans: Plans
    key: str
    decoding: DecodingConfig


class Translation(NamedTuple):
    """One translation, or summary, of a text."""

    text: str
    score: float
    """log_probability / length ** length_penalty: what the search compares."""
    log_probability: float
    tokens: list[int]
    depth: str = ""
    """That it was made at; of an empty text none."""


def load(folder: str | Path, device: str = "auto", checkpoint: str = "best", settings: Sequence[str] = ()) -> "Run":
    """The run in a folder that training made.

    `device` is `cpu`, `cuda`, `cuda:1` or `auto`. `checkpoint` is `best`, `last` or the number of a saved step.
    `settings` change the run's own for this call, as far as its weights fit: 'model.encoder.depth={type="prefix"}' runs
    the first layers of a plain model.
    """
    folder = Path(folder)
    if not (folder / "config.toml").is_file():
        raise UserError(f"{folder} is not a run: it has no config.toml")
    config = load_config(folder / "config.toml", settings)
    file = checkpoints.weights_file(folder, checkpoint)
    try:
        with safe_open(file, "pt") as opened:
            tokenizer_hash = (opened.metadata() or {}).get("tokenizer")
        weights = load_file(file)
    except SafetensorError as error:
        raise UserError(f"{file} is damaged: {error}") from None
    except OSError:  # safetensors says that there is no such file, whatever the reason
        raise UserError(f"{file} cannot be read: no permission, or no longer there") from None
    tokenizers = TokenizerPair.load(folder, tokenizer_hash)
    source, target = tokenizers.source, tokenizers.target
    model = config.model.build(len(source), len(target), target.pad)
    try:
        checkpoints.load_weights(model, weights)
    except UserError as error:
        changed = "".join(f"--set {setting}: " for setting in settings if moves_weights(folder, setting))
        raise UserError(f"{changed}{file}: {error}") from None
    return Run(config, model.eval().to(available_device(device)), tokenizers, folder, file, find_language(config, None))


def moves_weights(folder: Path, setting: str) -> bool:
    """Whether the model of a run has other weights with this setting."""

    def shapes(*overrides: str) -> dict[str, torch.Size]:
        with torch.device("meta"):
            model = load_config(folder / "config.toml", overrides).model.build(1, 1, 0)
        return {name: parameter.shape for name, parameter in model.named_parameters()}

    try:
        return shapes(setting) != shapes()
    except UserError:  # not valid without the other settings
        return False


def available_device(name: str) -> torch.device:
    try:
        return pick_device(name)
    except (RuntimeError, AssertionError):  # no such name; not built for, or not found on, this machine
        raise UserError(f"device {name!r}: not on this machine; expected cpu, cuda, cuda:N or auto") from None


class Run:
    """A trained model with its settings and tokenizers, and where they came from.

    `key` is the language that it speaks unless told otherwise: see `in_language`.
    """

    engine_name = "native"
    """What searches."""
    record = True
    """Whether searches on a GPU may be replayed as CUDA graphs; not worth it for a model that is still in training."""
    clock = staticmethod(time.perf_counter)
    """Of seconds, by which answers are late for their budget."""

    def __init__(
        self,
        config: Config,
        model: Model,
        tokenizers: TokenizerPair,
        folder: Path | None = None,
        weights: Path | None = None,
        key: str = "",
    ) -> None:
        self.config, self.model, self.tokenizers = config, model, tokenizers
        self.folder, self.weights, self.key = folder, weights, key
        self.guides: dict[tuple[int, str, Precision], Guide] = {}
        self.searchers: dict[Precision, Searcher] = {}

    def in_language(self, language: str | None) -> "Run":
        """The same run, for one of its languages, such as en-de; None leaves it as it is."""
        key = self.key if language is None else find_language(self.config, language)
        run = Run(self.config, self.model, self.tokenizers, self.folder, self.weights, key)
        run.searchers = self.searchers
        return run

    @cached_property
    def selector(self) -> "Selector":
        """What chooses a depth for every sentence, where one was trained."""
        from anydepth.selecting.selector import NAME, load_selector

        if self.folder is None:
            raise UserError("depth selector: needs a run that was loaded from a folder")
        return load_selector(self, self.folder / NAME)

    @property
    def device(self) -> torch.device:
        return self.model.output.weight.device

    @cached_property
    def weights_hash(self) -> str | None:
        """Tells weights apart: the SHA-256 of their file."""
        return checksum(self.weights) if self.weights else None

    def depths(self) -> list[str]:
        """Every depth that the model can be run at."""
        return self.model.depths(self.key)

    def plan(self, depth: str | None = None, key: str = "") -> Plans:
        """The layers that run at a depth such as "6-2", or at the deepest."""
        key = key or self.key
        if depth is not None:
            stacks = {name: policy.plans(key) for name, policy in self.model.policies.items()}
            if any(layers not in plans for layers, plans in zip(self.model.parse(depth), stacks.values())):
                known = [f"{name} depths {', '.join(map(str, sorted(plans)))}" for name, plans in stacks.items()]
                raise UserError(f"depth {depth}: this run has {' and '.join(known)}")
        return self.model.plan(depth, key)

    @property
    def translator(self) -> Translator:
        """The model, if it is one with a decoder."""
        if not isinstance(self.model, Translator):
            raise UserError(f"{self.folder or 'this run'} is a {self.config.model.type}: it does not translate")
        return self.model

    def check_task(self, wanted: Literal["translations", "summaries"]) -> None:
        """Refuses to translate with a run that was trained to summarize, and the other way round."""
        made = self.config.data.pairs if isinstance(self.model, Translator) else ""
        if made != wanted:
            verbs = {"translations": "translate", "summaries": "summarize"}
            does = f"{verbs[made]}s" if made else f"is a {self.config.model.type}"
            raise UserError(f"{self.folder or 'this run'} {does}: it does not {verbs[wanted]}")

    @property
    def classifier(self) -> Classifier:
        """The model, if it classifies."""
        if not isinstance(self.model, Classifier):
            summarizes = isinstance(self.model, Translator) and self.config.data.pairs == "summaries"
            does = "summarizes" if summarizes else f"is a {self.config.model.type}"
            raise UserError(f"{self.folder or 'this run'} {does}: it does not classify")
        return self.model

    @cached_property
    def answering(self) -> "Answering":
        """What asks the classifier."""
        from anydepth.classifying.answering import Answering

        return Answering(self.classifier, half=self.config.training.precision != "fp32")

    @cached_property
    def word_depths(self) -> "DepthSource | None":
        """What knows the depths of words, where they have their own."""
        from anydepth.estimating.sources import source_of

        return source_of(self.config, self.tokenizers.source, self.folder, str(self.device)) if self.folder else None

    def classify(
        self,
        texts: Sequence[str],
        depth: str | None = None,
        *,
        batch: int = 0,
        leave: str = "0.9",
        progress: Progress | None = None,
    ) -> list["Labelling"]:
        """The label of each text; `batch` texts are classified together, 0 means as many as are good. At the depth
        "adaptive" a text is read until `leave` says so: a probability, or a patience such as "patience 2"."""
        from anydepth.classifying.labels import classify

        check_asked(texts, depth)
        return classify(self, texts, depth, batch, leave, progress)

    def describe(self, depth: str | None = None) -> dict[str, Any]:
        """What a depth costs: its layers, parameters, FLOPs and cache bytes."""
        from anydepth.describe import describe_plan

        return describe_plan(self.model, self.plan(depth))

    def translate(self, texts: Sequence[str], depth: str | None = None, **settings: Any) -> list[str]:
        """The best translation of each text. For `settings`, also `key` and `progress`, see `outputs`."""
        return [best.text for (best,) in self.translations(texts, depth, **settings | ONE)]

    def translations(self, texts: Sequence[str], depth: str | None = None, **settings: Any) -> list[list[Translation]]:
        """The `n_best` translations of each text; `depth="selector"` chooses one for each (selecting/selector.py)."""
        self.check_task("translations")
        check_asked(texts, depth)
        if depth is not None and depth.startswith("selector"):
            from anydepth.selecting.selector import outputs_at_chosen_depths

            return outputs_at_chosen_depths(self, texts, depth, **settings)
        return self.outputs(texts, depth, **settings)

    def summarize(self, texts: Sequence[str], depth: str | None = None, **settings: Any) -> list[str]:
        """The best summary of each document, of which the first `data.max_source` tokens are read."""
        return [best.text for (best,) in self.summaries(texts, depth, **settings | ONE)]

    def summaries(self, texts: Sequence[str], depth: str | None = None, **settings: Any) -> list[list[Translation]]:
        """The `n_best` summaries of each document."""
        self.check_task("summaries")
        return self.outputs(texts, depth, **settings)

    @torch.no_grad()
    def outputs(
        self,
        texts: Sequence[str],
        depth: str | None = None,
        *,
        budget_ms: float | None = None,
        key: str = "",
        progress: Progress | None = None,
        **settings: Any,
    ) -> list[list[Translation]]:
        """The `n_best` translations or summaries of each text, best first (samples: in the order drawn).

        `budget_ms` is the time for a text; those of a batch share the time of the batch. Every batch is decoded at the
        best depth that is predicted to fit. `depth="auto"` is the fastest that is not significantly worse than the
        best. Both need `anydepth evaluate` and `anydepth calibrate` first; so do drafts chosen for `speculate`.

        `settings` replace those of the run's [decoding] for this call: beam, batch, length_penalty, sample,
        temperature, seed and so on; None leaves one as it is. `exit` without `exit_margin` takes the margin that
        `anydepth confidence` found. `key` is another language than the run's own.
        An empty text has one empty output.
        """
        check_asked(texts, depth)
        asked, key, _ = self.clock(), key or self.key, self.translator
        decoding = self.with_margin(changed(self.config.decoding, settings), settings, depth, budget_ms, key)
        choice = Choice(depth, budget_ms, drafts=drafts_are_open(settings))
        sources = [ids if text.strip() else [] for ids, text in zip(self.sources(texts, key), texts)]
        self.check_lengths(sources)
        results = [[Translation("", 0.0, 0.0, [])] for _ in texts]
        todo = [number for number, ids in enumerate(sources) if ids]
        done = len(texts) - len(todo)
        lengths = [len(sources[number]) for number in todo]
        plan = cache(partial(self.plan, key=key))
        guide = self.guide(decoding.beam, key, decoding.precision)
        batches = (
            Batch([sources[todo[place]] for place in places], [todo[place] for place in places], plan(depth), key, how)
            for places, depth, how in schedule(lengths, decoding, choice, guide, asked)
        )
        begun, ended = tee(batches)
        at_once = 1 if budget_ms is not None else decoding.at_once  # the time of each is taken before the next begins
        for batch, found in zip(ended, self.searches(begun, decoding.precision, at_once)):
            for number, hypotheses in zip(batch.numbers, found):
                results[number] = self.read(hypotheses, batch.plans.name)
            done += len(batch.numbers)
            if progress:
                progress(done, len(texts))
        return results

    def with_margin(
        self, decoding: DecodingConfig, given: dict[str, Any], depth: str | None, budget_ms: float | None, key: str
    ) -> DecodingConfig:
        """Where a call asks for an early exit, and neither it nor the run says how sure that must be: as sure as
        `anydepth confidence` found."""
        if not given.get("exit") or given.get("exit_margin") is not None or decoding.exit_margin < NEVER:
            return decoding
        from anydepth.calibrating.confidence import find_confidence

        if depth == "auto" or budget_ms is not None:
            raise UserError("exit: how sure it must be depends on the depth; give exit_margin, or a depth, such as 6-2")
        margin = find_confidence(self, depth, decoding.exit, decoding.precision, key).margin
        if margin >= NEVER:
            self.guide(decoding.beam, key).warn(
                f"exit {decoding.exit}: no margin keeps the risk, so no word stops early"
            )
        return replace(decoding, exit_margin=margin)

    def search(
        self, sources: list[list[int]], numbers: list[int], plans: Plans, key: str, decoding: DecodingConfig
    ) -> Found:
        """One batch, as `Batch` says."""
        return self.searcher(decoding.precision).search(self.asked(sources, numbers, plans, key, decoding))

    def searches(self, batches: Iterable[Batch], precision: Precision, at_once: int) -> Iterator[Found]:
        """Several batches, in order; on a GPU perhaps so many at the same time. One at a time, each is asked for when
        the last is done, and weights are prepared when the first is: a budget counts that in."""
        if at_once == 1:
            return (self.search(*batch) for batch in batches)
        return self.searcher(precision).searches((self.asked(*batch) for batch in batches), at_once)

    def asked(
        self, sources: list[list[int]], numbers: list[int], plans: Plans, key: str, decoding: DecodingConfig
    ) -> Asked:
        return Asked(*self.prepared(sources, decoding), plans, key, decoding, numbers)

    def searcher(self, precision: Precision) -> Searcher:
        """What searches with the model's weights in this precision."""
        if precision not in self.searchers:
            model, target = for_searching(self.translator, precision), self.tokenizers.target
            self.searchers[precision] = Searcher(model, Marks(target.bos, target.eos, target.pad), self.record)
        return self.searchers[precision]

    @property
    def preparations(self) -> int:
        """What searches have made so far that the next need not: weights in their precision, CUDA graphs."""
        return len(self.searchers) + sum(searcher.preparations for searcher in self.searchers.values())

    def forget_recordings(self) -> None:
        """Gives back the memory of searches that will not be made again."""
        for searcher in self.searchers.values():
            searcher.forget()

    def prepared(self, sources: list[list[int]], decoding: DecodingConfig) -> tuple[Tensor, Tensor]:
        """(B, S) padded sources and the (B,) most words that their translations may have."""
        padded, longest = (
            collate_sources([self.ended(ids) for ids in sources], self.model.pad),
            self.config.model.max_positions,
        )
        return padded, torch.tensor([min(decoding.most_tokens(len(ids)), longest) for ids in sources])

    def guide(self, beam: int, key: str = "", precision: Precision | None = None) -> Guide:
        """What is known about the depths, for a beam, a language and a precision."""
        what = beam, key or self.key, precision or self.config.decoding.precision
        if what not in self.guides:
            self.guides[what] = Guide(self, *what)
        return self.guides[what]

    def read(self, hypotheses: list[Hypothesis], depth: str) -> list[Translation]:
        texts = self.tokenizers.target.decode([hypothesis.tokens for hypothesis in hypotheses])
        return [
            Translation(text, score, log_probability, tokens, depth)
            for text, (tokens, score, log_probability) in zip(texts, hypotheses)
        ]

    def score(
        self, sources: Sequence[str], targets: Sequence[str | list[int]], depth: str | None = None, *, key: str = ""
    ) -> list[float]:
        """The log-probability of each target (a text, or its tokens) and its end, given its source."""
        from anydepth.translating.scoring import score

        return score(self, sources, targets, depth, key or self.key)

    def sources(self, texts: Sequence[str], key: str) -> list[list[int]]:
        """Token ids of source texts as they were in training: behind the tag of the target language, if there were
        tags, and cut where they were."""
        return self.read_sources(texts, key).ids

    def count_cut(self, texts: Sequence[str], key: str = "") -> int:
        """Texts that are too long to be read to their end."""
        return self.read_sources(texts, key or self.key).cut

    def read_sources(self, texts: Sequence[str], key: str) -> Sources:
        return encode_sources(texts, self.tokenizers.source, self.config.data, self.in_front(key))

    def in_front(self, key: str) -> list[int]:
        """The tokens that stand in front of every source text: the tag of the target language, or none."""
        if self.config.data.tags == "target" and not key:
            known = ", ".join(known_languages(self.config))
            raise UserError(f"say which language is meant (--language): this run knows {known}")
        return tokens_in_front(self.config.data, self.tokenizers.source, key)

    def ended(self, source: list[int]) -> list[int]:
        return [*source, self.tokenizers.source.eos]

    def check_lengths(self, sequences: list[list[int]], side: str = "") -> None:
        room = self.config.model.max_positions - 1
        for number, ids in enumerate(sequences, start=1):
            if len(ids) > room:
                raise TextError(number, f"{len(ids)} tokens, but this model reads {room} at most", side)


def check_asked(texts: Sequence[str], depth: str | None) -> None:
    """A single text is a sequence of texts, too: its characters. A depth may look like a number."""
    if isinstance(texts, str):
        raise UserError(f"texts: expected a list, such as [{texts[:20]!r}], not a single text")
    for number, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise TextError(number, f"expected a text, not {type(text).__name__} {text!r:.40}")
    if not isinstance(depth, str | None):
        raise UserError(
            f"depth: expected a text, such as '6-2' (a classifier: '6'), not {type(depth).__name__} {depth}"
        )
