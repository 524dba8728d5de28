"""BERT as Hugging Face stores it: config.json, model.safetensors, and tokenizer.json or vocab.txt.

Its layers are post-norm layers of ours, its embeddings are not scaled, normalised, and have a third part for the kind
of text, which is folded into the positions because all our texts are of the first kind. Deeper models start with every
layer several times in a row: 12 layers from 6 are 1 1 2 2 3 3 …
"""

import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import decoders, models, normalizers, pre_tokenizers
from torch import Tensor

from anydepth.data.tokenizer import Tokenizer
from anydepth.encoder_models import Classifier, MaskedLM
from anydepth.errors import UserError

CONFIG, WEIGHTS, HEAD = "config.json", "model.safetensors", "cls.predictions"
NEEDED = (
    "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "hidden_act", "layer_norm_eps",
    "max_position_embeddings",
)  # fmt: skip
"""Of a config.json."""
ACTIVATIONS = ("relu", "gelu")
"""That our layers have; 'gelu_new' and others are other functions."""


def is_bert(folder: Path) -> bool:
    """Whether a folder is a checkpoint of Hugging Face, and not one of our runs."""
    return (folder / CONFIG).is_file() and not (folder / "config.toml").exists()


def bert_weights(folder: Path, model: MaskedLM | Classifier) -> dict[str, Tensor]:
    """The weights that a model can take from BERT, under our names: embeddings, layers and, for a masked language
    model, its head where the checkpoint has one. A word matrix may be padded: rows that no token has are left out."""
    theirs = read_weights(folder / WEIGHTS)
    settings = read_settings(folder / CONFIG)
    check_settings(folder, settings, model)
    there, wanted = int(settings["num_hidden_layers"]), len(model.encoder.layers)
    vocabulary = model.source.words.num_embeddings
    if wanted % there:
        raise UserError(f"{folder} has {there} layers: model.encoder.layers must be a multiple of that, not {wanted}")
    try:
        kind = theirs["embeddings.token_type_embeddings.weight"][0]
        ours = {
            "source.words.weight": theirs["embeddings.word_embeddings.weight"][:vocabulary],
            "source.learned.weight": theirs["embeddings.position_embeddings.weight"] + kind,
            **both("source.norm", theirs, "embeddings.LayerNorm"),
        }
        for layer in range(wanted):
            ours |= layer_weights(f"encoder.layers.{layer}", theirs, f"encoder.layer.{layer * there // wanted}")
        if isinstance(model, MaskedLM) and f"{HEAD}.transform.dense.weight" in theirs:
            check_head(folder, theirs, settings)
            ours |= both("dense", theirs, f"{HEAD}.transform.dense")
            ours |= both("dense_norm", theirs, f"{HEAD}.transform.LayerNorm")
            ours["output_bias"] = theirs[f"{HEAD}.bias"][:vocabulary]
    except KeyError as missing:
        raise UserError(f"{folder / WEIGHTS}: has no {missing.args[0]}") from None
    return ours


def check_head(folder: Path, theirs: dict[str, Tensor], settings: dict[str, Any]) -> None:
    """Refuses a head for hidden words that is not ours: GELU, then the word matrix itself."""
    if settings["hidden_act"] != "gelu":
        raise UserError(f"{folder / CONFIG}: hidden_act is {settings['hidden_act']!r}; a masked-lm needs 'gelu'")
    words = theirs["embeddings.word_embeddings.weight"]
    if not torch.equal(theirs.get(f"{HEAD}.decoder.weight", words), words):
        raise UserError(
            f"{folder / WEIGHTS}: {HEAD}.decoder.weight is not the word matrix; a masked-lm has one for both"
        )


def layer_weights(name: str, theirs: dict[str, Tensor], other: str) -> dict[str, Tensor]:
    projections = [f"{other}.attention.self.{part}" for part in ("query", "key", "value")]
    return {
        **{
            f"{name}.attention.qkv.{part}": torch.cat([theirs[f"{projection}.{part}"] for projection in projections])
            for part in ("weight", "bias")
        },
        **both(f"{name}.attention.out", theirs, f"{other}.attention.output.dense"),
        **both(f"{name}.attention_norm", theirs, f"{other}.attention.output.LayerNorm"),
        **both(f"{name}.grow", theirs, f"{other}.intermediate.dense"),
        **both(f"{name}.shrink", theirs, f"{other}.output.dense"),
        **both(f"{name}.ffn_norm", theirs, f"{other}.output.LayerNorm"),
    }


def both(name: str, theirs: dict[str, Tensor], other: str) -> dict[str, Tensor]:
    return {f"{name}.{part}": theirs[f"{other}.{part}"] for part in ("weight", "bias")}


def read_weights(file: Path) -> dict[str, Tensor]:
    """By BERT's own names, without what models around it put in front, in single precision."""
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{file}: cannot be read: {error}") from None
    renamed = {"gamma": "weight", "beta": "bias"}
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        *path, last = name.removeprefix("bert.").split(".")
        found[".".join([*path, renamed.get(last, last)])] = tensor.float()
    return found


def read_settings(file: Path) -> dict[str, Any]:
    settings = read_json(file)
    if settings.get("model_type") != "bert":
        raise UserError(f"{file}: model_type is {settings.get('model_type')!r}; expected 'bert'")
    if settings.get("position_embedding_type", "absolute") != "absolute":
        raise UserError(f"{file}: position_embedding_type: expected 'absolute'")
    for name in NEEDED:
        if name not in settings:
            raise UserError(f"{file}: has no {name}")
    if settings.get("is_decoder"):
        raise UserError(f"{file}: is_decoder: its words see only those before them; expected an encoder")
    if settings["hidden_act"] not in ACTIVATIONS:
        raise UserError(f"{file}: hidden_act is {settings['hidden_act']!r}; expected {' or '.join(ACTIVATIONS)}")
    return settings


def check_settings(folder: Path, theirs: dict[str, Any], model: MaskedLM | Classifier) -> None:
    """A model computes what BERT does only if all of these agree."""
    ours, layer = model.config, model.config.layer
    wanted = {
        "layer.width": (layer.width, theirs["hidden_size"]),
        "layer.ffn": (layer.ffn, theirs["intermediate_size"]),
        "layer.heads": (layer.heads, theirs["num_attention_heads"]),
        "layer.activation": (layer.activation, theirs["hidden_act"]),
        "layer.norm": (layer.norm, "post"),
        "layer.norm_epsilon": (layer.norm_epsilon, theirs["layer_norm_eps"]),
        "layer.attention_bias": (layer.attention_bias, True),
        "positions": (ours.positions, "learned"),
        "max_positions": (ours.max_positions, theirs["max_position_embeddings"]),
        "embedding_norm": (ours.embedding_norm, True),
        "embedding_scale": (ours.embedding_scale, False),
    }
    for name, (mine, expected) in wanted.items():
        if mine != expected:
            raise UserError(f"model.{name}: {mine!r}, but {folder} needs {expected!r}")


def bert_tokenizer(folder: Path) -> Tokenizer:
    """Its tokenizer.json, or WordPiece with its vocab.txt."""
    if (folder / "tokenizer.json").is_file():
        return Tokenizer.load(folder / "tokenizer.json")
    file = folder / "vocab.txt"
    if not file.is_file():
        raise UserError(f"{folder}: has neither tokenizer.json nor vocab.txt")
    words = file.read_text(encoding="utf-8").removesuffix("\n").split("\n")  # some are line separators of other kinds
    vocabulary = {word: number for number, word in enumerate(words)}
    further = folder / "tokenizer_config.json"
    given = read_json(further) if further.is_file() else {}
    inner = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    inner.normalizer = normalizers.BertNormalizer(
        lowercase=given.get("do_lower_case", True),
        strip_accents=given.get("strip_accents"),  # None: with lower case alone
        handle_chinese_chars=given.get("tokenize_chinese_chars", True),
    )
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    inner.add_special_tokens([word for word in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if word in vocabulary])
    return Tokenizer(inner.to_str(pretty=True))


def read_json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise UserError(f"{file}: expected a JSON object with settings")
    return found
