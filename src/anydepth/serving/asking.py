"""What clients send: bodies read with a limit, JSON or forms, checked before anything is computed."""

import hmac
import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import parse_qs

from fastapi import Request
from pydantic import BaseModel, Field, ValidationError

from anydepth.serving.served import Asked, Quality

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
BYTES_A_CHARACTER = 12
"""Of JSON escapes (two of six) or of a form (four bytes of three), at most."""
OTHER_BYTES = 16_384
"""For all that is not text."""
FIELDS = 1_000
"""Of a form."""
LEAST_BUDGET_MS = 1.0
LEAST_DEADLINE_MS = 10.0
"""Below these nothing can be answered: who asks for it has made a mistake, in the unit for example."""
UNSPOKEN = 499
"""The status of a request whose client has gone: nobody reads it, but the log does."""


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.headers = status, headers


class Detect(BaseModel):
    q: str | list[str] = Field(
        examples=["Forty-one kilometers and twelve grams.", ["Germany, France, and Spain.", "Monday"]]
    )
    api_key: str = ""

    @property
    def texts(self) -> list[str]:
        return [self.q] if isinstance(self.q, str) else self.q


class Work(Detect):
    """What all requests that compute have in common."""

    depth: str | None = Field(None, description="Such as 6-2, or auto. It is not lowered under load.")
    quality: Quality | None = Field(None, description="Instead of a depth. fast and best are not lowered under load.")
    budget_ms: Annotated[float, Field(ge=LEAST_BUDGET_MS, allow_inf_nan=False)] | None = Field(
        None, description="Time for the whole answer, waiting included: the best depth that is predicted to keep it."
    )
    floor: str | None = Field(None, description="Load lowers the depth no further than this.")
    deadline_ms: Annotated[float, Field(ge=LEAST_DEADLINE_MS, allow_inf_nan=False)] | None = Field(
        None, description="After so long the answer is of no use, and the work is dropped."
    )

    @property
    def asked(self) -> Asked:
        return Asked(self.depth or None, self.quality, self.budget_ms, self.floor or None)


class Translate(Work):
    source: str = Field("auto", examples=["auto", "en"])
    target: str = Field(examples=["de"])
    format: Literal["text", "html"] = "text"
    stream: bool = Field(False, description="Server-sent events: a shallow draft at once, then the answer.")


class Process(Work):
    """Of a classifier or a summarizer."""

    run: str = Field("", description="Which, where the server has several.")


Body = TypeVar("Body", bound=Detect)


REFUSALS = {
    400: "What was asked is wrong: the message says what.",
    403: "An API key is missing.",
    404: "There is no run for this.",
    408: "The body did not come in time, or there was no answer within deadline_ms.",
    413: "Too many characters, texts or bytes.",
    415: "Neither JSON nor a form.",
    429: "Too many are waiting: try again after Retry-After seconds.",
    500: "Something broke: the server's log says what.",
    503: "The server is going down, or a worker has died.",
    504: "There was no answer in time.",
}


def described(model: type[BaseModel], *more: str) -> dict[str, Any]:
    """A path that takes such bodies, for OpenAPI: we read them ourselves, because clients send forms as well as JSON.
    `more` are other types that it answers with than JSON."""
    schema = {"schema": model.model_json_schema()}
    error = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
    refusals = {status: {"description": why, "content": {JSON: {"schema": error}}} for status, why in REFUSALS.items()}
    answer = {"description": "The answer.", "content": {kind: {} for kind in (JSON, *more)}}
    return {
        "openapi_extra": {"requestBody": {"required": True, "content": {JSON: schema, FORM: schema}}},
        "responses": {200: answer} | refusals,
    }


async def read(request: Request, model: type[Body], characters: int, texts: int) -> Body:
    """The checked body of a request."""
    fields = parse(request, await read_bytes(request, BYTES_A_CHARACTER * characters + OTHER_BYTES))
    try:
        body = model.model_validate(fields)
    except ValidationError as error:
        wrong = error.errors()[0]
        place = ".".join(str(part) for part in wrong["loc"][:1]) or "body"
        raise Refused(400, f"{place}: {wrong['msg'][:1].lower()}{wrong['msg'][1:]}") from None
    check_texts(body.texts, characters, texts)
    return body


def check_texts(given: Sequence[str], characters: int, texts: int) -> None:
    if len(given) > texts:
        raise Refused(413, f"q: {len(given)} texts, but this server takes {texts} at most in a request")
    if (count := sum(map(len, given))) > characters:
        raise Refused(413, f"q: {count} characters, but this server takes {characters} at most in a request")


async def read_bytes(request: Request, limit: int) -> bytes:
    """The raw body; reading stops where it is too long, whatever its headers say."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise Refused(413, f"the body is longer than {limit} bytes", {"Connection": "close"})
        parts.append(part)
    return b"".join(parts)


def parse(request: Request, body: bytes) -> dict[str, Any]:
    kind = request.headers.get("content-type", FORM).partition(";")[0].strip().lower()
    try:
        text = body.decode()
        if kind == FORM:
            fields = parse_qs(text, keep_blank_values=True, errors="strict", max_num_fields=FIELDS)
            return {name: given if name == "q" and len(given) > 1 else given[-1] for name, given in fields.items()}
    except UnicodeDecodeError:
        raise Refused(400, "the body is not valid UTF-8") from None
    except ValueError:
        raise Refused(400, f"the form has more than {FIELDS} fields") from None
    if kind != JSON:
        raise Refused(415, f"content type {kind}: expected {JSON} or {FORM}")
    try:
        fields = json.loads(text)
        json.dumps(fields, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # "\ud800"
        raise Refused(400, "the body has half a surrogate pair, which is not a character") from None
    except (ValueError, RecursionError):
        raise Refused(400, "the body is not valid JSON") from None
    if not isinstance(fields, dict):
        raise Refused(400, "the body is not a JSON object")
    return fields


def check_key(request: Request, body: Detect, keys: Sequence[str]) -> None:
    """Refuses who has no key, where keys are asked for: in the body, as LibreTranslate has it, or as a bearer."""
    if not keys:
        return
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    given = body.api_key or (bearer if scheme.lower() == "bearer" else "")
    same = [hmac.compare_digest(given.encode(), key.encode()) for key in keys]  # all, in equal time
    if not any(same):
        raise Refused(403, "this server wants an API key: send api_key, or the header Authorization: Bearer")
