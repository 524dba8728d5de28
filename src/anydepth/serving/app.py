"""The HTTP interface: that of LibreTranslate, so that its clients work unchanged, and depth on top."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from anydepth.errors import UserError
from anydepth.serving.asking import UNSPOKEN, Detect, Process, Refused, Translate, described
from anydepth.serving.detection import language_name
from anydepth.serving.frontend import add_page, runs_and_fronts
from anydepth.serving.jobs import Job, Outcome
from anydepth.serving.scheduler import Busy, Closed, Failed, Late
from anydepth.serving.served import Served, Task
from anydepth.serving.service import Limits, Service
from anydepth.serving.texts import Lines
from anydepth.serving.watching import NOTES, Metrics, Observed

EVENTS = "text/event-stream"


def submit(one: Served, job: Job) -> "asyncio.Future[Outcome]":
    return asyncio.wrap_future(one.worker.submit(job))


async def outcome(request: Request, one: Served, job: Job) -> Outcome:
    """What becomes of a job; it is dropped when its client goes or its time is up."""
    answer: asyncio.Future[Any] = submit(one, job)
    gone: asyncio.Future[Any] = asyncio.ensure_future(disconnected(request))
    try:
        left = max(0.0, job.deadline - monotonic())
        done, _ = await asyncio.wait({answer, gone}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if answer in done:
            found: Outcome = answer.result()
            return found
        raise Refused(UNSPOKEN, "the client has gone") if gone in done else Late(job)
    finally:
        answer.cancel()
        gone.cancel()


async def disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def told(request: Request, one: Served, found: Outcome) -> dict[str, Any]:
    """What we add to the answers of LibreTranslate."""
    said = {
        "run": one.name,
        "depth": found.depth,
        "queue_ms": round(found.queue_ms, 2),
        "compute_ms": round(found.compute_ms, 2),
    }
    request.scope[NOTES].update(said)
    return said


def create_app(runs: Sequence[Served], limits: Limits, metrics: Metrics) -> FastAPI:
    service = Service(runs, limits)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(service.close)

    # the usual page of documentation would load its scripts from elsewhere
    app = FastAPI(title="anydepth", docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.service = service
    add_work(app, service)
    add_information(app, service, metrics)
    add_page(app, service)
    add_errors(app)
    metrics.follow(runs)
    paths = frozenset(getattr(route, "path", "") for route in app.routes)
    app.add_middleware(Observed, metrics=metrics, paths=paths)
    if limits.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(limits.origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["Retry-After"],
        )
    return app


def add_work(app: FastAPI, service: Service) -> None:
    @app.post("/translate", **described(Translate, EVENTS))
    async def translate(request: Request) -> Response:
        """Translate a text or several, at the depth that the client or the load says."""
        body: Translate = await service.read(request, Translate)
        if body.format == "html":
            raise Refused(400, "format html: this server translates text alone")
        detected = await run_in_threadpool(service.detected, body)
        one, key = service.route(detected["language"] if detected else body.source, body.target)
        lines = Lines.of(body.texts)
        deadline = service.deadline(body)
        with one.worker.place_for(len(lines.to_do)):
            job = await run_in_threadpool(one.job, lines.to_do, body.asked, key, *deadline)

        def answer(found: Outcome) -> dict[str, Any]:
            texts = lines.filled(found.answers)
            single = isinstance(body.q, str)
            said: dict[str, Any] = {"translatedText": texts[0] if single else texts}
            if detected:
                said["detectedLanguage"] = detected if single else [detected] * len(texts)
            return said | told(request, one, found)

        if not body.stream:
            return JSONResponse(answer(await outcome(request, one, job)))
        return refined(one, job, answer)

    @app.post("/summarize", **described(Process))
    async def summarize(request: Request) -> dict[str, Any]:
        """Summarize a document or several."""
        body, one, found = await process(request, "summarize")
        return {"summary": found.answers[0] if isinstance(body.q, str) else found.answers} | told(request, one, found)

    @app.post("/classify", **described(Process))
    async def classify(request: Request) -> dict[str, Any]:
        """Label a text or several."""
        body, one, found = await process(request, "classify")
        labels = [label._asdict() for label in found.answers]
        return {"classification": labels[0] if isinstance(body.q, str) else labels} | told(request, one, found)

    async def process(request: Request, task: Task) -> tuple[Process, Served, Outcome]:
        body: Process = await service.read(request, Process)
        one = service.find(task, body.run)
        texts = [" ".join(text.splitlines()) for text in body.texts]  # a line of a file, to the command line
        with one.worker.place_for(len(texts)):
            job = await run_in_threadpool(one.job, texts, body.asked, "", *service.deadline(body))
        return body, one, await outcome(request, one, job)

    @app.post("/detect", **described(Detect))
    async def detect(request: Request) -> Any:
        """The likeliest languages of a text."""
        body: Detect = await service.read(request, Detect)
        found = await run_in_threadpool(lambda: [service.detector.detect(text) for text in body.texts])
        return found[0] if isinstance(body.q, str) else found


def refined(one: Served, job: Job, answer: Any) -> StreamingResponse:
    """Server-sent events: a draft, if there is a shallower depth, and the answer."""
    drafted: Future[Outcome | None] = Future()
    job.draft = drafted
    final = submit(one, job)
    draft = asyncio.wrap_future(drafted)

    async def events() -> AsyncIterator[str]:
        try:
            for name, future in (("draft", draft), ("final", final)):
                left = max(0.0, job.deadline - monotonic())
                try:
                    found = await asyncio.wait_for(future, left)
                except TimeoutError:
                    raise Late(job) from None
                if found:
                    yield event(name, answer(found))
        except Exception as error:  # the status has been sent: say it in the stream
            yield event("error", {"error": refusal(error)[1]})
        finally:  # also when the client has gone
            draft.cancel()
            final.cancel()

    # without the second, nginx would hold the draft back until the answer is there
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(events(), media_type=EVENTS, headers=headers)


def event(name: str, data: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"


def add_information(app: FastAPI, service: Service, metrics: Metrics) -> None:
    @app.get("/languages")
    async def languages() -> list[dict[str, Any]]:
        """The languages and what they are translated to."""
        return service.languages()

    @app.get("/health", responses={503: {"description": "A worker has died."}})
    async def health() -> JSONResponse:
        """Whether every run is at work, and what an operator should look after."""
        well = all(one.worker.alive for one in service.runs)
        said: dict[str, Any] = {"status": "ok" if well else "a worker has died"}
        if warnings := [f"{one.name}: {warning}" for one in service.runs for warning in one.health()]:
            said["warnings"] = warnings
        return JSONResponse(said, 200 if well else 503)

    @app.get("/frontend/settings")
    def settings() -> dict[str, Any]:
        """What a page in front of the server needs to know."""
        first = next(iter(service.runs[0].pairs), None) or next(iter(service.pairs), None)
        named = {"source": first.source, "target": first.target} if first else {}
        keys = bool(service.limits.keys)
        return {
            "apiKeys": keys,
            "keyRequired": keys,
            "charLimit": service.limits.characters,
            "batchLimit": service.limits.texts,
            "frontendTimeout": 500,
            "suggestions": False,
            "filesTranslation": False,
            "supportedFilesFormat": [],
            "language": {side: {"code": code, "name": language_name(code)} for side, code in named.items()},
            "runs": [runs_and_fronts(one) for one in service.runs],
        }

    @app.get("/metrics", response_class=PlainTextResponse)
    async def numbers() -> Response:
        """For Prometheus."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


# ---- errors


def refusal(error: Exception) -> tuple[int, str, dict[str, str] | None]:
    """Status, message and headers."""
    if isinstance(error, Refused):
        return error.status, str(error), error.headers
    if isinstance(error, Busy):
        return 429, str(error), {"Retry-After": str(error.retry_after)}
    if isinstance(error, Late):  # a client that has set itself an impossible deadline is no fault of the server
        return 408 if error.hurried else 504, str(error), None
    if isinstance(error, Closed):
        return 503, str(error), {"Retry-After": "5"}
    if isinstance(error, UserError):
        return 400, str(error), None
    if isinstance(error, HTTPException):
        return error.status_code, str(error.detail).lower(), dict(error.headers or {})
    return 500, "internal error", None


def add_errors(app: FastAPI) -> None:
    async def answer(request: Request, error: Exception) -> JSONResponse:
        status, message, headers = refusal(error)
        return JSONResponse({"error": message}, status, headers)

    for kind in (Refused, Busy, Late, Closed, Failed, UserError, HTTPException, Exception):
        app.add_exception_handler(kind, answer)
