"""What a model costs at every depth, counted without training it or even holding its weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from rich.table import Table
from torch import nn

from anydepth.config import Config, load
from anydepth.data.tokenizer import Tokenizer, TokenizerPair
from anydepth.errors import UserError
from anydepth.models import Translator
from anydepth.nn.layers import Layer
from anydepth.nn.stack import Stack
from anydepth.plan import Plan, Plans

TOKENS = 30
"""Tokens of the sentence, and of its translation, for which `flops` and `cache_bytes` are given."""
NUMBER_BYTES = 4
"""Bytes of a number in the decoder's cache (fp32)."""


def describe_path(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Of a recipe, or of a run with its own vocabulary."""
    if not path.is_dir():
        return describe(load(path, overrides))
    if not (path / "config.toml").exists():
        raise UserError(f"{path}: not a run, it has no config.toml; expected a run's folder or a recipe.toml")
    config, tokenizers = load(path / "config.toml", overrides), TokenizerPair.load(path)
    return describe(config, (len(tokenizers.source), len(tokenizers.target)))


def describe(config: Config, vocabularies: tuple[int, int] | None = None) -> dict[str, Any]:
    """Parameters and, for every plan, its layers (counted from 1), parameters, FLOPs and cache bytes.

    Vocabularies (source, target) are those the tokenizer is asked for, unless given. FLOPs are those of the
    weight matrices, two per weight and token; attention adds to them what grows with the length of the text.
    """
    source, target = vocabularies or planned_vocabularies(config)
    with torch.device("meta"):
        model = Translator(config.model, source, target, pad=0)
    plans = [describe_plan(model, model.plan(depth)) for depth in model.depths()]
    return {"parameters": size(model), "sentence_tokens": TOKENS, "plans": plans}


def planned_vocabularies(config: Config) -> tuple[int, int]:
    """Source and target words of a recipe."""
    settings = config.tokenizer
    if settings.path or settings.source_path:
        files = (settings.path or settings.source_path, settings.path or settings.target_path)
        return len(Tokenizer.load(files[0])), len(Tokenizer.load(files[1]))
    return settings.vocabulary, settings.target_vocabulary or settings.vocabulary


def describe_plan(model: Translator, plans: Plans) -> dict[str, Any]:
    encoder, decoder = (
        [cast(Layer, stack.layers[layer]) for layer in plan.layers] for stack, plan in stacks(model, plans)
    )
    # keys and values of the encoder's states are made once per source token, for every decoder step
    memory = sum(layer.cross.key_value.weight.numel() for layer in decoder if layer.cross)
    source = 2 * (sum(map(matrices, encoder)) + memory)
    target = 2 * (sum(map(matrices, decoder)) - memory + model.output.weight.numel())
    cache = 2 * len(decoder) * model.config.layer.width * NUMBER_BYTES
    return {
        "name": plans.name,
        "encoder": [layer + 1 for layer in plans.encoder.layers],
        "decoder": [layer + 1 for layer in plans.decoder.layers],
        "parameters": size(model) - unused(model, plans),
        "flops_per_source_token": source,
        "flops_per_target_token": target,
        "flops": TOKENS * (source + target),
        "cache_bytes_per_source_token": cache,
        "cache_bytes_per_target_token": cache,
        "cache_bytes": TOKENS * (cache + cache),
    }


def stacks(model: Translator, plans: Plans) -> tuple[tuple[Stack, Plan], tuple[Stack, Plan]]:
    return (model.encoder, plans.encoder), (model.decoder, plans.decoder)


def size(module: nn.Module) -> int:
    """Parameters; one that is shared counts once."""
    return sum(parameter.numel() for parameter in module.parameters())


def unused(model: Translator, plans: Plans) -> int:
    """Parameters of the layers that a plan leaves out."""
    return sum(
        size(layer)
        for stack, plan in stacks(model, plans)
        for index, layer in enumerate(stack.layers)
        if index not in plan.layers
    )


def matrices(layer: nn.Module) -> int:
    """Weights that are multiplied with every token."""
    return sum(parameter.numel() for parameter in layer.parameters() if parameter.dim() == 2)


# ---- for people


def table(description: dict[str, Any], rows: int = 50) -> Table:
    """The plans, the deepest ones if there are too many to read."""
    plans = description["plans"]
    result = Table(title=f"{description['parameters']:,} parameters", title_justify="left", box=None)
    for heading in ("depth", "encoder layers", "decoder layers"):
        result.add_column(heading)
    for heading in ("parameters", "GFLOPs", "cache"):
        result.add_column(heading, justify="right")
    for plan in plans[-rows:]:
        result.add_row(
            plan["name"],
            runs_of(plan["encoder"]),
            runs_of(plan["decoder"]),
            f"{plan['parameters'] / 1e6:.2f} M",
            f"{plan['flops'] / 1e9:.2f}",
            f"{plan['cache_bytes'] / 2**20:.2f} MiB",
        )
    caption = f"GFLOPs of the weights and fp32 cache for {TOKENS} source and {TOKENS} target tokens"
    left_out = f"; {len(plans) - rows} shallower plans left out, --json has all" if len(plans) > rows else ""
    result.caption, result.caption_justify = caption + left_out, "left"
    return result


def runs_of(layers: list[int]) -> str:
    """1, 2, 3, 5 → '1-3 5'; 1, 1, 1 → '1×3'."""
    pieces: list[list[int]] = []
    for layer in layers:
        last = pieces[-1] if pieces else []
        step = layer - last[-1] if last else None
        if step in (0, 1) and (len(last) == 1 or step == last[1] - last[0]):
            last.append(layer)
        else:
            pieces.append([layer])
    return " ".join(run_of(piece) for piece in pieces)


def run_of(piece: list[int]) -> str:
    if len(piece) == 1:
        return str(piece[0])
    return f"{piece[0]}×{len(piece)}" if piece[0] == piece[1] else f"{piece[0]}-{piece[-1]}"
