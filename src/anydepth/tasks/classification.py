"""Classification: texts and their labels, judged by accuracy and macro-F1."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from anydepth.classifying.answering import answer
from anydepth.config import Config
from anydepth.config_reader import read
from anydepth.data.batching import Batches, IndexBatch
from anydepth.data.corpora import CorpusConfig
from anydepth.data.cutting import BatchingConfig, Limits, one_pass
from anydepth.data.labelled import Labelled, labels_of, read_labelled
from anydepth.data.labelled_batch import LabelledBatch, labelled_batch
from anydepth.data.reading import Skips
from anydepth.data.store import Store
from anydepth.data.tokenizer import TokenizerPair
from anydepth.depth.perword import ReconstructionConfig
from anydepth.encoder_models import Classifier, ClassifierConfig, Model
from anydepth.errors import UserError
from anydepth.estimating.guesser import find_guesser, is_run, remember_guesser
from anydepth.estimating.sources import FILE, DepthSource, per_word, source_of, write_word_depths
from anydepth.evaluation.labels import accuracy, macro_f1
from anydepth.plan import Plans

Array = np.ndarray
TOKENS = 8192
"""Of a batch, padding included, where nobody asks for a number of texts."""


def first_place(store: Store, label: str) -> str:
    """The file and line where a label occurs first; of a built-in corpus, which has none, its name."""
    if store.corpus["type"] != "labelled":
        return str(store.corpus["type"])
    rows = read_labelled(read(Labelled, store.corpus), Skips())
    return next((row.place for row in rows if row.label == label), ", ".join(store.files))


class Classification:
    further_tokens: tuple[str, ...] = ()
    score = "accuracy"

    def __init__(self, config: Config, tokenizers: TokenizerPair) -> None:
        assert isinstance(config.model, ClassifierConfig)
        self.config, self.tokenizers = config, tokenizers
        self.labels = {label: number for number, label in enumerate(config.model.labels)}
        self.depths: DepthSource | None = None
        """Of words, where they have depths of their own."""

    def learn_depths(self, stores: list[Store], out: Path) -> None:
        """Writes the depths that follow from the training texts into the folder of the run, or where the model is that
        guesses them."""
        if not (out / FILE).exists():
            write_word_depths(self.config, stores, self.tokenizers.source, out / FILE)
        settings = per_word(self.config)
        if settings and isinstance(settings.estimate, ReconstructionConfig):
            given = Path(settings.estimate.model)  # first: a folder may be left of another try
            guesser = given if is_run(given) else find_guesser(settings.estimate, out)
            remember_guesser(settings.estimate, guesser, out)

    def take_depths(self, folder: Path | None, device: str = "auto") -> "Classification":
        """Uses the depths that a run has."""
        if folder is not None:
            self.depths = source_of(self.config, self.tokenizers.source, folder, device)
        return self

    def batch(self, batches: Batches, taken: IndexBatch) -> LabelledBatch:
        return self.held_out(batches.stores[taken.corpus], taken.pairs, batches.limits)

    def held_out(self, store: Store, texts: Array, limits: Limits) -> LabelledBatch:
        depths = self.depths.of_texts(store, texts) if self.depths else None
        return labelled_batch(store, texts, self.numbers(store)[store.labels(texts)], limits, depths)

    def numbers(self, store: Store) -> Array:
        """The model's number for each of a store's."""
        for name in store.label_names:
            if name not in self.labels:
                known = ", ".join(list(self.labels)[:20])
                raise UserError(f"{first_place(store, name)}: label {name!r} is not among those trained for: {known}")
        return np.array([self.labels[name] for name in store.label_names], dtype=np.int64)

    def predictions(self, batches: Batches) -> int:
        return sum(map(len, batches.stores))

    def scores(self, model: Model, corpus: CorpusConfig, store: Store, depth: str) -> dict[str, float]:
        assert isinstance(model, Classifier)
        found, right = self.predict(model, [store], model.plan(depth, store.key))
        return {"accuracy": accuracy(found, right), "macro_f1": macro_f1(found, right)}

    def predict(self, model: Classifier, stores: Sequence[Store], plans: Plans) -> tuple[Array, Array]:
        """The labels found for all texts, and the right ones."""
        batches = self.in_batches(stores)
        places = [where for where, _ in batches]
        device = model.output.weight.device
        with torch.no_grad():  # not recorded: the weights may be in training
            found = [answer(model, batch.to(device), plans) for _, batch in batches]
        right = in_place([batch.target_out for _, batch in batches], places)
        return in_place([each.logits.argmax(-1) for each in found], places), right

    def in_batches(self, stores: Sequence[Store], batch: int = 0) -> list[tuple[Array, LabelledBatch]]:
        """All texts, those of similar length together, each batch with the places of its texts among all."""
        found, before = [], 0
        for store in stores:
            config = BatchingConfig(tokens=max(TOKENS, store.longest_source), layout="padded", lengths=1)
            limits = Limits.of([store], config)
            order = np.argsort(store.source_lengths, kind="stable")
            cuts = [order[start : start + batch] for start in range(0, len(order), batch)] if batch else None
            for texts in cuts or one_pass(store, config, limits):
                found.append((before + texts, self.held_out(store, texts, limits)))
            before += len(store)
        return found


def in_place(each: Sequence[Tensor], places: Sequence[Array]) -> Array:
    """One number a text, batch by batch, in the order of the test set."""
    result = np.empty(sum(map(len, places)), dtype=np.int64)
    for numbers, where in zip(each, places):
        result[where] = numbers.cpu().numpy()
    return result


def with_labels(config: Config) -> Config:
    """With the labels of the training corpora, where a classifier is not told which ones there are."""
    if not isinstance(config.model, ClassifierConfig) or config.model.labels:
        return config
    return replace(config, model=replace(config.model, labels=labels_of(config.data.train)))
