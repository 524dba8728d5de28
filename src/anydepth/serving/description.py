"""The interface for people, at `/docs`: the OpenAPI description as a page without scripts. (The usual one would load
its scripts from elsewhere.)"""

from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment
from markupsafe import Markup

JSON = "application/json"


class Field(NamedTuple):
    name: str
    kind: str
    required: bool
    default: str
    about: str


class Operation(NamedTuple):
    method: str
    path: str
    about: str
    fields: list[Field]
    answers: dict[str, str]
    """Status → what it means."""


def page(description: dict[str, Any]) -> Markup:
    """Of an OpenAPI description."""
    template = (files("anydepth.serving") / "docs.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return Markup(environment.from_string(template).render(operations=operations(description)))


def operations(description: dict[str, Any]) -> list[Operation]:
    return [
        Operation(
            method=method.upper(),
            path=path,
            about=said.get("description", ""),
            fields=fields(said.get("requestBody", {}).get("content", {}).get(JSON, {}).get("schema", {})),
            answers={status: answer.get("description", "") for status, answer in said.get("responses", {}).items()},
        )
        for path, methods in description["paths"].items()
        for method, said in methods.items()
    ]


def fields(schema: dict[str, Any]) -> list[Field]:
    required = schema.get("required", [])
    return [
        Field(name, kind(one), name in required, default(one), one.get("description", ""))
        for name, one in schema.get("properties", {}).items()
    ]


def default(schema: dict[str, Any]) -> str:
    return str(schema["default"]).lower() if schema.get("default") not in (None, "") else ""


def kind(schema: dict[str, Any]) -> str:
    """In a few words, such as "string, or array of string"."""
    if "anyOf" in schema:
        return ", or ".join(kind(one) for one in schema["anyOf"] if one.get("type") != "null")
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"array of {kind(schema.get('items', {}))}"
    return str(schema.get("type", "anything"))
