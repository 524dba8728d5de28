"""`anydepth serve`: loads the runs, listens, and finishes what it has accepted before it goes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anydepth.errors import UserError


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
    from anydepth.serving.served import load_served
    from anydepth.serving.service import Limits
    from anydepth.serving.watching import Metrics, log_to_stderr

    keys = read_keys(key_file) if key_file else []
    log_to_stderr()
    metrics = Metrics()
    served = [load_served(run, device, batch=batch, room=queue, watch=metrics.saw) for run in runs]
    names = [one.name for one in served]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{name}: two runs have this name; rename a folder")
    app = create_app(served, Limits(keys=keys, **limits), metrics)
    config = uvicorn.Config(app, host=host, port=port, access_log=False, log_config=None, server_header=False)
    print(f"Serving {', '.join(names)} at http://{host}:{port}. Ctrl-C ends it.", flush=True)
    uvicorn.Server(config).run()


def read_keys(file: Path) -> list[str]:
    keys = [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not keys:
        raise UserError(f"{file}: no keys; expected one a line")
    return keys
