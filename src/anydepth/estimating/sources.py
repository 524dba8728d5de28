"""Where the depths of a classifier's words come from: a list made in training, or a masked language model."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from anydepth.config import Config
from anydepth.data.store import Store
from anydepth.data.tokenizer import Tokenizer
from anydepth.depth.perword import (
    ConstantConfig,
    HaltingConfig,
    MutualInformationConfig,
    PerWordConfig,
    ReconstructionConfig,
)
from anydepth.errors import UserError
from anydepth.estimating.guesser import NAME, find_guesser
from anydepth.estimating.mutual_information import WordDepths, estimate
from anydepth.estimating.pieces import Pieces, with_special
from anydepth.files import locked

if TYPE_CHECKING:
    from anydepth.run import Run

Array = np.ndarray

FILE = "depths.tsv"
"""In the folder of a run."""
LOSSES = "losses"
"""In the folder of a masked language model: what it has been asked before."""


class Estimator(Protocol):
    def of(self, ids: Array, lengths: Array, pieces: Pieces) -> Array:
        """The depths of the pieces of some texts."""


class DepthSource:
    """Texts → the depths of their words."""

    def __init__(self, settings: PerWordConfig, layers: int, tokenizer: Tokenizer, estimator: Estimator) -> None:
        self.settings, self.layers, self.estimator = settings, layers, estimator
        self.pieces = Pieces(tokenizer)
        self.known: dict[Path, tuple[Array, Array]] = {}

    def of(self, ids: Array, lengths: Array, corpus: bool = False) -> Array:
        """(N,) of texts of these lengths, one after the other. What is found for a corpus will be asked for again."""
        estimator = self.estimator
        estimate = estimator.of_corpus if corpus and isinstance(estimator, Guessing) else estimator.of
        depths = estimate(ids, lengths, self.pieces)
        deepest = self.settings.special == "deepest"
        return with_special(depths, ids, lengths, self.pieces, self.layers, deepest)

    def of_texts(self, store: Store, texts: Array) -> Array:
        """Of some texts of a corpus, all of which are estimated the first time."""
        if store.folder not in self.known:
            ids, lengths = store.source(np.arange(len(store)))
            self.known[store.folder] = self.of(ids, lengths, corpus=True), np.cumsum(lengths, dtype=np.int64) - lengths
        depths, offsets = self.known[store.folder]
        lengths = store.source_lengths[texts]
        shifts = offsets[texts] - (np.cumsum(lengths) - lengths)
        return depths[np.arange(lengths.sum()) + np.repeat(shifts, lengths)]


@dataclass(frozen=True)
class Constant:
    depth: int

    def of(self, ids: Array, lengths: Array, pieces: Pieces) -> Array:
        return np.full(len(ids), self.depth, dtype=np.uint8)


class Guessing:
    """Depths from a masked language model. What it says about a corpus is kept beside it, so that nobody asks again,
    whatever the penalty."""

    def __init__(self, run: "Run", settings: ReconstructionConfig) -> None:
        from anydepth.encoder_models import MaskedLM

        if not isinstance(run.model, MaskedLM):
            raise UserError(f"{run.folder} is a {run.config.model.type}: expected a masked-lm")
        if not run.model.exits_everywhere:
            raise UserError(f'{run.folder}: expected a masked-lm with an exit at every layer (depth "prefix")')
        self.run, self.model, self.settings = run, run.model, settings

    def of(self, ids: Array, lengths: Array, pieces: Pieces) -> Array:
        from anydepth.estimating.reconstruction import depths_of

        return depths_of(self.ask(ids, lengths, pieces), self.settings.penalty)

    def of_corpus(self, ids: Array, lengths: Array, pieces: Pieces) -> Array:
        from anydepth.estimating.reconstruction import depths_of

        return depths_of(self.losses(ids, lengths, pieces), self.settings.penalty)

    def ask(self, ids: Array, lengths: Array, pieces: Pieces) -> Array:
        from anydepth.estimating.reconstruction import Reconstruction

        mask, room = self.run.tokenizers.source.mask, self.run.config.model.max_positions
        if (longest := int(lengths.max(initial=0))) > room:
            raise UserError(
                f"{self.run.folder}: this masked-lm reads texts of up to {room} tokens, and one has {longest}; "
                "data.max_source cuts them"
            )
        return Reconstruction(self.model, pieces, mask, self.settings.every).losses(ids, lengths)

    def losses(self, ids: Array, lengths: Array, pieces: Pieces) -> Array:
        """As `ask`, kept."""
        asked = hashlib.sha256(f"{self.run.weights_hash} {self.settings.every} ".encode())
        asked.update(ids.astype(np.int32).tobytes())
        asked.update(lengths.astype(np.int32).tobytes())
        assert self.run.folder is not None
        file = self.run.folder / LOSSES / f"{asked.hexdigest()[:16]}.npy"
        file.parent.mkdir(exist_ok=True)
        with locked(self.run.folder):  # trainings side by side ask for the same: the first computes it, the others wait
            if not file.exists():
                part = file.with_name(f".part-{file.name}")
                np.save(part, self.ask(ids, lengths, pieces))
                part.replace(file)
        return np.load(file)


def per_word(config: Config) -> PerWordConfig | None:
    """The settings of depth per word, where a model has it."""
    depth = config.model.encoder.depth
    return depth if isinstance(depth, PerWordConfig) else None


def source_of(config: Config, tokenizer: Tokenizer, folder: Path, device: str = "auto") -> DepthSource | None:
    """Of a run in this folder; None where its words have no depths of their own, or the model decides itself."""
    settings, layers = per_word(config), config.model.encoder.layers
    if settings is None or isinstance(settings.estimate, HaltingConfig):
        return None
    estimator: Estimator
    match settings.estimate:
        case MutualInformationConfig():
            estimator = WordDepths.read(folder / FILE)
            if estimator.layers != (asked := settings.estimate.deepest or layers):
                raise UserError(f"{folder / FILE}: depths of up to {estimator.layers} layers; expected {asked}")
            if max(map(max, estimator.depths), default=0) >= len(tokenizer):
                raise UserError(f"{folder / FILE}: has pieces that the tokenizer of this run does not have")
        case ConstantConfig(depth=depth):
            estimator = Constant(depth)
        case ReconstructionConfig():
            place = find_guesser(settings.estimate, folder)
            estimator = guessing(settings.estimate, place, layers, tokenizer, device)
    return DepthSource(settings, layers, tokenizer, estimator)


def guessing(settings: ReconstructionConfig, place: Path, layers: int, tokenizer: Tokenizer, device: str) -> Guessing:
    from anydepth.run import load

    try:
        run = load(place, device)
        found = Guessing(run, settings)
    except UserError as error:
        raise UserError(f"{NAME}: {error}") from None
    if run.tokenizers.source.hash != tokenizer.hash:
        raise UserError(f"{NAME}: {place} has another tokenizer than this classifier")
    if (there := len(run.plan().encoder)) != layers:
        raise UserError(f"{NAME}: {place} has {there} layers, this classifier {layers}")
    return found


def write_word_depths(config: Config, stores: list[Store], tokenizer: Tokenizer, file: Path) -> WordDepths | None:
    """Estimates depths from training texts and their labels, where that is how a model gets them."""
    settings = per_word(config)
    if settings is None or not isinstance(settings.estimate, MutualInformationConfig):
        return None
    return word_depths(settings.estimate, config.model.encoder.layers, stores, tokenizer, file)


def word_depths(
    settings: MutualInformationConfig, layers: int, stores: list[Store], tokenizer: Tokenizer, file: Path
) -> WordDepths:
    """Depths by mutual information, written to a file."""
    texts = [store.source(np.arange(len(store))) for store in stores]
    names = sorted({name for store in stores for name in store.label_names})
    labels = [
        np.array([names.index(name) for name in store.label_names])[store.labels(np.arange(len(store)))]
        for store in stores
    ]
    pieces = Pieces(tokenizer)
    found = estimate(
        np.concatenate([ids for ids, _ in texts]),
        np.concatenate([lengths for _, lengths in texts]),
        np.concatenate(labels),
        pieces,
        layers,
        settings,
    )
    found.write(file, pieces)
    return found
