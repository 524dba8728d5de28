"""Reading settings: what is right comes through exactly, what is wrong says where and what was expected."""

from dataclasses import field
from typing import Literal

import pytest

from anydepth.config_class import config
from anydepth.config_reader import in_words, read, toml_value
from anydepth.errors import UserError


@config
class Round:
    type: Literal["round"] = "round"
    radius: float = 1.0


@config
class Square:
    type: Literal["square"] = "square"
    side: int = 1

    def __post_init__(self) -> None:
        if self.side < 1:
            raise ValueError("side must be at least 1")


@config
class Drawing:
    name: str
    steps: int = 10
    scale: float = 1.0
    filled: bool = False
    colour: Literal["red", "blue"] = "red"
    limit: int | None = None
    sizes: tuple[int, ...] = ()
    shape: Round | Square = field(default_factory=Round)
    more: tuple[Round | Square, ...] = ()

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < self.steps:
            raise ValueError(f"limit: below the {self.steps} steps")
        if self.steps == 666:
            raise ValueError("this many steps is unlucky")


def message(values: dict, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        read(Drawing, values, overrides, "d.toml")
    return str(caught.value)


def test_reads_every_kind_of_value() -> None:
    values = {
        "name": "a",
        "steps": 3,
        "scale": 2,
        "filled": True,
        "colour": "blue",
        "limit": 5,
        "sizes": [1, 2],
        "shape": {"type": "square", "side": 4},
        "more": [{"type": "round", "radius": 0.5}, {"type": "square"}],
    }
    drawing = read(Drawing, values)
    assert drawing == Drawing(
        name="a",
        steps=3,
        scale=2.0,
        filled=True,
        colour="blue",
        limit=5,
        sizes=(1, 2),
        shape=Square(side=4),
        more=(Round(radius=0.5), Square()),
    )
    assert type(drawing.scale) is float


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"stpes": 3}, "stpes: no such setting, did you mean steps?"),
        ({"steps": "many"}, "steps: expected an integer, got the text 'many'"),
        ({"steps": True}, "steps: expected an integer, got true"),
        ({"steps": 2.0}, "steps: expected an integer, got the number 2.0"),
        ({"steps": "6"}, "steps: expected an integer, got the text '6'"),
        ({"scale": "big"}, "scale: expected a number, got the text 'big'"),
        ({"filled": 1}, "filled: expected true or false, got the number 1"),
        ({"colour": "green"}, "colour: expected one of 'red', 'blue', got the text 'green'"),
        ({"limit": "x"}, "limit: expected an integer, got the text 'x'"),
        ({"limit": 5}, "limit: below the 10 steps"),
        ({"name": "a", "steps": 666}, "this many steps is unlucky"),
        ({"sizes": 3}, "sizes: expected a list of integers, got the number 3"),
        ({"sizes": [1, "2"]}, "sizes: expected a list of integers, got a list"),
        ({"shape": 3}, "shape: expected a table, got the number 3"),
        ({"shape": {"type": "star"}}, "shape.type: expected one of round, square, got the text 'star'"),
        ({"shape": {"side": 3}}, "shape.type: expected one of round, square, got nothing"),
        (
            {"shape": {"type": "square", "radius": 3}},
            "shape.radius: no such setting, expected one of type, side",
        ),
        ({"raduis": 3}, "raduis: no such setting, did you mean shape.radius?"),
        ({"shape": {"type": "square", "side": 0}}, "shape.side: must be at least 1"),
        ({"more": [{"type": "round"}, {"type": "square", "side": -1}]}, "more.1.side: must be at least 1"),
        ({"more": {"type": "round"}}, "more: expected a list of tables, got a table"),
    ],
)
def test_one_mistake_is_one_line(values: dict, expected: str) -> None:
    assert message({"name": "a", **values}) == f"d.toml: {expected}"


def test_several_mistakes_are_one_line_each() -> None:
    values = {"stpes": 3, "scale": "big", "shape": {"type": "square", "side": 0}}
    assert message(values).splitlines() == [
        "d.toml: stpes: no such setting, did you mean steps?",
        "d.toml: scale: expected a number, got the text 'big'",
        "d.toml: shape.side: must be at least 1",
        "d.toml: name: missing, expected a text",
    ]


def test_overrides_change_tables_and_lists() -> None:
    values = {"name": "a", "more": [{"type": "round"}, {"type": "square"}]}
    overrides = ["steps=7", "more.1.side=3", "name=b c", "shape.type=square", "shape.side=2", "sizes=[1, 2]"]
    drawing = read(Drawing, values, overrides)
    assert drawing == Drawing(
        name="b c", steps=7, shape=Square(side=2), sizes=(1, 2), more=(Round(), Square(side=3))
    )


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("steps", "--set steps: expected name=value, for example training.steps=1000"),
        ("=3", "--set =3: expected name=value, for example training.steps=1000"),
        ("a..b=3", "--set a..b=3: expected name=value, for example training.steps=1000"),
        ("stpes=3", "--set stpes: no such setting, did you mean steps?"),
        ("shape={type='square', side=0}", "--set shape.side: must be at least 1"),
        ("more.2.side=3", "--set more.2.side: more has 1 entries, counted from 0"),
        ("name.x=3", "--set name.x: name is not a table in the recipe"),
        ("more.side=3", "--set more.side: more is not a table in the recipe"),
        ("shape.0=3", "--set shape.0: shape is not a list in the recipe"),
    ],
)
def test_wrong_overrides_name_the_flag(override: str, expected: str) -> None:
    assert message({"name": "a", "more": [{"type": "square"}]}, override) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("1e-4", 1e-4),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ("'6'", "6"),
        ("en-de", "en-de"),
        ("", ""),
    ],
)
def test_values_on_the_command_line_are_toml_or_text(text: str, value: object) -> None:
    assert toml_value(text) == value


def test_types_in_words() -> None:
    assert in_words(tuple[float, float]) == "a list of 2 numbers"
    assert in_words(int | Literal["auto"] | None) == "an integer or 'auto'"
    assert in_words(Round | Square) == "a table"
