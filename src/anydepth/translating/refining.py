"""A draft at once and then the answer, on the same encoder depth: what the draft has computed is not computed again.

The encoder runs once, for both. In greedy search the decoder of the answer reads all words of the draft in one pass,
keeps those that it would have chosen itself and goes on from there; where the draft's layers are the first of its own
(prefix exits), their states and caches are the draft's, and only the layers above run. Beam search begins anew behind
the encoder. Either way the answer is what a search without a draft finds.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from anydepth.decoding.decoder import DecodingConfig, Hypothesis, Marks
from anydepth.decoding.search import decode
from anydepth.decoding.speculative import Proposal, speculate
from anydepth.models import Translator, TranslatorDecoder
from anydepth.nn.attention import Padded
from anydepth.nn.bridge import LastState, Memory
from anydepth.nn.cache import FixedCache
from anydepth.plan import Plan, Plans
from anydepth.run import Run
from anydepth.translating import quick
from anydepth.translating.drafter import TranslatorDrafter


class Lower(NamedTuple):
    """What the decoder layers of a draft hold of bos and its words, T in all."""

    plan: Plan
    states: Tensor
    """(T, D) above the last of them."""
    keys: list[Tensor]
    """(T, H, d) of each."""
    values: list[Tensor]


class Begun(NamedTuple):
    """A draft, and what it leaves for the answer."""

    text: str
    source: list[int]
    memory: Tensor | None = None
    """(S, D) what every decoder layer attends to; None where nothing can be shared."""
    words: Sequence[int] = ()
    """Those that the draft's decoder has read, bos first."""
    lower: Lower | None = None


def draft_depth(run: Run, depth: str, key: str = "") -> str | None:
    """The depth that drafts for this one: the shallowest decoder behind the same encoder, if there is another."""
    plans = run.plan(depth, key)
    least = min(run.model.decoder_depth.plans(key or run.key))
    return run.plan(f"{len(plans.encoder)}-{least}", key).name if least < len(plans.decoder) else None


@torch.no_grad()
def draft(run: Run, texts: Sequence[str], depth: str, key: str = "") -> list[Begun]:
    """One batch of drafts."""
    key, decoding = key or run.key, replace(run.config.decoding, n_best=1)
    sources = [ids if text.strip() else [] for ids, text in zip(run.sources(texts, key), texts)]
    if not (shares_encoder(run) and all(sources)):
        # no depth is shallower, where words could stop
        found = run.outputs(texts, depth, key=key, batch=len(texts), n_best=1, exit=0)
        return [Begun(best.text, source) for (best,), source in zip(found, sources)]
    plans, (model, marks) = run.plan(depth, key), searching(run)
    padded, limits = on_device(run, sources, decoding)
    if by_rounds(model, decoding):
        room = int(limits.max()) + 1
        drafter = RememberingDrafter(model, plans, Plan(()), room, key).open(padded)
        hypotheses = speculate(drafter, *marks, limits, 0, decoding.length_penalty).found
        memory, lower = drafter.high.memories[0].state, drafter.remembered()
    else:
        decoder = model.start(padded, plans, key)
        memory, lower = decoder.memories[0].state, [None] * len(texts)
        hypotheses = [best for (best,) in decode(decoder, *marks, limits, decoding, range(len(texts)))]
    assert memory is not None
    return [
        Begun(best.text, source, states[: len(source) + 1].clone(), *read(hypothesis, held, marks.bos, limit))
        for best, hypothesis, source, states, held, limit in zip(
            run.read(hypotheses, plans.name), hypotheses, sources, memory, lower, limits.tolist()
        )
    ]


def read(found: Hypothesis, held: Lower | None, bos: int, limit: int) -> tuple[list[int], Lower | None]:
    """The words of a draft that were read, of one cut at its limit all but the last, and what is held of them."""
    words = [bos, *found.tokens][:limit]
    if held is None:
        return words, None
    keys, values = ([tensor[: len(words)].clone() for tensor in tensors] for tensors in (held.keys, held.values))
    return words, Lower(held.plan, held.states[: len(words)].clone(), keys, values)


@torch.no_grad()
def refine(run: Run, begun: Sequence[Begun], depth: str, texts: Sequence[str], key: str = "") -> list[str]:
    """The answers of one batch of texts that were drafted on the same encoder depth."""
    key, decoding = key or run.key, replace(run.config.decoding, n_best=1)
    memories = [one.memory for one in begun if one.memory is not None]
    if len(memories) < len(begun):
        return [best.text for (best,) in run.outputs(texts, depth, key=key, batch=len(texts), n_best=1)]
    plans, (model, marks) = run.plan(depth, key), searching(run)
    padded, limits = on_device(run, [one.source for one in begun], decoding)
    memory = pad_sequence(memories, batch_first=True)
    if by_rounds(model, decoding):
        hypotheses = confirm(run, begun, plans, key, padded, memory, limits)
    else:
        sees, (_, gates) = Padded((padded != model.pad)[:, None, None, :]), model.gates(plans, key, padded)
        decoder = TranslatorDecoder(model, len(begun), [Memory(memory)] * len(plans.decoder), sees, plans, gates)
        hypotheses = [best for (best,) in decode(decoder, *marks, limits, decoding, range(len(begun)))]
    return [best.text for best in run.read(hypotheses, plans.name)]


def confirm(
    run: Run, begun: Sequence[Begun], plans: Plans, key: str, source: Tensor, memory: Tensor, limits: Tensor
) -> list[Hypothesis]:
    """Greedy search from the words of drafts."""
    lower = [one.lower for one in begun if one.lower and one.lower.plan.layers == first(plans, len(one.lower.plan))]
    shared = lower[0].plan if len(lower) == len(begun) else Plan(())
    room = max(int(limits.max()), max(len(one.words) for one in begun)) + 1
    model, marks = searching(run)
    drafter = TranslatorDrafter(model, plans, shared, room, key).open(source, memory)
    words = [torch.tensor(one.words, device=source.device) for one in begun]
    tokens = pad_sequence(words, batch_first=True, padding_value=run.model.pad)
    if len(shared):
        assert isinstance(drafter.low.cache, FixedCache)
        for step, slot in enumerate(drafter.low.cache.slots):
            keys, values = [one.keys[step] for one in lower], [one.values[step] for one in lower]
            slot.begin_with(pad_sequence(keys, batch_first=True), pad_sequence(values, batch_first=True))
        states = pad_sequence([one.states for one in lower], batch_first=True)
    else:
        states = drafter.embed(tokens, torch.arange(tokens.shape[1], device=source.device)[None])
    penalty = run.config.decoding.length_penalty
    return speculate(drafter, *marks, limits, 0, penalty, Proposal(tokens, states)).found


def first(plans: Plans, steps: int) -> tuple[int, ...]:
    return plans.decoder.layers[:steps]


def searching(run: Run) -> tuple[Translator, Marks]:
    """The model that the run searches with, in the precision that its settings say."""
    searcher = run.searcher(run.config.decoding.precision)
    return searcher.model, searcher.marks


def on_device(run: Run, sources: list[list[int]], decoding: DecodingConfig) -> tuple[Tensor, Tensor]:
    padded, limits = run.prepared(sources, decoding)
    return padded.to(run.device), limits.to(run.device)


def shares_encoder(run: Run) -> bool:
    """Whether every decoder layer attends to the same, however many there are, in a search that can be repeated."""
    model, decoding = run.translator, run.config.decoding
    plain = isinstance(model.bridge, LastState) and not model.config.sentence_layers
    return plain and not (decoding.sample or decoding.exit)


def by_rounds(model: Translator, decoding: DecodingConfig) -> bool:
    return decoding.beam == 1 and decoding.plain and model.decoder.mix is None


class RememberingDrafter(TranslatorDrafter):
    """Greedy search at a depth, after which everything that its decoder layers have computed is still there."""

    def open(self, source: Tensor, memory: Tensor | None = None) -> "RememberingDrafter":
        self.sentences = torch.arange(len(source), device=source.device)
        self.rows: dict[int, Lower] = {}
        self.states = torch.empty(0)
        return super().open(source, memory)

    def judge(self, tokens: Tensor, states: list[Tensor], positions: Tensor) -> Tensor:
        x = self.above(tokens, states, positions)
        if not len(self.states):
            self.states = x.new_zeros(len(x), self.high.cache.room, x.shape[-1])
        self.states[torch.arange(len(x), device=x.device)[:, None], positions] = x
        return quick.logits(self.model, x)

    def reorder(self, rows: Tensor) -> None:
        self.remember()  # also of those that stay: what they will have is seen later
        self.sentences, self.states = self.sentences[rows], self.states[rows]
        super().reorder(rows)

    def remember(self) -> None:
        slots = self.high.cache.slots
        for row, sentence in enumerate(self.sentences.tolist()):
            keys = [slot.keys[row] for slot in slots if slot.keys is not None]
            values = [slot.values[row] for slot in slots if slot.values is not None]
            self.rows[sentence] = Lower(self.high.plan, self.states[row], keys, values)

    def remembered(self) -> list[Lower | None]:
        """Of every sentence; of none where no deeper decoder begins with these layers."""
        steps, deeper = len(self.high.plan), self.model.decoder_depth.plans(self.reader.key).values()
        if not any(plan.layers[:steps] == self.high.plan.layers for plan in deeper if len(plan) > steps):
            return [None] * len(self.rows or self.sentences)
        self.remember()
        return [self.rows[sentence] for sentence in range(len(self.rows))]
