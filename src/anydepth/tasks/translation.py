"""Translation: pairs of sentences, judged by BLEU and chrF of greedy translations."""

from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy as np

from anydepth.config import Config
from anydepth.data.batching import Batches, IndexBatch
from anydepth.data.collate import Batch, collate
from anydepth.data.corpora import CorpusConfig
from anydepth.data.cutting import Limits
from anydepth.data.reading import Skips, read_pairs
from anydepth.data.store import Store
from anydepth.data.tokenizer import TokenizerPair
from anydepth.encoder_models import Model
from anydepth.evaluation.metrics import score
from anydepth.run import Run

GREEDY = {"beam": 1, "sample": False, "speculate": False, "exit": 0, "precision": "float32"}
"""Search settings that every depth and every device can do, and that let weights be compared."""


class Translation:
    further_tokens: tuple[str, ...] = ()
    """Special tokens that the tokenizer must have."""
    score = "bleu"
    """The one of its `scores` that weights are chosen by, if not by the loss."""

    def __init__(self, config: Config, tokenizers: TokenizerPair) -> None:
        self.config, self.tokenizers = config, tokenizers

    def batch(self, batches: Batches, taken: IndexBatch) -> Batch:
        """A training batch, the one just taken."""
        return collate(batches.stores[taken.corpus], taken.pairs, batches.limits)

    def held_out(self, store: Store, pairs: np.ndarray, limits: Limits) -> Batch:
        """A batch to be judged on."""
        return collate(store, pairs, limits)

    def predictions(self, batches: Batches) -> int:
        """What is predicted in a pass over the training corpora."""
        return batches.target_tokens

    def scores(self, model: Model, corpus: CorpusConfig, store: Store, depth: str) -> dict[str, float]:
        """What a validation says besides the loss."""
        wanted = self.config.training.validate_sentences
        if not wanted:
            return {}
        run = Run(self.config, model, self.tokenizers, key=corpus.key)
        run.record = False
        pairs = self.usable(run, read_pairs(corpus, "dev", Skips()), corpus.key, wanted)
        sources, references = [source for source, _ in pairs], [target for _, target in pairs]
        return self.judge(run, sources, references, {"depth": depth, **GREEDY})

    def judge(self, run: Run, sources: list[str], references: list[str], search: dict[str, Any]) -> dict[str, float]:
        found = score(run.translate(sources, **search), references, self.config.tokenizer.lowercase)
        return {"bleu": found.bleu, "chrf": found.chrf}

    def usable(self, run: Run, pairs: Iterable[tuple[str, str]], key: str, wanted: int) -> list[tuple[str, str]]:
        """The first pairs that the loss sees, too."""
        data = self.config.data
        limits = data.max_source or data.max_length, data.max_length

        def fits(source: str, target: str) -> bool:
            sides = run.sources([source], key), self.tokenizers.target.encode([target])
            return all(len(ids) <= limit for (ids,), limit in zip(sides, limits))

        return list(islice((pair for pair in pairs if fits(*pair)), wanted))
