"""The selector's network and losses (tied-multi §4.2): a small Transformer encoder that reads a source sentence and
says of every depth how good it will be there."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anydepth.config_class import config
from anydepth.nn.attention import Padded
from anydepth.nn.embeddings import Embedding
from anydepth.nn.layers import FinalNorm, LayerConfig, initialise
from anydepth.nn.stack import Stack
from anydepth.plan import Plan

Kind = Literal["ties", "quality"]
"""What is predicted: the probability that a depth is among the best (the paper), or its gain over full depth."""


@config
class SelectorConfig:
    """The network that chooses a depth for a sentence, and its training."""

    layers: int = 2
    """Layers of its encoder."""
    heads: int = 4
    """Attention heads; they divide the width."""
    width: int = 0
    """Size of a word's state; 0 is that of the translation model, otherwise its word vectors are projected."""
    ffn: int = 2048
    """Inner size of the feed-forward part."""
    dropout: float = 0.1
    """Dropout on embeddings and on each residual branch."""
    alpha: float = 1.0
    """A depth that is among the best for a share p of the sentences counts (1 − p)^alpha there (Eq. 3)."""
    beta: float = 1.0
    """F-beta: below 1 precision counts more, above 1 recall (Eq. 4)."""
    balance: float = 0.5
    """λ: the share of cross-entropy in the loss; the rest is F-beta."""
    learning_rate: float = 0.05
    """Of SGD with Nesterov momentum; halved after every epoch that does not lower the validation loss."""
    momentum: float = 0.9
    """Of Nesterov's kind."""
    batch: int = 64
    """Sentences an update."""
    epochs: int = 20
    """Passes over the labelled sentences at most."""
    patience: int = 3
    """Epochs in a row without a lower validation loss that end the training."""
    validation: float = 0.1
    """Share of the labelled sentences that are held out for validation."""
    seed: int = 1
    """Seeds the weights, dropout and the order of the sentences."""

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "ffn", "batch", "epochs", "patience"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.width < 0 or (self.width and self.width % self.heads):
            raise ValueError(f"width must be 0 or a multiple of the {self.heads} heads, not {self.width}")
        if not 0 <= self.dropout < 1:
            raise ValueError("dropout must be at least 0 and below 1")
        if self.alpha < 0:
            raise ValueError("alpha must not be negative")
        if not 0 <= self.balance <= 1:
            raise ValueError("balance must be from 0 to 1")
        for name in ("beta", "learning_rate"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0")
        for name in ("momentum", "validation"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} must be between 0 and 1")


class SelectorNet(nn.Module):
    """Source words and one word more, whose last state makes one number for each depth."""

    shift: Tensor
    scale: Tensor

    def __init__(self, config: SelectorConfig, words: Tensor, longest: int, depths: int) -> None:
        """`words` are the translation model's word vectors, which the selector's own start from."""
        super().__init__()
        vocabulary, given = words.shape
        width = config.width or given
        table = nn.Embedding(vocabulary + 1, given)
        nn.init.normal_(table.weight, std=given**-0.5)
        with torch.no_grad():
            table.weight[:vocabulary] = words
        self.mark = vocabulary
        self.source = Embedding(table, "sinusoidal", longest + 1, False, config.dropout)
        self.project = nn.Linear(given, width) if width != given else nn.Identity()
        layer = LayerConfig(width=width, ffn=config.ffn, heads=config.heads, dropout=config.dropout)
        self.encoder = Stack(layer, config.layers, decoder=False)
        self.plan = Plan(tuple(range(config.layers)))
        self.norm = FinalNorm(width)
        self.output = nn.Linear(width, depths)
        self.register_buffer("shift", torch.zeros(depths))
        self.register_buffer("scale", torch.ones(depths))
        self.encoder.apply(initialise)

    def forward(self, ids: list[list[int]]) -> Tensor:
        """Sentences → (B, depths): log-odds, or points of chrF above full depth."""
        source, lengths = self.padded(ids)
        return self.read(source.to(self.shift.device), lengths.to(self.shift.device))

    def padded(self, ids: list[list[int]]) -> tuple[Tensor, Tensor]:
        """(B, T) words, with the one more, and (B,) how many there are without it; on the host."""
        rows = [torch.tensor([*tokens, self.mark]) for tokens in ids]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.tensor([len(tokens) for tokens in ids])

    def read(self, source: Tensor, lengths: Tensor) -> Tensor:
        places = torch.arange(source.shape[1], device=source.device)[None]
        real = (places <= lengths[:, None])[:, None, None, :]
        x = self.project(self.source(source, places))
        for state in self.encoder.states(x, self.plan, None, Padded(real)):
            x = state
        last = x[torch.arange(len(x), device=x.device), lengths]
        return self.shift + self.scale * self.output(self.norm(last))


def ties_loss(logits: Tensor, ties: Tensor, weights: Tensor, beta: float, balance: float) -> Tensor:
    """λ · BCE + (1 − λ) · (1 − F_β), the mean over sentences (tied-multi §4.2).

    The weight w of Eq. 3, which the paper does not define, is 1; `weights` are its δ, one for each depth.
    """
    cross_entropy = F.binary_cross_entropy_with_logits(logits, ties, pos_weight=weights)
    return balance * cross_entropy + (1 - balance) * (1 - soft_f(logits.sigmoid(), ties, beta)).mean()


def soft_f(probabilities: Tensor, ties: Tensor, beta: float) -> Tensor:
    """(B,) Eq. 4 of each sentence: with P = Σpy / Σp and R = Σpy / Σy, (1 + β²) PR / (β²P + R) is what stands here,
    and needs no care where P and R are 0. Every sentence has a best depth: Σy is never 0."""
    both = (probabilities * ties).sum(dim=1)
    return (1 + beta**2) * both / (beta**2 * ties.sum(dim=1) + probabilities.sum(dim=1))


def prior_weights(ties: Tensor, alpha: float) -> Tensor:
    """(depths,) δ of Eq. 3: depths that are often among the best count less there."""
    return (1 - ties.mean(dim=0)) ** alpha


def quality_loss(gains: Tensor, truth: Tensor, scale: Tensor) -> Tensor:
    """The squared error, in units of each depth's own spread."""
    return F.mse_loss(gains / scale, truth / scale)
