"""Kernels that begin while the one before them still runs (programmatic dependent launch, from Hopper on).

Such a kernel reads what the last one does not write, such as weights, waits for all that earlier kernels have written,
and lets the next one begin.
"""

# mypy: disallow-untyped-defs=False
# (kernels are written in Triton's language, in which an annotation means something else)

from functools import cache
from typing import Any

import torch

from anydepth.nn.packed_attention import available, jit, tl, triton

HOPPER = 9
"""The compute capability for which tiles were chosen: others lack room for them, or Triton does not compile them."""
OVERLAP = True
"""Whether kernels begin before the last one has ended, where the GPU can."""

FRESH = tl.constexpr(".cg") if triton else ".cg"
"""How to read before waiting what kernels have written, if only those of the opening of a search: past the cache that
multiprocessors have of their own. Weights may be such (nn/folded_source.py)."""


REGISTERS = 65_536
"""Of a multiprocessor."""


def launch(kernel: Any, programs: int, *given: Any, **settings: int) -> None:
    """Starts a kernel where its first tensor is: the current device may be another. Its last parameter tells whether it
    begins before the last kernel has ended."""
    early = OVERLAP and is_hopper(given[0].device)
    settings |= {"maxnreg": registers(settings["num_warps"])}
    with torch.cuda.device_of(given[0]):
        kernel[(programs,)](*given, early, **settings, **({"launch_pdl": True} if early else {}))


def registers(warps: int) -> int:
    """That a thread may have, told to the assembler. Left alone, it saves registers where it should not: it puts away
    what two or three reads bring before it asks for the next, so that a program waits for memory a dozen times instead
    of once (32 rows by 2048 × 512 on an H200: 5.4 µs, and 3.6 if it is told)."""
    return min(255, REGISTERS // (32 * warps) // 8 * 8)


@cache
def is_hopper(device: torch.device) -> bool:
    return device.type == "cuda" and available() and torch.cuda.get_device_capability(device)[0] == HOPPER


@jit
def wait(OVERLAP: tl.constexpr):
    """For all that earlier kernels have written; then lets the next kernel begin.

    Any earlier, and those after the next would begin as well, in the room of those that are to run: on an H200 a step
    of 32 sentences takes 238 µs then instead of 179.
    """
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
