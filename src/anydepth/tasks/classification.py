"""Classification: texts and their labels, judged by accuracy and macro-F1."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from anydepth.data.batching import Batches, IndexBatch, Limits
from anydepth.data.corpora import CorpusConfig
from anydepth.data.labelled import labels_of
from anydepth.data.labelled_batch import LabelledBatch, labelled_batch
from anydepth.data.store import Store
from anydepth.data.tokenizer import TokenizerPair
from anydepth.encoder_models import Classifier, ClassifierConfig, Model
from anydepth.errors import UserError
from anydepth.estimating.sources import FILE, DepthSource, source_of, write_word_depths

if TYPE_CHECKING:
    from anydepth.config import Config


class Classification:
    further_tokens: tuple[str, ...] = ()

    def __init__(self, config: "Config", tokenizers: TokenizerPair) -> None:
        assert isinstance(config.model, ClassifierConfig)
        self.config, self.tokenizers = config, tokenizers
        self.labels = {label: number for number, label in enumerate(config.model.labels)}
        self.depths: DepthSource | None = None
        """Of words, where they have depths of their own."""

    def learn_depths(self, stores: list[Store], out: Path) -> None:
        """Writes the depths that follow from the training texts into the folder of the run."""
        if not (out / FILE).exists():
            write_word_depths(self.config, stores, self.tokenizers.source, out / FILE)

    def take_depths(self, folder: Path | None, device: str = "auto") -> "Classification":
        """Uses the depths that a run has."""
        if folder is not None:
            self.depths = source_of(self.config, self.tokenizers.source, folder, device)
        return self

    def batch(self, batches: Batches, taken: IndexBatch) -> LabelledBatch:
        return self.held_out(batches.stores[taken.corpus], taken.pairs, batches.limits)

    def held_out(self, store: Store, texts: np.ndarray, limits: Limits) -> LabelledBatch:
        depths = self.depths.of_texts(store, texts) if self.depths else None
        return labelled_batch(store, texts, self.numbers(store)[store.labels(texts)], limits, depths)

    def numbers(self, store: Store) -> np.ndarray:
        """The model's number for each of a store's."""
        for name in store.label_names:
            if name not in self.labels:
                known = ", ".join(list(self.labels)[:20])
                raise UserError(f"{', '.join(store.files)}: label {name!r} is not among those trained for: {known}")
        return np.array([self.labels[name] for name in store.label_names], dtype=np.int64)

    def predictions(self, batches: Batches) -> int:
        return sum(map(len, batches.stores))

    def scores(self, model: Model, corpus: CorpusConfig, store: Store, depth: str) -> dict[str, float]:
        from anydepth.evaluation.accuracy import predict
        from anydepth.evaluation.labels import accuracy, macro_f1

        assert isinstance(model, Classifier)
        found, right = predict(model, self, [store], model.plan(depth, store.key))
        return {"accuracy": accuracy(found, right), "macro_f1": macro_f1(found, right)}


def with_labels(config: "Config") -> "Config":
    """With the labels of the training corpora, where a classifier is not told which ones there are."""
    if not isinstance(config.model, ClassifierConfig) or config.model.labels:
        return config
    return replace(config, model=replace(config.model, labels=labels_of(config.data.train)))
