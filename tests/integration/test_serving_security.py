"""What a server must not do, whatever it is sent."""
# ruff: noqa: E402

import hmac
import json
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

for needed in ("fastapi", "uvicorn", "prometheus_client", "py3langid"):
    pytest.importorskip(needed, reason=f"{needed} is not installed: pip install 'anydepth[test]'")

from serving import Client, held, serving

import anydepth
from anydepth.run import Run
from anydepth.serving.served import Pair

GOLDEN = Path(__file__).parent.parent / "golden" / "model"
SCRIPT = "<script>alert(1)</script>"
ENGLISH_GERMAN = {Pair("en", "de"): ""}


@pytest.fixture(scope="module")
def run() -> Run:
    return anydepth.load(GOLDEN, "cpu")


@pytest.fixture(scope="module")
def client(run: Run) -> Iterator[Client]:
    with serving({"golden": (run, ENGLISH_GERMAN)}, characters=2000, texts=16, timeout=1.0) as client:
        yield client


@pytest.mark.parametrize(
    "path",
    [
        "/../../../../etc/passwd",
        "/..%2f..%2f..%2fetc%2fpasswd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/config.toml",
        "/golden/model.safetensors",
        "/frontend/../../pyproject.toml",
        "//etc/passwd",
        "/\\..\\..\\etc\\passwd",
        "/%00",
    ],
)
def test_no_path_leads_to_files(client: Client, path: str) -> None:
    answer = client.get(path)
    assert (answer.status, answer.content) == (404, {"error": "not found"})


@pytest.mark.parametrize("field", ["depth", "floor", "source", "target", "quality", "format"])
@pytest.mark.parametrize("value", ["../../../etc/passwd", "/etc/passwd", f"{GOLDEN}", "file:///etc/passwd"])
def test_no_field_leads_to_files(client: Client, field: str, value: str) -> None:
    answer = client.translate("x", **{field: value})
    assert answer.status == 400
    assert "root:" not in json.dumps(answer.content)


def test_no_run_is_loaded_by_name(client: Client) -> None:
    for name in (str(GOLDEN), "../golden", "/etc"):
        answer = client.post("/classify", {"q": "x", "run": name})
        assert answer.status == 404
        assert str(GOLDEN.parent) not in answer.content["error"].replace(name, "")


def test_scripts_in_texts_and_names_stay_texts(client: Client) -> None:
    """What a client sends comes back as JSON alone, never as a page."""
    answers = [
        client.translate(SCRIPT),
        client.translate("x", target=SCRIPT),
        client.translate("x", depth=SCRIPT),
        client.post("/summarize", {"q": "x", "run": SCRIPT}),
        client.get(f"/{SCRIPT}"),
        client.form("/translate", {"q": SCRIPT, "source": "en", "target": SCRIPT}),
    ]
    for answer in answers:
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
    events = client.translate(f"{SCRIPT}\n\nevent: final\ndata: {{}}", stream=True)
    assert events.headers["content-type"].startswith("text/event-stream")
    assert events.headers["x-content-type-options"] == "nosniff"
    assert [line for line in events.content.splitlines() if line.startswith("event:")] == [
        "event: draft",
        "event: final",
    ]
    for path in ("/nothing/" + SCRIPT, "/" + SCRIPT):
        client.get(path)
    assert SCRIPT not in client.get("/metrics").content


def test_keys_are_compared_in_constant_time(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    compare = hmac.compare_digest

    def spy(given: bytes, key: bytes) -> bool:
        compared.append(key)
        return compare(given, key)

    monkeypatch.setattr(hmac, "compare_digest", spy)
    with serving({"golden": (run, ENGLISH_GERMAN)}, keys=["first", "second"]) as locked:
        for key, status in (("first", 200), ("second", 200), ("firs", 403), ("", 403)):
            compared.clear()
            assert locked.translate("x", api_key=key).status == status
            assert compared == [b"first", b"second"]  # all of them, also after one has fitted
        for path in ("/translate", "/detect", "/summarize", "/classify"):
            assert locked.post(path, {"q": "x", "target": "de"}).status == 403
        assert "first" not in json.dumps([locked.get(path).content for path in ("/frontend/settings", "/openapi.json")])


def test_a_body_that_does_not_come_is_not_waited_for(client: Client) -> None:
    with socket.create_connection(("127.0.0.1", client.port), timeout=10) as slow:
        slow.sendall(b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nq=")
        assert slow.recv(100).startswith(b"HTTP/1.1 408 ")


def test_nobody_waits_longer_than_the_server_says(client: Client) -> None:
    with held(client.runs[0]):
        assert client.translate("x").status == 504
        assert client.translate("x", deadline_ms=30_000).status == 504  # 408 would say that this was over


def test_hundreds_of_connections_at_once(run: Run) -> None:
    """The long form, with ten thousand, is benchmarks/serving_faults.py."""
    body = b"q=July&source=en&target=de"
    head = f"POST /translate HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with serving({"golden": (run, ENGLISH_GERMAN)}, room=50) as client, ExitStack() as closing:
        opened = [
            closing.enter_context(socket.create_connection(("127.0.0.1", client.port), timeout=30)) for _ in range(300)
        ]
        for one in opened:
            one.sendall(head)
        assert client.get("/health").status == 200
        for one in opened:
            one.sendall(body)
        statuses = Counter(one.recv(12)[-3:].decode() for one in opened)
        assert statuses.keys() <= {"200", "429"}
        assert statuses["200"] >= 50
        assert client.translate("July").status == 200


def test_headers_have_an_end(client: Client) -> None:
    with socket.create_connection(("127.0.0.1", client.port), timeout=10) as endless:
        endless.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 200_000)
        start = time.monotonic()
        assert endless.recv(100)[:12] in (b"HTTP/1.1 400", b"")
        assert time.monotonic() - start < 5


def test_one_client_cannot_ask_for_more_than_the_limits(client: Client) -> None:
    for fields in ({"q": "x" * 2001}, {"q": ["x" * 200] * 11}, {"q": ["x"] * 17}, {"q": ["\n" * 100] * 21}):
        answer = client.translate(fields["q"])
        assert answer.status == 413, answer
    assert client.translate("x", deadline_ms=1e300).status == 200
    assert client.translate("x", budget_ms=1e300).status == 400  # the golden run is not calibrated
    assert client.translate("x", depth="9" * 1000 + "-1").status == 400
    assert client.post("/translate", {"q": "x", "target": "de", "source": "x" * 1000}).status == 400
