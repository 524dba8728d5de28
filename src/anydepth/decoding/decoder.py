"""What search needs of a model, what it can be told, and what it gives back.

Shapes, here and in the searches: B sentences, K hypotheses of each (the beam), R decoder rows, T tokens,
V words.
"""

import dataclasses
import math
from functools import cache
from typing import Any, Literal, NamedTuple, Protocol, get_type_hints

import numpy as np
import torch
from torch import Tensor

from anydepth.config_class import config
from anydepth.config_reader import Problems, build
from anydepth.decoding import picking
from anydepth.errors import UserError
from anydepth.nn.packed_attention import available

Array = np.ndarray[Any, np.dtype[Any]]


class Decoder(Protocol):
    """One growing hypothesis in each of R rows. The model's `start` makes it, at first with one row for each
    sentence; it holds the caches."""

    def step(self, tokens: Tensor) -> Tensor:
        """The last token of every row, (R,), to the logits of the next, (R, V).

        The first step is fed `bos`, a row whose result no longer matters `pad`.
        """
        ...

    def reorder(self, rows: Tensor) -> None:
        """From now on, row i continues what row `rows[i]` was.

        There may be fewer rows than before, or more; where there are as many, every row keeps its sentence.
        """
        ...


class Marks(NamedTuple):
    """Of a target text."""

    bos: int
    eos: int
    pad: int


class Hypothesis(NamedTuple):
    """One output. Its length, wherever one is needed, counts the tokens scored: eos too, if it came."""

    tokens: list[int]
    """Without bos and eos."""
    score: float
    """log_probability / length ** length_penalty."""
    log_probability: float


SEARCH_TOKENS = 16_384
"""Source tokens searched together at most, padding included: long texts come in smaller batches."""

NOT_NUMBERS = "the model's logits are not numbers: its training diverged, or its weights are damaged"

NEVER = 1.0
"""The margin with which no word stops early."""

Precision = Literal["float32", "bfloat16", "float16", "int8"]


@config
class DecodingConfig:
    """How outputs are searched for."""

    beam: int = 5
    """Hypotheses kept per sentence. 1 takes the best word at every step (greedy search)."""
    length_penalty: float = 1.0
    """Hypotheses are compared by log-probability / length ** length_penalty: 0 favours short ones, 1 compares
    the mean per token."""
    max_ratio: float = 2.0
    """An output has at most max_ratio * (source tokens) + max_extra tokens, or as many as min_length takes."""
    max_extra: int = 10
    """See max_ratio."""
    max_length: int = 0
    """Tokens of an output at most, the end mark included, whatever the length of its source; 0 for no such limit."""
    min_length: int = 0
    """Tokens of an output at least."""
    block_ngrams: int = 0
    """No n-gram of so many tokens may occur twice in an output: 3 for summaries (Paulus et al. 2018); 0 allows all."""
    precision: Precision = "float32"
    """Number type of the weights in searching; scores are summed in float32 all the same. `bfloat16`, for states too,
    is faster on a GPU, and changes some words. On a CPU, with single sentences and wide models, `float16` is faster
    than float32 and changes hardly any; `int8` is the fastest, and changes some, a few of them with the batch that a
    sentence is in."""
    batch: int = 64
    """Sentences decoded together. Changes speed and memory, not the translations."""
    at_once: int = 1
    """Batches that a GPU searches at the same time, where texts are many and have no budget. More keep it busier, as
    far as one leaves it idle, and take as many times the memory. Does not change the translations."""
    n_best: int = 1
    """Translations per sentence, best first; at most `beam` of them unless they are sampled."""
    speculate: bool = False
    """Greedy search in which a shallow exit drafts words that the full depth confirms several at a time: the same
    translations in less time where drafts are good. (In bfloat16 and int8 but for rounding, which changes some.)"""
    draft: int = 1
    """Speculation: decoder layers of the exit that drafts. Where the run is calibrated, its choice comes first, unless
    a call gives this or the next."""
    draft_words: int = 4
    """Speculation: words drafted at a time."""
    exit: int = 0
    """Greedy search in which words stop after so many decoder layers where the model is sure of them; 0: none do."""
    exit_margin: float = NEVER
    """How sure: by how much the most probable word must lead the second. 0: whatever they are; 1: never. A call that
    asks for an exit takes the margin that `anydepth confidence` found in the place of 1."""
    sample: bool = False
    """Draw every word at random from the model's distribution, instead of searching for the best sentence."""
    temperature: float = 1.0
    """Sampling: logits are divided by it. Below 1 is closer to the best word, above 1 more varied."""
    top_k: int = 0
    """Sampling: only the top_k most probable words can be drawn; 0 for all."""
    top_p: float = 1.0
    """Sampling: only the most probable words that together reach this probability can be drawn; 1 for all."""
    seed: int = 1
    """Sampling: the same seed draws the same words for the n-th sentence, whatever the batch size."""

    def __post_init__(self) -> None:
        for name in ("beam", "max_extra", "batch", "at_once", "n_best", "draft", "draft_words"):
            _require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        for name in ("length_penalty", "max_ratio", "max_length", "min_length", "block_ngrams", "top_k", "seed"):
            _require(getattr(self, name) >= 0, name, "at least 0", getattr(self, name))
        _require(self.temperature > 0, "temperature", "above 0", self.temperature)
        _require(0 < self.top_p <= 1, "top_p", "above 0 and at most 1", self.top_p)
        if self.max_length:
            _require(self.min_length < self.max_length, "min_length", "below max_length", self.min_length)
        if self.speculate and (self.beam > 1 or self.sample):
            raise ValueError("speculate: drafts what greedy search finds; set beam to 1 and sample to false")
        if self.speculate and (self.block_ngrams or self.min_length):
            raise ValueError("speculate: words are judged without block_ngrams and min_length; set both to 0")
        _require(self.exit >= 0, "exit", "at least 0", self.exit)
        _require(0 <= self.exit_margin <= 1, "exit_margin", "between 0 and 1", self.exit_margin)
        if self.exit and (self.beam > 1 or self.sample or self.speculate):
            raise ValueError(
                "exit: words stop early in greedy search alone; set beam to 1, sample and speculate to false"
            )
        if not self.sample:
            _require(self.n_best <= self.beam, "n_best", f"at most beam ({self.beam})", self.n_best)

    @property
    def plain(self) -> bool:
        """Whether nothing but the model's probabilities counts."""
        return not (self.sample or self.block_ngrams or self.min_length or self.exit)

    def most_tokens(self, source: int) -> int:
        """That a translation may have, from how many its source has."""
        most = max(int(source * self.max_ratio) + self.max_extra, self.min_length + 1)
        return min(most, self.max_length) if self.max_length else most


def changed(decoding: DecodingConfig, settings: dict[str, Any]) -> DecodingConfig:
    """With other values for some settings; None keeps the run's own."""
    given = {name: value for name, value in settings.items() if value is not None}
    given = {name: value.item() if isinstance(value, np.generic) else value for name, value in given.items()}
    known = kinds()
    for name in given.keys() - known.keys():
        raise UserError(f"{name}: no such decoding setting; there are {', '.join(known)}")
    problems: Problems = {}
    for name, value in given.items():
        build(known[name], value, name, problems)
    if problems:
        raise UserError("; ".join(f"{name}: {problem}" for name, problem in problems.items()))
    try:
        return dataclasses.replace(decoding, **given)
    except ValueError as error:
        raise UserError(str(error)) from None


@cache
def kinds() -> dict[str, Any]:
    """Of all settings."""
    return {field.name: get_type_hints(DecodingConfig)[field.name] for field in dataclasses.fields(DecodingConfig)}


def _require(holds: bool, setting: str, expected: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{setting} must be {expected}, not {value}")


def hypothesis(tokens: list[int], eos: int, score: float, log_probability: float) -> Hypothesis:
    """From the tokens that were scored, of which the last may be eos."""
    if math.isnan(score):
        raise UserError(NOT_NUMBERS)
    return Hypothesis(tokens[:-1] if tokens[-1] == eos else tokens, score, log_probability)


def hypotheses(tokens: Array, lengths: Array, totals: Array, eos: int, length_penalty: float) -> list[Hypothesis]:
    """Of the first so many tokens of each row, (R, T), and their log-probability; all on the host."""
    columns = tokens, lengths, totals / lengths.astype(totals.dtype) ** totals.dtype.type(length_penalty), totals
    return [
        hypothesis(words[:length], eos, score, total)
        for words, length, score, total in zip(*(column.tolist() for column in columns))
    ]


def next_log_probabilities(logits: Tensor, bos: int, eos: int, pad: int) -> Tensor:
    """(R, V) logits to log-probabilities in fp32, with -inf for bos and pad, which are never generated.

    The rest is not scaled up to make good for them, so that scores stay those of the model. (Some models
    start from their eos: that one may be generated.)
    """
    return forbid_marks(torch.log_softmax(logits, dim=-1, dtype=torch.float32), bos, eos, pad)


def has_kernels(logits: Tensor) -> bool:
    """Whether the best words are found by kernels of their own, which compare in single precision."""
    return logits.is_cuda and logits.dtype != torch.float64 and available()


def forbidden(bos: int, eos: int, pad: int) -> tuple[int, int]:
    """The words that are never generated, for the kernels."""
    return -1 if bos == eos else bos, -1 if pad == eos else pad


def most_probable(logits: Tensor, bos: int, eos: int, pad: int) -> tuple[Tensor, Tensor]:
    """(…, V) logits to the log-probability of the best next word, and that word."""
    if has_kernels(logits):
        return picking.pick(logits.contiguous(), forbidden(bos, eos, pad))
    gains, words = next_log_probabilities(logits.flatten(0, -2), bos, eos, pad).max(dim=-1)
    return gains.view(logits.shape[:-1]), words.view(logits.shape[:-1])


def likeliest(logits: Tensor, count: int, bos: int, eos: int, pad: int) -> tuple[Tensor, Tensor | None]:
    """(R, V) logits to log-probabilities of next words, among them the `count` best, and these words; none for all."""
    if has_kernels(logits) and count <= logits.shape[1] <= picking.MOST_WORDS:
        return picking.pick_several(logits.contiguous(), count, forbidden(bos, eos, pad))
    return next_log_probabilities(logits, bos, eos, pad), None


def best_word(logits: Tensor, bos: int, eos: int, pad: int) -> Tensor:
    """(R, V) logits, which change, to the best next word of each row: what needs no probability, a CPU does faster."""
    if logits.is_cuda:
        return most_probable(logits, bos, eos, pad)[1]
    return forbid_marks(logits, bos, eos, pad).argmax(dim=-1)


def forbid_marks(words: Tensor, bos: int, eos: int, pad: int) -> Tensor:
    """(R, V), in place: -inf for bos and pad."""
    first, last = min(bos, pad), max(bos, pad)
    if last == first + 1 and eos != bos:
        words[:, first : last + 1] = -torch.inf  # one kernel instead of two
        return words
    for token in {bos, pad} - {eos}:
        words[:, token] = -torch.inf
    return words


def normalise(log_probabilities: Tensor, lengths: Tensor | int, length_penalty: float) -> Tensor:
    """The score by which hypotheses of different lengths are compared."""
    return log_probabilities / lengths**length_penalty


def steps_between_checks(device: torch.device) -> int:
    """How often to ask what has finished: on CUDA the host has to wait for the device to answer."""
    return 8 if device.type == "cuda" else 1
