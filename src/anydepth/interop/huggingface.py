"""A depth as a model that `transformers` loads without our code.

Pegasus is laid out exactly like ours: pre-norm with final norms, scaled embeddings, a table of positions. With
normalised embeddings MBart is, whose table begins at 2.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import processors
from torch import Tensor, nn

from anydepth.errors import UserError
from anydepth.files import new_folder, write_durably
from anydepth.interop.huggingface_readme import readme
from anydepth.interop.unrolled import unrolled
from anydepth.models import Translator
from anydepth.nn.embeddings import Embedding
from anydepth.run import Run
from anydepth.training.checkpoint import write_weights

NAME = "huggingface"
FIRST_POSITION = {"pegasus": 0, "mbart": 2}
NORM_EPSILON = 1e-5
"""That of their layers, which no setting changes."""


def export(run: Run, depth: str | None, out: Path) -> Path:
    """Writes the folder that `AutoModelForSeq2SeqLM.from_pretrained` and `AutoTokenizer.from_pretrained` read."""
    plans = run.plan(depth)
    model = unrolled(run, plans, NAME)
    layer = model.config.layer
    if layer.norm != "pre":
        raise UserError(
            f"--to {NAME}: of the layouts used here, Pegasus and MBart, none is post-norm; --to ctranslate2 can be"
        )
    if model.config.tie != "all":
        raise UserError(
            f"--to {NAME}: Pegasus and MBart have one word matrix for source, target and output (tie = all); "
            "--to ctranslate2 takes several"
        )
    if layer.norm_epsilon != NORM_EPSILON:
        raise UserError(
            f"--to {NAME}: Pegasus and MBart normalise with an epsilon of {NORM_EPSILON:g}, not "
            f"{layer.norm_epsilon:g}; --to ctranslate2 takes any"
        )
    if run.config.data.sentences:
        raise UserError(f"--to {NAME}: its tokenizers put no end marks between sentences (data.sentences)")
    kind = "mbart" if model.config.embedding_norm else "pegasus"
    with new_folder(out) as folder:
        write_weights(dict(tensors(model, FIRST_POSITION[kind])), folder / "model.safetensors", {"format": "pt"})
        write_durably(folder / "tokenizer.json", source_tokenizer(run))
        write_durably(folder / "tokenizer_config.json", as_json(tokenizer_config(run)))
        write_durably(folder / "generation_config.json", as_json(generation_config(run)))
        write_durably(folder / "README.md", readme(run, plans))
        write_durably(folder / "config.json", as_json(model_config(run, model, kind)))
    return out


def as_json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


# ---- weights


def tensors(model: Translator, first_position: int) -> Iterator[tuple[str, Tensor]]:
    yield "model.shared.weight", model.output.weight
    yield "final_logits_bias", torch.zeros(1, len(model.output.weight))
    for side, stack, embedding, norm in (
        ("encoder", model.encoder, model.source, model.bridge.norm),
        ("decoder", model.decoder, model.target, model.norm),
    ):
        yield f"model.{side}.embed_positions.weight", positions(embedding, first_position)
        if isinstance(embedding.norm, nn.LayerNorm):
            yield from named(f"model.{side}.layernorm_embedding", embedding.norm)
        for number, layer in enumerate(stack.layers):
            yield from layer_tensors(f"model.{side}.layers.{number}", layer)
        yield from named(f"model.{side}.layer_norm", norm)


def positions(embedding: Embedding, first: int) -> Tensor:
    table = embedding.waves if embedding.learned is None else embedding.learned.weight
    return torch.cat([table.new_zeros(first, table.shape[1]), table])


def layer_tensors(prefix: str, layer: Any) -> Iterator[tuple[str, Tensor]]:
    yield from parts(f"{prefix}.self_attn", layer.attention.qkv, "q_proj", "k_proj", "v_proj")
    yield from parts(f"{prefix}.self_attn", layer.attention.out, "out_proj")
    yield from named(f"{prefix}.self_attn_layer_norm", layer.attention_norm)
    if layer.cross is not None:
        yield from parts(f"{prefix}.encoder_attn", layer.cross.query, "q_proj")
        yield from parts(f"{prefix}.encoder_attn", layer.cross.key_value, "k_proj", "v_proj")
        yield from parts(f"{prefix}.encoder_attn", layer.cross.out, "out_proj")
        yield from named(f"{prefix}.encoder_attn_layer_norm", layer.cross_norm)
    yield from named(f"{prefix}.fc1", layer.grow)
    yield from named(f"{prefix}.fc2", layer.shrink)
    yield from named(f"{prefix}.final_layer_norm", layer.ffn_norm)


def named(prefix: str, module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return ((f"{prefix}.{name}", parameter) for name, parameter in module.named_parameters())


def parts(prefix: str, linear: nn.Linear, *names: str) -> Iterator[tuple[str, Tensor]]:
    """A fused projection as several, with biases of 0 where it has none: theirs always do."""
    bias = linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias
    for name, weight, shift in zip(names, linear.weight.chunk(len(names)), bias.chunk(len(names))):
        yield f"{prefix}.{name}.weight", weight.contiguous()
        yield f"{prefix}.{name}.bias", shift.contiguous()


# ---- settings


def model_config(run: Run, model: Translator, kind: str) -> dict[str, Any]:
    config, target = model.config, run.tokenizers.target
    layer = config.layer
    return {
        "architectures": [
            {"pegasus": "PegasusForConditionalGeneration", "mbart": "MBartForConditionalGeneration"}[kind]
        ],
        "model_type": kind,
        "vocab_size": len(model.output.weight),
        "d_model": layer.width,
        "encoder_layers": config.encoder.layers,
        "decoder_layers": config.decoder.layers,
        "num_hidden_layers": config.encoder.layers,
        "encoder_attention_heads": layer.heads,
        "decoder_attention_heads": layer.heads,
        "encoder_ffn_dim": layer.ffn,
        "decoder_ffn_dim": layer.ffn,
        "activation_function": layer.activation,
        "dropout": layer.dropout,
        "attention_dropout": layer.attention_dropout,
        "activation_dropout": layer.activation_dropout,
        "scale_embedding": True,
        "max_position_embeddings": config.max_positions,
        "is_encoder_decoder": True,
        "tie_word_embeddings": True,
        "pad_token_id": target.pad,
        "bos_token_id": target.bos,
        "eos_token_id": target.eos,
        "decoder_start_token_id": target.bos,
        "forced_eos_token_id": None,
        "dtype": "float32",
    }


def generation_config(run: Run) -> dict[str, Any]:
    """The run's own search, as far as there is a word for it."""
    target, decoding, positions = run.tokenizers.target, run.config.decoding, run.config.model.max_positions
    return {
        "bos_token_id": target.bos,
        "eos_token_id": target.eos,
        "pad_token_id": target.pad,
        "decoder_start_token_id": target.bos,
        "forced_eos_token_id": None,
        "num_beams": decoding.beam,
        "length_penalty": decoding.length_penalty,
        "max_new_tokens": min(decoding.max_length or positions // 2, positions),
        "min_new_tokens": decoding.min_length,
        "no_repeat_ngram_size": decoding.block_ngrams,
        "suppress_tokens": sorted({target.bos, target.pad} - {target.eos}),
    }


def source_tokenizer(run: Run) -> str:
    """The tokenizer, which also writes the language's tag, if the run has one, and the end mark."""
    source = run.tokenizers.source
    inner = tokenizers.Tokenizer.from_str(source.json)
    marks = [(source.tokens[number], number) for number in (*run.in_front(run.key), source.eos)]
    single = " ".join([*(name for name, _ in marks[:-1]), "$A", marks[-1][0]])
    inner.post_processor = processors.TemplateProcessing(single=single, special_tokens=marks)
    return inner.to_str(pretty=True)


def tokenizer_config(run: Run) -> dict[str, Any]:
    source, cut = run.tokenizers.source, run.config.data.max_source
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": cut + 1 if cut else run.config.model.max_positions,  # the end mark comes behind the cut
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # "<eos>" written in a text is text
        **{f"{name}_token": source.tokens[getattr(source, name)] for name in ("pad", "bos", "eos", "unk")},
    }
