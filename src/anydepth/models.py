"""The translator = embeddings + two stacks + a head. Depth comes in as plans and never as an `if`."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from anydepth.config_class import config
from anydepth.data.collate import Batch
from anydepth.nn.attention import Packed, Padded, Sees
from anydepth.nn.bridge import LastState, LastStateConfig, Memory, Transparent, TransparentConfig
from anydepth.nn.cache import AnyCache, Cache
from anydepth.nn.embeddings import Embedding, word_vectors
from anydepth.nn.hierarchy import read_by_sentence
from anydepth.nn.layers import LayerConfig, final_norm, initialise
from anydepth.nn.multiscale import Multiscale, MultiscaleConfig
from anydepth.nn.stack import Stack
from anydepth.nn.stack_config import StackConfig, check_norm
from anydepth.plan import Plans
from anydepth.planned import Planned, initialise_stack

BridgeConfig = LastStateConfig | TransparentConfig | MultiscaleConfig
Bridge = LastState | Transparent | Multiscale


@config
class TranslatorConfig:
    """An encoder-decoder Transformer."""

    type: Literal["translator"] = "translator"
    layer: LayerConfig = LayerConfig()
    """Shape and dropout of every layer."""
    encoder: StackConfig = StackConfig()
    """The source side."""
    decoder: StackConfig = StackConfig()
    """The target side."""
    bridge: BridgeConfig = LastStateConfig()
    """What decoder layers attend to: the encoder's last state, a mixture of all its states, or its blocks."""
    sentence_layers: int = 0
    """The first so many encoder layers read each sentence by itself, the others a document as a row of sentences: the
    hierarchical Transformer of Wei et al. 2020, Appendix A. It needs data.sentences. 0 for one flat text."""
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    """Position vectors: fixed waves or a learned table."""
    max_positions: int = 1024
    """Longest text in tokens, end mark included."""
    embedding_norm: bool = False
    """Whether embeddings are normalised before the first layer (as in MBart)."""
    tie: Literal["all", "decoder", "none"] = "all"
    """Which word matrices are one: source, target and output (`all`, needs a joint vocabulary), target and output
    (`decoder`), or `none`."""

    def __post_init__(self) -> None:
        for name, stack in (("encoder", self.encoder), ("decoder", self.decoder)):
            check_norm(self.layer, name, stack)
        self.bridge.check(self.layer, self.encoder, self.decoder)
        if self.sentence_layers:
            self.check_hierarchy()

    def check_hierarchy(self) -> None:
        """Sentence layers and those above read different things: neither can be left out, nor their states mixed."""
        if not 0 < self.sentence_layers < self.encoder.layers:
            raise ValueError(
                f"sentence_layers must leave some of the {self.encoder.layers} encoder layers for documents, "
                f"not {self.sentence_layers}"
            )
        if self.encoder.depth.type not in ("full", "rezero"):
            raise ValueError(
                f'sentence_layers: encoder.depth = "{self.encoder.depth.type}" may leave out all layers of sentences '
                'or of documents; use "full", and flexible depth in the decoder alone'
            )
        if self.encoder.mix != "residual" or self.bridge.type != "last":
            raise ValueError(
                'sentence_layers: states of words and of sentences cannot be mixed; use encoder.mix = "residual" and '
                'bridge.type = "last"'
            )

    def build(self, source_vocabulary: int, target_vocabulary: int, pad: int) -> "Translator":
        return Translator(self, source_vocabulary, target_vocabulary, pad)


class Translator(Planned):
    """Source words → target words, at any planned depth."""

    def __init__(self, config: TranslatorConfig, source_vocabulary: int, target_vocabulary: int, pad: int) -> None:
        super().__init__()
        self.config, self.pad = config, pad
        layer = config.layer
        source = word_vectors(source_vocabulary, layer.width)
        target = source if config.tie == "all" else word_vectors(target_vocabulary, layer.width)
        output = word_vectors(target_vocabulary, layer.width) if config.tie == "none" else target
        embed = (config.positions, config.max_positions, config.embedding_norm, layer.dropout)
        self.source, self.target = (
            Embedding(side, *embed, norm_epsilon=layer.norm_epsilon) for side in (source, target)
        )
        fusion = config.bridge.fusion_in
        self.encoder = Stack(layer, config.encoder.layers, False, config.encoder.mix, fusion.get("encoder"))
        self.decoder = Stack(layer, config.decoder.layers, True, config.decoder.mix, fusion.get("decoder"))
        self.encoder_depth = config.encoder.depth.build(config.encoder.layers)
        self.decoder_depth = config.decoder.depth.build(config.decoder.layers)
        # every exit shares the final norms and the output matrix
        sizes = config.encoder.layers, config.decoder.layers
        self.bridge: Bridge = config.bridge.build(final_norm(layer), layer, *sizes)
        self.norm = final_norm(layer)
        self.output, self.output_bias = output, None
        initialise_stack(self.encoder, config.encoder)
        initialise_stack(self.decoder, config.decoder)
        self.bridge.apply(initialise)

    # -- computation ---------------------------------------------------------------------------------------------

    def forward(self, batch: Batch, plans: Plans) -> Tensor:
        """Decoder states (B, T, D) of a batch, ready for `logits`."""
        view = look_at(batch, self.pad)
        encoder_gates, decoder_gates = self.gates_of(batch, plans, batch.target_in)
        memories = self.encode(batch.source, view.source_positions, view.source, plans, encoder_gates)
        x = self.target(batch.target_in, view.target_positions)
        return self.decode(x, view.target, memories, view.memory, plans, decoder_gates)

    def encode(self, source: Tensor, positions: Tensor, sees: Sees, plans: Plans, gates: Tensor | None) -> list[Memory]:
        """(B, S) words → what each decoder step attends to, (B, S, D) each."""
        plan, lower = self.bridge.reads(plans), self.config.sentence_layers
        if lower:
            top = read_by_sentence(source, self.pad, self.source, self.encoder, plan, gates, lower)
            return self.bridge(lambda _: [top], plans.decoder)
        gates = None if gates is None else gates[: len(plan)]
        x = self.source(source, positions)
        return self.bridge(lambda read: self.encoder.states(x, plan, gates, sees, read, sees), plans.decoder)

    def decode(
        self,
        x: Tensor,
        sees: Sees,
        memories: list[Memory],
        sees_memory: Sees,
        plans: Plans,
        gates: Tensor | None,
        cache: AnyCache | None = None,
    ) -> Tensor:
        """(B, T, D) embedded target words → (B, T, D) normalised states."""
        for state in self.decoder.states(x, plans.decoder, gates, sees, memories, sees_memory, cache):
            x = state
        return self.norm(x)

    def start(self, source: Tensor, plans: Plans, key: str = "") -> "TranslatorDecoder":
        """Reads (B, S) padded sources and makes the decoder that a search drives."""
        self.source.check_length(source.shape[1])
        real = source != self.pad
        # to ask a GPU would make the host wait
        full = source.device.type == "cpu" and bool(real.all())
        sees = Padded(None if full else real[:, None, None, :])
        positions = torch.arange(source.shape[1], device=source.device)[None]
        encoder_gates, decoder_gates = self.gates(plans, key, source)
        memories = self.encode(source, positions, sees, plans, encoder_gates)
        return TranslatorDecoder(self, len(source), memories, sees, plans, decoder_gates)


class View(NamedTuple):
    """Where the words of a batch stand and what they may see."""

    source_positions: Tensor
    target_positions: Tensor
    source: Sees
    target: Sees
    memory: Sees


def look_at(batch: Batch, pad: int) -> View:
    source, target = batch.source_packing, batch.target_packing
    if source is None or target is None:
        real = Padded((batch.source != pad)[:, None, None, :])
        positions = [torch.arange(side.shape[1], device=side.device)[None] for side in (batch.source, batch.target_in)]
        return View(positions[0], positions[1], real, Padded(None), real)
    return View(
        source.positions,
        target.positions,
        Packed(source.starts, source.starts, source.longest, source.longest),
        Packed(target.starts, target.starts, target.longest, target.longest),
        Packed(target.starts, source.starts, target.longest, source.longest),
    )


class TranslatorDecoder:
    """One growing translation per row: the `Decoder` that searches drive."""

    def __init__(
        self,
        model: Translator,
        rows: int,
        memories: list[Memory],
        sees: Padded,
        plans: Plans,
        gates: Tensor | None,
    ) -> None:
        self.model, self.rows, self.memories, self.sees = model, rows, memories, sees
        self.plans, self.gates = plans, gates
        self.cache = Cache(len(plans.decoder))

    def step(self, tokens: Tensor) -> Tensor:
        """(R,) the last word of every row → (R, V) logits of the next."""
        model, position = self.model, self.cache.length
        model.target.check_length(position + 1)
        positions = torch.full((1, 1), position, device=tokens.device)
        x = model.target(tokens[:, None], positions)
        x = model.decode(x, Padded(None), self.memories, self.sees, self.plans, self.gates, self.cache)
        self.cache.length += 1
        return model.logits(x[:, -1])

    def reorder(self, rows: Tensor) -> None:
        """Row i goes on with what row rows[i] was. Where the number of rows stays, every row keeps its sentence."""
        changes = rows.shape[0] != self.rows
        self.rows = rows.shape[0]
        self.cache.reorder(rows, changes)
        if changes:
            if self.sees.keys is not None:
                self.sees = Padded(self.sees.keys[rows])
            if not self.cache.length:  # later on, their keys and values are in the cache
                self.memories = reordered(self.memories, rows)
            if self.gates is not None and self.gates.dim() > 1:  # each sentence has its own
                self.gates = self.gates[:, rows]


def reordered(memories: list[Memory], rows: Tensor) -> list[Memory]:
    """Each memory's rows, copied once where several steps share a memory."""
    done = {id(memory): memory.map(lambda tensor: tensor[rows]) for memory in memories}
    return [done[id(memory)] for memory in memories]
