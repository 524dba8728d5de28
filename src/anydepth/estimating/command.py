"""`anydepth depths`: estimates depths of words, writes them down and draws them."""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from anydepth.config import Config
from anydepth.config import load as load_config
from anydepth.data.corpora import CorpusConfig, Split
from anydepth.data.reading import Skips, read_rows
from anydepth.data.sources import encode_sources
from anydepth.data.store import tokenize_all
from anydepth.data.tokenizer import Tokenizer, TokenizerPair, tokens_in_front
from anydepth.depth.perword import MutualInformationConfig, PerWordConfig, ReconstructionConfig
from anydepth.encoder_models import ClassifierConfig
from anydepth.errors import UserError
from anydepth.estimating.guesser import find_guesser
from anydepth.estimating.pictures import draw, some_of
from anydepth.estimating.pieces import Pieces, with_special
from anydepth.estimating.reconstruction import Agreement, agreement, depths_of
from anydepth.estimating.sources import Guessing, per_word, word_depths
from anydepth.files import write_durably
from anydepth.run import load as load_run
from anydepth.tasks.classification import with_labels

Array = np.ndarray

PENALTIES = (0.0, 0.05, 0.1, 0.15, 0.2)
"""Of depth-adaptive Table 4."""


@dataclass(frozen=True)
class Estimated:
    """What was written, and what it comes to."""

    file: Path
    picture: Path
    words: int
    mean_depth: float
    """Over the words of all texts, special tokens not counted."""
    counts: list[int]
    """Words of all texts with each depth, from 1 on."""
    by_penalty: dict[float, float]
    """The mean depth for other λ; empty for mutual information."""
    agreement: Agreement | None
    """With words hidden one at a time, if that was asked for."""


def estimate_information(path: Path, out: Path, settings: tuple[str, ...] = (), text: str = "") -> Estimated:
    """By mutual information, from the training texts of a recipe or a run."""
    config, folder = config_of(path, settings)
    chosen = per_word(config)
    asked = chosen.estimate if chosen else MutualInformationConfig()
    if not isinstance(config.model, ClassifierConfig):
        raise UserError(f"{path} is a {config.model.type}: mutual information needs a classifier's labels")
    with_labels(config)  # refuses texts that all have one label, as training does
    if not isinstance(asked, MutualInformationConfig):
        asked = MutualInformationConfig()
    with TemporaryDirectory() as scratch:
        tokenizer = tokenizer_of(config, folder or Path(scratch))
        stores = tokenize_all(config.data, "train", TokenizerPair(tokenizer, tokenizer), Path(scratch) / "data")
        found = word_depths(asked, config.model.encoder.layers, stores, tokenizer, out)
        texts = [store.source(np.arange(len(store))) for store in stores]
    ids, lengths = (np.concatenate(parts) for parts in zip(*texts))
    pieces = Pieces(tokenizer)
    depths = found.of(ids, lengths, pieces)
    counts = counted(depths[~pieces.special[ids]], found.layers)
    words = [(pieces.name(word), value, found.depths[word]) for word, value in found.information.items()]
    words.sort(key=lambda item: -item[1])
    shown: list[tuple[str, int]] = []
    if text:
        own, length = flat(encoded([text], config, tokenizer))
        shown = named(own, whole(found.of(own, length, pieces), own, length, pieces, found.layers, chosen), pieces)
    picture = out.with_suffix(".png")
    draw(picture, some_of(words), "mutual information", counts, shown)
    return Estimated(out, picture, len(found.depths), mean_of(counts), counts.tolist(), {}, None)


def estimate_reconstruction(
    path: Path,
    out: Path,
    model: Path | None = None,
    settings: tuple[str, ...] = (),
    text: str = "",
    penalty: float | None = None,
    every: int | None = None,
    texts: int = 0,
    compare: bool = False,
    device: str = "auto",
) -> Estimated:
    """By the losses of a masked language model, for the test texts of a recipe or a run; that model may be the run.
    What is not given is as the recipe has it."""
    config, folder = config_of(path, settings)
    chosen = per_word(config)
    asked = chosen.estimate if chosen else None
    if isinstance(asked, ReconstructionConfig):
        model = model or find_guesser(asked, folder)
    elif model is None and isinstance(config.model, ClassifierConfig):
        raise UserError("--model: which masked language model guesses the words?")
    else:
        asked = ReconstructionConfig(model=str(path))
    penalty, every = asked.penalty if penalty is None else penalty, asked.every if every is None else every
    asked = ReconstructionConfig(model=str(model or asked.model), penalty=penalty, every=every)
    run = load_run(asked.model, device)
    guessing, tokenizer = Guessing(run, asked), run.tokenizers.source
    pieces, rows = Pieces(tokenizer), list(islice(sentences(config), texts or None))
    if not rows:
        raise UserError(f"{path}: its recipe names no test texts")
    ids, lengths = flat(encoded(rows, config, tokenizer))
    losses = guessing.losses(ids, lengths, pieces)
    depths, layers = depths_of(losses, penalty), losses.shape[1]
    real = ~pieces.special[ids]
    write_durably(out, "".join(jsonl(ids, lengths, whole(depths, ids, lengths, pieces, layers, chosen), pieces)))
    alike = None
    if compare:
        exact = Guessing(run, replace(asked, every=0))
        alike = agreement(depths_of(exact.losses(ids, lengths, pieces), penalty)[real], depths[real])
    counts, picture = counted(depths[real], layers), out.with_suffix(".png")
    shown: list[tuple[str, int]] = []
    if text:
        own, length = flat(encoded([text], config, tokenizer))
        shown = named(own, whole(guessing.of(own, length, pieces), own, length, pieces, layers, chosen), pieces)
    draw(picture, by_word(ids[real], losses[real].min(1), depths[real], pieces), "least loss, nats", counts, shown)
    means = {value: float(depths_of(losses[real], value).mean()) for value in PENALTIES}
    return Estimated(out, picture, int(real.sum()), mean_of(counts), counts.tolist(), means, alike)


def config_of(path: Path, settings: tuple[str, ...]) -> tuple[Config, Path | None]:
    """The settings of a recipe, or those of a run with its folder."""
    if path.is_dir():
        if not (path / "config.toml").is_file():
            raise UserError(f"{path}: not a run, it has no config.toml; expected a run's folder or a recipe.toml")
        return load_config(path / "config.toml", settings), path
    return load_config(path, settings), None


def tokenizer_of(config: Config, folder: Path) -> Tokenizer:
    """That of a run, or the one that a training of the recipe would make, made in this folder."""
    from anydepth.training.data import make_tokenizers

    if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer.source.json")):
        make_tokenizers(config, folder, lambda text: None)
    return TokenizerPair.load(folder).source


def sentences(config: Config) -> Iterator[str]:
    """The test texts, or those for validation or training where there are none."""
    corpora: tuple[CorpusConfig, ...] = config.data.test or config.data.dev or config.data.train
    split: Split = "test" if config.data.test else "dev" if config.data.dev else "train"
    return (row.source for corpus in corpora for row in read_rows(corpus, split, Skips()))


def encoded(texts: list[str], config: Config, tokenizer: Tokenizer) -> list[list[int]]:
    """As the model reads them; what is over-long is cut."""
    data = replace(config.data, max_source=config.data.max_source or config.data.max_length)
    sources = encode_sources(texts, tokenizer, data, tokens_in_front(data, tokenizer, ""))
    return [[*ids, tokenizer.eos] for ids in sources.ids]


def flat(sequences: list[list[int]]) -> tuple[Array, Array]:
    return np.concatenate([np.array(ids) for ids in sequences]), np.array([len(ids) for ids in sequences])


def whole(
    depths: Array, ids: Array, lengths: Array, pieces: Pieces, layers: int, settings: PerWordConfig | None
) -> Array:
    """With depths for special tokens, as these settings have it."""
    return with_special(depths, ids, lengths, pieces, layers, (settings or PerWordConfig()).special == "deepest")


def named(ids: Array, depths: Array, pieces: Pieces) -> list[tuple[str, int]]:
    return [(pieces.names[number], int(depth)) for number, depth in zip(ids, depths)]


def jsonl(ids: Array, lengths: Array, depths: Array, pieces: Pieces) -> list[str]:
    """A line for each text."""
    ends = np.cumsum(lengths)[:-1]
    return [
        json.dumps({"words": [pieces.names[n] for n in text], "depths": mine.tolist()}, ensure_ascii=False) + "\n"
        for text, mine in zip(np.split(ids, ends), np.split(depths, ends))
    ]


def by_word(ids: Array, losses: Array, depths: Array, pieces: Pieces) -> list[tuple[str, float, float]]:
    """The means of the most frequent pieces, the easiest first."""
    groups: dict[int, list[int]] = defaultdict(list)
    for place, number in enumerate(ids.tolist()):
        groups[number].append(place)
    frequent = sorted(groups, key=lambda number: (-len(groups[number]), number))[:40]
    means = [(pieces.names[n], float(losses[groups[n]].mean()), float(depths[groups[n]].mean())) for n in frequent]
    return sorted(means, key=lambda item: item[1])


def counted(depths: Array, layers: int) -> Array:
    return np.bincount(depths, minlength=layers + 1)[1:]


def mean_of(counts: Array) -> float:
    return float((np.arange(1, len(counts) + 1) * counts).sum() / max(1, counts.sum()))
