"""`python -m anydepth.sizing.footprint`: the memory that an export takes, measured in a process of its own.

On stdin: {"to", "folder", "device", "beam", "texts"}, for CTranslate2 texts of tokens. On stdout: {"memory"}, the bytes
by which loading the export and translating the texts, one at a time, raised the most memory in use: resident memory, or
that of the GPU.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main() -> None:
    asked = json.load(sys.stdin)
    measured = ctranslate2_memory if asked.pop("to") == "ctranslate2" else native_memory
    print(json.dumps({"memory": measured(**asked)}))


def native_memory(folder: str, device: str, beam: int, texts: list[str]) -> int:
    import torch

    from anydepth.run import load

    def work() -> None:
        run = load(folder, device)
        for text in texts:
            run.outputs([text], beam=beam, batch=1)

    if not device.startswith("cuda"):
        return resident_growth(work)
    work()
    return torch.cuda.max_memory_allocated(torch.device(device))


def ctranslate2_memory(folder: str, device: str, beam: int, texts: list[list[str]]) -> int:
    import ctranslate2

    def work() -> None:
        engine: Any = ctranslate2.Translator(folder, device=device)
        for tokens in texts:
            engine.translate_batch([tokens], beam_size=beam)

    return resident_growth(work)


def resident_growth(work: Callable[[], None]) -> int:
    before = most_resident()
    work()
    return most_resident() - before


def most_resident() -> int:
    """The peak of this process so far, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # on Linux getrusage would also count the process that started this one
        return 1024 * int(status.read_text().partition("VmHWM:")[2].split()[0])
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main()
