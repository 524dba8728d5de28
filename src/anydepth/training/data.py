"""From a recipe's corpora to a stream of batches that knows its place."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from rich.progress import Progress
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from anydepth.config import Config, load
from anydepth.data.any_batch import AnyBatch
from anydepth.data.batching import Batches
from anydepth.data.collate import prefetch, stream
from anydepth.data.cutting import BatchingConfig
from anydepth.data.store import Store, tokenize_all
from anydepth.data.tokenizer import TokenizerPair
from anydepth.data.tokenizer_training import build
from anydepth.encoder_models import EncoderModel, Model
from anydepth.errors import UserError
from anydepth.files import put_in_place
from anydepth.interop.bert import bert_tokenizer, bert_weights, is_bert
from anydepth.models import Translator, TranslatorConfig
from anydepth.tasks import AnyTask, Classification, task_of
from anydepth.training.checkpoint import load_weights
from anydepth.training.distributed import Ranks, first_does

BODY = ("source.", "encoder.", "norm.")
"""What models for different tasks have in common."""


@dataclass
class TrainingData:
    """Tokenizers, the training stream with its position, and the dev sets."""

    tokenizers: TokenizerPair
    batches: Batches
    dev: list[Store]
    """One after the other; empty if there is none."""
    batching: BatchingConfig
    device: torch.device
    task: AnyTask
    position: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.position = self.batches.position()

    @property
    def epoch(self) -> float:
        return float(self.position["epoch"])

    def seek(self, position: dict[str, Any]) -> None:
        self.batches.seek(position)
        self.position = position

    @contextmanager
    def stream(self) -> Iterator[Iterator[AnyBatch]]:
        """Batches on the device, made ahead by a background thread; `position` follows what was taken."""
        with prefetch(stream(self.batches, self.device.type == "cuda", self.task.batch)) as ahead:
            yield self._follow(ahead)

    def _follow(self, ahead: Iterator[tuple[AnyBatch, dict[str, Any]]]) -> Iterator[AnyBatch]:
        for batch, position in ahead:
            self.position = position
            yield batch.to(self.device)

    def build_model(self, config: Config) -> Model:
        source, target = self.tokenizers.source, self.tokenizers.target
        if source.pad != target.pad:
            raise UserError(f"tokenizers: padding is {source.pad} in the source's and {target.pad} in the target's")
        return config.model.build(len(source), len(target), target.pad)


def prepare(config: Config, out: Path, ranks: Ranks, quiet: bool) -> TrainingData:
    """Builds the tokenizers and tokenizes the corpora; rank 0 does the work, the others read the result."""
    first_does(ranks, lambda: tokenize_corpora(config, out, quiet))
    tokenizers = TokenizerPair.load(out)
    train = tokenize_all(config.data, "train", tokenizers, out / "data")
    dev = tokenize_all(config.data, "dev", tokenizers, out / "data")
    layout = config.batching.layout
    if layout == "auto":
        fast = ranks.device.type == "cuda" and config.training.precision != "fp32"
        layout = "packed" if fast and not getattr(config.model, "sentence_layers", 0) else "padded"
    if layout == "packed" and ranks.device.type == "cuda" and config.training.precision == "fp32":
        raise UserError('batching.layout: packed batches need training.precision = "bf16" on a GPU')
    batching = replace(config.batching, layout=layout)
    check_positions(config, batching)
    batches = Batches(
        train,
        batching,
        seed=config.seed,
        temperature=config.data.temperature,
        turns=config.data.mixing == "turns",
        rank=ranks.rank,
        world=ranks.world,
    )
    task = task_of(config)(config, tokenizers)
    if isinstance(task, Classification):
        first_does(ranks, lambda: task.learn_depths(train, out))
        task.take_depths(out, str(ranks.device))
    return TrainingData(tokenizers, batches, dev, batching, ranks.device, task)


def take_weights(model: Model, start: str) -> None:
    """Begins with the weights of another run, or of BERT; a model for another task keeps its new head."""
    file = Path(start) / "model.safetensors"
    try:
        if is_bert(Path(start)):
            if isinstance(model, Translator):
                raise UserError("BERT has no decoder: it can start a masked-lm or a classifier")
            tensors = with_new_head(model, bert_weights(Path(start), model))
        else:
            tensors = load_file(file)
            if isinstance(model, EncoderModel) and kind_of_run(start) != model.config.type:
                body = {name: tensor for name, tensor in tensors.items() if name.startswith(BODY)}
                tensors = with_new_head(model, body)
        load_weights(model, tensors)
    except (UserError, OSError, SafetensorError) as error:
        raise UserError(f"training.start_from: {file}: {error}") from None


def with_new_head(model: EncoderModel, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """All of a model's weights, those of the given ones that it has replaced; words, positions and layers are."""
    own = {name: parameter.detach() for name, parameter in model.named_parameters()}
    body = {name for name in own if name.startswith(BODY)}
    if missing := body - given.keys():
        raise UserError(f"{min(missing)} is missing")
    return own | {name: tensor for name, tensor in given.items() if name in own}


def kind_of_run(folder: str) -> str:
    return load(Path(folder) / "config.toml").model.type


def start_tokenizers(start: str) -> TokenizerPair:
    """Those of the run, or of the BERT, that a training starts from."""
    if not is_bert(Path(start)):
        return TokenizerPair.load(start)
    tokenizer = bert_tokenizer(Path(start))
    return TokenizerPair(tokenizer, tokenizer)


def check_positions(config: Config, batching: BatchingConfig) -> None:
    """Batches are padded beyond the longest sentence; its positions must still exist."""
    multiple = 64 if batching.layout == "packed" else batching.lengths
    data = config.data
    targets = data.max_length if isinstance(config.model, TranslatorConfig) else 0
    name = "max_source" if data.max_source > targets else "max_length"
    longest = getattr(data, name)
    needed = -(-(longest + 1) // multiple) * multiple
    if needed > config.model.max_positions:
        raise UserError(
            f"model.max_positions: {config.model.max_positions} is too small for data.{name} = "
            f"{longest}, which takes {needed} with padding"
        )


def tokenize_corpora(config: Config, out: Path, quiet: bool) -> None:
    from rich.console import Console

    console = Console(stderr=True, quiet=quiet)
    say = partial(console.print, highlight=False, soft_wrap=True)
    if not any((out / name).exists() for name in ("tokenizer.json", "tokenizer.source.json")):
        make_tokenizers(config, out, say)
    tokenizers = TokenizerPair.load(out)
    with Progress(console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        tasks: dict[str, Any] = {}

        def show(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(f"tokenizing {name}", total=total)
            bar.update(tasks[name], completed=done)

        for split in ("train", "dev"):
            stores = tokenize_all(config.data, split, tokenizers, out / "data", show)
            for store in stores:
                if summary := store.skips.summary():
                    say(f"{split}: {summary}; {len(store)} left")
                if store.cut:
                    say(f"{split}: cut {store.cut} sources to data.max_source = {config.data.max_source} tokens")
            if split == "train":
                say_labels([store for store in stores if store.label_names], say)


def say_labels(stores: list[Store], say: Callable[[str], None]) -> None:
    """How many texts have which label: a heading or a typing error shows as a label that is rare."""
    counts = Counter[str]()
    for store in stores:
        numbers = np.bincount(store.labels(np.arange(len(store))), minlength=len(store.label_names))
        counts.update(dict(zip(store.label_names, numbers.tolist())))
    if counts:
        shown = counts.most_common() if len(counts) <= 20 else [*counts.most_common(10), *counts.most_common()[-10:]]
        say(f"{len(counts)} labels: {', '.join(f'{label} {count}' for label, count in shown)}")


def make_tokenizers(config: Config, out: Path, say: Callable[[str], None]) -> None:
    """Those of the run to start from, or new ones."""
    start = config.training.start_from
    if start and not (Path(start) / "model.safetensors").is_file():
        raise UserError(f"training.start_from: {start} is not a trained run: it has no model.safetensors")
    further = task_of(config).further_tokens
    save_whole(start_tokenizers(start) if start else build(config.tokenizer, config.data, say, further), out)


def save_whole(tokenizers: TokenizerPair, out: Path) -> None:
    """Writes the tokenizers so that a kill leaves all or none: that of the target is in place before the source's."""
    with TemporaryDirectory(prefix=".part-", dir=out) as part:
        tokenizers.save(part)
        for file in sorted(Path(part).iterdir(), reverse=True):
            put_in_place(file, out / file.name)
