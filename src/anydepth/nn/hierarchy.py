"""The hierarchical Transformer (a baseline of Wei et al. 2020, Appendix A, after Zhang et al. 2019, HIBERT).

The lower encoder layers read every sentence by itself; the upper ones read a document as a row of sentences, each the
state of its end mark with its place among the sentences. Both are layers of one stack, so that a hierarchical encoder
has the depth and the size of a plain one.

The paper does not say what its "standard Transformer decoder" attends to. Here it is every word, its own state and that
of its sentence added: the words are needed to be copied, and the sentences tell them where they stand.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from anydepth.nn.attention import Padded
from anydepth.nn.embeddings import Embedding
from anydepth.nn.stack import Stack
from anydepth.plan import Plan


class Sentences(NamedTuple):
    """Where the sentences of padded documents are; N is the number of those of the longest."""

    number: Tensor
    """(B, S) the sentence of each word, counted from 0; padding counts as one more sentence."""
    place: Tensor
    """(B, S) where each word stands in its sentence."""
    ends: Tensor
    """(B, N) where each sentence ends."""
    there: Tensor
    """(B, N) whether there is one."""

    @property
    def of_words(self) -> Padded:
        """Words see the words of their own sentence."""
        return Padded((self.number[:, :, None] == self.number[:, None, :])[:, None])

    @property
    def of_documents(self) -> Padded:
        """Sentences see all sentences of their document."""
        return Padded(self.there[:, None, None, :])


def find_sentences(source: Tensor, pad: int) -> Sentences:
    """Of (B, S) documents: what ends a document also ends each of its sentences (`data.sentences`)."""
    last = (source != pad).sum(1, keepdim=True) - 1
    marks = source == source.gather(1, last)
    number, count = marks.cumsum(1) - marks.long(), marks.sum(1)
    most, positions = int(count.max()), torch.arange(source.shape[1], device=source.device).expand_as(source)
    # what is not a mark goes to a column that nobody reads
    ends = torch.zeros_like(source[:, :1]).repeat(1, most + 1)
    ends = ends.scatter(1, number.where(marks, most), positions)[:, :most]
    starts = torch.cat([torch.zeros_like(ends[:, :1]), ends[:, :-1] + 1], 1)
    place = positions - starts.gather(1, number.clamp(max=most - 1))
    return Sentences(number, place, ends, torch.arange(most, device=source.device) < count[:, None])


def read_by_sentence(
    source: Tensor, pad: int, embedding: Embedding, stack: Stack, plan: Plan, gates: Tensor | None, lower: int
) -> Tensor:
    """(B, S) documents → (B, S, D) words that know their sentence and its document. The first `lower` layers read
    sentences."""
    sentences = find_sentences(source, pad)
    words = embedding(source, sentences.place)
    for state in stack.states(words, Plan(plan.layers[:lower]), first(gates, lower), sentences.of_words):
        words = state
    width, most = words.shape[-1], sentences.ends.shape[1]
    vectors = words.gather(1, sentences.ends[:, :, None].expand(-1, -1, width))
    vectors = vectors + embedding.places(torch.arange(most, device=source.device)[None]).to(vectors.dtype)
    for state in stack.states(vectors, Plan(plan.layers[lower:]), rest(gates, lower), sentences.of_documents):
        vectors = state
    own = sentences.number.clamp(max=most - 1)[:, :, None].expand(-1, -1, width)
    return words + vectors.gather(1, own)


def first(gates: Tensor | None, steps: int) -> Tensor | None:
    return None if gates is None else gates[:steps]


def rest(gates: Tensor | None, steps: int) -> Tensor | None:
    return None if gates is None else gates[steps:]
