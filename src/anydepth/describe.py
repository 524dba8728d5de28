"""What a model costs at every depth, counted without training it or even holding its weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from rich.table import Table
from safetensors import SafetensorError, safe_open
from torch import nn

from anydepth.config import Config, load
from anydepth.data.languages import known_languages
from anydepth.data.tokenizer import Tokenizer, TokenizerPair, tags_of
from anydepth.depth import Latent
from anydepth.depth.latent import UNDECIDED
from anydepth.encoder_models import Classifier, EncoderModel, MaskedLM, Model
from anydepth.errors import UserError
from anydepth.nn.layers import Layer
from anydepth.nn.stack import Stack
from anydepth.plan import Plan, Plans
from anydepth.tasks import task_of
from anydepth.tasks.classification import with_labels
from anydepth.training.cost import TOKENS, matrices, memories_read, memory_weights, training_cost
from anydepth.training.data import start_tokenizers

NUMBER_BYTES = 4
"""Bytes of a number in the decoder's cache (fp32)."""


def describe_path(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Of a recipe, or of a run with its own vocabulary."""
    if not path.is_dir():
        return describe(load(path, overrides))
    if not (path / "config.toml").exists():
        raise UserError(f"{path}: not a run, it has no config.toml; expected a run's folder or a recipe.toml")
    return describe(load(path / "config.toml", overrides), path)


def describe(config: Config, run: Path | None = None) -> dict[str, Any]:
    """Parameters, what training costs and, for every plan, its layers (counted from 1), parameters, FLOPs and cache
    bytes; of a run with latent depth also what it has learnt.

    FLOPs of a plan are those of the weight matrices, two per weight and token; attention adds to them what grows with
    the length of the text. Those of the training are explained in training/cost.py.
    """
    config = with_labels(config)
    model = without_weights(config, run)
    each = known_languages(config) if model.encoder_depth.keys or model.decoder_depth.keys else [""]
    plans = [
        ({"language": key} if key else {}) | describe_plan(model, model.plan(depth, key))
        for key in each
        for depth in model.depths(key)
    ]
    description = {**size_and_training(config, model, run), "sentence_tokens": TOKENS, "plans": plans}
    if learnt := latent_layers(model):
        description["latent"] = learnt
    return description


def describe_training(run: Path) -> dict[str, Any]:
    """`parameters` of a run and what its training cost, without its plans."""
    config = load(run / "config.toml")
    return size_and_training(config, without_weights(config, run), run)


def size_and_training(config: Config, model: Model, run: Path | None) -> dict[str, Any]:
    cost = training_cost(config, model, run)
    return {"parameters": size(model)} | (cost.as_json() if cost else {"training_flops": None, "training": None})


def without_weights(config: Config, run: Path | None = None) -> Model:
    """The model, with the vocabularies of a run or those that the tokenizer is asked for; it takes no memory. Of a
    run's weights it has what decides about depth."""
    if run:
        tokenizers = TokenizerPair.load(run)
        source, target = len(tokenizers.source), len(tokenizers.target)
    else:
        source, target = planned_vocabularies(config)
    with torch.device("meta"):
        model = config.model.build(source, target, pad=0)
    if run and (run / "model.safetensors").is_file():
        take_depths(model, run / "model.safetensors")
    return model


def take_depths(model: Model, file: Path) -> None:
    """Gives the depth policies what they have learnt, as far as it still fits the settings."""
    learnt = {name: parameter for name, parameter in model.named_parameters() if "_depth." in name}
    try:
        with safe_open(file, "pt") as weights:
            for name in learnt.keys() & weights.keys():
                value = weights.get_tensor(name)
                owner, _, last = name.rpartition(".")
                if value.shape == learnt[name].shape:
                    setattr(model.get_submodule(owner), last, nn.Parameter(value))
    except SafetensorError as error:
        raise UserError(f"{file} is damaged: {error}") from None


def latent_layers(model: Model) -> dict[str, Any]:
    """What stacks with latent depth have learnt; nothing before they have weights."""
    return {
        name: policy.summary()
        for name, policy in model.policies.items()
        if isinstance(policy, Latent) and not policy.logits[0].is_meta
    }


def planned_vocabularies(config: Config) -> tuple[int, int]:
    """Source and target words of a recipe."""
    settings, start = config.tokenizer, config.training.start_from
    if start and Path(start).is_dir():
        tokenizers = start_tokenizers(start)
        return len(tokenizers.source), len(tokenizers.target)
    if settings.path or settings.source_path:
        files = (settings.path or settings.source_path, settings.path or settings.target_path)
        added = [*tags_of(config.data), *task_of(config).further_tokens]
        return len(Tokenizer.load(files[0]).with_tokens(added)), len(Tokenizer.load(files[1]))
    return settings.vocabulary, settings.target_vocabulary or settings.vocabulary


def describe_plan(model: Model, plans: Plans) -> dict[str, Any]:
    """Layers counted from 1, parameters and costs. A model without a decoder has one layer list and no cache."""
    if isinstance(model, EncoderModel):
        return describe_encoder(model, plans)
    name, plans = plans.name, plans._replace(encoder=model.bridge.reads(plans))
    encoder, decoder = (
        [cast(Layer, stack.layers[layer]) for layer in plan.layers] for stack, plan in stacks(model, plans)
    )
    # keys and values of the encoder's states are made once per source token, for every decoder step
    memory = sum(memory_weights(layer) for layer in decoder)
    source = 2 * (sum(map(matrices, encoder)) + memory + model.bridge.products(plans))
    target = 2 * (sum(map(matrices, decoder)) - memory + model.output.weight.numel())
    numbers = 2 * model.config.layer.width * NUMBER_BYTES
    cache = len(decoder) * numbers
    source_cache = sum(map(memories_read, decoder)) * numbers
    return {
        "name": name,
        "encoder": [layer + 1 for layer in plans.encoder.layers],
        "decoder": [layer + 1 for layer in plans.decoder.layers],
        "parameters": size(model) - unused(model, plans),
        "flops_per_source_token": source,
        "flops_per_target_token": target,
        "flops": TOKENS * (source + target),
        "cache_bytes_per_source_token": source_cache,
        "cache_bytes_per_target_token": cache,
        "cache_bytes": TOKENS * (source_cache + cache),
    }


def describe_encoder(model: MaskedLM | Classifier, plans: Plans) -> dict[str, Any]:
    """FLOPs are those of the words that are read, and of the head: for the share of them that is hidden, or, in a
    classifier, once."""
    each = 2 * sum(matrices(model.encoder.layers[layer]) for layer in plans.encoder.layers)
    return {
        "name": plans.name,
        "encoder": [layer + 1 for layer in plans.encoder.layers],
        "parameters": size(model) - unused(model, plans),
        "flops_per_token": each,
        "flops_per_prediction": model.head_flops(),
        "flops": round(TOKENS * each + model.head_flops(TOKENS)),
    }


def stacks(model: Model, plans: Plans) -> list[tuple[Stack, Plan]]:
    return [(getattr(model, name), getattr(plans, name)) for name in model.policies]


def size(module: nn.Module) -> int:
    """Parameters; one that is shared counts once."""
    return sum(parameter.numel() for parameter in module.parameters())


def unused(model: Model, plans: Plans) -> int:
    """Parameters of the layers that a plan leaves out."""
    return sum(
        size(layer)
        for stack, plan in stacks(model, plans)
        for index, layer in enumerate(stack.layers)
        if index not in plan.layers
    )


# ---- for people


def table(description: dict[str, Any], rows: int = 50) -> Table:
    """The plans, the deepest ones if there are too many to read."""
    plans = description["plans"]
    result = Table(title=f"{description['parameters']:,} parameters", title_justify="left", box=None)
    languages = any("language" in plan for plan in plans)
    decoders = any("decoder" in plan for plan in plans)
    stacks = ("encoder layers", "decoder layers") if decoders else ("layers",)
    for heading in (*(["language"] if languages else []), "depth", *stacks):
        result.add_column(heading)
    for heading in ("parameters", "GFLOPs", *(["cache"] if decoders else [])):
        result.add_column(heading, justify="right")
    for plan in plans[-rows:]:
        result.add_row(
            *([plan["language"]] if languages else []),
            plan["name"],
            *(runs_of(plan[stack]) for stack in ("encoder", "decoder") if stack in plan),
            f"{plan['parameters'] / 1e6:.2f} M",
            f"{plan['flops'] / 1e9:.2f}",
            *([f"{plan['cache_bytes'] / 2**20:.2f} MiB"] if decoders else []),
        )
    caption = f"GFLOPs of the weights and fp32 cache for {TOKENS} source and {TOKENS} target tokens"
    if not decoders:
        caption = f"GFLOPs of the weights for {TOKENS} tokens and what is predicted of them"
    left_out = f"; {len(plans) - rows} shallower plans left out, --json has all" if len(plans) > rows else ""
    lines = [caption + left_out, training_in_words(description), *latent_in_words(description)]
    result.caption, result.caption_justify = "\n".join(lines), "left"
    return result


def latent_in_words(description: dict[str, Any]) -> list[str]:
    """Of each stack with latent depth the mean number of layers used, and the layers that could go either way."""
    lines = []
    for stack, learnt in description.get("latent", {}).items():
        undecided = {name: runs_of(row["undecided"]) for name, row in learnt["rows"].items() if row["undecided"]}
        doubts = "; ".join(f"{name} {layers}".strip() for name, layers in undecided.items()) or "none"
        depth = f"{round(learnt['effective_depth'], 3):g}"
        lines.append(f"{stack}: effective depth {depth}, undecided layers (|α| < {UNDECIDED}): {doubts}")
    return lines


def training_in_words(description: dict[str, Any]) -> str:
    training = description["training"]
    if not training:
        return "training: none is logged in this folder"
    most, flops = "at most " if training["bound"] else "", description["training_flops"]
    each, tokens = training["flops_per_target_token"] / 1e9, training["target_tokens"]
    kind = "target tokens" if "decoder" in description["plans"][0] else "tokens"
    return f"training: {most}{flops:.3g} FLOPs, {each:.3g} G for each of {tokens:,} {kind}"


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
