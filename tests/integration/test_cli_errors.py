"""What users get wrong: one clear line on stderr, exit code 2, no traceback, nothing lost."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Cli

from anydepth.errors import UserError
from anydepth.files import write_atomically

GOLDEN = Path(__file__).parents[1] / "golden" / "model"
RECIPES = Path(__file__).parents[2] / "recipes"
RECIPE = """
[data]
train = [{ type = "builtin", size = 200 }]
dev = { type = "builtin", size = 10 }
test = { type = "builtin", size = 4 }
[tokenizer]
vocabulary = 400
[model.layer]
width = 16
ffn = 16
heads = 2
[model.encoder]
layers = 2
depth = { type = "prefix" }
[model.decoder]
layers = 1
[training]
steps = 2
validate_sentences = 0
device = "cpu"
[decoding]
beam = 2
max_ratio = 0.1
"""


@pytest.fixture
def complaint(cli: Cli) -> Callable[..., str]:
    """Runs a command that must fail, and returns its one line."""

    def run(*arguments: object) -> str:
        code, out, err = cli(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith("anydepth: ")
        assert err.count("\n") == 1
        return err.removeprefix("anydepth: ").strip()

    return run


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that can translate, however badly."""
    from anydepth.config import loads
    from anydepth.training.loop import train

    return train(loads(RECIPE), tmp_path_factory.mktemp("runs") / "tiny", quiet=True)


# ---- flags


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["translate", "run", "--dpeth", "6-2"], "No such option: --dpeth"),
        (["trian"], "No such command 'trian'"),
        (["train"], "Missing argument 'RECIPE.toml'"),
        (["translate", "run", "--beam", "five"], "Invalid value for '--beam'"),
        (["subnetworks", "12", "--strategy", "best"], "Invalid value for '--strategy': 'best' is not one of"),
        (["subnetworks", "twelve"], "Invalid value for 'LAYERS'"),
        (["subnetworks", "0"], "0 layers: expected at least 1"),
        (["evaluate", "run", "--source", "a"], "--source and --reference: give both or neither"),
        (["evaluate", "run", "--set", "decoding.beam=1"], "--set changes the run for this call: give --out DIR"),
        (["translate", "run", "--temperature", "0.5"], "--temperature is for sampling: give --sample as well"),
        (["translate", "run", "--output", "no/such/out"], "--output no/such/out: there is no folder no/such"),
    ],
)
def test_flags(complaint: Callable[..., str], arguments: list[str], expected: str) -> None:
    assert expected in complaint(*arguments)


# ---- recipes


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("width = 16", "widht = 16"), "model.layer.widht: no such setting, did you mean width?"),
        (("[model.layer]", "[model]\nwidht = 16\n[model.layer]"), "did you mean model.layer.width?"),
        (("steps = 2", "steps = 'many'"), "training.steps: expected an integer, got the text 'many'"),
        (("steps = 2", "steps = 0"), "training.steps: must be at least 1"),
        (("heads = 2", "heads = 3"), "model.layer.heads: 3 does not divide the width 16"),
        (('{ type = "prefix" }', '"prefix"'), 'model.encoder.depth: expected a table, as { type = "prefix" }, got the'),
        (('"prefix"', '"perfix"'), "model.encoder.depth.type: expected one of full, prefix, subnetwork"),
        (("steps = 2", "steps = 2\nsteps = 3"), "not valid TOML: Cannot overwrite a value (at line 19"),
        (("[data]", "schema = 3\n[data]"), "was written by a newer anydepth (schema 3; this one reads up to 1)"),
        (("width = 16", "width = 16\nnorm = 1"), "model.layer.norm: expected one of 'pre', 'post', 'none', got"),
    ],
)
def test_recipes(complaint: Callable[..., str], recipe: Path, change: tuple[str, str], expected: str) -> None:
    assert change[0] in RECIPE
    recipe.write_text(RECIPE.replace(*change))
    message = complaint("describe", recipe)
    assert message.startswith(f"{recipe}: ")
    assert expected in message


def test_several_mistakes_are_all_told(cli: Cli, recipe: Path) -> None:
    recipe.write_text(RECIPE.replace("steps = 2", "stpes = 2").replace("ffn = 16", "ffn = 1.5"))
    code, _, err = cli("train", recipe)
    assert code == 2
    assert err.splitlines() == [
        f"anydepth: {recipe}: model.layer.ffn: expected an integer, got the number 1.5",
        f"anydepth: {recipe}: training.stpes: no such setting, did you mean steps?",
    ]


def test_recipes_that_are_not_there(complaint: Callable[..., str], recipe: Path) -> None:
    missing = recipe.with_name("missing.toml")
    assert complaint("train", missing) == f"{missing}: no such file"
    recipe.write_bytes(b"seed = '\xff'")
    assert complaint("train", recipe) == f"{recipe}: not UTF-8 text (byte 8)"


def test_soft_gates_in_post_norm_are_refused(complaint: Callable[..., str], recipe: Path) -> None:
    gated = "--set", "model.decoder.depth={type='rezero'}", "--set", "model.layer.norm=post"
    assert "model.decoder.depth: rezero scales the residual branches" in complaint("describe", recipe, *gated)


def test_settings_on_the_command_line(complaint: Callable[..., str], recipe: Path) -> None:
    assert complaint("train", recipe, "--set", "training.stpes=5") == (
        "--set training.stpes: no such setting, did you mean steps?"
    )
    assert complaint("train", recipe, "--set", "trainig.steps=5") == (
        "--set trainig: no such setting, did you mean training?"
    )


def test_data_that_is_not_there(complaint: Callable[..., str], recipe: Path, tmp_path: Path) -> None:
    corpus = '{ type = "parallel", source = "no.en", target = "no.de" }'
    recipe.write_text(RECIPE.replace('{ type = "builtin", size = 200 }', corpus))
    assert complaint("train", recipe, "--out", tmp_path / "run") == "no.en: no such file"


# ---- runs


def test_folders_that_are_no_runs(complaint: Callable[..., str], tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("one\n")
    for verb in (
        ["translate", tmp_path, text],
        ["evaluate", tmp_path],
        ["describe", tmp_path],
        ["report", tmp_path],
        ["oracle", tmp_path],
        ["difficulty", tmp_path],
        ["attention", tmp_path, "--text", "one"],
    ):
        message = complaint(*verb)
        assert str(tmp_path) in message
        assert "config.toml" in message


def test_a_run_of_a_newer_schema(complaint: Callable[..., str], run: Path, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("schema = 3\n[brand_new]\nsetting = 1\n")
    text = tmp_path / "text"
    text.write_text("one\n")
    for verb in (["translate", tmp_path, text], ["evaluate", tmp_path], ["describe", tmp_path]):
        message = complaint(*verb)
        assert "was written by a newer anydepth (schema 3; this one reads up to 1)" in message


def test_training_does_not_overwrite(complaint: Callable[..., str], recipe: Path, run: Path, tmp_path: Path) -> None:
    before = (run / "config.toml").read_text()
    assert "already holds a run: give --resume" in complaint("train", recipe, "--out", run)
    assert (run / "config.toml").read_text() == before
    assert "nothing to resume" in complaint("train", recipe, "--out", tmp_path / "new", "--resume")


def test_texts_that_cannot_be_read(complaint: Callable[..., str], run: Path, tmp_path: Path) -> None:
    assert complaint("translate", run, tmp_path / "missing") == f"{tmp_path / 'missing'}: no such file"
    (tmp_path / "latin1").write_bytes(b"one\ntw\xf6\n")
    assert complaint("translate", run, tmp_path / "latin1") == f"{tmp_path / 'latin1'}:2: invalid UTF-8"
    (tmp_path / "text.gz").write_bytes(b"one\n")
    assert "not a gzip file" in complaint("translate", run, tmp_path / "text.gz")


def test_too_long_a_text_is_named_by_file_and_line(
    complaint: Callable[..., str], cli: Cli, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, reference = tmp_path / "source", tmp_path / "reference"
    long = "!" * 3000
    source.write_text(f"one\n\n{long}\nfour\n")  # of a test set, the empty line is no pair
    reference.write_text("1\n2\n3\n4\n")
    problem = r"\d+ tokens, but this model reads \d+ at most"
    assert re.fullmatch(f"{source}:3: {problem}", complaint("translate", run, source))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"one\n{long}\n".encode())))
    assert re.fullmatch(f"stdin:2: {problem}", complaint("translate", run))
    given = ("--source", source, "--reference", reference)
    monkeypatch.setattr("anydepth.run.Run.outputs", lambda *_, **__: pytest.fail("worked in vain"))
    for verb in (("evaluate", run), ("sizes", run, "--out", tmp_path / "sizes")):
        code, _, said = cli(*verb, *given)
        assert code == 2
        assert re.fullmatch(f"anydepth: {source}:3: {problem}", said.splitlines()[-1])


def test_weights_that_may_not_be_read(
    complaint: Callable[..., str], run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise FileNotFoundError("No such file or directory: model.safetensors")  # what safetensors says

    monkeypatch.setattr("anydepth.run.safe_open", refuse)
    (tmp_path / "text").write_text("one\n")
    message = complaint("translate", run, tmp_path / "text")
    assert message == f"{run / 'model.safetensors'} cannot be read: no permission, or no longer there"


def test_places_that_cannot_be_written_are_found_before_the_work(
    complaint: Callable[..., str], run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text").write_text("one\n")
    out = tmp_path / "folder"
    out.mkdir()
    message = complaint("translate", run, tmp_path / "text", "--output", out)
    assert message == f"--output {out} is a folder; a file was expected"
    message = complaint("translate", run, tmp_path / "text", "--output", tmp_path / "folder" / ".." / "text")
    assert "this is the text to read; choose another file" in message
    monkeypatch.setattr("os.access", lambda _, mode: mode != os.W_OK)  # root may write everywhere
    monkeypatch.setattr("anydepth.run.Run.outputs", lambda *_, **__: pytest.fail("worked in vain"))
    for verb in (
        ["translate", run, tmp_path / "text", "--output", out / "output"],
        ["evaluate", run, "--depths", "1-1"],
        ["calibrate", run],
        ["confidence", run],
    ):
        assert "cannot be written: no permission to write in" in complaint(*verb)


def test_a_full_disk_is_one_line(run: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("one\n")
    command = [sys.executable, "-m", "anydepth.cli", "translate", str(run), str(tmp_path / "text")]
    with open("/dev/full", "w") as full:
        buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=buffered)
    assert (done.returncode, done.stderr) == (2, "anydepth: No space left on device\n")


def test_a_file_that_cannot_take_its_place_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "out" / "old").mkdir(parents=True)
    with pytest.raises(UserError, match="out cannot be written: Is a directory"):
        write_atomically(tmp_path / "out", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--depth", "3-1"], "depth 3-1: this run has encoder depths 1, 2 and decoder depths 1"),
        (["--depth", "deep"], "expected encoder-decoder layers, for example 6-2"),
        (["--beam", "0"], "beam must be at least 1"),
        (["--n-best", "3"], "n_best must be at most beam"),
        (["--device", "abacus"], "device 'abacus'"),
    ],
)
def test_impossible_translations(
    complaint: Callable[..., str], run: Path, tmp_path: Path, flags: list[str], expected: str
) -> None:
    (tmp_path / "text").write_text("one\n")
    (tmp_path / "out").write_text("earlier\n")
    message = complaint("translate", run, tmp_path / "text", "--output", tmp_path / "out", *flags)
    assert expected in message
    assert (tmp_path / "out").read_text() == "earlier\n"


def test_unequal_references(complaint: Callable[..., str], run: Path, tmp_path: Path) -> None:
    source, reference = tmp_path / "source", tmp_path / "reference"
    source.write_text("one\ntwo\n")
    reference.write_text("eins\n")
    message = complaint("evaluate", run, "--source", source, "--reference", reference)
    assert f"{source} has 2 lines but {reference} has 1" in message


def test_evaluations_in_the_wrong_place_or_of_other_weights(
    complaint: Callable[..., str], run: Path, tmp_path: Path
) -> None:
    before = sorted(run.iterdir())
    assert f"--out {run}: a run is there" in complaint("evaluate", run, "--out", run)
    other = "--set", "model.encoder.layers=3", "--out", tmp_path / "other"
    assert complaint("evaluate", run, *other).startswith("--set model.encoder.layers=3: ")
    assert not (tmp_path / "other").exists()
    assert "one depth, 2-1: nothing to choose from" in complaint("oracle", evaluated(run, tmp_path / "deepest"))
    assert sorted(run.iterdir()) == before


def evaluated(run: Path, out: Path) -> Path:
    from anydepth.evaluation.texts import read_test_sets
    from anydepth.reporting.evaluating import evaluate_run, notes_of
    from anydepth.run import load

    evaluate_run(load(run), out, read_test_sets(run), ["2-1"], notes=notes_of(run, [], out))
    return out


def test_interrupted_training_leaves_with_130(recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, "-m", "anydepth.cli", "train", str(recipe), "--out", str(out)]
    settings = ["--set", "training.steps=1000000", "--set", "training.log_every=1"]
    with subprocess.Popen([*command, *settings], stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not (out / "metrics.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "go on with --resume" in err


# ---- and when all is well


def test_help_does_not_wait_for_torch() -> None:
    check = "import sys, anydepth.cli; sys.exit('torch' in sys.modules or 'pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0


def test_translations_come_line_by_line(cli: Cli, run: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("two days\n\nthree weeks")
    code, out, _ = cli("translate", run, text, "--depth", "1-1")
    lines = out.split("\n")
    assert (code, len(lines), lines[1], lines[3]) == (0, 4, "", "")
    code, out, _ = cli("translate", run, text, "--depth", "1-1", "--n-best", 2)
    fields = [line.split("\t") for line in out.splitlines()]
    assert [number for number, _, _ in fields] == ["1", "1", "2", "3", "3"]
    assert [fields[0][2], fields[3][2]] == [lines[0], lines[2]]
    assert float(fields[0][1]) >= float(fields[1][1])
    code, out, _ = cli("translate", run, text, "--depth", "1-1", "--output", tmp_path / "out")
    assert (code, out) == (0, "")
    assert (tmp_path / "out").read_text().split("\n") == lines


def test_a_byte_order_mark_is_not_translated(cli: Cli, run: Path, tmp_path: Path) -> None:
    outputs = []
    for mark in (b"", b"\xef\xbb\xbf"):
        (tmp_path / "text").write_bytes(mark + b"one\r\ntwo\r\n")
        outputs.append(cli("translate", run, tmp_path / "text", "--set", "decoding.max_ratio=2"))
    assert outputs[0][1].strip()
    assert outputs[0] == outputs[1]


def test_sampling_is_repeatable(cli: Cli, run: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("two days\nthree weeks\n")
    draw = "translate", run, tmp_path / "text", "--sample", "--top-k", 50, "--seed"
    assert cli(*draw, 1) == cli(*draw, 1)
    assert cli(*draw, 1) != cli(*draw, 2)


def test_evaluating_some_depths(cli: Cli, run: Path) -> None:
    code, out, _ = cli("evaluate", run, "--depths", "1-1,2-1", "--beam", 1, "--batch", 3)
    assert code == 0
    assert "report.html" in out
    grid = json.loads((run / "grid.json").read_text())
    assert [(cell["encoder"], cell["decoder"]) for cell in grid["cells"]] == [(1, 1), (2, 1)]
    assert (grid["beam"], grid["batch"]) == (1, 3)
    assert (run / "report.html").stat().st_size > 1000


def test_describe_as_json(cli: Cli, run: Path) -> None:
    code, out, _ = cli("describe", RECIPES / "tied-multi/wmt.toml", "--json")
    description = json.loads(out)
    assert (code, description["parameters"]) == (0, 61_038_592)
    assert {"name": "6-2", "encoder": [1, 2, 3, 4, 5, 6], "decoder": [1, 2]}.items() <= next(
        plan for plan in description["plans"] if plan["name"] == "6-2"
    ).items()
    code, out, _ = cli("describe", run, "--json")
    assert [plan["name"] for plan in json.loads(out)["plans"]] == ["1-1", "2-1"]


def test_subnetworks_as_json(cli: Cli) -> None:
    code, out, _ = cli("subnetworks", 12, "--strategy", "optimal", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["subnetworks"]["4"] == [2, 6, 8, 12]
    assert round(found["task_balance"], 4) == 0.4924
    assert round(found["average_layer_distance"], 4) == 2.0455


def test_flags_for_classifiers_do_not_hide_that_there_is_no_run(tmp_path: Path, complaint: Callable[..., str]) -> None:
    for flag in (("--text", "a word"), ("--exits", "margin:0.5")):
        assert "is not a run: it has no config.toml" in complaint("evaluate", tmp_path / "nowhere", *flag)


def test_an_empty_config_is_no_run_of_defaults(tmp_path: Path, complaint: Callable[..., str]) -> None:
    shutil.copytree(Path(__file__).parents[1] / "golden" / "model", tmp_path / "run")
    (tmp_path / "run" / "config.toml").write_text("\n")
    for command in ("translate", "describe", "evaluate"):
        said = complaint(command, tmp_path / "run")
        assert said == f"{tmp_path}/run/config.toml is empty, but a run keeps all its settings there: " \
            "restore it, or train again"  # fmt: skip


@pytest.mark.parametrize("closed", ["echo 'the first of May' | {} >&-", "{} <&-"])
def test_input_or_output_that_is_closed_is_one_line(closed: str) -> None:
    command = closed.format(f"{sys.executable} -m anydepth translate {GOLDEN} --device cpu")
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "anydepth: Bad file descriptor\n")
