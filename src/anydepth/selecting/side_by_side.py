"""Labels and networks of a selector made by several processes of one machine, which share its GPU."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from anydepth.errors import UserError
from anydepth.evaluation.metrics import Array
from anydepth.run import Progress, Run, load
from anydepth.selecting.labels import Labels, decode_depths, fast_first, scored, usable
from anydepth.selecting.model import Kind, SelectorConfig, SelectorNet
from anydepth.selecting.training import Fitted, Source, fit, split


class Labelling(NamedTuple):
    """What a process needs to label."""

    run: Path
    device: str
    key: str
    source: Path
    reference: Path
    folder: Path
    decoding: dict[str, Any]


_given: dict[str, Any] = {}
"""Of this process: what its work begins with."""


@contextmanager
def processes(jobs: int, start: Callable[..., None], *given: Any) -> Iterator[ProcessPoolExecutor]:
    """Fresh ones, since one that is forked cannot use a GPU."""
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), begin, (threads, start, given)) as pool:
        yield pool


def begin(threads: int, start: Callable[..., None], given: tuple[Any, ...]) -> None:
    threading.Thread(target=end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    start(*given)


def end_with_parent() -> None:
    """Where the process that waits for our work was killed, nobody else would end us, and we would keep the GPU."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


# ---- labels: each process decodes and scores one depth after the other


def label_side_by_side(
    run: Run,
    source: Path,
    reference: Path,
    folder: Path,
    jobs: int,
    *,
    progress: Progress | None = None,
    **decoding: Any,
) -> None:
    """What `decode_depths` and `read_labels` leave in the folder, made by so many processes: slow depths first."""
    if run.folder is None:
        raise UserError("jobs: needs a run that was loaded from a folder")
    given = Labelling(run.folder, str(run.device), run.key, source, reference, folder, decoding)
    depths = fast_first(run.depths())
    with processes(min(jobs, len(depths)), open_labels, given) as pool:
        for done, _ in enumerate(pool.map(label_depth, reversed(depths)), start=1):
            if progress:
                progress(done, len(depths))


def open_labels(given: Labelling) -> None:
    run = load(given.run, given.device).in_language(given.key or None)
    rows, _, _, references = usable(run, given.source, given.reference)
    _given.update(run=run, labelling=given, rows=rows, references=references)


def label_depth(depth: str) -> None:
    run, given = _given["run"], _given["labelling"]
    decode_depths(run, given.source, given.folder, [depth], **given.decoding)
    run.forget_recordings()
    lowercase = run.config.tokenizer.lowercase
    scored(given.folder, depth, given.reference, _given["rows"], _given["references"], lowercase)


# ---- networks: each process trains one candidate after the other


def fit_side_by_side(
    work: Sequence[tuple[Kind, SelectorConfig]], source: Source, labels: Labels, jobs: int
) -> Iterator[tuple[int, Fitted]]:
    """As `fit`, each with its number, as they are finished; deep networks are begun first."""
    given = source.words.numpy(), source.longest, str(source.device), labels
    with processes(min(jobs, len(work)), open_training, *given) as pool:
        order = sorted(range(len(work)), key=lambda number: -work[number][1].layers)
        running = {pool.submit(fit_one, *work[number]): number for number in order}
        for finished in as_completed(running):
            (weights, losses, yardstick), number = finished.result(), running.pop(finished)
            config = work[number][1]
            net = SelectorNet(config, source.words, source.longest, len(labels.depths)).to(source.device)
            net.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
            yield number, Fitted(net.eval(), config, losses, yardstick)


def open_training(words: Array, longest: int, device: str, labels: Labels) -> None:
    _given.update(source=Source(torch.from_numpy(words), longest, torch.device(device)), labels=labels)


def fit_one(kind: Kind, config: SelectorConfig) -> tuple[dict[str, Any], list[float], float]:
    """Arrays, which need no shared memory to be handed over."""
    train, valid = split(_given["labels"], config.validation, config.seed)
    net, _, losses, yardstick = fit(kind, config, _given["source"], train, valid)
    return {name: tensor.cpu().numpy() for name, tensor in net.state_dict().items()}, losses, yardstick
