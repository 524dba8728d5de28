"""Beam search, on the device for all sentences and hypotheses at once.

Hypotheses that end leave the beam for a second list of K places. A sentence is done when
  - K of its hypotheses have ended, or
  - no growing one can still get among the n best that ended (exactly: see `attainable`), or
  - it has reached its maximal length; what is then still growing is cut, and ranks after all that ended.
So a beam wide enough to hold every hypothesis finds what a search through all of them finds, and a beam of
one is greedy search. Sentences that are done leave the batch. (decoding/in_place.py has the search in which they stay.)
"""

from typing import NamedTuple

import torch
from torch import Tensor

from anydepth.decoding.decoder import (
    Decoder,
    Hypothesis,
    hypothesis,
    next_log_probabilities,
    normalise,
    steps_between_checks,
)
from anydepth.decoding.rules import NO_RULES, Rules


class Hypotheses(NamedTuple):
    """K places for each of B sentences, best first; an empty place has log-probability and score -inf."""

    tokens: Tensor
    """(B, K, T): the tokens scored, without bos, with eos where it came; then padding."""
    lengths: Tensor
    """(B, K): how many they are."""
    log_probabilities: Tensor
    """(B, K)"""
    scores: Tensor
    """(B, K): log-probabilities normalised by length."""


@torch.no_grad()
def beam_search(
    decoder: Decoder,
    bos: int,
    eos: int,
    pad: int,
    max_lengths: Tensor,
    *,
    beam: int,
    length_penalty: float = 1.0,
    n_best: int = 1,
    rules: Rules = NO_RULES,
) -> list[list[Hypothesis]]:
    """The `n_best` hypotheses of each sentence, best first (fewer where fewer exist).

    `decoder` starts with one row for each sentence. `max_lengths` (B,), at least 1, lies on its device.
    """
    if not (length_penalty >= 0 and 1 <= n_best <= beam):
        raise ValueError(f"need {length_penalty=} >= 0 and 1 <= {n_best=} <= {beam=}")
    device, batch, limits = max_lengths.device, len(max_lengths), set(max_lengths.tolist())
    found: list[list[Hypothesis]] = [[] for _ in range(batch)]

    sentences = torch.arange(batch, device=device)  # those in the batch
    growing, ended = empty_beginnings(batch, beam, max(limits), pad, device)
    # all K begin alike: one step for them, in which a model also prepares the source for attention just once
    logits = decoder.step(torch.full((batch,), bos, device=device)).repeat_interleave(beam, dim=0)
    decoder.reorder(sentences.repeat_interleave(beam))
    for length in range(1, max(limits) + 1):
        log_probabilities = next_log_probabilities(logits, bos, eos, pad)
        log_probabilities = rules.apply(log_probabilities, growing.tokens[:, :, : length - 1].flatten(0, 1), eos)
        goal = Goal(max_lengths, n_best, length_penalty, eos)
        growing, ended, parents, done = advance(growing, ended, log_probabilities, length, goal, length in limits)
        rows = torch.arange(len(done), device=device)[:, None] * beam + parents
        if length in limits or length % steps_between_checks(device) == 0:
            leave, stay = done.nonzero().squeeze(1), (~done).nonzero().squeeze(1)
            for sentence, best in zip(sentences[leave].tolist(), read(take(ended, leave), n_best, eos)):
                found[sentence] = best
            sentences, max_lengths, rows = sentences[stay], max_lengths[stay], rows[stay]
            growing, ended = take(growing, stay), take(ended, stay)
            if len(sentences) == 0:
                break
        decoder.reorder(rows.flatten())
        logits = decoder.step(last_words(growing, length, pad).flatten())
    return found


class Goal(NamedTuple):
    """What is searched for."""

    max_lengths: Tensor
    """(B,)"""
    n_best: int
    length_penalty: float
    eos: int


class Advance(NamedTuple):
    """After one more word."""

    growing: Hypotheses
    ended: Hypotheses
    parents: Tensor
    """(B, K) the places of what the growing ones continue."""
    done: Tensor
    """(B,) the sentences that need no further word."""


def advance(
    growing: Hypotheses,
    ended: Hypotheses,
    log_probabilities: Tensor,
    length: int | Tensor,
    goal: Goal,
    some_are_cut: bool = True,
    settled: Tensor | None = None,
    words: Tensor | None = None,
) -> Advance:
    """Lengthens hypotheses to `length` words, a number or a (1,) tensor that nobody reads on the host.

    `log_probabilities` (B * K, V) are those of the next word, or of some `words`, the 2K best at least.
    Unless `some_are_cut`, no sentence has its maximal length. Sentences that are `settled`, (B,), were done before.
    """
    max_lengths, n_best, penalty, eos = goal
    candidates, parents = extend(growing, log_probabilities, length, penalty, words)
    is_eos = words_at(candidates, length) == eos
    ended = merge(ended, those_that_end(candidates, is_eos), settled)
    growing, parents = those_that_grow(candidates, parents, is_eos)
    if some_are_cut:
        ended = append(ended, empty_where(max_lengths > length, growing))
    done = (
        (max_lengths <= length)
        | (ended.scores[:, -1] > -torch.inf)
        | (attainable(growing, max_lengths, penalty) <= ended.scores[:, n_best - 1])
    )
    return Advance(empty_where(done, growing), ended, parents, done)


def words_at(hypotheses: Hypotheses, length: int | Tensor) -> Tensor:
    """(B, K) the word that made them so long."""
    if isinstance(length, int):
        return hypotheses.tokens[:, :, length - 1]
    return hypotheses.tokens.index_select(2, length - 1).squeeze(2)


def last_words(growing: Hypotheses, length: int | Tensor, pad: int) -> Tensor:
    """(B, K) what the decoder reads next; padding in empty places."""
    return words_at(growing, length).where(growing.scores > -torch.inf, pad)


def empty_beginnings(
    batch: int, beam: int, longest: int, pad: int, device: torch.device
) -> tuple[Hypotheses, Hypotheses]:
    """What grows, only the empty hypothesis in the first of K places, and what has ended: nothing."""
    nothing = torch.full((batch, beam), -torch.inf, device=device)
    tokens = torch.full((batch, beam, longest), pad, device=device)
    ended = Hypotheses(tokens, torch.zeros_like(nothing, dtype=torch.long), nothing, nothing)
    start = nothing.clone()
    start[:, 0] = 0.0
    return ended._replace(log_probabilities=start, scores=start), ended


def extend(
    growing: Hypotheses,
    log_probabilities: Tensor,
    length: int | Tensor,
    length_penalty: float,
    words: Tensor | None = None,
) -> tuple[Hypotheses, Tensor]:
    """The 2K best continuations by one word, best first, and the places (B, 2K) that they continue.

    `log_probabilities` (B * K, V) are those of the next word, or of some `words` of each hypothesis.
    """
    batch, beam = growing.scores.shape
    known = log_probabilities.shape[-1]
    totals = growing.log_probabilities[:, :, None] + log_probabilities.view(batch, beam, known)
    best = totals.view(batch, beam * known).topk(2 * beam, dim=1)
    parents = best.indices // known
    tokens = growing.tokens.gather(1, parents[:, :, None].expand(-1, -1, growing.tokens.shape[-1]))
    chosen = best.indices % known if words is None else words.view(batch, beam * known).gather(1, best.indices)
    if isinstance(length, int):
        tokens[:, :, length - 1] = chosen
    else:
        tokens.index_copy_(2, length - 1, chosen[:, :, None])
    scores = normalise(best.values, length, length_penalty)
    return Hypotheses(tokens, torch.zeros_like(parents) + length, best.values, scores), parents


def those_that_end(candidates: Hypotheses, is_eos: Tensor) -> Hypotheses:
    """Among the K best of 2K candidates."""
    beam = is_eos.shape[1] // 2
    return empty_where(~is_eos[:, :beam], Hypotheses(*(column[:, :beam] for column in candidates)))


def those_that_grow(candidates: Hypotheses, parents: Tensor, is_eos: Tensor) -> tuple[Hypotheses, Tensor]:
    """The K best that do not end. 2K candidates contain as many: each of K parents has one eos at most."""
    places = _lowest(is_eos.int(), is_eos.shape[1] // 2)
    return pick(candidates, places), parents.gather(1, places)


def merge(ended: Hypotheses, others: Hypotheses, settled: Tensor | None = None) -> Hypotheses:
    """The K best of both by score; where a sentence is settled, (B,), the K that it has."""
    both = _beside(ended, others)
    keys = -both.scores
    if settled is not None:  # what was cut stands behind all that ended, whatever its score
        keys = keys.masked_fill(settled[:, None], 0.0)
    return pick(both, _lowest(keys, ended.scores.shape[1]))


def append(ended: Hypotheses, others: Hypotheses) -> Hypotheses:
    """`others`, in their order, in the empty places after `ended`."""
    both = _beside(ended, others)
    return pick(both, _lowest((both.scores == -torch.inf).int(), ended.scores.shape[1]))


def attainable(growing: Hypotheses, max_lengths: Tensor, length_penalty: float) -> Tensor:
    """A score, (B,), that no continuation of what grows can beat: log-probabilities only fall, and, being
    negative, weigh least at the greatest length."""
    return normalise(growing.log_probabilities.amax(dim=1), max_lengths, length_penalty)


def empty_where(gone: Tensor, hypotheses: Hypotheses) -> Hypotheses:
    """With the places emptied that are named by a mask, (B,) or (B, K)."""
    mask = gone if gone.dim() == 2 else gone[:, None]
    return hypotheses._replace(
        log_probabilities=hypotheses.log_probabilities.masked_fill(mask, -torch.inf),
        scores=hypotheses.scores.masked_fill(mask, -torch.inf),
    )


def pick(hypotheses: Hypotheses, places: Tensor) -> Hypotheses:
    """Those in the given places (B, K') of each sentence."""
    tokens = hypotheses.tokens.gather(1, places[:, :, None].expand(-1, -1, hypotheses.tokens.shape[-1]))
    return Hypotheses(tokens, *(column.gather(1, places) for column in hypotheses[1:]))


def take(hypotheses: Hypotheses, sentences: Tensor) -> Hypotheses:
    """Those of the given sentences."""
    return Hypotheses(*(column[sentences] for column in hypotheses))


def read(hypotheses: Hypotheses, n_best: int, eos: int) -> list[list[Hypothesis]]:
    """To Python: the first n that are there."""
    columns = [column[:, :n_best].tolist() for column in hypotheses]
    return [
        [
            hypothesis(tokens[:length], eos, score, log_probability)
            for tokens, length, log_probability, score in zip(*places)
            if score != -torch.inf
        ]
        for places in zip(*columns)
    ]


def _beside(first: Hypotheses, second: Hypotheses) -> Hypotheses:
    return Hypotheses(*(torch.cat(columns, dim=1) for columns in zip(first, second)))


def _lowest(keys: Tensor, count: int) -> Tensor:
    """The places of the `count` lowest keys of each row, in order; equal ones stay as they stand."""
    return keys.argsort(dim=1, stable=True)[:, :count]
