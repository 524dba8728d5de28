"""Looking ahead: sizes, sub-networks, depths of words."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from anydepth.cli.app import Device, Json, Settings, app
from anydepth.cli.showing import show_depths
from anydepth.errors import UserError


@app.command()
def describe(
    recipe_or_run: Annotated[Path, typer.Argument(metavar="RECIPE|RUN", help="A recipe.toml or a run's folder.")],
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Count the parameters, FLOPs and cache of every depth."""
    from anydepth.describe import describe_path, table

    description = describe_path(recipe_or_run, settings or ())
    if as_json:
        print(json.dumps(description, indent=1))
    else:
        Console(highlight=False).print(table(description))


@app.command()
def depths(
    recipe_or_run: Annotated[Path, typer.Argument(metavar="RECIPE|RUN", help="A recipe.toml or a run's folder.")],
    method: Annotated[
        Literal["mi", "reconstruction"],
        typer.Option(help="mi: what words tell about labels. reconstruction: how hard they are to guess."),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Depths, TSV or JSONL; beside it a picture, .png.")],
    text: Annotated[str, typer.Option(metavar="TEXT", help="A text whose words are drawn, too.")] = "",
    model: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Reconstruction: the masked language model that guesses.")
    ] = None,
    penalty: Annotated[
        float | None, typer.Option(help="Reconstruction: λ, what a layer costs. Default: the recipe's, or 0.1.")
    ] = None,
    every: Annotated[
        int | None,
        typer.Option(help="Reconstruction: hide one word in so many at once; 0: one at a time. Default: the recipe's."),
    ] = None,
    texts: Annotated[
        int | None, typer.Option(help="Reconstruction: only the first so many texts. Default: all.")
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Reconstruction: compare with hiding one word at a time.")
    ] = False,
    settings: Settings = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Estimate how many layers words need: by training labels, or by a masked language model for the test texts."""
    from anydepth.estimating.command import estimate_information, estimate_reconstruction

    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}")
    if out.suffix == ".png":
        raise UserError(f"--out {out}: the picture will be there; give a name such as {out.with_suffix('.tsv')}")
    flags = {"model": model, "penalty": penalty, "every": every, "texts": texts, "compare": compare or None}
    for flag, given in flags.items():
        if given is not None and method == "mi":
            raise UserError(f"--{flag} is for --method reconstruction")
        if isinstance(given, int | float) and given < 0:
            raise UserError(f"--{flag} {given}: expected 0 or more")
    changes = tuple(settings or ())
    if method == "mi":
        found = estimate_information(recipe_or_run, out, changes, text)
    else:
        found = estimate_reconstruction(
            recipe_or_run, out, model, changes, text, penalty, every, texts or 0, compare, device
        )
    show_depths(found, as_json)


@app.command()
def subnetworks(
    layers: Annotated[int, typer.Argument(metavar="LAYERS", help="Layers of the stack.")],
    strategy: Annotated[
        Literal["head", "seq", "left", "middle-left", "optimal"], typer.Option(help="How layers are assigned.")
    ] = "optimal",
    as_json: Json = False,
) -> None:
    """Show which layers flexible depth assigns to which depth."""
    from anydepth.depth.subnetwork import assign, average_layer_distance, task_balance

    assignment = assign(layers, strategy)
    balance, distance = task_balance(assignment, layers), average_layer_distance(assignment)
    counted = {depth: [layer + 1 for layer in chosen] for depth, chosen in assignment.items()}
    if as_json:
        print(json.dumps({"subnetworks": counted, "task_balance": balance, "average_layer_distance": distance}))
        return
    table = Table("depth", "layers", box=None)
    for depth, chosen in counted.items():
        table.add_row(str(depth), " ".join(map(str, chosen)))
    Console(highlight=False).print(table)
    print(f"task balance {balance:.4f}, average layer distance {distance:.4f}")
