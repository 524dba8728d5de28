"""Models with an encoder alone. A depth of theirs is one number."""

from typing import Literal
from unicodedata import normalize

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anydepth.config_class import config
from anydepth.data.any_batch import EncoderBatch
from anydepth.data.collate import mapped
from anydepth.data.labelled_batch import NO_LABEL, LabelledBatch
from anydepth.data.masking import MaskedBatch, MaskingConfig
from anydepth.depth.perword import PerWord
from anydepth.depth.policy import NoLayers
from anydepth.models import Translator, TranslatorConfig
from anydepth.nn.attention import Packed, Padded, Sees
from anydepth.nn.embeddings import Embedding, word_vectors
from anydepth.nn.layers import FinalNorm, LayerConfig, final_norm, initialise
from anydepth.nn.perword import Words, lay_out, run_words
from anydepth.nn.stack import Stack
from anydepth.nn.stack_config import StackConfig, check_norm
from anydepth.plan import Plan, Plans, parse_encoder_depth
from anydepth.planned import Planned, initialise_stack


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
    """Whether embeddings are normalised before the first layer (as in BERT)."""
    embedding_scale: bool = True
    """Whether word vectors are multiplied by √width, as in the Transformer; BERT does not."""
    masking: MaskingConfig = MaskingConfig()
    """Which words are hidden, in training and in held-out text."""

    def __post_init__(self) -> None:
        check_norm(self.layer, "encoder", self.encoder)

    def build(self, source_vocabulary: int, target_vocabulary: int, pad: int) -> "MaskedLM":
        return MaskedLM(self, source_vocabulary, pad)


@config
class ClassifierConfig:
    """Texts → labels: an encoder whose states are pooled."""

    type: Literal["classifier"] = "classifier"
    labels: tuple[str, ...] = ()
    """The labels; empty takes those of the training corpora. A run has them here."""
    layer: LayerConfig = LayerConfig()
    """Shape and dropout of every layer."""
    encoder: StackConfig = StackConfig()
    """Its only stack."""
    positions: Literal["sinusoidal", "learned"] = "learned"
    """Position vectors: fixed waves or a learned table."""
    max_positions: int = 514
    """Longest text in tokens, end mark included."""
    embedding_norm: bool = False
    """Whether embeddings are normalised before the first layer (as in BERT)."""
    embedding_scale: bool = True
    """Whether word vectors are multiplied by √width, as in the Transformer; BERT does not."""

    def __post_init__(self) -> None:
        check_norm(self.layer, "encoder", self.encoder)
        object.__setattr__(self, "labels", tuple(normalize("NFC", label) for label in self.labels))  # as in corpora
        if len(self.labels) == 1 or len(set(self.labels)) < len(self.labels):
            raise ValueError("labels: expected two or more different ones, or none for those of the training corpora")

    def build(self, source_vocabulary: int, target_vocabulary: int, pad: int) -> "Classifier":
        return Classifier(self, source_vocabulary, pad)


class EncoderModel(Planned):
    """Embeddings and one stack, the common part of the models in this file."""

    parse = staticmethod(parse_encoder_depth)

    def __init__(self, config: MaskedLMConfig | ClassifierConfig, vocabulary: int, pad: int) -> None:
        super().__init__()
        self.pad, layer = pad, config.layer
        self.source = Embedding(
            word_vectors(vocabulary, layer.width),
            config.positions,
            config.max_positions,
            config.embedding_norm,
            layer.dropout,
            config.embedding_scale,
            layer.norm_epsilon,
        )
        self.encoder = Stack(layer, config.encoder.layers, decoder=False, mix=config.encoder.mix)
        self.encoder_depth = config.encoder.depth.build(config.encoder.layers)
        self.gated = config.encoder.depth.gated
        self.decoder_depth = NoLayers()
        self.norm = final_norm(layer)
        initialise_stack(self.encoder, config.encoder)

    @property
    def exits(self) -> list[int]:
        """The layers of the deepest plan after which the state is that of a depth of its own: those of all depths, or,
        where other depths take other layers, the last alone."""
        plans = self.encoder_depth.plans()
        deepest = plans[max(plans)].layers
        prefixes = all(plan.layers == deepest[:depth] for depth, plan in plans.items())
        return sorted(plans) if prefixes and not self.gated and self.encoder.mix is None else [len(deepest)]

    @property
    def exits_everywhere(self) -> bool:
        plain = self.encoder.mix is None and not self.gated
        return plain and self.exits == [*range(1, len(self.plan().encoder) + 1)]

    def forward(self, batch: EncoderBatch, plans: Plans) -> Tensor:
        """States ready for `logits`: one for each word, or text, that the batch asks about."""
        x, sees = self.embed(batch)
        gates, _ = self.gates_of(batch, plans)
        for state in self.encoder.states(x, plans.encoder, gates, sees):
            x = state
        return self.predict(x, batch)

    def embed(self, batch: EncoderBatch) -> tuple[Tensor, Sees]:
        """(B, S, D) embedded words, and what they may see."""
        if batch.packing is None:
            positions = torch.arange(batch.source.shape[1], device=batch.source.device)[None]
            return self.source(batch.source, positions), Padded((batch.source != self.pad)[:, None, None, :])
        starts, longest, positions = batch.packing
        return self.source(batch.source, positions), Packed(starts, starts, longest, longest)

    def predict(self, x: Tensor, batch: EncoderBatch) -> Tensor:
        """The head, up to the output matrix."""
        raise NotImplementedError

    def head_flops(self, words: int | None = None) -> float:
        """Of the matrices of the head, for one prediction or for all those about a text of so many words."""
        raise NotImplementedError


class MaskedLM(EncoderModel):
    """Text with hidden words → what they were, at any planned depth.

    The head is RoBERTa's: dense, GELU, norm, then the word matrix itself and a bias for each word. All exits share it.
    """

    def __init__(self, config: MaskedLMConfig, vocabulary: int, pad: int) -> None:
        super().__init__(config, vocabulary, pad)
        self.config, layer = config, config.layer
        self.dense, self.dense_norm = nn.Linear(layer.width, layer.width), FinalNorm(layer.width, layer.norm_epsilon)
        self.output, self.output_bias = self.source.words, nn.Parameter(torch.zeros(vocabulary))
        self.dense.apply(initialise)

    def predict(self, x: Tensor, batch: EncoderBatch) -> Tensor:
        """(B, S, D) last states → (M, D): only the slots go through the head."""
        assert isinstance(batch, MaskedBatch)
        chosen = self.norm(x.flatten(0, 1).index_select(0, batch.slots))
        return self.dense_norm(F.gelu(self.dense(chosen)))

    def head_flops(self, words: int | None = None) -> float:
        each = 2 * (self.dense.weight.numel() + self.output.weight.numel())
        return each if words is None else self.config.masking.share * words * each


class Classifier(EncoderModel):
    """Texts → labels, at any planned depth.

    The head of depth-adaptive Transformers pools the words' states: v = ReLU([max_t h; mean_t h]), then one matrix of
    2D × labels (the paper prints D × labels). All exits share it.
    """

    no_target = NO_LABEL

    def __init__(self, config: ClassifierConfig, vocabulary: int, pad: int) -> None:
        super().__init__(config, vocabulary, pad)
        self.config = config
        self.output = nn.Embedding(len(config.labels) or 2, 2 * config.layer.width)
        self.output_bias = nn.Parameter(torch.zeros(self.output.num_embeddings))
        nn.init.normal_(self.output.weight, std=0.02)
        self.halting = self.encoder_depth.halting if isinstance(self.encoder_depth, PerWord) else None
        self.unit = nn.Linear(config.layer.width, config.encoder.layers) if self.halting is not None else None
        """Chooses the depth of every word, where that is how they get one."""

    @property
    def depths_are_known(self) -> bool:
        """Whether all that runs is known beforehand, and is layers one after the other with nothing in between."""
        return self.unit is None and self.encoder.mix is None and not self.gated

    def forward(self, batch: EncoderBatch, plans: Plans) -> Tensor:
        if not isinstance(self.encoder_depth, PerWord):
            return super().forward(batch, plans)
        assert isinstance(batch, LabelledBatch)
        return self.read_words(batch, plans.encoder)[0]

    def read_words(self, batch: LabelledBatch, plan: Plan) -> tuple[Tensor, Words]:
        """(B, 2D) of texts whose words have depths of their own, and these; padding is never computed."""
        words, source = batch.words, batch.source.flatten()
        if words is not None:
            return self.read(source.index_select(0, words.places), words, plan), words
        if self.unit is None or self.halting is None:
            raise ValueError("depth per word: the batch does not say how deep its words are")
        every = self.all_words(batch.source)
        x = self.source(source.index_select(0, every.places)[None], every.positions[None])[0]
        x, kept = run_words(self.encoder, x, plan, every, self.refresh)
        depths = self.halting.depths(self.unit(self.norm(x))).cpu().numpy()  # a GPU waits here
        words = lay_out(depths, every.starts.diff().cpu().numpy(), batch.source.shape[1])
        words = mapped(lambda tensor: tensor.to(batch.source.device), words)
        x, _ = run_words(self.encoder, x, plan, words, self.refresh, kept, first=1)
        return self.pool_words(x, words), words

    def read(self, ids: Tensor, words: Words, plan: Plan) -> Tensor:
        """(N,) words, laid out → (texts, 2D). Nothing in here makes a GPU wait."""
        x = self.source(ids[None], words.positions[None])[0]
        return self.pool_words(run_words(self.encoder, x, plan, words, self.refresh)[0], words)

    @property
    def refresh(self) -> bool:
        return isinstance(self.encoder_depth, PerWord) and self.encoder_depth.refresh

    def all_words(self, source: Tensor) -> Words:
        """Of a padded batch, to run one layer."""
        lengths = (source != self.pad).sum(1).cpu().numpy()
        words = lay_out(np.ones(lengths.sum(), dtype=np.int64), lengths, source.shape[1])
        return mapped(lambda tensor: tensor.to(source.device), words)

    def pool_words(self, x: Tensor, words: Words) -> Tensor:
        """(N, D) last states → (texts, 2D), by way of a padded batch: sums into one place from many take turns."""
        texts, width = words.sizes.texts, words.sizes.width
        rows = x.new_zeros(texts * width, x.shape[1]).index_copy(0, words.places, self.norm(x).to(x.dtype))
        real = torch.arange(width, device=x.device) < words.starts.diff()[:, None]
        return pool_rows(rows.unflatten(0, (texts, width)), real)

    def predict(self, x: Tensor, batch: EncoderBatch) -> Tensor:
        """(B, S, D) last states → (B, 2D); packed, a row for each segment."""
        if batch.packing is None:
            return pool_rows(self.norm(x), batch.source != self.pad)
        owners, texts = self.owners(batch)
        return pool(self.norm(x).flatten(0, 1), owners, texts + 1)[:texts]

    def owners(self, batch: EncoderBatch) -> tuple[Tensor, int]:
        """(N,) the text of each word, and how many there are; padding belongs to one more text."""
        device = batch.source.device
        if batch.packing is None:
            texts = batch.source.shape[0]
            rows = torch.arange(texts, device=device)[:, None]
            return torch.where(batch.source != self.pad, rows, texts).flatten(), texts
        starts = batch.packing.starts
        words = torch.arange(batch.source.shape[1], device=device, dtype=starts.dtype)
        return torch.searchsorted(starts, words, right=True) - 1, len(starts) - 1

    def head_flops(self, words: int | None = None) -> float:
        return 2 * self.output.weight.numel()


def pool_rows(states: Tensor, real: Tensor) -> Tensor:
    """ReLU of the maximum and of the mean over each row's real words: (B, S, D) states and (B, S) → (B, 2D)."""
    kind = torch.float32 if states.dtype.itemsize < 4 else states.dtype  # sums over hundreds of words
    real = real[:, :, None]
    highest = states.masked_fill(~real, -torch.inf).amax(1).to(kind)
    mean = states.masked_fill(~real, 0).sum(1, dtype=kind) / real.sum(1).clamp(min=1)
    return F.relu(torch.cat([highest, mean], 1))


def pool(states: Tensor, owners: Tensor, texts: int) -> Tensor:
    """ReLU of the maximum and of the mean over each text's words: (N, D) states of (N,) texts → (texts, 2D)."""
    states = states.float() if states.dtype.itemsize < 4 else states  # sums over hundreds of words
    highest = states.new_zeros(texts, states.shape[1])
    index = owners[:, None].expand(-1, states.shape[1])
    highest = highest.scatter_reduce(0, index, states, "amax", include_self=False)
    words = states.new_zeros(texts, 1).index_add(0, owners, torch.ones_like(states[:, :1])).clamp(min=1)
    mean = torch.zeros_like(highest).index_add(0, owners, states) / words
    return F.relu(torch.cat([highest, mean], 1))


ModelConfig = TranslatorConfig | MaskedLMConfig | ClassifierConfig
Model = Translator | MaskedLM | Classifier
