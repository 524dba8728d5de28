"""Depth per word (depth-adaptive Transformers, Liu et al. 2020): word t runs the first d(t) layers and is then copied.

The depths are estimated before the first layer runs (`estimating/`) and travel beside the plan, with the batch;
`nn/perword.py` computes the words that still run.
"""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from anydepth.config_class import config
from anydepth.depth.policy import Alone, Depth
from anydepth.plan import Plan


@config
class MutualInformationConfig:
    """Words that tell much about the label get few layers (depth-adaptive Eq. 2 and 3); from the training texts."""

    type: Literal["mutual-information"] = "mutual-information"
    smoothing: float = 0.1
    """Added to every count."""
    smoothed: Literal["each", "joint"] = "each"
    """The counts it is added to, which the paper does not say: that of `each` probability by itself, or the four
    `joint` ones of a word and a label, whose sums are the others. With `joint` some words tell exactly nothing; next to
    them, all others seem to tell much and get few layers."""
    bins: Literal["width", "words"] = "width"
    """Bins of equal width (the paper's), or with equally many of the words that occurred."""
    deepest: int = 0
    """Depth of the words that tell least, and the number of bins; 0 means all layers."""
    unit: Literal["pieces", "words"] = "pieces"
    """What has a depth: each of the tokenizer's pieces, or whole words, whose pieces then share it."""

    def __post_init__(self) -> None:
        if not self.smoothing > 0:
            raise ValueError("smoothing must be above 0")
        if self.deepest < 0:
            raise ValueError("deepest must not be negative")


@config
class ReconstructionConfig:
    """Words that are easy to guess get few layers: the n with the least loss_n + penalty · n (depth-adaptive Eq. 4)."""

    type: Literal["reconstruction"] = "reconstruction"
    model: str
    """Run of a masked language model with an exit at every layer, as many layers and the same tokenizer.
    The classifier cannot read without it; `guesser.json` of its run has the way to it from there, so that the two can
    be used from other folders, and moved together."""
    penalty: float = 0.1
    """λ, in nats a layer."""
    every: int = 0
    """Words hidden at once: one in so many; 0 hides them one at a time, which takes as many passes as a text has
    words."""

    def __post_init__(self) -> None:
        if self.penalty < 0:
            raise ValueError("penalty must not be negative")
        if self.every < 0:
            raise ValueError("every must not be negative")


@config
class ConstantConfig:
    """All words get as many layers: what every estimate has to beat."""

    type: Literal["constant"] = "constant"
    depth: int
    """Layers of every word."""

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ValueError("depth must be at least 1")


@config
class HaltingConfig:
    """A unit on the state after the first layer chooses each word's depth; it is trained by the `halting` objective."""

    type: Literal["halting"] = "halting"
    choice: Literal["likeliest", "expected"] = "likeliest"
    """How the unit's probabilities of 1 to N layers become a depth: the `likeliest` one (Elbayad et al. 2020), or the
    `expected` number of layers, rounded, as in related code of the depth-adaptive Transformers' authors (which cuts
    the rest off). All words of a text are trained towards the same depth, so the probabilities of most words are
    spread alike, and the likeliest depth is then that of most training texts, for nearly every word; the expected one
    moves with every probability."""

    def depths(self, logits: Tensor) -> Tensor:
        """(N, layers) what the unit says about words → (N,) their depths."""
        if self.choice == "likeliest":
            return logits.argmax(-1) + 1
        layers = torch.arange(1, logits.shape[-1] + 1, device=logits.device)
        return (logits.float().softmax(-1) * layers).sum(-1).round().long()  # from 1 to N: it is a mean of these


EstimateConfig = MutualInformationConfig | ReconstructionConfig | ConstantConfig | HaltingConfig


@config
class PerWordConfig:
    """The first d layers, with a d for every word. For classifiers."""

    type: Literal["per-word"] = "per-word"
    gated: ClassVar[bool] = False
    estimate: EstimateConfig = MutualInformationConfig()
    """Where the depths come from."""
    special: Literal["deepest", "all"] = "deepest"
    """Depth of the tokens that begin and end a text: that of its deepest word, or all layers. A halting unit decides
    about them as about words."""
    stopped: Literal["refresh", "keep"] = "refresh"
    """Keys and values of a word that has stopped: made of its last state by every later layer (the paper), or those of
    the last layer it ran, which costs nothing."""

    def __post_init__(self) -> None:
        if self.special == "all" and isinstance(self.estimate, HaltingConfig):
            raise ValueError("special: a halting unit decides about all tokens")

    def check(self, layers: int) -> None:
        """Refuses an estimate that asks for more layers than there are, and more than a depth can count (one byte)."""
        if layers > 255:
            raise ValueError(f"depth: per-word is for up to 255 layers, not {layers}")
        match self.estimate:
            case ConstantConfig(depth=depth) if depth > layers:
                raise ValueError(f"depth.estimate.depth: {depth}, but there are {layers} layers")
            case MutualInformationConfig(deepest=depth) if depth > layers:
                raise ValueError(f"depth.estimate.deepest: {depth}, but there are {layers} layers")

    def build(self, layers: int) -> "PerWord":
        return PerWord(layers, self)


class PerWord(Depth):
    def __init__(self, layers: int, config: PerWordConfig) -> None:
        super().__init__(layers)
        self.config = config
        self.refresh = config.stopped == "refresh"
        self.halting = config.estimate if isinstance(config.estimate, HaltingConfig) else None

    def plans(self, key: str = "") -> dict[int, Plan]:
        return {self.layers: Plan(tuple(range(self.layers)))}

    def alone(self, plan: Plan, key: str = "") -> Alone:
        """Words keep their depths."""
        return Alone(self.config, plan.layers, {})
