"""Several pieces of a chain at the same time, each as a process of its own: small models leave most of a GPU idle."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from anydepth.chain.running import checked
from anydepth.chain.work import ENDED, Choice, Work
from anydepth.errors import UserError

SECONDS_BETWEEN_LOOKS = 0.2


def run_side_by_side(
    path: Path,
    folder: Path,
    jobs: int,
    *,
    recipe: Path | None = None,
    settings: Sequence[str] = (),
    only: Sequence[str] = (),
    quiet: bool = False,
) -> dict[str, Path]:
    """As `run_chain`, up to `jobs` pieces of work at a time. What each prints is in the folder's logs/."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("--jobs: not under torchrun, whose processes do every piece of work together")
    wanted = checked(path, folder, recipe, settings, only)
    command = [sys.executable, "-m", "anydepth", "chain", str(path), "--out", str(folder)]
    command += ["--recipe", str(recipe)] if recipe else []
    command += [part for setting in settings for part in ("--set", setting)]
    (folder / "logs").mkdir(exist_ok=True)
    console = Console(stderr=True, quiet=quiet, highlight=False, markup=False, soft_wrap=True)
    SideBySide(wanted, command, folder / "logs", jobs, console).run()
    return {work.name: work.left for work in wanted}


class SideBySide:
    def __init__(self, wanted: list[Work], command: list[str], logs: Path, jobs: int, console: Console) -> None:
        self.command, self.logs, self.jobs, self.console = command, logs, jobs, console
        self.by_name = {work.name: work for work in wanted}
        self.waiting = [work for work in wanted if work.state() not in ENDED]
        self.running: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
        self.failed: list[str] = []

    def run(self) -> None:
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # it, too, ends what was started
        try:
            while self.waiting or self.running:
                self.collect()
                self.start()
                time.sleep(SECONDS_BETWEEN_LOOKS)
        except KeyboardInterrupt:
            self.console.print(f"stopping {', '.join(self.running) or 'now'}; the same command goes on from there")
            raise
        finally:  # trainings save what they have
            signal.signal(signal.SIGTERM, before)
            for process, _ in self.running.values():
                process.send_signal(signal.SIGINT)
            for process, _ in self.running.values():
                process.wait()
        if self.failed:
            logs = ", ".join(str(self.logs / f"{name}.txt") for name in self.failed)
            raise UserError(f"{', '.join(self.failed)} failed: see {logs}; what depends on them was not done")

    def start(self) -> None:
        """Whatever has what it needs, in the order of the chain, while there is room."""
        for work in list(self.waiting):
            if any(need in self.failed for need in work.needs):
                self.failed.append(work.name)
                self.waiting.remove(work)
            elif len(self.running) < self.jobs and all(self.is_there(work, need) for need in work.needs):
                self.waiting.remove(work)
                self.begin(work)

    def is_there(self, work: Work, need: str) -> bool:
        if need in self.running or any(other.name == need for other in self.waiting):
            return need in work.tokenizers and work.has(self.by_name[need])
        return True

    def begin(self, work: Work) -> None:
        self.console.print(f"{work.kind} {work.name}: begins")
        if isinstance(work, Choice):  # quicker done than a process is started
            return work.do(work.state(), quiet=True)
        with open(self.logs / f"{work.name}.txt", "ab") as log:
            process = subprocess.Popen([*self.command, "--only", work.name], stdout=log, stderr=log)
        self.running[work.name] = process, time.monotonic()

    def collect(self) -> None:
        for name, (process, begun) in list(self.running.items()):
            if process.poll() is not None:
                del self.running[name]
                ended = "failed" if process.returncode else "done"
                self.console.print(f"{self.by_name[name].kind} {name}: {ended} in {time.monotonic() - begun:.1f} s")
                self.failed += [name] if process.returncode else []
