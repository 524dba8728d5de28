"""All settings of a run: read from TOML, written back, and explained.

The settings are declared beside the code that uses them; `Config` puts them together.
"""

import ast
import dataclasses
import inspect
import itertools
import json
import tomllib
import typing
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import tomli_w

from anydepth.config_checks import (
    check_best,
    check_corpora,
    check_depths,
    check_objective,
    check_sentences,
    check_tokenizer,
    with_keys,
)
from anydepth.config_class import config
from anydepth.config_reader import (
    config_item,
    in_words,
    is_config,
    is_required,
    join,
    members,
    read,
    type_name,
)
from anydepth.data.builtin_corpora import Builtin
from anydepth.data.corpora import DataConfig
from anydepth.data.cutting import BatchingConfig
from anydepth.data.tokenizer import TokenizerConfig
from anydepth.decoding.decoder import DecodingConfig
from anydepth.encoder_models import ClassifierConfig, ModelConfig
from anydepth.errors import UserError
from anydepth.models import TranslatorConfig
from anydepth.selecting.model import SelectorConfig
from anydepth.training.settings import TrainingConfig

SCHEMA = 1
"""Version of the settings. It rises when an older anydepth could no longer read what a newer one writes."""
LABELLED_DATA: dict[str, Any] = {
    "train": [{"type": "builtin-labelled"}],
    "dev": [{"type": "builtin-labelled", "size": 500}],
    "test": [{"type": "builtin-labelled", "size": 500}],
}
"""What a classifier is trained on unless told otherwise."""


@config
class Config:
    """Everything that defines a run."""

    schema: int = SCHEMA
    """Version of the settings. Settings of a newer version are refused."""
    seed: int = 1
    """Seeds the weights, the order of the data, dropout and the sampling of depths."""
    data: DataConfig = DataConfig(train=(Builtin(),), dev=(Builtin(size=500),), test=(Builtin(size=500),))
    """What to train, validate and test on; the built-in corpus unless said otherwise, for a classifier with labels."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """How text becomes numbers."""
    batching: BatchingConfig = BatchingConfig()
    """How sentences become batches."""
    model: ModelConfig = TranslatorConfig()
    """The network and, for each of its stacks, which layers run."""
    training: TrainingConfig = TrainingConfig()
    """How the network is trained."""
    decoding: DecodingConfig = DecodingConfig()
    """How translations are searched for."""

    def __post_init__(self) -> None:
        if self.schema < 1:
            raise ValueError("schema must be at least 1")
        if self.seed < 0:
            raise ValueError("seed must not be negative")
        object.__setattr__(self, "model", with_keys(self.model, self.data))
        check_depths(self.model)
        check_corpora(self.model, self.data)
        check_sentences(self.model, self.data, self.batching)
        check_tokenizer(self.model, self.tokenizer)
        check_objective(self.training.objective, self.model)
        check_best(self.training, self.model)


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The settings of a recipe or of a run's config.toml; overrides look like "model.encoder.layers=12"."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    if Path(path).name == "config.toml" and not text.strip():  # else all would seem to be defaults
        raise UserError(f"{path} is empty, but a run keeps all its settings there: restore it, or train again")
    return loads(text, overrides, name=str(path))


def loads(text: str, overrides: Sequence[str] = (), name: str = "settings") -> Config:
    """The settings in a TOML text; `name` says in messages where it came from."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason = str(error).replace("end of document", f"the end, line {text.count(chr(10)) + 1}")
        raise UserError(f"{name}: not valid TOML: {reason}") from None
    schema = values.get("schema", SCHEMA)
    if type(schema) is int and schema > SCHEMA:
        raise UserError(f"{name}: was written by a newer anydepth (schema {schema}; this one reads up to {SCHEMA})")
    if isinstance(model := values.setdefault("model", {}), dict):
        model.setdefault("type", TranslatorConfig.type)  # recipes need not say so
        data = values.setdefault("data", {}) if model["type"] == ClassifierConfig.type else None
        if isinstance(data, dict) and "train" not in data:
            data |= LABELLED_DATA | data
    return read(Config, values, overrides, name)


def dump(settings: Any) -> str:
    """The settings as TOML, defaults included; `loads` reads back the same. TOML has no None: left out."""
    return tomli_w.dumps(without_none(dataclasses.asdict(settings)))


def without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_none(entry) for name, entry in value.items() if entry is not None}
    if isinstance(value, list | tuple):
        return [without_none(entry) for entry in value]
    return value


# ---- the reference, docs/configuration.md

INTRODUCTION = """\
# Configuration

<!-- made by `python -m anydepth.config > docs/configuration.md` -->

A recipe is a TOML file with the settings below; what it does not mention keeps its default. Where a table can
be one of several kinds, its `type` says which. Single settings can be changed on the command line; the items
of lists are counted from 0:

    anydepth train recipe.toml --set training.steps=1000 --set data.train.0.size=5000

A run keeps all its settings, defaults included, in its `config.toml`. Paths are relative to the folder in
which the command runs.
"""


def reference() -> str:
    """Every setting with its type, default and meaning, in Markdown."""
    places: dict[type, list[str]] = {}
    collect(Config, "", places)
    places[SelectorConfig] = ["anydepth selector"]  # not of a recipe: given on the command line
    return "\n".join([INTRODUCTION, *(section(kind, paths) for kind, paths in places.items())])


def collect(kind: type, path: str, places: dict[type, list[str]]) -> None:
    """All config classes below this one, each with the TOML headers under which it can stand."""
    places.setdefault(kind, []).append(f"[[{path[:-2]}]]" if path.endswith(".0") else f"[{path}]")
    for name, hint in typing.get_type_hints(kind).items():
        item = config_item(hint)
        for member in members(hint if item is None else item):
            if is_config(member):
                collect(member, join(path, name if item is None else f"{name}.0"), places)


def section(kind: type, headers: list[str]) -> str:
    """One config class: its settings as a table."""
    hints, texts = typing.get_type_hints(kind), docstrings(kind)
    title = ", ".join(f"`{header}`" for header in dict.fromkeys(headers) if header != "[]") or "Top level"
    only_type = len(typing.get_args(hints.get("type"))) == 1
    if only_type:
        title += f', `type = "{type_name(kind)}"`'
    rows = []
    for field in dataclasses.fields(kind):
        if field.name == "type" and only_type:
            continue
        hint = hints[field.name]
        cells = (f"`{field.name}`", in_words(hint), default_of(field, hint), texts.get(field.name, ""))
        rows.append(f"| {' | '.join(' '.join(cell.split()).replace('|', '&#124;') for cell in cells)} |")
    table = ["| setting | value | default | meaning |", "|---|---|---|---|", *rows] if rows else []
    paragraphs = [f"## {title}", texts[""], "\n".join(table)]
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph) + "\n"


def default_of(field: dataclasses.Field[Any], hint: Any) -> str:
    if is_required(field):
        return "required"
    value: Any = field.default
    if value is None:
        return "not set"
    if is_config(value):
        return f'`type = "{value.type}"`' if len(members(hint)) > 1 else "see its table"
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def docstrings(kind: type) -> dict[str, str]:
    """The texts under the fields of a class, which Python itself does not keep; its own under ""."""
    parsed = ast.parse(dedent(inspect.getsource(kind))).body[0]
    assert isinstance(parsed, ast.ClassDef)
    texts = {"": ast.get_docstring(parsed) or ""}
    for field, text in itertools.pairwise(parsed.body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            texts[ast.unparse(field.target)] = str(text.value.value)
    return texts


if __name__ == "__main__":
    print(reference(), end="")
