"""What an output may not say, whatever the model thinks: too little, or the same thing twice."""

from typing import NamedTuple

import torch
from torch import Tensor


class Rules(NamedTuple):
    """Words that break a rule get the log-probability -inf; those of the others stay what they are."""

    block_ngrams: int = 0
    """No n-gram of so many tokens occurs twice (Paulus et al. 2018 for 3); 0 allows all."""
    min_length: int = 0
    """Tokens before the end mark, at least; fewer where no other word is allowed."""

    def apply(self, log_probabilities: Tensor, tokens: Tensor, eos: int) -> Tensor:
        """Of the next word, (R, V), after the tokens (R, T) so far."""
        if self.block_ngrams:
            log_probabilities = without_repetitions(log_probabilities, tokens, self.block_ngrams)
        if tokens.shape[1] < self.min_length:
            log_probabilities = without_end(log_probabilities, eos)
        return log_probabilities


NO_RULES = Rules()


def without_repetitions(log_probabilities: Tensor, tokens: Tensor, n: int) -> Tensor:
    """-inf for every word that, with the last n - 1 tokens, makes an n-gram that a row (R, T) already has."""
    length = tokens.shape[1]
    if length < n:
        return log_probabilities
    ngrams = tokens.unfold(1, n, 1)
    again = (ngrams[:, :, :-1] == tokens[:, None, length - n + 1 :]).all(-1)
    # adding, where a word has several n-grams of which only some begin alike: 0 and -inf in any order are -inf
    penalties = torch.zeros_like(again, dtype=log_probabilities.dtype).masked_fill(again, -torch.inf)
    return log_probabilities.scatter_add(1, ngrams[:, :, -1], penalties)


def without_end(log_probabilities: Tensor, eos: int) -> Tensor:
    """-inf for eos, in rows that can go on."""
    words = log_probabilities.clone()
    words[:, eos] = -torch.inf
    can_go_on = (words > -torch.inf).any(-1, keepdim=True)
    return torch.where(can_go_on, words, log_probabilities)
