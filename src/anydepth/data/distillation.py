"""Sequence-level distillation (Kim and Rush, 2016): students learn from what a teacher makes of a corpus's source.

The source is read in blocks, and every finished one is kept (distilled_parts.py); block b belongs to process b modulo
their number. Whoever finds all blocks there puts them together as OUT.

Line n of OUT translates line n of the source. What cannot be translated gives an empty line, which training skips.
"""

import json
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from anydepth.data.distilled_parts import (
    Files,
    as_json,
    in_one_step,
    is_finished,
    read_json,
    refuse_changes,
    unless_finished,
    write_parts,
)
from anydepth.data.lines import OVER_LONG, Line, count_lines, read_lines
from anydepth.data.reading import EMPTY, Skips
from anydepth.decoding.decoder import changed
from anydepth.errors import UserError
from anydepth.files import checksum
from anydepth.run import Progress, Run
from anydepth.training.distributed import Ranks, add_up, agree, first_does, join, leave

BLOCK = 4_000
"""Lines translated between two writes: enough for batches of like lengths, minutes of work at most on a GPU."""
EMPTY_TRANSLATION = "empty translation"
VERSION = 1
LENGTHS = ("length_penalty", "max_ratio", "max_extra", "max_length", "min_length")
SEARCH = ("beam", *LENGTHS, "block_ngrams", "precision", "exit", "exit_margin")
"""Settings that change translations."""


class Distilled(NamedTuple):
    """What a call of `distill` leaves behind."""

    lines: int
    """Of the source, and of the output when it is finished."""
    skips: Skips
    """Lines that are empty in the output, and why."""
    missing: int
    """Blocks that other shards have yet to translate; 0 means that the output is there."""
    made_before: bool
    """It was finished already, with the same settings."""


def distill(
    run: Run,
    source: str | Path,
    out: str | Path,
    depth: str | None = None,
    *,
    key: str = "",
    beam: int | None = None,
    batch: int | None = None,
    length_penalty: float | None = None,
    block: int = BLOCK,
    shard: tuple[int, int] = (1, 1),
    progress: Progress | None = None,
) -> Distilled:
    """Translates a file, one sentence a line, plain or .gz, into another. Call it again to go on after a kill.

    The processes of torchrun share the work. `shard=(2, 8)` does the second eighth of it alone: then whichever shard
    is the last puts the parts together. Processes on several machines need a file system in common. `progress` counts
    the lines of this process.
    """
    source, files = Path(source), Files(Path(out))
    if not source.is_file():
        raise UserError(f"{source}: no such file")
    if files.out.is_dir():
        raise UserError(f"{out} is a folder; the name of a file was expected")
    if not files.out.parent.is_dir():
        raise UserError(f"{out}: there is no folder {files.out.parent}")
    if block < 1:
        raise UserError(f"block must be at least 1, not {block}")
    if not 1 <= shard[0] <= shard[1]:
        raise UserError(f"shard {shard[0]}/{shard[1]}: expected the first number between 1 and the second")
    search = {"beam": beam, "batch": batch, "length_penalty": length_penalty, "n_best": 1, "sample": False}
    key = key or run.key
    teacher = Teacher(run, run.plan(depth, key).name, key, asdict(changed(run.config.decoding, search)))
    ranks = join(str(run.device))
    try:
        made_before = bool(agree(first_does(ranks, lambda: prepare(files, source, teacher, block)) or 0, ranks))
        if not made_before:
            lines = translate_share(files, source, teacher, ranks, shard, progress)
            missing = int(agree(first_does(ranks, lambda: assemble(files, source, teacher)) or 0, ranks))
            if missing:
                return Distilled(lines, Skips(), missing, False)
    finally:
        leave()
    report = json.loads(files.report.read_bytes())
    return Distilled(report["lines"], Skips(**report["skips"]), 0, made_before)


def parse_shard(text: str) -> tuple[int, int]:
    """Of "2/8", the two numbers."""
    number, slash, shards = text.partition("/")
    if not (slash and number.isdecimal() and shards.isdecimal()):
        raise UserError(f"shard {text!r}: expected two numbers such as 2/8, the second of eight shares")
    return int(number), int(shards)


def device_of_rank(device: str) -> str:
    """Under torchrun, `cuda` and `auto` give each process of a machine a GPU of its own."""
    wanted = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if wanted else device


@dataclass(frozen=True)
class Teacher:
    """A run, and how it translates."""

    run: Run
    depth: str
    key: str
    decoding: dict[str, Any]

    def made_from(self, source: Path, block: int) -> dict[str, Any]:
        """All that the output depends on. The batch size changes speed, not translations."""
        if self.run.weights_hash is None:
            raise UserError("distillation needs a run that was loaded from a folder: its file of weights is recorded")
        search = {name: self.decoding[name] for name in SEARCH}
        weights, tokenizer = self.run.weights_hash, self.run.tokenizers.hash
        made = {"version": VERSION, "weights": weights, "tokenizer": tokenizer, "depth": self.depth, "key": self.key}
        return made | search | {"source": checksum(source), "block": block}

    def translate(self, lines: list[Line], progress: Progress | None) -> tuple[list[str], Skips]:
        """One output for each line, empty where there is nothing to translate or the model cannot read it."""
        skips, room = Skips(), self.run.config.model.max_positions - 1
        lengths = map(len, self.run.sources([line.text for line in lines], self.key))
        usable = []
        for number, (line, length) in enumerate(zip(lines, lengths)):
            if problem := line.problem or (not line.text.strip() and EMPTY) or (length > room and OVER_LONG):
                skips.add(problem, line.place)
            else:
                usable.append(number)
        texts = [lines[number].text for number in usable]
        found = self.run.translate(texts, self.depth, key=self.key, progress=progress, **self.decoding)
        outputs = [""] * len(lines)
        for number, text in zip(usable, found):
            outputs[number] = text.replace("\r", " ").replace("\n", " ")
            if not text.strip():
                skips.add(EMPTY_TRANSLATION, lines[number].place)
        return outputs, skips


# ---- before: is it finished, begun, or new?


def prepare(files: Files, source: Path, teacher: Teacher, block: int) -> bool:
    """Whether all is done already; if not, there is a folder for the parts afterwards."""
    made_from = teacher.made_from(source, block)
    if is_finished(files, made_from):
        files.remove_parts()
        return True
    if not files.parts.exists():
        lines = count_lines(source)
        if not lines:
            raise UserError(f"{source}: there is no line to translate")
        files.begin_parts({"made_from": made_from, "lines": lines, "blocks": -(-lines // block)})
    journal = read_json(files.journal)
    if journal is None or "made_from" not in journal:
        raise UserError(f"{files.parts} has no journal.json that can be read: remove it, or choose another output")
    refuse_changes(files.parts, journal, made_from)
    return False


# ---- the work


def translate_share(
    files: Files, source: Path, teacher: Teacher, ranks: Ranks, shard: tuple[int, int], progress: Progress | None
) -> int:
    """Translates those of this process's blocks that are missing; comes back when all ranks have done so, with the
    number of lines of the source."""
    journal = read_json(files.journal)
    if journal is None:
        raise UserError(f"{files.journal}: cannot be read here; all processes need the same file system")
    lines, block = journal["lines"], journal["made_from"]["block"]
    share = range((shard[0] - 1) * ranks.world + ranks.rank, journal["blocks"], shard[1] * ranks.world)
    sizes = {number: min(block, lines - number * block) for number in share}
    todo = [number for number in files.missing(journal["blocks"]) if number in share]
    total = sum(sizes.values())
    done = total - sum(sizes[number] for number in todo)
    if progress:
        progress(done, total)
    with unless_finished(files):
        for number, chunk in zip(todo, read_blocks(source, todo, block)):
            if len(chunk) != sizes[number]:
                raise UserError(f"{source} was changed while it was translated: it had {lines} lines")
            outputs, skips = teacher.translate(chunk, later(progress, done, total))
            with in_one_step(files.part(number), files.parts) as file:
                file.write(as_json({"translations": outputs, "skips": asdict(skips)}))
            done += len(chunk)
            if progress:
                progress(done, total)
    int(add_up(torch.tensor(len(todo), device=ranks.device), ranks))  # waits for the slowest
    return lines


def read_blocks(source: Path, numbers: list[int], block: int) -> Iterator[list[Line]]:
    """These blocks, in ascending order; of the file, no more than one block is held."""
    lines, position = read_lines(source), 0
    for number in numbers:
        deque(islice(lines, (number - position) * block), maxlen=0)
        position = number + 1
        yield list(islice(lines, block))


def later(progress: Progress | None, before: int, total: int) -> Progress | None:
    """Progress within a block as progress within all."""
    return progress and (lambda done, _: progress(before + done, total))


# ---- after: one file of all parts


def assemble(files: Files, source: Path, teacher: Teacher) -> int:
    """Puts the parts together if they are all there; the number of those that are missing."""
    with unless_finished(files):
        journal = json.loads(files.journal.read_bytes())
        if missing := files.missing(journal["blocks"]):
            return len(missing)
        with in_one_step(files.out, files.parts) as file:
            skips = write_parts(files, journal, file)
            report = {"made_from": journal["made_from"], "teacher": str(teacher.run.folder), "source": str(source)}
            report |= {"lines": journal["lines"], "empty": skips.total, "skips": asdict(skips)}
            with in_one_step(files.report, files.parts) as beside:  # first: an output without a report is not ours
                beside.write(as_json(report, indent=1))
        files.remove_parts()
    return 0
