"""Timed windows, for benchmarks that compare several things on one machine."""

import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

import torch

Name = TypeVar("Name", bound=Hashable)
Clock = Callable[[], float]


def seconds(device: torch.device, work: Callable[[], object], clock: Clock = time.perf_counter) -> float:
    """Of one window of work: between two events on a GPU, so that what is still queued counts too, on any stream."""
    if device.type != "cuda":
        start = clock()
        work()
        return clock() - start
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    work()
    torch.cuda.synchronize()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1000


def medians(
    device: torch.device,
    works: Mapping[Name, Callable[[], object]],
    windows: int,
    clock: Clock = time.perf_counter,
) -> dict[Name, float]:
    """The median window of each, in turns: a machine that slows down slows all of them. The first does not count."""
    taken: dict[Name, list[float]] = {name: [] for name in works}
    for window in range(windows + 1):
        for name, work in works.items():
            spent = seconds(device, work, clock)
            if window:
                taken[name].append(spent)
    return {name: statistics.median(each) for name, each in taken.items()}


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
