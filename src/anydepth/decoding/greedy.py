"""One hypothesis a sentence, one word at a time: greedy search, and the loop it shares with sampling."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from anydepth.decoding.decoder import (
    Decoder,
    Hypothesis,
    hypotheses,
    hypothesis,
    next_log_probabilities,
    normalise,
    steps_between_checks,
)
from anydepth.decoding.rules import NO_RULES, Rules

Choose = Callable[[Tensor, Tensor, int], Tensor]
"""(log-probabilities (R, V), the sentence of each row (R,), the step from 0) → the next token of each row."""


def greedy(
    decoder: Decoder,
    bos: int,
    eos: int,
    pad: int,
    max_lengths: Tensor,
    length_penalty: float = 1.0,
    rules: Rules = NO_RULES,
) -> list[Hypothesis]:
    """The most probable word at every step. `max_lengths` (B,) lies on the decoder's device."""
    if len(max_lengths) == 1 and max_lengths.device.type == "cpu" and rules == NO_RULES:
        return [greedy_alone(decoder, bos, eos, pad, int(max_lengths), length_penalty)]
    return extend_rows(decoder, _most_probable, bos, eos, pad, max_lengths, length_penalty, rules)


@torch.inference_mode()
def greedy_alone(decoder: Decoder, bos: int, eos: int, pad: int, limit: int, length_penalty: float) -> Hypothesis:
    """One sentence on a CPU, where the account that several need would take as long as a decoder layer."""
    tokens: list[int] = []
    total, last = np.float32(0), bos
    while len(tokens) < limit:
        words = next_log_probabilities(decoder.step(torch.tensor([last])), bos, eos, pad)[0].numpy()
        last = int(words.argmax())  # NumPy's takes a tenth of the time of PyTorch's
        tokens.append(last)
        total += words[last]
        if last == eos:
            break
    score = normalise(torch.tensor(total), torch.tensor(len(tokens)), length_penalty)
    return hypothesis(tokens, eos, float(score), float(total))


def _most_probable(log_probabilities: Tensor, sentences: Tensor, step: int) -> Tensor:
    return log_probabilities.argmax(dim=-1)


@torch.no_grad()
def extend_rows(
    decoder: Decoder,
    choose: Choose,
    bos: int,
    eos: int,
    pad: int,
    max_lengths: Tensor,
    length_penalty: float = 1.0,
    rules: Rules = NO_RULES,
) -> list[Hypothesis]:
    """One hypothesis per sentence, extended by the words `choose` picks until eos or its maximal length."""
    device, (batch, longest) = max_lengths.device, (len(max_lengths), int(max_lengths.max()))
    tokens = torch.full((batch, longest), pad, device=device)
    log_probabilities = torch.zeros(batch, device=device)
    lengths = torch.zeros_like(max_lengths)

    sentences = torch.arange(batch, device=device)  # the sentence in each decoder row
    running = torch.ones(batch, dtype=torch.bool, device=device)
    last = torch.full((batch,), bos, device=device)
    for step in range(longest):
        row_log_probabilities = next_log_probabilities(decoder.step(last), bos, eos, pad)
        row_log_probabilities = rules.apply(row_log_probabilities, tokens[sentences, :step], eos)
        last = choose(row_log_probabilities, sentences, step).where(running, pad)
        gained = row_log_probabilities.gather(1, last[:, None]).squeeze(1)
        log_probabilities[sentences] += gained.where(running, 0.0)
        tokens[sentences, step] = last
        lengths[sentences] += running

        running = running & (last != eos) & (step + 1 < max_lengths[sentences])
        last = last.where(running, pad)
        if (step + 1) % steps_between_checks(device) == 0:
            rows = running.nonzero().squeeze(1)
            if len(rows) == 0:
                break
            if len(rows) <= 0.75 * len(running):  # dropping rows copies the caches: not for every single one
                decoder.reorder(rows)
                sentences, running, last = sentences[rows], running[rows], last[rows]

    on_host = tokens.cpu().numpy(), lengths.cpu().numpy(), log_probabilities.cpu().numpy()
    return hypotheses(*on_host, eos, length_penalty)
