"""From the encoder's states to what each decoder layer attends to.

A bridge starts the encoder by `run`, which gives its states one by one, and is asked for one memory per step of the
decoder's plan. `nn/multiscale.py` has the third one.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anydepth.config_class import config
from anydepth.nn.layers import LayerConfig
from anydepth.nn.stack_config import StackConfig
from anydepth.plan import Plan, Plans


class Memory(NamedTuple):
    """What one layer reads besides the words of its own side."""

    state: Tensor | None
    """(B, S, D) of the encoder, for a decoder's cross-attention."""
    context: Tensor | None = None
    """(B, S, D) of a multiscale encoder, for layers that attend to it as well."""

    def map(self, change: Callable[[Tensor], Tensor]) -> "Memory":
        return Memory(*(None if tensor is None else change(tensor) for tensor in self))


Run = Callable[[Sequence[Memory] | None], Iterable[Tensor]]
"""Starts the encoder: what its layers read besides their input, if anything → the states x_0 … x_K."""


@config
class LastStateConfig:
    """Every decoder layer attends to the encoder's last state."""

    type: Literal["last"] = "last"
    fusion_in: ClassVar[dict[str, str]] = {}

    def check(self, layer: LayerConfig, encoder: StackConfig, decoder: StackConfig) -> None:
        """Goes with everything."""

    def build(self, norm: nn.Module, layer: LayerConfig, encoder: int, decoder: int) -> "LastState":
        return LastState(norm)


class LastState(nn.Module):
    """Every decoder layer attends to the encoder's last state, through the final norm that all exits share."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def reads(self, plans: Plans) -> Plan:
        """The encoder steps that the decoder's plan depends on."""
        return plans.encoder

    def products(self, plans: Plans) -> int:
        """Multiplications per source word between encoder and decoder."""
        return 0

    def alone(self, decoder: Sequence[int]) -> tuple[LastStateConfig, dict[str, Tensor]]:
        """The settings and parameters of a bridge to these decoder layers only."""
        return LastStateConfig(), dict(self.named_parameters())

    def forward(self, run: Run, decoder: Plan) -> list[Memory]:
        for state in run(None):  # noqa: B007 - only the last one is wanted
            pass
        return [Memory(self.norm(state))] * len(decoder)


@config
class TransparentConfig:
    """Every decoder layer attends to a learned mixture of the embedding and all encoder layers (Bapna et al. 2018)."""

    type: Literal["transparent"] = "transparent"
    fusion_in: ClassVar[dict[str, str]] = {}
    dropout: float = 0.1
    """Dropout on the weights of the mixtures."""

    def __post_init__(self) -> None:
        if not 0 <= self.dropout < 1:
            raise ValueError("dropout must be at least 0 and below 1")

    def check(self, layer: LayerConfig, encoder: StackConfig, decoder: StackConfig) -> None:
        if encoder.depth.type not in ("full", "rezero"):
            raise ValueError(
                "bridge: transparent attention mixes the states of all encoder layers, and encoder.depth = "
                f'"{encoder.depth.type}" may leave some out; use "full", and flexible depth in the decoder alone'
            )

    def build(self, norm: nn.Module, layer: LayerConfig, encoder: int, decoder: int) -> "Transparent":
        return Transparent(norm, layer.width, encoder, decoder, self.dropout)


class Transparent(nn.Module):
    """norm(Σ_k s_k x_k) with weights s = softmax(w) of each decoder layer's own; they start equal."""

    def __init__(self, norm: nn.Module, width: int, encoder_layers: int, decoder_layers: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.width, self.dropout = norm, width, dropout
        # vectors and no matrix: without weight decay
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(encoder_layers + 1)) for _ in range(decoder_layers))

    def reads(self, plans: Plans) -> Plan:
        """The encoder steps that the decoder's plan depends on."""
        return plans.encoder

    def products(self, plans: Plans) -> int:
        """Multiplications per source word between encoder and decoder."""
        return (len(plans.encoder) + 1) * len(set(plans.decoder.layers)) * self.width

    def alone(self, decoder: Sequence[int]) -> tuple[TransparentConfig, dict[str, Tensor]]:
        """The settings and parameters of a bridge to these decoder layers only."""
        norm = {f"norm.{name}": parameter for name, parameter in self.norm.named_parameters()}
        weights = {f"weights.{place}": self.weights[layer] for place, layer in enumerate(decoder)}
        return TransparentConfig(dropout=self.dropout), norm | weights

    def forward(self, run: Run, decoder: Plan) -> list[Memory]:
        states = torch.stack(list(run(None)))
        layers = list(dict.fromkeys(decoder.layers))
        if not layers:
            return []
        shares = torch.stack([self.weights[layer] for layer in layers]).softmax(1)
        shares = F.dropout(shares, self.dropout, self.training)
        mixtures = (shares.to(states.dtype) @ states.flatten(1)).unflatten(1, states.shape[1:])
        memories = {layer: Memory(self.norm(mixture)) for layer, mixture in zip(layers, mixtures)}
        return [memories[layer] for layer in decoder.layers]
