"""Where the masked language model is that guesses the words of a classifier (depths by reconstruction).

Settings name it as seen from the folder in which the training ran. A run is used from other folders, too, and moved
together with what it was made from, so it also keeps the way to that model from its own folder.
"""

import json
import os
from pathlib import Path

from anydepth.depth.perword import ReconstructionConfig
from anydepth.errors import UserError
from anydepth.files import write_durably

FILE = "guesser.json"
"""In the folder of a classifier: `model`, as its settings have it, and `from_here`, the way from the folder."""
NAME = "model.encoder.depth.estimate.model"


def find_guesser(settings: ReconstructionConfig, folder: Path | None) -> Path:
    """For a run in this folder, or for a recipe."""
    place = remembered(settings, folder) if folder else None
    place = place if place and is_run(place) else Path(settings.model)
    if not is_run(place):
        needed = f" What {folder} reads, that model has to guess: --set {NAME}=RUN says where it is." if folder else ""
        raise UserError(f"{NAME}: {place} is not a run: it has no config.toml.{needed}")
    return place


def remember_guesser(settings: ReconstructionConfig, guesser: Path, folder: Path, out: Path | None = None) -> None:
    """Writes the way to it into the folder of a run, which will be `out`."""
    way = os.path.relpath(guesser.resolve(), (out or folder).resolve())
    write_durably(folder / FILE, json.dumps({"model": settings.model, "from_here": way}) + "\n")


def remembered(settings: ReconstructionConfig, folder: Path) -> Path | None:
    """Where it was when the run was trained; nothing where the settings are others by now."""
    try:
        kept = json.loads((folder / FILE).read_text(encoding="utf-8"))
        return folder.resolve() / kept["from_here"] if kept["model"] == settings.model else None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # of a training before it was kept


def is_run(place: Path) -> bool:
    return (place / "config.toml").is_file()
