"""Masked language modelling: text with hidden words, judged by the perplexity of these."""

import numpy as np

from anydepth.config import Config
from anydepth.data.batching import Batches, IndexBatch
from anydepth.data.corpora import CorpusConfig
from anydepth.data.cutting import Limits
from anydepth.data.masking import MaskedBatch, Masker
from anydepth.data.store import Store
from anydepth.data.tokenizer import MASK, TokenizerPair
from anydepth.encoder_models import MaskedLMConfig, Model


class MaskedText:
    further_tokens: tuple[str, ...] = (MASK,)
    score = None

    def __init__(self, config: Config, tokenizers: TokenizerPair) -> None:
        assert isinstance(config.model, MaskedLMConfig)
        self.settings = config.model.masking
        self.masker = Masker(self.settings, tokenizers.source, config.seed)

    def batch(self, batches: Batches, taken: IndexBatch) -> MaskedBatch:
        return self.masker.training(batches, taken)

    def held_out(self, store: Store, pairs: np.ndarray, limits: Limits) -> MaskedBatch:
        return self.masker.held_out(store, pairs, limits)

    def predictions(self, batches: Batches) -> int:
        return round(self.settings.share * batches.target_tokens)

    def scores(self, model: Model, corpus: CorpusConfig, store: Store, depth: str) -> dict[str, float]:
        return {}
