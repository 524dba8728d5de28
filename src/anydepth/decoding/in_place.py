"""Searches whose every tensor has its place for good: the same few operations for each word, none of which the host
has to wait for. On a GPU they are recorded and replayed as CUDA graphs (decoding/recorded.py).

Sentences that are done stay where they are. What a step costs does not depend on how many there are, until there are
hundreds; what the host learns about them, it learns while the next step runs, unless that may be a long one in vain.
"""

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from anydepth.decoding import picking
from anydepth.decoding.beam import Goal, Hypotheses, advance, empty_beginnings, last_words, take
from anydepth.decoding.beam import read as read_beam
from anydepth.decoding.decoder import (
    Array,
    Hypothesis,
    Marks,
    forbidden,
    has_kernels,
    hypotheses,
    likeliest,
    most_probable,
)
from anydepth.decoding.picking import Candidates, Next, Said
from anydepth.decoding.rounds import Heard, Round, restart, settle
from anydepth.decoding.speculative import Drafter, Rows, play_round
from anydepth.decoding.speculative import read as read_rows


def host_table(weight: Tensor, *shape: int, dtype: torch.dtype = torch.long) -> Tensor:
    """Zeros that kernels beside this weight write and the host reads, without a copy."""
    return torch.zeros(shape, dtype=dtype, pin_memory=weight.is_cuda)


class Search(Protocol):
    """What decoding/recorded.py plays."""

    room: int
    """Places for words that its caches have."""
    asked: Tensor
    """What the host reads after each step, to tell whether it is over, where steps do not tell it."""
    long_steps: bool
    """Whether a step takes much longer than the host takes to tell that it was the last."""

    def begin(self, limits: Array) -> None:
        """What the host notes: (B,) words allowed, 0 where there is no sentence."""
        ...

    def open(self, source: Tensor, limits: Tensor) -> None:
        """Sets everything back, and reads (B, S) padded sources; the limits again, where the sources are."""
        ...

    def reach(self, number: int) -> int:
        """How many places step `number`, from 0, may look at."""
        ...

    def advance(self, used: int) -> None:
        """One step, which looks at so many places."""
        ...

    def told(self, number: int) -> Array | None:
        """What step `number` wrote into the host's memory, if steps do, to tell whether it is over."""
        ...

    def over(self, answer: Array) -> bool:
        """Given what was told or asked after each step in turn."""
        ...

    def read(self) -> list[list[Hypothesis]]:
        """What was found. A step that came after the last may still run: it changes nothing of that."""
        ...


class Beams(Protocol):
    """K growing hypotheses of each of B sentences, all at the same word."""

    at: Tensor
    """(1,) where that stands; (B,) where words are embedded as they are picked."""
    coming: Tensor
    """Where the next one will."""
    next: Next | None
    """Where words are embedded as they are picked, if they are."""
    counts_words: bool
    """Whether a step looks at the words that there are, however many places it may look at."""

    def open(self, source: Tensor) -> object: ...

    def begin(self, first: Tensor) -> None:
        """With (B, K) first words."""
        ...

    def step(self, tokens: Tensor, used: int) -> Tensor:
        """(B, K) words → (B, K, V) logits of the next; no word stands at `used` or later."""
        ...

    def choices(self, tokens: Tensor, used: int, forbidden: tuple[int, int]) -> Tensor | Candidates:
        """The same, as far as it takes to pick the best word, which is none of two; of the words that stand in `next`,
        where there is one."""
        ...

    def follow(self, parents: Tensor) -> None:
        """Hypothesis k, (B, K), goes on with what hypothesis parents[k] was."""
        ...

    def go_on(self) -> None:
        """To the next word, where no kernel that picks words does that (`picking.say`)."""
        ...


class GreedySearch:
    """Rows go on after their end; what they say then is not read. So there is nothing to keep account of but the words
    and what they gain: at batch 1, every kernel counts."""

    long_steps = False

    def __init__(self, decoder: Beams, rows: int, words: int, marks: Marks, penalty: float, weight: Tensor) -> None:
        """`weight`, any of the model's, tells where and how it computes."""
        self.decoder, self.marks, self.penalty, self.room = decoder, marks, penalty, words
        self.last = torch.zeros(rows, 1, dtype=torch.long, device=weight.device)
        self.asked, self.tells = self.last, has_kernels(weight)
        if self.tells:
            self.tokens, self.gains = (host_table(weight, words, rows, dtype=t) for t in (torch.long, torch.float32))
        else:
            self.tokens, self.gains = (self.last.new_zeros(words, rows, dtype=t) for t in (torch.long, torch.float32))

    def begin(self, limits: Array) -> None:
        self.limits, self.running, self.steps = limits, limits > 0, 0

    def open(self, source: Tensor, limits: Tensor) -> None:
        self.last.fill_(self.marks.bos)
        self.decoder.begin(self.last)
        self.decoder.open(source)

    def reach(self, number: int) -> int:
        return self.room if self.decoder.counts_words else number + 1

    def advance(self, used: int) -> None:
        decoder, never = self.decoder, forbidden(*self.marks)
        if self.tells:
            choices = decoder.choices(self.last, used, never)
            said = Said(self.tokens, self.gains, self.last, decoder.at, decoder.coming)
            picking.say(choices, never, said, decoder.next)
            return
        gains, words = most_probable(decoder.step(self.last, used), *self.marks)
        self.last.copy_(words)
        self.tokens.index_copy_(0, decoder.at, words.T)
        self.gains.index_copy_(0, decoder.at, gains.T)
        decoder.go_on()

    def told(self, number: int) -> Array | None:
        return self.tokens[number].numpy() if self.tells else None

    def over(self, answer: Array) -> bool:
        self.steps += 1
        self.running &= (answer.reshape(-1) != self.marks.eos) & (self.limits > self.steps)
        return not self.running.any()

    def read(self) -> list[list[Hypothesis]]:
        limits = self.limits[self.limits > 0]
        tokens, gains = (table[: limits.max(), : len(limits)].cpu().numpy().T for table in (self.tokens, self.gains))
        ends = tokens == self.marks.eos
        lengths = np.minimum(np.where(ends.any(1), ends.argmax(1) + 1, len(ends[0])), limits)
        totals = np.where(np.arange(len(ends[0])) < lengths[:, None], gains, 0).sum(1)
        return [[one] for one in hypotheses(tokens, lengths, totals, self.marks.eos, self.penalty)]


class BeamSearch:
    """As `beam_search`, with sentences that are done left in their places."""

    long_steps = False

    def __init__(
        self, decoder: Beams, sentences: int, beam: int, words: int, marks: Marks, penalty: float, n_best: int
    ) -> None:
        self.decoder, self.marks, self.room = decoder, marks, words
        device = decoder.at.device
        self.shape = (sentences, beam, words, marks.pad, device)
        # copies: what is empty shares its columns
        self.growing, self.ended = (Hypotheses(*map(torch.clone, each)) for each in empty_beginnings(*self.shape))
        limits = torch.zeros(sentences, dtype=torch.long, device=device)
        self.goal = Goal(limits, n_best, penalty, marks.eos)
        self.last = torch.zeros(sentences, beam, dtype=torch.long, device=device)
        self.done = torch.zeros(sentences, dtype=torch.bool, device=device)
        self.asked = self.done

    def begin(self, limits: Array) -> None:
        self.sentences = int((limits > 0).sum())

    def open(self, source: Tensor, limits: Tensor) -> None:
        self.goal.max_lengths.copy_(limits.clamp(min=1))  # places without a sentence are done after one word
        self.become(*empty_beginnings(*self.shape))
        self.done.fill_(False)
        self.last.fill_(self.marks.bos)
        self.decoder.begin(self.last)
        self.decoder.open(source)

    def become(self, growing: Hypotheses, ended: Hypotheses) -> None:
        for place, column in zip((*self.growing, *self.ended), (*growing, *ended)):
            place.copy_(column)

    def reach(self, number: int) -> int:
        return number + 1

    def advance(self, used: int) -> None:
        logits = self.decoder.step(self.last, used)
        log_probabilities, words = likeliest(logits.flatten(0, 1), 2 * logits.shape[1], *self.marks)
        length = self.decoder.at + 1
        growing, ended, parents, done = advance(
            self.growing, self.ended, log_probabilities, length, self.goal, settled=self.done, words=words
        )
        self.become(growing, ended)
        self.last.copy_(last_words(growing, length, self.marks.pad))
        self.done.copy_(done)
        self.decoder.follow(parents)
        self.decoder.go_on()

    def told(self, number: int) -> Array | None:
        return None

    def over(self, answer: Array) -> bool:
        return bool(answer[: self.sentences].all())

    def read(self) -> list[list[Hypothesis]]:
        found = take(self.ended, torch.arange(self.sentences, device=self.done.device))
        return read_beam(found, self.goal.n_best, self.marks.eos)


class Opener(Drafter, Protocol):
    """A drafter that can be given other sources of the same shape."""

    counts_words: bool
    """As that of `Beams`."""

    def open(self, source: Tensor) -> object: ...

    def next_words(self, rows: int) -> Next | None:
        """Where words are embedded as they are picked, if they are."""
        ...

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """(R, 1) words → (R, 1, D)."""
        ...

    def read_next(self, embedded: Tensor, positions: Tensor, into: Tensor) -> Tensor:
        """As `read`, of words that are embedded already, into (R, 1, D) places."""
        ...

    def above(self, tokens: Tensor, states: list[Tensor], positions: Tensor) -> Tensor:
        """As `judge`, the states that logits are made of."""
        ...

    def choices(self, states: Tensor, forbidden: tuple[int, int]) -> Tensor | Candidates:
        """(R, q, D) states, those or of the exit → as far as it takes to pick the best word, which is none of two."""
        ...

    def reach(self, used: int) -> None:
        """No word of the next passes stands at `used` or later."""
        ...


class Speculation:
    """Rounds of speculation (decoding/speculative.py). Rows stand at places of their own."""

    long_steps = True

    def __init__(
        self,
        decoder: Opener,
        rows: int,
        words: int,
        marks: Marks,
        penalty: float,
        drafts: int,
        weight: Tensor,
    ) -> None:
        """`weight`, (V, D), is the model's output matrix: it tells where and how it computes."""
        self.decoder, self.marks, self.penalty, self.drafts = decoder, marks, penalty, drafts
        self.room = words + drafts + 1
        self.by_kernels, device = has_kernels(weight), weight.device
        limits = torch.zeros(rows, dtype=torch.long, device=device)
        self.rows = Rows.new(limits, words, drafts, marks.bos, marks.pad)
        self.asked = torch.zeros_like(limits)
        words_found, totals = host_table(weight, rows, self.room), host_table(weight, rows, dtype=torch.float32)
        self.heard = Heard(words_found, host_table(weight, 2, rows), host_table(weight, rows), totals)
        self.turns = torch.zeros_like(limits)
        self.words, self.places = torch.zeros(2, rows, drafts + 1, dtype=torch.long, device=device).unbind()
        self.gains = torch.zeros(rows, drafts, device=device)  # of the drafts: nobody asks for them
        self.states = weight.new_zeros(rows, drafts + 1, weight.shape[1])  # that the exit has of the words read
        self.next = decoder.next_words(rows)

    def begin(self, limits: Array) -> None:
        self.sentences, self.known = int((limits > 0).sum()), 0

    def open(self, source: Tensor, limits: Tensor) -> None:
        if self.by_kernels:
            restart(self.round, limits, self.marks.bos)
            if self.next:
                self.next.embed(self.words[:, :1], self.places[:, :1])
        else:
            self.rows.restart(limits, self.marks.bos)
        self.decoder.open(source)

    def reach(self, number: int) -> int:
        # what was answered last may be two rounds old
        return self.room if self.decoder.counts_words else self.known + 2 * (self.drafts + 1)

    def advance(self, used: int) -> None:
        self.decoder.reach(used)
        if self.by_kernels:
            self.play_by_kernels()
        else:
            play_round(self.decoder, self.rows, *self.marks, self.drafts)
            self.asked.copy_(self.rows.lengths.where(self.rows.running, -1))

    def play_by_kernels(self) -> None:
        """As `play_round`, with all accounts kept by one kernel: by single ones they take as long as the model."""
        decoder, words, places, never = self.decoder, self.words, self.places, forbidden(*self.marks)
        for k in range(self.drafts + 1):
            word, place, state = (table[:, k : k + 1] for table in (words, places, self.states))
            decoder.read_next(self.next.states if self.next else decoder.embed(word, place), place, state)
            if k < self.drafts:
                choices = decoder.choices(state, never)
                picking.pick_into(words[:, k + 1], self.gains[:, k], choices, never, self.next, places[:, k + 1])
        gains, chosen = picking.pick(decoder.choices(decoder.above(words, [self.states], places), never), never)
        settle(self.round, self.heard, chosen, gains, self.marks.eos, self.next)

    @property
    def round(self) -> Round:
        """The accounts, where kernels keep them."""
        rows = self.rows
        found = rows.lengths, rows.limits, rows.last, rows.log_probabilities
        return Round(self.words, self.places, *found, rows.running, rows.rounds, self.turns)

    def told(self, number: int) -> Array | None:
        return self.heard.asked[number % 2].numpy() if self.by_kernels else None

    def over(self, answer: Array) -> bool:
        self.known = int(answer.max())
        return self.known < 0

    def read(self) -> list[list[Hypothesis]]:
        some = slice(self.sentences)
        if not self.by_kernels:
            found = read_rows(self.rows.take(some), self.marks.eos, self.penalty)
            return [[found[row]] for row in range(self.sentences)]
        tokens, _, lengths, totals = (table[some].numpy() for table in self.heard)
        return [[one] for one in hypotheses(tokens, lengths, totals, self.marks.eos, self.penalty)]
