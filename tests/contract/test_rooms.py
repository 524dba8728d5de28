"""Which parts of the package may know of which: what is below does not import what is above."""

import ast
from pathlib import Path

import pytest

import anydepth

PACKAGE = Path(anydepth.__file__).parent
TOP = {"cli", "chain", "serving"}
DECIDING = {"calibrating", "choosing", "selecting", "sizing"}
ABOVE = TOP | DECIDING | {"reporting", "evaluation", "interop", "run", "training", "tasks"}
MAY_NOT_KNOW = {
    **dict.fromkeys(("plan.py", "depth"), ABOVE | {"nn", "decoding", "data", "objectives", "models", "config"}),
    **dict.fromkeys(("nn", "decoding"), ABOVE | {"data", "objectives", "models", "planned", "config"}),
    **dict.fromkeys(("planned.py", "models.py", "encoder_models.py", "objectives"), ABOVE | {"config"}),
    **dict.fromkeys(("training", "evaluation", "calibrating"), TOP | DECIDING | {"reporting"}),
    **dict.fromkeys(("choosing", "selecting"), TOP | {"choosing", "selecting", "sizing", "reporting"}),
    "reporting": TOP | {"sizing"},
    "sizing": TOP | {"choosing", "selecting"},
}


def known_to(file: Path) -> set[str]:
    """The parts of the package that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "anydepth":
            _, *below = node.module.split(".")
            found |= {below[0]} if below else {name.name for name in node.names}
    return found


@pytest.mark.parametrize("part", MAY_NOT_KNOW)
def test_what_is_below_does_not_know_what_is_above(part: str) -> None:
    files = [PACKAGE / part] if part.endswith(".py") else sorted((PACKAGE / part).rglob("*.py"))
    assert files
    known = {str(file.relative_to(PACKAGE)): known_to(file) & MAY_NOT_KNOW[part] - {part} for file in files}
    assert not {file: names for file, names in known.items() if names}
