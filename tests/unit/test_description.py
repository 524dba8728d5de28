"""The OpenAPI description as a page."""

from typing import Any

import pytest

from anydepth.serving.app import create_app
from anydepth.serving.description import kind, operations, page
from anydepth.serving.service import Limits
from anydepth.serving.watching import Metrics


def test_everything_that_can_be_asked_is_on_the_page() -> None:
    described = create_app([], Limits(), Metrics()).openapi()
    shown = page(described)
    for path, methods in described["paths"].items():
        for method in methods:
            assert f"<code>{method.upper()} {path}</code>" in shown
    (translate,) = [one for one in operations(described) if one.path == "/translate"]
    fields = {field.name: field for field in translate.fields}
    assert fields["q"].kind == "string, or array of string"
    assert fields["target"].required
    assert fields["quality"].kind == "fast | balanced | best"
    assert (fields["stream"].default, fields["source"].default) == ("false", "auto")
    assert "429" in translate.answers
    for field in translate.fields:
        assert f"<code>{field.name}</code>" in shown
    assert "<script" not in shown


def test_nothing_in_a_description_becomes_markup() -> None:
    wicked: dict[str, Any] = {"paths": {"/x": {"get": {"description": "<b>x</b>", "responses": {"200": {}}}}}}
    assert "&lt;b&gt;x&lt;/b&gt;" in page(wicked)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [({"type": "number"}, "number"), ({}, "anything"), ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string")],
)
def test_kinds_in_words(schema: dict[str, Any], expected: str) -> None:
    assert kind(schema) == expected
