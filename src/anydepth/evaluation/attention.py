"""Where the words of a translation or summary look: the attention of the top decoder layer (multiscale collaboration,
Fig. 4)."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anydepth.data.collate import Batch, collate_sources
from anydepth.errors import UserError
from anydepth.files import write_atomically
from anydepth.nn.attention import CrossAttention
from anydepth.nn.layers import Layer
from anydepth.run import Run

FILE = "attention.json"


class AttentionMap(NamedTuple):
    """Of one sentence."""

    text: str
    depth: str
    source: list[str]
    """Its pieces, as the encoder reads them."""
    target: list[str]
    """Those of the translation, and its end."""
    memory: list[list[float]]
    """(T, S) attention to the encoder's states, the mean over heads."""
    context: list[list[float]]
    """(T, S) attention to the context of a multiscale encoder; empty without one."""


def write_attention(run: Run, texts: Sequence[str], depth: str | None = None) -> list[AttentionMap]:
    """Translates or summarizes the texts and leaves attention.json in the run's folder."""
    assert run.folder is not None
    if not all(text.strip() for text in texts):
        raise UserError("--text: there is no word in it")
    found = [attention_map(run, text, depth) for text in texts]
    maps = json.dumps([one._asdict() for one in found], ensure_ascii=False)
    write_atomically(run.folder / FILE, maps + "\n")
    return found


def read_attention(run: Path) -> list[AttentionMap]:
    try:
        values: list[dict[str, Any]] = json.loads((run / FILE).read_text(encoding="utf-8"))
        return [AttentionMap(**one) for one in values]
    except (OSError, ValueError, TypeError):
        return []  # none were asked for, or by another version


@torch.no_grad()
def attention_map(run: Run, text: str, depth: str | None = None) -> AttentionMap:
    model, key = run.translator, run.key
    plans, tokenizers = run.plan(depth, key), run.tokenizers
    (tokens,) = ([*best.tokens] for (best,) in run.outputs([text], depth, n_best=1))
    source, end = run.ended(run.sources([text], key)[0]), tokenizers.target.eos
    batch = Batch(
        source=collate_sources([source], model.pad),
        target_in=collate_sources([[tokenizers.target.bos, *tokens]], model.pad),
        target_out=collate_sources([[*tokens, end]], model.pad),
        source_packing=None,
        target_packing=None,
        key=key,
        tokens=len(tokens) + 1,
        sentences=1,
    )
    top = model.decoder.layers[plans.decoder.layers[-1]]
    assert isinstance(top, Layer)
    assert top.cross is not None
    seen = [Seen(top.cross)] + ([Seen(top.context.attention)] if top.context is not None else [])
    model(batch.to(run.device), plans)
    memory, *context = (one.weights() for one in seen)
    return AttentionMap(
        text=text,
        depth=plans.name,
        source=[tokenizers.source.tokens[token] for token in source],
        target=[tokenizers.target.tokens[token] for token in (*tokens, end)],
        memory=memory,
        context=context[0] if context else [],
    )


class Seen:
    """Keeps what an attention is given. It computes its weights inside a fused kernel: here they are computed again."""

    def __init__(self, attention: CrossAttention) -> None:
        self.attention = attention
        self.given: tuple[Tensor, Tensor] | None = None
        self.hook = attention.register_forward_pre_hook(self.keep)

    def keep(self, attention: nn.Module, arguments: tuple[Any, ...]) -> None:
        self.given = arguments[0], arguments[1]

    def weights(self) -> list[list[float]]:
        """(T, S) of the only sentence, the mean over heads."""
        self.hook.remove()
        assert self.given is not None
        queries = self.attention.queries(self.given[0])
        keys, _ = self.attention.keys_and_values(self.given[1])
        products = torch.einsum("bthd,bshd->bhts", queries.float(), keys.float()) / queries.shape[-1] ** 0.5
        mean = products.softmax(-1).mean(1)[0]
        return [[round(weight, 4) for weight in row] for row in mean.tolist()]
