"""Runs that change or vanish while they are served."""
# ruff: noqa: E402

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

for needed in ("fastapi", "uvicorn", "prometheus_client", "py3langid"):
    pytest.importorskip(needed, reason=f"{needed} is not installed: pip install 'anydepth[test]'")

from safetensors import safe_open
from safetensors.torch import load_file, save_file
from serving import Client, serving, wait_for

import anydepth
from anydepth.serving.served import Pair

GOLDEN = Path(__file__).parent.parent / "golden" / "model"
TEXTS = json.loads((GOLDEN.parent / "outputs.json").read_text())["sentences"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN, tmp_path / "mine")
    return tmp_path / "mine"


def other_weights(folder: Path) -> None:
    """The same model with its decoder layers swapped, put in place by a rename as training does."""
    file = folder / "model.safetensors"
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    weights = {
        name.replace("decoder.layers.0", "decoder.layers.X")
        .replace("decoder.layers.1", "decoder.layers.0")
        .replace("decoder.layers.X", "decoder.layers.1"): tensor
        for name, tensor in load_file(file).items()
    }
    save_file(weights, folder / "new", metadata)
    os.replace(folder / "new", file)


@contextmanager
def command(*arguments: object) -> Iterator[tuple[Client, "subprocess.Popen[str]"]]:
    """The real server in a process of its own; its stderr is a pipe."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = [sys.executable, "-m", "anydepth", "serve", *map(str, arguments), "--port", str(port), "--device", "cpu"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        client = Client(port, [])
        wait_for(client.is_healthy, 60)
        yield client, server
    finally:
        server.kill()
        server.communicate()


def test_hangup_loads_new_weights_and_drops_nobody(folder: Path) -> None:
    before = anydepth.load(folder, "cpu").translate(TEXTS)
    with command(folder, "--timeout", 5) as (client, server), ThreadPoolExecutor(4) as pool:
        assert client.translate(TEXTS).content["translatedText"] == before
        other_weights(folder)
        after = anydepth.load(folder, "cpu").translate(TEXTS)
        assert after != before
        server.send_signal(signal.SIGHUP)
        found: list[Any] = []
        end = time.monotonic() + 30
        while not found or found[-1].content["translatedText"] != after:
            assert time.monotonic() < end
            found += list(pool.map(lambda _: client.translate(TEXTS), range(4)))
        assert {one.status for one in found} == {200}
        assert all(one.content["translatedText"] in (before, after) for one in found)

        (folder / "model.safetensors").write_bytes(b"no weights")
        server.send_signal(signal.SIGHUP)
        warning = "mine: it could not be reloaded; the log says why"
        wait_for(lambda: client.get("/health").content == {"status": "ok", "warnings": [warning]})
        assert client.translate(TEXTS).content["translatedText"] == after
        server.send_signal(signal.SIGTERM)
        _, logged = server.communicate(timeout=30)
    messages = [json.loads(line)["message"] for line in logged.splitlines()]
    assert messages.count("mine was reloaded") == 1
    assert any("mine was not reloaded: " in message and "is damaged" in message for message in messages)


def test_a_folder_deleted_underneath(folder: Path) -> None:
    run = anydepth.load(folder, "cpu")
    with serving({"mine": (run, {Pair("en", "de"): ""})}) as client:
        before = client.translate(TEXTS).content["translatedText"]
        shutil.rmtree(folder)
        assert client.translate(TEXTS).content["translatedText"] == before
        assert client.translate(TEXTS, stream=True).status == 200
        assert client.translate(TEXTS[0], quality="fast").status == 400
        assert client.get("/health").content == {
            "status": "ok",
            "warnings": ["mine: its files are gone; it goes on from memory"],
        }


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_that_dies_is_noticed_and_nobody_waits_for_it() -> None:
    run = anydepth.load(GOLDEN, "cpu")

    def die(batch: Any) -> Any:
        raise SystemExit

    with serving({"mine": (run, {Pair("en", "de"): ""})}) as client:
        client.runs[0].worker.compute = die
        assert client.translate(TEXTS[0]).status == 500
        wait_for(lambda: client.get("/health").status == 503)
        assert client.get("/health").content == {"status": "a worker has died"}
        assert client.translate(TEXTS[0]).status == 503
