"""A TOML table as config classes, or every mistake in it.

One walk over the declared types collects all mistakes under the paths of their settings. Which settings exist
and which member of a union was meant is decided here; single values are judged by pydantic, in strict mode.
"""

import dataclasses
import difflib
import functools
import json
import re
import tomllib
import types
import typing
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeVar

from anydepth.errors import UserError

Kind = TypeVar("Kind")
Problems = dict[str, str]
"""Path of a setting → what is wrong with it."""

WRONG: Any = object()
"""Stands for a value that could not be built; the reason is among the problems."""


def read(kind: type[Kind], values: dict[str, Any], overrides: Sequence[str] = (), name: str = "settings") -> Kind:
    """A config class from a TOML table; all mistakes in one `UserError`, a line each, led by `name`."""
    given = set(tables(values))
    changed = [override(values, setting) for setting in overrides]
    problems: Problems = {}
    result: Kind = build(kind, values, "", problems)
    if not problems:
        return result
    lines = []
    for path, problem in problems.items():
        overridden = any(f"{path}.".startswith(f"{setting}.") for setting in changed)
        # "trainig.steps=1" makes a table that is not known
        overridden |= path not in given and any(setting.startswith(f"{path}.") for setting in changed)
        where = f"--set {path}" if overridden else f"{name}: {path}" if path else name
        lines.append(f"{where}: {problem}")
    raise UserError("\n".join(lines))


# ---- "--set a.b=c"


def tables(values: dict[str, Any], path: str = "") -> Iterator[str]:
    """The paths of all tables."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield join(path, name)
            yield from tables(value, join(path, name))


def override(values: dict[str, Any], setting: str) -> str:
    """Applies "a.b=c" to a TOML table and returns "a.b". List entries are counted from 0: "a.0.b=c"."""
    path, equals, text = (part.strip() for part in setting.partition("="))
    names = path.split(".")
    if not equals or not all(names):
        raise UserError(f"--set {setting}: expected name=value, for example training.steps=1000")
    place: Any = values
    for depth, name in enumerate(names):
        parent = ".".join(names[:depth])
        key: Any = int(name) if name.isdigit() else name
        table_or_list = "list" if name.isdigit() else "table"
        if not isinstance(place, list if name.isdigit() else dict):
            raise UserError(f"--set {path}: {parent} is not a {table_or_list} in the recipe")
        if isinstance(place, list) and key >= len(place):
            raise UserError(f"--set {path}: {parent} has {len(place)} entries, counted from 0")
        if depth == len(names) - 1:
            place[key] = toml_value(text)
        elif isinstance(place, dict):
            place.setdefault(key, {})
        place = place[key]
    return path


def toml_value(text: str) -> Any:
    """What the text means in TOML; a bare word is that word."""
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return table["value"] if len(table) == 1 else text


# ---- checking


def build(kind: Any, value: Any, path: str, problems: Problems) -> Any:
    """A TOML value as the declared type."""
    choices = [choice for choice in members(kind) if is_config(choice)]
    if choices and isinstance(value, dict):
        chosen = choose(choices, value, path, problems)
        return WRONG if chosen is None else build_class(chosen, value, path, problems)
    item = config_item(kind)
    if item is not None and isinstance(value, dict):  # one table stands for a list of one
        return typing.get_origin(kind)([build(item, value, path, problems)])
    if item is not None and isinstance(value, list):
        built = [build(item, entry, join(path, str(index)), problems) for index, entry in enumerate(value)]
        return typing.get_origin(kind)(built)
    from pydantic import ValidationError

    try:
        # by way of JSON, whose strictness judges values, not containers: a list may become a tuple
        return adapter(kind).validate_json(json.dumps(value, default=str), strict=True)
    except ValidationError:
        names = [type_name(choice) for choice in choices] if len(choices) > 1 else []
        hint = f", as {{ type = {json.dumps(value)} }}" if value in names else ""  # depth = "prefix" is soon written
        problems[path] = f"expected {in_words(kind)}{hint}, got {shown(value)}"
        return WRONG


def build_class(kind: type, table: dict[str, Any], path: str, problems: Problems) -> Any:
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    found: Problems = {}
    built = {}
    for name, value in table.items():
        if name in fields:
            built[name] = build(hints[name], value, join(path, name), found)
        else:
            found[join(path, name)] = f"no such setting, {suggestion(name, kind, path)}"
    for name, field in fields.items():
        if name not in table and is_required(field):
            found[join(path, name)] = f"missing, expected {in_words(hints[name])}"
    problems.update(found)
    if found:
        return WRONG
    try:
        return kind(**built)
    except ValueError as error:
        # range checks say "width must be …" or "heads: …": what they name belongs to the path
        named = re.match(r"((\w+)[\w.]*):? (.*)", str(error), re.DOTALL)
        if named and named[2] in fields:
            problems[join(path, named[1])] = named[3]
        else:
            problems[path] = str(error)
        return WRONG


def choose(choices: list[type], table: dict[str, Any], path: str, problems: Problems) -> type | None:
    """The member of a union that the table's `type` names."""
    if len(choices) == 1:
        return choices[0]
    by_type = {type_name(choice): choice for choice in choices}
    given = table.get("type")
    if isinstance(given, str) and given in by_type:
        return by_type[given]
    problems[join(path, "type")] = (
        f"expected one of {', '.join(by_type)}, got {'nothing' if given is None else shown(given)}"
    )
    return None


def type_name(kind: type) -> str:
    """The `type = "…"` by which a union knows this class."""
    return typing.get_args(typing.get_type_hints(kind)["type"])[0]


def is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def members(kind: Any) -> tuple[Any, ...]:
    """The types a union joins; any other type alone."""
    return typing.get_args(kind) if typing.get_origin(kind) in (types.UnionType, typing.Union) else (kind,)


def is_config(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind)


def config_item(kind: Any) -> Any:
    """What a list of config classes is made of; None for any other type."""
    if typing.get_origin(kind) in (list, tuple):
        item = typing.get_args(kind)[0]
        if any(is_config(member) for member in members(item)):
            return item
    return None


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


@functools.cache
def adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


# ---- words


def suggestion(name: str, kind: type, path: str) -> str:
    """The setting that was probably meant: one of this table, else one of the tables below it."""
    known = [field.name for field in dataclasses.fields(kind)]
    if close := difflib.get_close_matches(name, known, n=1):
        return f"did you mean {close[0]}?"
    below = {setting.rpartition(".")[2]: setting for setting in settings(kind, path)}
    if close := difflib.get_close_matches(name, below, n=1):
        return f"did you mean {below[close[0]]}?"
    return f"expected one of {', '.join(known)}"


def settings(kind: type, path: str) -> Iterator[str]:
    """The paths of all settings of a class and of the tables in it."""
    for name, hint in typing.get_type_hints(kind).items():
        yield join(path, name)
        for member in members(hint):
            if is_config(member):
                yield from settings(member, join(path, name))


def in_words(kind: Any) -> str:
    """'an integer', 'a list of texts', "one of 'a', 'b'": a type for those who do not read Python."""
    options = [option for option in members(kind) if option is not types.NoneType]
    if len(options) > 1:
        return " or ".join(dict.fromkeys(in_words(option) for option in options))
    kind = options[0]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        values = ", ".join(repr(value) for value in arguments)
        return values if len(arguments) == 1 else f"one of {values}"
    if origin in (list, tuple):
        items = in_words(arguments[0]).removeprefix("an ").removeprefix("a ") + "s"
        fixed = origin is tuple and ... not in arguments
        return f"a list of {len(arguments)} {items}" if fixed else f"a list of {items}"
    names = {int: "an integer", float: "a number", bool: "true or false", str: "a text"}
    return names.get(kind, "a table")


def shown(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return f"the text {value!r}"
        case int() | float():
            return f"the number {value}"
        case list():
            return "a list"
        case dict():
            return "a table"
        case _:
            return f"the date or time {value}"


def flat(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one: `training.steps` → 10."""
    result: dict[str, Any] = {}
    for name, value in settings.items():
        result |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return result
