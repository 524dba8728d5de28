"""The server as its clients see it, with a real model behind a real port."""
# ruff: noqa: E402

import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli

for needed in ("fastapi", "uvicorn", "prometheus_client", "py3langid", "libretranslatepy"):
    pytest.importorskip(needed, reason=f"{needed} is not installed: pip install 'anydepth[test]'")

from libretranslatepy import LibreTranslateAPI
from served_runs import ENGLISH_GERMAN, GOLDEN, TEXTS, calibrated, classifying, summarizing
from serving import Client, Reply, held, serving, wait_for

import anydepth
from anydepth.run import Run
from anydepth.serving.asking import BYTES_A_CHARACTER, OTHER_BYTES
from anydepth.serving.served import Pair, load_served, pairs_of
from anydepth.serving.watching import JsonLines

TOO_LONG = 2000 * BYTES_A_CHARACTER + OTHER_BYTES + 1
"""Bytes of a body; not one more, because a server that hangs up early may do so before its answer is read."""


@pytest.fixture(scope="module")
def run() -> Run:
    return anydepth.load(GOLDEN, "cpu")


@pytest.fixture(scope="module")
def client(run: Run) -> Iterator[Client]:
    with serving({"golden": (run, ENGLISH_GERMAN)}, characters=2000, texts=16) as client:
        yield client


# ---- as LibreTranslate does


def test_a_client_of_libretranslate_works_unchanged(client: Client, tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "texts"
    file.write_text("".join(f"{text}\n" for text in TEXTS))
    _, printed, _ = cli("translate", GOLDEN, file, "--device", "cpu")
    api = LibreTranslateAPI(client.url)
    assert [api.translate(text, "en", "de") for text in TEXTS] == printed.splitlines()
    assert api.translate(TEXTS[2], "auto", "de") == printed.splitlines()[2]
    assert api.translate("\n".join(TEXTS), "en", "de") == printed.removesuffix("\n")
    assert api.languages() == [
        {"code": "de", "name": "German", "targets": []},
        {"code": "en", "name": "English", "targets": ["de"]},
    ]
    assert api.detect("Das Wetter ist heute wirklich sehr schön.")[0]["language"] == "de"


def test_json_and_forms_single_texts_and_lists(client: Client, run: Run) -> None:
    expected = run.translate(TEXTS[:2])
    assert client.translate(TEXTS[0]).content["translatedText"] == expected[0]
    assert client.translate(TEXTS[:2]).content["translatedText"] == expected
    fields = {"q": TEXTS[:2], "source": "en", "target": "de"}
    assert client.form("/translate", fields).content["translatedText"] == expected
    detected = client.translate(TEXTS[:2], source="auto").content["detectedLanguage"]
    assert [one["language"] for one in detected] == ["en", "en"]
    assert client.translate([]).content["translatedText"] == []
    assert client.translate("").content["translatedText"] == ""


def test_lines_stay_lines(client: Client, run: Run) -> None:
    a, b = run.translate(TEXTS[:2])
    assert client.translate(f"{TEXTS[0]}\r\n \n{TEXTS[1]}\n").content["translatedText"] == f"{a}\n\n{b}\n"


def test_what_else_a_client_may_ask(client: Client) -> None:
    assert client.get("/health").content == {"status": "ok"}
    settings = client.get("/frontend/settings").content
    assert (settings["charLimit"], settings["keyRequired"]) == (2000, False)
    assert settings["language"]["target"] == {"code": "de", "name": "German"}
    paths = client.get("/openapi.json").content["paths"]
    schema = paths["/translate"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"q", "source", "target", "depth", "budget_ms", "quality"} <= schema["properties"].keys()


# ---- depth


def test_every_depth_and_its_times(client: Client, run: Run) -> None:
    for depth in run.depths():
        answer = client.translate(TEXTS, depth=depth).content
        assert (answer["translatedText"], answer["depth"]) == (run.translate(TEXTS, depth), depth)
        assert answer["compute_ms"] > 0
        assert answer["queue_ms"] >= 0
    assert client.translate(TEXTS[0]).content["depth"] == "2-2"
    assert client.translate(TEXTS[0], quality="best").content["depth"] == "2-2"


def test_many_at_once_share_batches_and_get_what_is_theirs(client: Client, run: Run) -> None:
    expected = {depth: run.translate(TEXTS, depth) for depth in ("1-1", "2-2")}
    before = client.number('anydepth_batch_texts_count{run="golden"}')
    asked = [(place, depth) for _ in range(4) for place in range(len(TEXTS)) for depth in expected]
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda one: client.translate(TEXTS[one[0]], depth=one[1]).content, asked))
    assert [one["translatedText"] for one in found] == [expected[depth][place] for place, depth in asked]
    assert client.number('anydepth_batch_texts_count{run="golden"}') - before < len(asked)


def test_a_stream_has_a_draft_and_the_answer(client: Client, run: Run) -> None:
    answer = client.translate(TEXTS[:2], stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [event.splitlines() for event in answer.content.strip().split("\n\n")]
    assert [name for name, _ in events] == ["event: draft", "event: final"]
    for depth, (_, data) in zip(("2-1", "2-2"), events):
        said = json.loads(data.removeprefix("data: "))
        assert (said["depth"], said["translatedText"]) == (depth, run.translate(TEXTS[:2], depth))
    only = client.translate(TEXTS[0], stream=True, depth="2-1").content
    assert only.startswith("event: final")
    assert only.count("event:") == 1


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return anydepth.load(calibrated(tmp_path_factory.mktemp("runs") / "known"), "cpu")


def test_budgets_and_qualities_choose_depths(known: Run) -> None:
    with serving({"known": (known, ENGLISH_GERMAN)}) as client:
        for asked, depth in (
            ({}, "2-2"),
            ({"quality": "best"}, "2-2"),
            ({"quality": "fast"}, "1-1"),
            ({"quality": "balanced"}, known.guide(5).options.automatic(64).depth),
            ({"budget_ms": 1000}, "2-2"),
            ({"budget_ms": 1}, "1-1"),
        ):
            answer = client.translate(TEXTS[0], **asked).content
            assert (answer["depth"], answer["translatedText"]) == (depth, known.translate([TEXTS[0]], depth)[0])
        front = client.get("/frontend/settings").content["runs"][0]["front"]
        assert (front[0]["depth"], front[-1]["depth"]) == ("2-2", "1-1")


def test_a_burst_lowers_the_depth_down_to_floors_and_it_rises_again(known: Run) -> None:
    with serving({"known": (known, ENGLISH_GERMAN)}) as client, ThreadPoolExecutor(20) as pool:
        with held(client.runs[0]) as reached:
            asked: list[Future[Reply]] = [pool.submit(client.translate, TEXTS[0])]
            assert reached.wait(10)
            for fields in ({"floor": "2-1"}, {"quality": "best"}, {"depth": "2-1"}, *[{}] * 12):
                asked.append(pool.submit(client.translate, TEXTS[1], **fields))
            wait_for(lambda: client.number('anydepth_queue_texts{run="known"}') == 15)
        first, floor, best, fixed, *others = [one.result(30).content["depth"] for one in asked]
        assert (first, best, fixed) == ("2-2", "2-2", "2-1")
        assert floor in ("2-1", "2-2")
        assert set(others) == {"1-1"}
        wait_for(lambda: client.translate(TEXTS[0]).content["depth"] == "2-2")


# ---- what is refused


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"q": "x", "source": "en"}, "target: field required"),
        ({"source": "en", "target": "de"}, "q: field required"),
        ({"q": 5, "source": "en", "target": "de"}, "q: input should be a valid string"),
        ({"q": ["x", None], "source": "en", "target": "de"}, "q: input should be a valid"),
        ({"q": "x", "source": "en", "target": "fr"}, "en-fr is not served; there is en-de"),
        ({"q": "x", "source": "auto", "target": "fr"}, "auto-fr is not served"),
        ({"q": "x", "source": "en", "target": "de", "format": "html"}, "format html"),
        ({"q": "x", "source": "en", "target": "de", "depth": "9-9"}, "depth 9-9: this run has encoder depths 1, 2"),
        ({"q": "x", "source": "en", "target": "de", "depth": "../x"}, "depth '../x': expected"),
        (
            {"q": "x", "source": "en", "target": "de", "depth": "1-1", "floor": "1-1"},
            "floor: this depth is not",
        ),
        ({"q": "x", "source": "en", "target": "de", "depth": "1-1", "quality": "best"}, "depth and quality: give one"),
        ({"q": "x", "source": "en", "target": "de", "quality": "good"}, "quality: input should be 'fast'"),
        ({"q": "x", "source": "en", "target": "de", "quality": "fast"}, "not evaluated and calibrated"),
        ({"q": "x", "source": "en", "target": "de", "budget_ms": 5e-324}, "budget_ms: input should be greater than or"),
        (
            {"q": "x", "source": "en", "target": "de", "deadline_ms": 5e-324},
            "deadline_ms: input should be greater than or",
        ),
        ({"q": "x", "source": "en", "target": "de", "deadline_ms": -1}, "deadline_ms: input should be greater than or"),
        ({"q": "x", "source": "en", "target": "de", "budget_ms": math.nan}, "budget_ms: input should be"),
        ({"q": "\ud800", "source": "en", "target": "de"}, "half a surrogate pair"),
        ({"q": "x", "source": "\ud800", "target": "de"}, "half a surrogate pair"),
        ({"q": "x " * 999, "source": "en", "target": "de"}, "line 1: "),
        (["q"], "the body is not a JSON object"),
    ],
)
def test_wrong_requests_are_told_what_is_wrong(client: Client, fields: Any, message: str) -> None:
    answer = client.post("/translate", fields)
    assert answer.status == 400
    assert message in answer.content["error"]


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"", "application/json", 400),
        (b"[" * 20_000, "application/json", 400),
        (b'{"q": "\xff", "source": "en", "target": "de"}', "application/json", 400),
        (b"q=%ff&source=en&target=de", "application/x-www-form-urlencoded", 400),
        (b"&".join([b"a=b"] * 2000), "application/x-www-form-urlencoded", 400),
        (b"q=x", "text/plain", 415),
        (b"x" * TOO_LONG, "application/json", 413),
    ],
)
def test_bodies_that_are_none(client: Client, body: bytes, kind: str, status: int) -> None:
    answer = client.send("POST", "/translate", body, {"Content-Type": kind})
    assert (answer.status, list(answer.content)) == (status, ["error"])
    assert client.get("/health").status == 200


def test_limits(client: Client) -> None:
    answer = client.translate("x" * 2001)
    assert (answer.status, answer.content["error"][:18]) == (413, "q: 2001 characters")
    answer = client.translate(["x"] * 17)
    assert (answer.status, answer.content["error"][:11]) == (413, "q: 17 texts")
    with socket.create_connection(("127.0.0.1", client.port), timeout=10) as endless:
        endless.sendall(b"POST /translate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        endless.sendall(f"{TOO_LONG:x}\r\n".encode() + b"x" * TOO_LONG)  # and it could go on
        assert endless.recv(100).startswith(b"HTTP/1.1 413 ")
    assert client.get("/nothing").content == {"error": "not found"}
    assert client.get("/translate").status == 405
    assert client.post("/summarize", {"q": "x"}).status == 404


def test_a_full_queue_says_come_back(run: Run) -> None:
    with serving({"golden": (run, ENGLISH_GERMAN)}, room=2) as client, ThreadPoolExecutor(4) as pool:
        with held(client.runs[0]) as reached:
            asked = [pool.submit(client.translate, TEXTS[0])]
            assert reached.wait(10)
            asked += [pool.submit(client.translate, TEXTS[0]) for _ in range(2)]
            wait_for(lambda: client.number('anydepth_queue_texts{run="golden"}') == 2)
            refused = client.translate(TEXTS[0])
            assert (refused.status, list(refused.content)) == (429, ["error"])
            assert int(refused.headers["retry-after"]) >= 1
            assert client.translate(TEXTS[0], stream=True).status == 429
        assert [one.result(30).status for one in asked] == [200] * 3


def test_what_nobody_waits_for_is_not_computed(run: Run) -> None:
    with serving({"golden": (run, ENGLISH_GERMAN)}) as client, ThreadPoolExecutor(4) as pool:
        with held(client.runs[0]) as reached:
            first = pool.submit(client.translate, TEXTS[0])
            assert reached.wait(10)
            assert client.translate(TEXTS[1], deadline_ms=20).status == 408
            assert "within deadline_ms" in client.translate(TEXTS[1], deadline_ms=20, stream=True).content
            body = b"q=hello&source=en&target=de"
            with socket.create_connection(("127.0.0.1", client.port)) as leaving:
                head = f"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
                leaving.sendall(head.encode() + body)
                wait_for(lambda: client.number('anydepth_queue_texts{run="golden"}') == 3)
            wait_for(lambda: client.number('anydepth_requests_total{path="/translate",status="499"}') == 1)
        assert first.result(30).status == 200
        wait_for(lambda: client.number('anydepth_dropped_texts_total{run="golden",why="gone"}') == 3)
        assert client.number('anydepth_texts_total{depth="2-2",run="golden"}') == 1


def test_a_stream_that_nobody_reads_is_not_computed(run: Run) -> None:
    with serving({"golden": (run, ENGLISH_GERMAN)}) as client, ThreadPoolExecutor(1) as pool:
        with held(client.runs[0]) as reached:
            first = pool.submit(client.translate, TEXTS[0])
            assert reached.wait(10)
            body = b"q=hello&source=en&target=de&stream=1"
            with socket.create_connection(("127.0.0.1", client.port)) as leaving:
                head = f"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
                leaving.sendall(head.encode() + body)
                wait_for(lambda: client.number('anydepth_queue_texts{run="golden"}') == 1)
            time.sleep(0.2)
        assert first.result(30).status == 200
        wait_for(lambda: client.number('anydepth_dropped_texts_total{run="golden",why="gone"}') == 1)


def test_a_fault_is_answered_and_forgotten(run: Run) -> None:
    with serving({"golden": (run, ENGLISH_GERMAN)}) as client:
        one = client.runs[0]
        compute, one.worker.compute = one.worker.compute, lambda batch: 1 // 0
        answer = client.translate(TEXTS[0])
        assert (answer.status, answer.content) == (500, {"error": "internal error"})
        assert "event: error" in client.translate(TEXTS[0], stream=True).content
        one.worker.compute = compute
        assert client.translate(TEXTS[0]).status == 200


def test_keys_and_pages_of_other_sites(run: Run, client: Client) -> None:
    assert "access-control-allow-origin" not in client.get("/languages", Origin="https://a.example").headers
    limits = {"keys": ["secret", "geheim"], "origins": ["https://a.example"]}
    with serving({"golden": (run, ENGLISH_GERMAN)}, **limits) as locked:
        assert locked.translate(TEXTS[0]).status == 403
        assert locked.translate(TEXTS[0], api_key="secre").status == 403
        assert locked.translate(TEXTS[0], api_key="é").status == 403
        fields = {"q": TEXTS[0], "source": "en", "target": "de"}
        assert locked.post("/translate", fields, Authorization="Bearer geheim").status == 200
        assert LibreTranslateAPI(locked.url, "secret").translate(TEXTS[0], "en", "de")
        assert locked.get("/frontend/settings").content["keyRequired"]
        allowed = locked.get("/languages", Origin="https://a.example").headers
        assert allowed["access-control-allow-origin"] == "https://a.example"
        assert "access-control-allow-origin" not in locked.get("/languages", Origin="https://b.example").headers
        for origin, status in (("https://a.example", 200), ("https://b.example", 400)):  # what browsers ask before
            wanted = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
            assert locked.send("OPTIONS", "/translate", headers={"Origin": origin} | wanted).status == status


def test_the_log_has_texts_only_where_they_are_wanted(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    for wanted in (False, True):
        caplog.clear()
        with (
            caplog.at_level("INFO", "anydepth.serving"),
            serving({"golden": (run, ENGLISH_GERMAN)}, log_texts=wanted) as client,
        ):
            client.translate(TEXTS[0], depth="1-2")
        (line,) = [JsonLines().format(record) for record in caplog.records if record.levelname == "INFO"]
        said = json.loads(line)
        expected = {
            "message": "request",
            "path": "/translate",
            "status": 200,
            "run": "golden",
            "depth": "1-2",
            "texts": 1,
        }
        assert expected.items() <= said.items()
        assert said.get("q") == (TEXTS[0] if wanted else None)
        assert (TEXTS[0] in line) == wanted


# ---- other runs


def test_summaries_and_labels(tmp_path: Path) -> None:
    summarizer = anydepth.load(summarizing(tmp_path / "notices"), "cpu")
    labeller = anydepth.load(classifying(tmp_path / "labels"), "cpu")
    with serving({"notices": (summarizer, {}), "labels": (labeller, {})}) as client:
        answer = client.post("/summarize", {"q": "\n".join(TEXTS[:2]), "depth": "1-2"}).content
        assert answer["summary"] == summarizer.summarize([" ".join(TEXTS[:2])], "1-2")[0]
        assert (answer["depth"], answer["run"]) == ("1-2", "notices")
        for depth in ("1", "adaptive"):
            answer = client.post("/classify", {"q": TEXTS[:3], "depth": depth}).content
            found = labeller.classify(TEXTS[:3], depth)
            assert [one["label"] for one in answer["classification"]] == [one.label for one in found]
            probabilities = [one["probability"] for one in answer["classification"]]
            assert probabilities == pytest.approx([one.probability for one in found], abs=1e-5)
        assert client.post("/classify", {"q": "x", "run": "notices"}).status == 400
        assert client.translate("x").content["error"] == "en-de is not served; there is no languages"


def test_a_run_of_several_languages(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "many")
    config = tmp_path / "many" / "config.toml"
    corpus = '{ type = "builtin", source = "en", target = "TO", size = 30000, seed = 1, key = "en-TO" },'
    old = '{ type = "builtin", source = "en", target = "de", size = 30000, seed = 1, key = "" },'
    assert old in config.read_text()
    config.write_text(config.read_text().replace(old, corpus.replace("TO", "de") + corpus.replace("TO", "fr")))
    run = anydepth.load(tmp_path / "many", "cpu")
    with serving({"many": (run, pairs_of(run, ""))}) as client:
        assert client.get("/languages").content[1]["targets"] == ["de", "fr"]
        answer = client.translate(TEXTS[0], source="auto", target="fr").content
        assert answer["translatedText"] == run.in_language("en-fr").translate(TEXTS[:1])[0]
        assert answer["detectedLanguage"]["language"] == "en"
        assert client.translate(TEXTS[0], target="fr", stream=True).content.count("event:") == 2


# ---- the command


def test_the_command_finishes_what_it_has_accepted(run: Run) -> None:
    port = free_port()
    command = [sys.executable, "-m", "anydepth", "serve", str(GOLDEN), "--port", str(port), "--device", "cpu"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    server = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, **pipes)
    client, long = Client(port, []), TEXTS * 8
    try:
        wait_for(Client(port, []).is_healthy, 60)
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(client.translate, long) for _ in range(4)]
            wait_for(lambda: client.number('anydepth_queue_texts{run="model"}') > 0)
            server.send_signal(signal.SIGTERM)
            found = [one.result(60) for one in asked]
        assert [one.content["translatedText"] for one in found] == [run.translate(long)] * 4
        printed, logged = server.communicate(timeout=30)
    finally:
        server.kill()
    assert printed == f"Serving model at http://127.0.0.1:{port}. Ctrl-C ends it.\n"
    lines = [json.loads(line) for line in logged.splitlines()]
    translated = [line for line in lines if line.get("path") == "/translate"]
    assert [(line["status"], line["texts"], line["depth"]) for line in translated] == [(200, 64, "2-2")] * 4
    assert TEXTS[0] not in logged


def test_mistakes_at_the_command_line(tmp_path: Path, cli: Cli) -> None:
    empty = tmp_path / "keys"
    empty.write_text("\n")
    for arguments, message in (
        ([tmp_path], "is not a run"),
        ([GOLDEN, GOLDEN], "two runs have this name"),
        ([f"german={GOLDEN}"], "german: expected two languages, such as en-de"),
        ([GOLDEN, "--api-keys", empty], "no keys; expected one a line"),
    ):
        code, _, error = cli("serve", *arguments, "--device", "cpu", "--port", free_port())
        assert code == 2
        assert message in error
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, printed, error = cli("serve", GOLDEN, "--port", taken.getsockname()[1])
    assert (code, printed) == (2, "")
    assert "Address already in use" in error


def test_languages_can_be_given() -> None:
    one = load_served(f"xx-yy={GOLDEN}", "cpu")
    one.worker.close()
    assert one.pairs == {Pair("xx", "yy"): ""}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])
