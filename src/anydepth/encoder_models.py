"""Models with an encoder alone. A depth of theirs is one number."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anydepth.config_class import config
from anydepth.data.collate import Batch
from anydepth.data.masking import MaskedBatch, MaskingConfig
from anydepth.depth.policy import NoLayers
from anydepth.models import Planned, StackConfig, Translator, TranslatorConfig, check_norm, final_norm, initialise_stack
from anydepth.nn.attention import Packed, Padded, Sees
from anydepth.nn.embeddings import Embedding, word_vectors
from anydepth.nn.layers import FinalNorm, LayerConfig, initialise
from anydepth.nn.stack import Stack
from anydepth.plan import Plans, parse_encoder_depth


@config
class MaskedLMConfig:
    """A masked language model: an encoder that finds hidden words."""

    type: Literal["masked-lm"] = "masked-lm"
    layer: LayerConfig = LayerConfig()
    """Shape and dropout of every layer."""
    encoder: StackConfig = StackConfig()
    """Its only stack."""
    positions: Literal["sinusoidal", "learned"] = "learned"
    """Position vectors: fixed waves or a learned table."""
    max_positions: int = 514
    """Longest text in tokens, end mark included."""
    embedding_norm: bool = False
    """Whether embeddings are normalised before the first layer (as in RoBERTa)."""
    masking: MaskingConfig = MaskingConfig()
    """Which words are hidden, in training and in held-out text."""

    def __post_init__(self) -> None:
        check_norm(self.layer, "encoder", self.encoder)

    def build(self, source_vocabulary: int, target_vocabulary: int, pad: int) -> "MaskedLM":
        return MaskedLM(self, source_vocabulary, pad)


class MaskedLM(Planned):
    """Text with hidden words → what they were, at any planned depth.

    The head is RoBERTa's: dense, GELU, norm, then the word matrix itself and a bias for each word. All exits share it.
    """

    parse = staticmethod(parse_encoder_depth)

    def __init__(self, config: MaskedLMConfig, vocabulary: int, pad: int) -> None:
        super().__init__()
        self.config, self.pad = config, pad
        layer = config.layer
        words = word_vectors(vocabulary, layer.width)
        self.source = Embedding(words, config.positions, config.max_positions, config.embedding_norm, layer.dropout)
        self.encoder = Stack(layer, config.encoder.layers, decoder=False, mix=config.encoder.mix)
        self.encoder_depth = config.encoder.depth.build(config.encoder.layers)
        self.decoder_depth = NoLayers()
        self.norm = final_norm(layer)
        self.dense, self.dense_norm = nn.Linear(layer.width, layer.width), FinalNorm(layer.width)
        self.output, self.output_bias = words, nn.Parameter(torch.zeros(vocabulary))
        initialise_stack(self.encoder, config.encoder)
        self.dense.apply(initialise)

    def forward(self, batch: MaskedBatch, plans: Plans) -> Tensor:
        """(M, D) states of the slots of a batch, ready for `logits`."""
        x, sees = self.embed(batch)
        gates, _ = self.gates(plans, batch.key, batch.source, batch.noise)
        for state in self.encoder.states(x, plans.encoder, gates, sees):
            x = state
        return self.predict(x, batch.slots)

    def embed(self, batch: MaskedBatch) -> tuple[Tensor, Sees]:
        """(B, S, D) embedded words, and what they may see."""
        if batch.packing is None:
            positions = torch.arange(batch.source.shape[1], device=batch.source.device)[None]
            return self.source(batch.source, positions), Padded((batch.source != self.pad)[:, None, None, :])
        starts, longest, positions = batch.packing
        return self.source(batch.source, positions), Packed(starts, starts, longest, longest)

    def predict(self, x: Tensor, slots: Tensor) -> Tensor:
        """(B, S, D) last states → (M, D): only the slots go through the head."""
        chosen = self.norm(x.flatten(0, 1).index_select(0, slots))
        return self.dense_norm(F.gelu(self.dense(chosen)))


ModelConfig = TranslatorConfig | MaskedLMConfig
Model = Translator | MaskedLM
AnyBatch = Batch | MaskedBatch
