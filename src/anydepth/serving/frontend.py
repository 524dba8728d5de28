"""The web page at `/`: its files, and what it shows of runs and load."""

import math
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from anydepth.errors import UserError
from anydepth.evaluation.cells import depth_name, pareto_front
from anydepth.evaluation.metrics import METRICS
from anydepth.serving import description
from anydepth.serving.load import layers, up_to
from anydepth.serving.served import Served
from anydepth.serving.service import Service
from anydepth.serving.watching import NOTES, QUIET

KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
HEADERS = {
    # nothing from elsewhere, no script or style in the page itself, no page around it
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def add_page(app: FastAPI, service: Service) -> None:
    folder = files("anydepth.serving") / "page"
    contents = {file.name: file.read_bytes() for file in folder.iterdir() if kind(file.name)}

    def file(name: str) -> Response:
        if name not in contents:  # looked up, never opened: no path leads out of here
            raise HTTPException(404, "not found")
        return Response(contents[name], media_type=kind(name), headers=HEADERS)

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return file("index.html")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return Response(description.page(app.openapi()), media_type="text/html", headers=HEADERS)

    @app.get("/page/{name}", include_in_schema=False)
    async def part(name: str) -> Response:
        return file(name)

    @app.get("/frontend/load")
    async def load(request: Request) -> list[dict[str, Any]]:
        """How busy each run is, and the depth that a request without wishes would get now."""
        request.scope[NOTES][QUIET] = True
        return [load_of(one) for one in service.runs]


def kind(name: str) -> str | None:
    return KINDS.get(name.rpartition(".")[2])


def load_of(one: Served) -> dict[str, Any]:
    scheduler = one.scheduler
    with one.worker.changed:
        scheduler.update_load()  # depth rises also while nobody asks
        return {
            "run": one.name,
            "waiting": len(scheduler.queue),
            "depth": up_to(scheduler.load.ladder, scheduler.load.ms)[0].depth,
            "lowered": scheduler.load.step,
            "steps": len(scheduler.load.ladder) - 1,
        }


def runs_and_fronts(one: Served) -> dict[str, Any]:
    """A run: `depths` and `front` are those of its first language. The front is empty where the run was not evaluated
    and calibrated."""
    ladder = one.scheduler.load.ladder
    languages = [languages_of(one, key, source, target) for (source, target), key in one.pairs.items()]
    languages = languages or [languages_of(one, one.keys[0])]
    return {
        "name": one.name,
        "task": one.task,
        "depths": languages[0]["depths"],
        "front": [point._asdict() for point in ladder] if len(ladder) > 1 else [],
        "languages": languages,
    }


def languages_of(one: Served, key: str, source: str = "", target: str = "") -> dict[str, Any]:
    """The depths between two languages; with their quality and time where these are known."""
    ladder, depths = one.ladder(key), one.run.in_language(key or None).depths()
    return {
        "source": source,
        "target": target,
        "depths": depths,
        "deepest": ladder[0].depth,
        "fastest": ladder[-1].depth if len(ladder) > 1 else min(depths, key=layers),
        **measured(one, key),
    }


def measured(one: Served, key: str) -> dict[str, Any]:
    """What people see of the calibration: the time of one text of usual length alone, not in a full batch."""
    if math.isinf(one.ladder(key)[0].ms):
        return {"metric": "", "balanced": None, "points": []}
    options = one.guide(key).options
    cells = [cell | {"seconds": options.usual_seconds(depth_name(cell), 1)} for cell in options.cells]
    front = {depth_name(cell) for cell in pareto_front(cells, options.metric)}
    points = [
        {"depth": name, "quality": cell[options.metric], "ms": 1000 * cell["seconds"], "front": name in front}
        for name, cell in ((depth_name(cell), cell) for cell in cells)
    ]
    return {"metric": METRICS[options.metric], "balanced": balanced(one, key), "points": points}


def balanced(one: Served, key: str) -> str | None:
    """The depth of `quality: balanced` without load, unless the outputs that it is found with were not kept."""
    try:
        return one.automatic(key)[0].depth
    except UserError:
        return None
