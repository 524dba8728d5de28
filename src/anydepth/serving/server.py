"""`anydepth serve`: loads the runs, listens, and finishes what it has accepted before it goes. SIGHUP reloads them."""

import logging
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

from anydepth.errors import UserError

if TYPE_CHECKING:
    from anydepth.serving.served import Served
    from anydepth.serving.service import Service
    from anydepth.serving.watching import Metrics

log = logging.getLogger("anydepth.serving")


def serve(
    runs: Sequence[str],
    host: str,
    port: int,
    device: str,
    *,
    batch: int | None,
    queue: int,
    key_file: Path | None,
    **limits: Any,
) -> None:
    """For `limits` see `service.Limits`. Returns after SIGTERM or Ctrl-C, when all accepted requests are answered."""
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import py3langid  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise UserError(f"serving needs {error.name}: pip install 'anydepth[serve]'") from None
    from anydepth.serving.app import create_app
    from anydepth.serving.served import Served, load_served
    from anydepth.serving.service import Limits
    from anydepth.serving.watching import Metrics, log_to_stderr

    keys = read_keys(key_file) if key_file else []
    metrics = Metrics()

    def load(run: str) -> Served:
        return load_served(run, device, batch=batch, room=queue, watch=metrics.saw)

    with bound(host, port) as listening, log_to_stderr():
        served = [load(run) for run in runs]
        names = [one.name for one in served]
        for name in names:
            if names.count(name) > 1:
                raise UserError(f"{name}: two runs have this name; rename a folder")
        app = create_app(served, Limits(keys=keys, **limits), metrics)
        config = uvicorn.Config(app, host=host, port=port, access_log=False, log_config=None, server_header=False)
        allow_many_connections()
        on_hangup(Reloading(app.state.service, dict(zip(names, runs)), load, metrics).start)
        print(f"Serving {', '.join(names)} at http://{host}:{port}. Ctrl-C ends it.", flush=True)
        uvicorn.Server(config).run([listening])


class Reloading:
    """Loads the runs again, while the server goes on."""

    def __init__(
        self, service: "Service", arguments: dict[str, str], load: Callable[[str], "Served"], metrics: "Metrics"
    ) -> None:
        """`arguments` of the command line, by the names of the runs."""
        self.service, self.arguments, self.load, self.metrics = service, arguments, load, metrics
        self.one_at_a_time = Lock()

    def start(self) -> None:
        Thread(target=self.reload, name="anydepth reload", daemon=True).start()

    def reload(self) -> None:
        with self.one_at_a_time:
            for old in self.service.runs:
                self.reload_one(old)

    def reload_one(self, old: "Served") -> None:
        """A run that cannot be loaded stays as it was."""
        try:
            new = self.load(self.arguments[old.name])
        except (UserError, OSError) as error:
            log.error("%s was not reloaded: %s", old.name, error)
            old.warnings = ["it could not be reloaded; the log says why"]
            return
        self.metrics.follow([new])
        log.info("%s was reloaded", old.name)
        self.service.replace(old, new)


def bound(host: str, port: int) -> socket.socket:
    """A mistake is told before runs are loaded. Nobody can connect yet: that begins with the server."""
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise UserError(f"--host {host} --port {port}: {error.strerror}") from None
    return listening


def allow_many_connections() -> None:
    """As many open files as the system lets us have: each connection is one."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def on_hangup(act: Callable[[], None]) -> None:
    if hasattr(signal, "SIGHUP"):  # not on Windows
        signal.signal(signal.SIGHUP, lambda number, frame: act())


def read_keys(file: Path) -> list[str]:
    keys = [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not keys:
        raise UserError(f"{file}: no keys; expected one a line")
    return keys
