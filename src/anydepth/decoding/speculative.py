"""Greedy search by rounds: a shallow exit of the model drafts a few words, one after the other; the full depth reads
all of them in one pass, keeps those it would have chosen itself, and adds the next. What comes out is what plain greedy
search finds, word for word; only the time differs. With no words drafted, a round is a step of plain greedy search.

Rows accept different numbers of words, so each stands at a position of its own. Nothing in a round depends on numbers
that the host would have to read: on a GPU it is one CUDA graph (decoding/recorded.py).
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from anydepth.decoding.decoder import (
    Hypothesis,
    best_word,
    hypotheses,
    hypothesis,
    most_probable,
    next_log_probabilities,
    normalise,
    steps_between_checks,
)


class Drafter(Protocol):
    """One growing hypothesis in each of R rows; what it holds of a word is overwritten when another takes its place."""

    def read(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """(R, 1) words at their places → (R, 1, D) the state that the shallow exit has of them."""
        ...

    def exit(self, states: Tensor) -> Tensor:
        """(R, 1, D) such states → (R, V) logits of the next word."""
        ...

    def judge(self, tokens: Tensor, states: list[Tensor], positions: Tensor) -> Tensor:
        """(R, q) words at their places, and what was read of them → (R, q, V) logits of the full depth."""
        ...

    def reorder(self, rows: Tensor) -> None:
        """From now on, row i continues what row `rows[i]` was; there are fewer than before."""
        ...


@dataclass
class Rows:
    """What R sentences have so far."""

    sentences: Tensor
    """(R,) which sentence of the batch."""
    tokens: Tensor
    """(R, longest + drafts + 1) the words found, and behind them what a round has written and not kept."""
    lengths: Tensor
    """(R,) words found."""
    limits: Tensor
    """(R,) words allowed."""
    last: Tensor
    """(R,) the last word: bos at first."""
    log_probabilities: Tensor
    """(R,) of what was found."""
    running: Tensor
    """(R,) whether the sentence goes on."""
    rounds: Tensor
    """(R,) rounds it has taken part in."""

    @classmethod
    def new(cls, limits: Tensor, longest: int, drafts: int, bos: int, pad: int) -> "Rows":
        """Of sentences with so many words allowed, of which none has more than `longest`."""
        (batch,), device = limits.shape, limits.device
        return cls(
            sentences=torch.arange(batch, device=device),
            tokens=torch.full((batch, longest + drafts + 1), pad, device=device),
            lengths=torch.zeros_like(limits),
            limits=limits,
            last=torch.full_like(limits, bos),
            log_probabilities=torch.zeros(batch, device=device),
            running=limits > 0,
            rounds=torch.zeros_like(limits),
        )

    def restart(self, limits: Tensor, bos: int) -> None:
        """In the same places, with other sentences."""
        self.limits.copy_(limits)
        torch.gt(limits, 0, out=self.running)
        self.last.fill_(bos)
        for column in (self.lengths, self.log_probabilities, self.rounds):
            column.zero_()

    def take(self, rows: Tensor | slice) -> "Rows":
        return Rows(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


class Proposal(NamedTuple):
    """What a shallower search has found, to be judged before anything else."""

    tokens: Tensor
    """(R, q) bos and its words, without the end mark; then padding."""
    states: Tensor
    """(R, q, D) what the drafter reads of them."""


@dataclass
class Outcome:
    found: list[Hypothesis]
    rounds: int
    """Rounds of the rows, counted while they ran."""
    words: int
    """Words found in them: divided by the rounds, how many a round gives."""


@torch.no_grad()
def speculate(
    decoder: Drafter,
    bos: int,
    eos: int,
    pad: int,
    max_lengths: Tensor,
    drafts: int,
    length_penalty: float = 1.0,
    proposal: Proposal | None = None,
) -> Outcome:
    """The most probable word at every step, `drafts` words drafted a round. `max_lengths` (B,) lies on the device. A
    proposal is judged in a round of its own before the others."""
    if len(max_lengths) == 1 and max_lengths.device.type == "cpu" and proposal is None:
        return speculate_alone(decoder, bos, eos, pad, int(max_lengths), drafts, length_penalty)
    rows = Rows.new(max_lengths, int(max_lengths.max()), drafts, bos, pad)
    found, rounds, words, count = dict[int, Hypothesis](), 0, 0, 0
    while len(rows.last):
        if proposal and not count:
            places = torch.arange(proposal.tokens.shape[1], device=max_lengths.device).expand_as(proposal.tokens)
            judge(decoder, rows, proposal.tokens, [proposal.states], places, bos, eos, pad)
        else:
            play_round(decoder, rows, bos, eos, pad, drafts)
        count += 1
        if count % steps_between_checks(max_lengths.device):
            continue
        staying = rows.running.nonzero().squeeze(1)
        if len(staying) <= 0.75 * len(rows.running):  # dropping rows copies the caches: not for every single one
            done = rows.take((~rows.running).nonzero().squeeze(1))
            found |= read(done, eos, length_penalty)
            rounds, words = rounds + int(done.rounds.sum()), words + int(done.lengths.sum())
            rows = rows.take(staying)
            if len(staying):
                decoder.reorder(staying)
    return Outcome([found[sentence] for sentence in range(len(max_lengths))], rounds, words)


@torch.no_grad()
def speculate_alone(
    decoder: Drafter, bos: int, eos: int, pad: int, limit: int, drafts: int, length_penalty: float
) -> Outcome:
    """One sentence on a CPU, where the host decides as it goes: nothing is drafted behind an end mark or the limit."""
    tokens: list[int] = []
    total, rounds = np.float32(0), 0
    while len(tokens) < limit and tokens[-1:] != [eos]:
        at, drafted, states = len(tokens), [tokens[-1] if tokens else bos], list[Tensor]()
        for place in range(at, min(at + drafts + 1, limit)):
            states.append(decoder.read(torch.tensor([drafted[-1:]]), torch.tensor([[place]])))
            if len(states) > drafts or place + 1 == limit:
                break
            drafted.append(int(best_word(decoder.exit(states[-1]), bos, eos, pad)))
            if drafted[-1] == eos:
                break
        read = drafted[: len(states)]
        (judged,) = decoder.judge(torch.tensor([read]), states, torch.arange(at, at + len(read))[None])
        rounds += 1
        for logits, follows in zip(judged, [*drafted[1:], None]):
            words = next_log_probabilities(logits[None], bos, eos, pad)[0].numpy()
            tokens.append(int(words.argmax()))
            total += words[tokens[-1]]
            if tokens[-1] != follows:
                break
    score = normalise(torch.tensor(total), torch.tensor(len(tokens)), length_penalty)
    return Outcome([hypothesis(tokens, eos, float(score), float(total))], rounds, len(tokens))


def play_round(decoder: Drafter, rows: Rows, bos: int, eos: int, pad: int, drafts: int) -> None:
    """Drafts words, judges them, and lengthens the rows by those kept and one more."""
    order = torch.arange(drafts + 1, device=rows.lengths.device)
    places = rows.lengths[:, None] + order
    words, states = [rows.last[:, None]], []
    for k in range(drafts + 1):
        states.append(decoder.read(words[k], places[:, k : k + 1]))
        if k < drafts:
            words.append(best_word(decoder.exit(states[k]), bos, eos, pad)[:, None])
    judge(decoder, rows, torch.cat(words, dim=1), states, places, bos, eos, pad)


def judge(
    decoder: Drafter, rows: Rows, drafted: Tensor, states: list[Tensor], places: Tensor, bos: int, eos: int, pad: int
) -> None:
    """Lengthens the rows by the words drafted, (R, q) behind the last one, that the full depth would have chosen
    itself, and by its choice of the next."""
    gains, chosen = most_probable(decoder.judge(drafted, states, places), bos, eos, pad)

    # a word is kept if those before it were drafted as chosen, and none was the end mark; the first always is
    goes_on = (drafted[:, 1:] == chosen[:, :-1]) & (chosen[:, :-1] != eos)
    kept = torch.minimum(goes_on.cumprod(dim=1).sum(dim=1) + 1, rows.limits - rows.lengths).where(rows.running, 0)

    order = torch.arange(drafted.shape[1], device=kept.device)
    rows.tokens.scatter_(1, places.where(rows.running[:, None], rows.tokens.shape[1] - 1), chosen)
    rows.log_probabilities += gains.masked_fill(order >= kept[:, None], 0.0).sum(dim=1)
    rows.rounds += rows.running
    rows.lengths += kept
    rows.last.copy_(chosen.gather(1, (kept - 1).clamp(min=0)[:, None]).squeeze(1).where(rows.running, rows.last))
    rows.running &= (rows.last != eos) & (rows.lengths < rows.limits)


def read(rows: Rows, eos: int, length_penalty: float) -> dict[int, Hypothesis]:
    """To Python: what each sentence has."""
    columns = (rows.sentences, rows.tokens, rows.lengths, rows.log_probabilities)
    sentences, tokens, lengths, totals = (column.cpu().numpy() for column in columns)
    return dict(zip(sentences.tolist(), hypotheses(tokens, lengths, totals, eos, length_penalty)))
