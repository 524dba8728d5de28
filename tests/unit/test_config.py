"""Reading settings: what is right comes through exactly, what is wrong says where and what was expected."""

import dataclasses
import typing
from dataclasses import field
from pathlib import Path
from typing import Literal

import pytest

from anydepth.config import SCHEMA, Config, collect, docstrings, dump, load, loads, reference
from anydepth.config_class import config
from anydepth.config_reader import in_words, members, read, toml_value
from anydepth.depth import DepthConfig
from anydepth.depth.perword import PerWordConfig
from anydepth.errors import UserError

ROOT = Path(__file__).parents[2]
RECIPES = [path for path in sorted((ROOT / "recipes").glob("*/*.toml")) if "[[stages]]" not in path.read_text()]
RECIPES.append(ROOT / "src/anydepth/quickstart.toml")


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
        ({"more": {"type": "square", "side": -1}}, "more.side: must be at least 1"),
        ({"more": 3}, "more: expected a list of tables, got the number 3"),
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
    assert drawing == Drawing(name="b c", steps=7, shape=Square(side=2), sizes=(1, 2), more=(Round(), Square(side=3)))


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


# ---- the whole configuration


def every_class() -> list[type]:
    places: dict[type, list[str]] = {}
    collect(Config, "", places)
    return list(places)


def test_an_empty_recipe_is_complete() -> None:
    assert loads("") == Config()
    assert loads(dump(Config())) == Config()


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_recipes_survive_the_round_trip(recipe: Path) -> None:
    settings = load(recipe)
    assert loads(dump(settings)) == settings


@pytest.mark.parametrize("policy", typing.get_args(DepthConfig), ids=lambda policy: policy.__name__)
def test_every_depth_policy_can_be_written_in_toml(policy: type) -> None:
    plain = loads('[model]\ntype="classifier"\n') if policy is PerWordConfig else Config()
    stack = dataclasses.replace(plain.model.encoder, depth=policy())
    settings = dataclasses.replace(plain, model=dataclasses.replace(plain.model, encoder=stack))
    read_back = loads(dump(settings))
    assert read_back == settings
    assert type(read_back.model.encoder.depth) is policy


@pytest.mark.parametrize("objective", ["exit-grid", "multitask"])
def test_training_several_depths_needs_several(objective: str) -> None:
    wanted = f'training.objective={{type="{objective}"}}'
    with pytest.raises(
        UserError, match=rf"^--set training.objective: {objective} trains several depths, but each stack"
    ):
        loads("", [wanted])
    loads("", [wanted, 'model.decoder.depth={type="prefix"}'])


def test_weights_are_chosen_by_scores_that_there_are() -> None:
    changes = "training.best=score", "training.validate_sentences=0"
    with pytest.raises(UserError, match=r"^--set training.best: .* training.validate_sentences$"):
        loads("", changes)
    (masked,) = [path for path in RECIPES if path.name == "mlm-builtin.toml"]
    with pytest.raises(UserError, match=r"training.best: a masked language model has no score"):
        load(masked, changes[:1])


def test_layers_that_would_never_run_are_refused() -> None:
    with pytest.raises(
        UserError, match=r"^--set model.encoder.depth.depth: recurrent runs 2 .* first 2 of the 6 layers"
    ):
        loads("", ['model.encoder.depth={type="recurrent", depth=2}'])
    loads("", ['model.encoder={layers=2, depth={type="recurrent", depth=2}}'])


@pytest.mark.parametrize("kind", every_class(), ids=lambda kind: kind.__name__)
def test_none_means_not_set(kind: type) -> None:
    """TOML has no None: what may be None must be None when it is left out, or it would not survive a round trip."""
    hints = typing.get_type_hints(kind)
    for setting in dataclasses.fields(kind):
        if type(None) in members(hints[setting.name]):
            assert setting.default is None


@pytest.mark.parametrize("kind", every_class(), ids=lambda kind: kind.__name__)
def test_every_setting_is_explained(kind: type) -> None:
    texts = docstrings(kind)
    for setting in dataclasses.fields(kind):
        one_kind = setting.name == "type" and len(typing.get_args(typing.get_type_hints(kind)["type"])) == 1
        assert one_kind or texts.get(setting.name), f"{kind.__name__}.{setting.name} has no docstring"


def test_the_reference_is_up_to_date() -> None:
    """Otherwise: python -m anydepth.config > docs/configuration.md"""
    assert (ROOT / "docs/configuration.md").read_text(encoding="utf-8") == reference()


def test_recipes_of_windows_editors(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_bytes(b"\xef\xbb\xbfseed = 7\r\n[training]\r\nsteps = 3\r\n")
    settings = load(tmp_path / "recipe.toml")
    assert (settings.seed, settings.training.steps) == (7, 3)


def test_files_and_schemas() -> None:
    with pytest.raises(UserError, match=r"^missing.toml: no such file$"):
        load("missing.toml")
    with pytest.raises(UserError, match=r"^x.toml: not valid TOML: .*line 2"):
        loads("seed = 1\nseed = ", name="x.toml")
    with pytest.raises(UserError, match=r"^x.toml: was written by a newer anydepth \(schema 2; .* up to 1\)$"):
        loads(f"schema = {SCHEMA + 1}\nunheard_of = 1", name="x.toml")
    with pytest.raises(UserError, match=r"^x.toml: schema: expected an integer, got true$"):
        loads("schema = true", name="x.toml")
    with pytest.raises(UserError, match=r"^x.toml: seed: must not be negative$"):
        loads("seed = -1", name="x.toml")


def test_overrides_reach_lists_and_unions() -> None:
    settings = load(RECIPES[-1], ["data.train.0.size=10", "model.encoder.depth={type='layerdrop', drop=0.5}"])
    assert settings.data.train[0].size == 10
    assert settings.model.encoder.depth.drop == 0.5
    assert settings.model.decoder.depth.type == "prefix"
