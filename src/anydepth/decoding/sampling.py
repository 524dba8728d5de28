"""Translations drawn at random, word by word, from the model's own distribution."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from anydepth.decoding.decoder import Decoder, Hypothesis
from anydepth.decoding.greedy import extend_rows
from anydepth.decoding.rules import NO_RULES, Rules


def sample(
    decoder: Decoder,
    bos: int,
    eos: int,
    pad: int,
    max_lengths: Tensor,
    *,
    seed: int,
    sentences: Sequence[int] | None = None,
    draws: int = 1,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    length_penalty: float = 1.0,
    rules: Rules = NO_RULES,
) -> list[list[Hypothesis]]:
    """`draws` translations of every sentence, in the order drawn.

    The noise of a draw depends on (seed, number of the sentence, number of the draw) alone, so that a
    sentence gets the same translation in any batch; `sentences` gives those numbers (default: the places in
    this batch). Log-probabilities are those of the model, before temperature, top_k and top_p.
    """
    device, batch, longest = max_lengths.device, len(max_lengths), int(max_lengths.max())
    numbers = range(batch) if sentences is None else sentences
    noise = torch.stack([uniform_noise(seed, n, draw, longest) for n in numbers for draw in range(draws)])
    noise = noise.to(device)

    def choose(log_probabilities: Tensor, rows: Tensor, step: int) -> Tensor:
        logits = keep_top_k(log_probabilities / temperature, top_k)
        probabilities = keep_top_p(logits.softmax(dim=-1), top_p)
        return draw_words(probabilities, noise[rows, step])

    if draws > 1:
        decoder.reorder(torch.arange(batch, device=device).repeat_interleave(draws))
        max_lengths = max_lengths.repeat_interleave(draws)
    drawn = extend_rows(decoder, choose, bos, eos, pad, max_lengths, length_penalty, rules)
    return [drawn[start : start + draws] for start in range(0, len(drawn), draws)]


def uniform_noise(seed: int, sentence: int, draw: int, length: int) -> Tensor:
    """Numbers in [0, 1), one a step; a longer row of them begins with the shorter one."""
    return torch.from_numpy(np.random.default_rng([seed, sentence, draw]).random(length))


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """(R, V) logits with -inf for all but the k greatest of each row; all are kept if k is 0."""
    if k == 0 or k >= logits.shape[-1]:
        return logits
    best = logits.topk(k, dim=-1)
    return torch.full_like(logits, -torch.inf).scatter(-1, best.indices, best.values)


def keep_top_p(probabilities: Tensor, p: float) -> Tensor:
    """(R, V) probabilities with 0 for all but the fewest words of each row that together reach p (nucleus
    sampling, Holtzman et al. 2020). They are not scaled up."""
    if p == 1.0:
        return probabilities
    falling = probabilities.sort(dim=-1, descending=True)
    reached_before = falling.values.cumsum(dim=-1) - falling.values
    kept = falling.values.masked_fill(reached_before >= p, 0.0)
    return torch.zeros_like(probabilities).scatter(-1, falling.indices, kept)


def draw_words(weights: Tensor, noise: Tensor) -> Tensor:
    """The word in each row of (R, V) weights at which the running total passes `noise` (R,) times the whole.

    One number a step, where Gumbel noise would need one per word. Words of weight 0 are never drawn.
    """
    totals = weights.double().cumsum(dim=-1)
    whole = totals[:, -1]
    # noise < 1, but the product may round up to the whole, which no total passes
    aim = torch.minimum(noise * whole, torch.nextafter(whole, torch.zeros_like(whole)))
    words = torch.searchsorted(totals, aim[:, None], right=True).squeeze(1)
    return words.clamp(max=weights.shape[-1] - 1)  # past the end if weights are NaN, which is reported later
