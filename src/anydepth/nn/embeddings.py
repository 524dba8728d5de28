"""Words and their positions as vectors."""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anydepth.errors import UserError

Positions = Literal["sinusoidal", "learned"]


class Embedding(nn.Module):
    """√D · E[word] + P[position], normalised if asked, then dropout. E may be shared; BERT does not scale it."""

    waves: Tensor

    def __init__(
        self,
        words: nn.Embedding,
        positions: Positions,
        longest: int,
        norm: bool,
        dropout: float,
        scaled: bool = True,
        norm_epsilon: float = 1e-5,
    ) -> None:
        super().__init__()
        width = words.embedding_dim
        self.train_embed = Embedding.embed
        self.words = words
        self.scale = math.sqrt(width) if scaled else 1.0
        self.dropout = dropout
        self.longest = longest
        self.norm = nn.LayerNorm(width, norm_epsilon) if norm else nn.Identity()
        self.learned = nn.Embedding(longest, width) if positions == "learned" else None
        if self.learned is not None:
            nn.init.normal_(self.learned.weight, std=width**-0.5)
        else:
            self.register_buffer("waves", sinusoids(longest, width), persistent=False)

    def forward(self, words: Tensor, positions: Tensor) -> Tensor:
        """(B, T) words and (B or 1, T) positions → (B, T, D)."""
        return self.train_embed(self, words, positions) if self.training else self.embed(words, positions)

    def compile_for_training(self) -> None:
        self.train_embed = torch.compile(Embedding.embed)

    def embed(self, words: Tensor, positions: Tensor) -> Tensor:
        x = self.norm(self.words(words) * self.scale + self.places(positions))
        x = F.dropout(x, self.dropout, self.training)
        # under autocast the whole residual stream is kept in the compute type: half the memory traffic
        kind = x.device.type
        return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x

    def places(self, positions: Tensor) -> Tensor:
        """(B or 1, T) positions → (B or 1, T, D) their vectors alone."""
        return self.learned(positions) if self.learned is not None else F.embedding(positions, self.waves)

    def check_length(self, length: int) -> None:
        if length > self.longest:
            raise UserError(f"a text of {length} tokens: this model has positions for {self.longest}")


def sinusoids(length: int, width: int) -> Tensor:
    """(length, width) sines in the first half, cosines in the second, wavelengths 2π … 10000 · 2π."""
    frequency = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.double) / width)
    angle = torch.arange(length)[:, None] * frequency[None, :]
    return torch.cat([angle.sin(), angle.cos()[:, : width // 2]], dim=1).float()


def word_vectors(vocabulary: int, width: int) -> nn.Embedding:
    """Scaled so that √D · E has unit variance."""
    words = nn.Embedding(vocabulary, width)
    nn.init.normal_(words.weight, std=width**-0.5)
    return words
