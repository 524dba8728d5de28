"""The commands of docs/serving.md, with the answers of `anydepth translate`."""
# ruff: noqa: E402

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import Cli

for needed in ("fastapi", "uvicorn", "prometheus_client", "py3langid"):
    pytest.importorskip(needed, reason=f"{needed} is not installed: pip install 'anydepth[test]'")

from serving import serving

import anydepth
from anydepth.serving.served import Pair

GOLDEN = Path(__file__).parent.parent / "golden" / "model"
TEXTS = ["Forty-one kilometers and twelve grams.", "Germany, France, and Spain."]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_forms_json_and_streams_by_curl(tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "texts"
    file.write_text("".join(f"{text}\n" for text in TEXTS))
    expected = {
        depth: cli("translate", GOLDEN, file, "--depth", depth, "--device", "cpu")[1].splitlines()
        for depth in ("2-2", "2-1", "1-2")
    }
    with serving({"golden": (anydepth.load(GOLDEN, "cpu"), {Pair("en", "de"): ""})}) as client:

        def curl(*arguments: str) -> str:
            line = ["curl", "-sS", "--max-time", "30", f"{client.url}/translate", *arguments]
            return subprocess.run(line, capture_output=True, text=True, check=True).stdout

        form = ("-d", f"q={TEXTS[0]}", "-d", "source=en", "-d", "target=de")
        assert json.loads(curl(*form))["translatedText"] == expected["2-2"][0]
        body = json.dumps({"q": TEXTS, "source": "auto", "target": "de", "depth": "1-2"})
        found = json.loads(curl("-H", "Content-Type: application/json", "-d", body))
        assert (found["translatedText"], found["depth"]) == (expected["1-2"], "1-2")
        events = curl("-N", *form, "-d", "stream=true").split("\n\n")
        said = [json.loads(event.partition("data: ")[2])["translatedText"] for event in events if event]
        assert said == [expected["2-1"][0], expected["2-2"][0]]
