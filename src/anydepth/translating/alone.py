"""One sentence on a CPU, a word at a time, in NumPy.

A word at batch 1 multiplies one vector by every matrix of the decoder, and does little else. NumPy's library for that
(OpenBLAS) reads matrices faster than PyTorch's (MKL), and what surrounds the products costs a fraction of PyTorch's
calls (docs/results.md). This is the same computation as `Layer` with a `Cache`, for the layers that most models have;
what it cannot do, it leaves to them. In speculation the layers above a draft read several words at once, which PyTorch
multiplies.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController
from torch import Tensor, nn

from anydepth.models import Translator, TranslatorDecoder
from anydepth.nn.bridge import Memory
from anydepth.nn.embeddings import Embedding
from anydepth.nn.layers import Layer
from anydepth.plan import Plan
from anydepth.planned import Planned
from anydepth.translating.precision import Float32Linear

Array = NDArray[Any]
Function = Callable[[Array], Array]
"""Of a vector."""


class DecoderAlone:
    """A growing translation (the `Decoder` that greedy search drives): one row, which is never reordered."""

    def __init__(self, begun: TranslatorDecoder, room: int) -> None:
        """`room` words at most."""
        model, plan = begun.model, begun.plans.decoder
        self.check_length, self.embed = model.target.check_length, EmbeddingAlone(model.target, room)
        self.leaving, self.logits = norm_of(model.norm), head_of(model)
        gates = [None] * len(plan) if begun.gates is None else begun.gates
        self.steps = [LayerAlone(*given, room) for given in zip(layers_of(model, plan), gates, begun.memories)]
        self.length = 0

    @staticmethod
    def fits(begun: TranslatorDecoder) -> bool:
        """Whether this computes the same."""
        shared = begun.gates is None or begun.gates.dim() == 1
        plain = DecoderAlone.knows(begun.model, begun.plans.decoder)
        return begun.rows == 1 and begun.sees.keys is None and plain and shared

    @staticmethod
    def knows(model: Translator, plan: Plan) -> bool:
        """Such layers, and their numbers, of which NumPy has no bfloat16."""
        plain = model.decoder.mix is None and all(layer.context is None for layer in layers_of(model, plan))
        return plain and model.output.weight.dtype != torch.bfloat16

    @np.errstate(invalid="ignore", over="ignore")  # damaged weights: the search tells (`hypothesis`)
    def step(self, tokens: Tensor) -> Tensor:
        self.check_length(self.length + 1)
        x = run(self.steps, self.embed(int(tokens), self.length), self.length)
        self.length += 1
        return torch.from_numpy(self.logits(self.leaving(x)))[None]

    def reorder(self, rows: Tensor) -> None:
        raise NotImplementedError("a sentence alone has nothing to change places with")


class DrafterAlone:
    """A translation that grows by speculation (the `Drafter` of decoding/speculative.py): one row, with a draft whose
    layers are the first of all."""

    def __init__(self, begun: TranslatorDecoder, draft: Plan, room: int, head: nn.Module | None) -> None:
        """Drafts are only proposed, so an output matrix in 8 bits is good enough for them: `head`, if there is one."""
        full = DecoderAlone(begun, room)
        self.embed, self.leaving, self.logits, self.reorder = full.embed, full.leaving, full.logits, full.reorder
        self.low, self.high = full.steps[: len(draft)], full.steps[len(draft) :]
        self.guesses = self.logits if head is None else in_torch(head)

    @np.errstate(invalid="ignore", over="ignore")
    def read(self, tokens: Tensor, positions: Tensor) -> Tensor:
        at = int(positions)
        return torch.from_numpy(run(self.low, self.embed(int(tokens), at), at))[None, None]

    @np.errstate(invalid="ignore", over="ignore")
    def exit(self, states: Tensor) -> Tensor:
        return torch.from_numpy(self.guesses(self.leaving(array(states[0, 0]))))[None]

    @np.errstate(invalid="ignore", over="ignore")
    def judge(self, tokens: Tensor, states: list[Tensor], positions: Tensor) -> Tensor:
        x = run(self.high, array(torch.cat(states, dim=1)[0]), int(positions[0, 0]))
        return torch.from_numpy(self.logits(self.leaving(x)))[None]


class EmbeddingAlone:
    """A word and its place → (D,) the state that layers begin with."""

    def __init__(self, embedding: Embedding, room: int) -> None:
        """`room` words at most."""
        self.words, self.scale, self.norm = array(embedding.words.weight), embedding.scale, norm_of(embedding.norm)
        self.places = array(embedding.places(torch.arange(min(room, embedding.longest))))

    def __call__(self, word: int, at: int) -> Array:
        return self.norm(self.words[word] * self.scale + self.places[at])


def run(steps: "list[LayerAlone]", x: Array, at: int) -> Array:
    for layer in steps:
        x = layer.step(x, at)
    return x


def layers_of(model: Translator, plan: Plan) -> list[Layer]:
    """The layer of each step."""
    layers = [model.decoder.layers[number] for number in plan.layers]
    return [layer for layer in layers if isinstance(layer, Layer)]


class LayerAlone:
    """A decoder step with the keys and values that it attends to, (H, T, d) each. States are (D,), or (q, D) of q words
    in a row."""

    def __init__(self, layer: Layer, gate: Tensor | None, memory: Memory, room: int) -> None:
        assert layer.cross is not None
        assert layer.cross_norm is not None
        assert memory.state is not None
        self.first, self.last = layer.norm_first, layer.norm_last
        self.gate = None if gate is None else array(gate)
        self.norms = [norm_of(norm) for norm in (layer.attention_norm, layer.cross_norm, layer.ffn_norm)]
        self.qkv, self.out = product_of(layer.attention.qkv), product_of(layer.attention.out)
        self.query, self.cross_out = product_of(layer.cross.query), product_of(layer.cross.out)
        self.grow, self.shrink = product_of(layer.grow), product_of(layer.shrink)
        self.activation = rectified if layer.activation is F.relu else in_torch(layer.activation)
        self.keys, self.values = (
            array(part[0].transpose(0, 1).contiguous()) for part in layer.cross.keys_and_values(memory.state)
        )
        heads, _, size = self.keys.shape
        self.said = np.empty((2, heads, room, size), self.keys.dtype)

    def step(self, x: Array, at: int) -> Array:
        """In place `at`, and those behind it."""
        x = self.leave(x, self.listen(self.enter(x, 0), at), 0)
        x = self.leave(x, self.cross_out(attend(self.query(self.enter(x, 1)), self.keys, self.values)), 1)
        return self.leave(x, self.shrink(self.activation(self.grow(self.enter(x, 2)))), 2)

    def enter(self, x: Array, branch: int) -> Array:
        return self.norms[branch](x) if self.first else x

    def leave(self, x: Array, found: Array, branch: int) -> Array:
        x = x + (found if self.gate is None else found * self.gate)
        return self.norms[branch](x) if self.last else x

    def listen(self, x: Array, at: int) -> Array:
        """To what was said."""
        _, heads, _, size = self.said.shape
        query, *coming = self.qkv(x).reshape(-1, 3, heads, size).transpose(1, 2, 0, 3)
        end = at + query.shape[1]
        self.said[:, :, at:end] = coming
        keys, values = self.said[:, :, :end]
        return self.out(attend(query.transpose(1, 0, 2).reshape(x.shape), keys, values, unseen(end - at, keys.dtype)))


def attend(query: Array, keys: Array, values: Array, mask: Array | None = None) -> Array:
    """softmax(q kᵀ / √d) v of (D,) or (q, D) queries and (H, T, d) keys and values → as the queries. A mask, (q, q), is
    added to the scores of the last q keys."""
    heads, _, size = keys.shape
    scores = keys @ query.reshape(-1, heads, size).transpose(1, 2, 0)  # (H, T, q)
    scores *= size**-0.5
    if mask is not None:
        scores[:, -len(mask) :] += mask
    scores -= scores.max(axis=1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=1, keepdims=True)
    return (scores.transpose(0, 2, 1) @ values).transpose(1, 0, 2).reshape(query.shape)


@lru_cache(maxsize=16)
def unseen(words: int, dtype: np.dtype[Any]) -> Array | None:
    """-∞ where a key, by row, comes after a query; of one word it is nowhere."""
    return np.tril(np.full((words, words), -np.inf, dtype), -1) if words > 1 else None


# ---- modules as functions of one vector, or of several


def array(tensor: Tensor) -> Array:
    """The same numbers in the same place."""
    return tensor.detach().numpy()


def head_of(model: Planned) -> Function:
    if model.head is not None:
        return product_of(model.head)
    return product(model.output.weight, model.output_bias)


def product_of(linear: nn.Module) -> Function:
    if isinstance(linear, Float32Linear):
        return product(linear.weight, linear.bias, in_torch(linear))
    return product(linear.weight, linear.bias) if isinstance(linear, nn.Linear) else in_torch(linear)


def product(weight: Tensor, bias: Tensor | None, of_several: Function | None = None) -> Function:
    matrix, shift = array(weight), 0 if bias is None else array(bias)

    def multiply(x: Array) -> Array:
        if x.ndim > 1 and of_several:
            return of_several(x)
        found: Array = matrix @ x if x.ndim == 1 else x @ matrix.T
        found += shift
        return found

    return multiply


def norm_of(norm: nn.Module) -> Function:
    if not isinstance(norm, nn.LayerNorm):
        return lambda x: x
    weight, bias, epsilon = array(norm.weight), array(norm.bias), norm.eps

    def normalise(x: Array) -> Array:
        size = x.shape[-1]
        x = x - np.add.reduce(x, axis=-1, keepdims=True) / size
        squares = x @ x if x.ndim == 1 else np.einsum("qd,qd->q", x, x)[:, None]
        x *= weight / np.sqrt(squares / size + epsilon)
        x += bias
        return x

    return normalise


def rectified(x: Array) -> Array:
    return np.maximum(x, 0, out=x)


def in_torch(function: Callable[[Tensor], Tensor]) -> Function:
    """What NumPy does not have: packed weights (translating/precision.py), GELU."""
    return lambda x: array(function(torch.from_numpy(x)[None])[0])


# ---- threads


def one_thread() -> AbstractContextManager[object]:
    """While it lasts, products have one thread. On idle cores more would gain something; on a busy machine each of 37
    products a word would wait for threads that wait for a core, which costs far more (docs/results.md). (OpenBLAS
    counts threads for the whole process: where several search at a time, NumPy may be left with one after them.)"""
    return threads().limit(limits=1)


@cache
def threads() -> ThreadpoolController:
    return ThreadpoolController()
