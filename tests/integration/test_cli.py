"""The command line from end to end on a CPU: one quickstart, small but real, serves all tests.

Most commands run in this process, some as users run them. What users get wrong is in test_cli_errors.py.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from conftest import Cli
from sacrebleu.metrics import CHRF

import anydepth
from anydepth.data.builtin import pairs
from anydepth.describe import describe_path
from anydepth.run import Run, Translation

# Short sentences are learnt in seconds; the test sentences of the quickstart are of all lengths.
SETTINGS = [
    "data.train.0.size=12000", "data.dev.size=200", "data.test.size=10", "data.max_length=30",
    "tokenizer.vocabulary=1000", "tokenizer.sample=2000", "batching.tokens=1024",
    "model.layer.width=64", "model.layer.ffn=128", "model.layer.dropout=0",
    "model.encoder.layers=2", "model.decoder.layers=2",
    "training.steps=600", "training.save_every=300", "training.log_every=50", "training.device=cpu",
    "training.validate_every=300", 'training.validate_depths=["1-1","2-2"]', "training.validate_sentences=10",
    "training.optimizer.learning_rate=4e-3", "training.optimizer.warmup=150", "training.optimizer.schedule=linear",
]  # fmt: skip
DEPTHS = ["1-1", "1-2", "2-1", "2-2"]
CLOSE = 1e-4
"""Two candidates nearer than this may change places with the shape of a batch (rounding in fp32)."""
CHRF_FLOOR = 55.0
"""Four seeds reached 65 to 72 at every depth, and no depth was 2 below a shallower one."""


class Quickstart(NamedTuple):
    folder: Path
    said: str


class Texts(NamedTuple):
    source: Path
    reference: Path
    sources: list[str]
    references: list[str]


def flags(settings: list[str]) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


# ---- fixtures


def anydepth_command(*arguments: object, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """As users run it, in a process of its own."""
    command = [sys.executable, "-m", "anydepth", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, input=text, env=environment, capture_output=True, encoding="utf-8")


@pytest.fixture
def lines(cli: Cli) -> Callable[..., list[str]]:
    """Runs a command that must succeed: the lines it prints."""

    def run(*arguments: object) -> list[str]:
        code, out, err = cli(*arguments)
        assert code == 0, err
        return out.splitlines()

    return run


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Quickstart:
    folder = tmp_path_factory.mktemp("runs") / "quickstart"
    done = anydepth_command("quickstart", "--out", folder, *flags(SETTINGS))
    assert done.returncode == 0, done.stderr
    return Quickstart(folder, done.stdout)


@pytest.fixture(scope="session")
def folder(quickstart: Quickstart) -> Path:
    return quickstart.folder


@pytest.fixture(scope="session")
def run(folder: Path) -> Run:
    """The Python twin."""
    return anydepth.load(folder, device="cpu")


@pytest.fixture(scope="session")
def short(tmp_path_factory: pytest.TempPathFactory) -> Texts:
    """Sentences as short as those of the training, from the test part of the built-in corpus."""
    chosen = [pair for pair in pairs("en", "de", "test", 500) if len(pair[0]) < 60][:48]
    place = tmp_path_factory.mktemp("short")
    sources, references = [source for source, _ in chosen], [target for _, target in chosen]
    (place / "test.en").write_text("".join(f"{text}\n" for text in sources), encoding="utf-8")
    (place / "test.de").write_text("".join(f"{text}\n" for text in references), encoding="utf-8")
    return Texts(place / "test.en", place / "test.de", sources, references)


@pytest.fixture
def copied(folder: Path, tmp_path: Path) -> Path:
    """The run without its grid, to be evaluated anew or damaged."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("config.toml", "model.safetensors", "tokenizer.json", "metrics.jsonl"):
        shutil.copyfile(folder / name, copy / name)
    return copy


# ---- what a quickstart leaves


def test_a_quickstart_leaves_a_run_with_grid_and_report(quickstart: Quickstart) -> None:
    folder, said = quickstart
    names = {"config.toml", "model.safetensors", "tokenizer.json", "metrics.jsonl", "grid.json", "report.html"}
    assert names <= {path.name for path in folder.iterdir()}
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "<svg" in page or "<img" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert 'src="http' not in page
    assert "report.html" in said
    assert f"anydepth translate {folder} --depth 2-2" in said


def test_the_grid_has_every_depth_with_scores_and_seconds(folder: Path) -> None:
    grid = json.loads((folder / "grid.json").read_text(encoding="utf-8"))
    assert set(grid["signatures"]) == {"bleu", "chrf"}
    assert all("version:" in signature for signature in grid["signatures"].values())
    assert (grid["batch"], grid["beam"], grid["device"]) == (64, 1, "cpu")
    assert [f"{cell['encoder']}-{cell['decoder']}" for cell in grid["cells"]] == DEPTHS
    for cell in grid["cells"]:
        assert {"encoder", "decoder", "bleu", "chrf", "seconds"} <= set(cell)
        assert 0 <= cell["bleu"] <= 100
        assert 0 < cell["chrf"] <= 100
        assert cell["seconds"] > 0


def test_metrics_tell_of_training_and_validation(folder: Path) -> None:
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    trained = [line for line in metrics if line["kind"] == "train"]
    assert [line["step"] for line in trained] == list(range(50, 601, 50))
    assert trained[-1]["loss"] < 0.5 * trained[0]["loss"]
    assert all(line["tokens_per_second"] > 0 and line["gradient_norm"] > 0 for line in trained)
    validated = [(line["step"], line["depth"]) for line in metrics if line["kind"] == "valid"]
    assert validated == [(300, "1-1"), (300, "2-2"), (600, "1-1"), (600, "2-2")]


def test_a_finished_quickstart_is_not_done_again(folder: Path, lines: Callable[..., list[str]]) -> None:
    names = ("model.safetensors", "metrics.jsonl", "grid.json")
    before = [(folder / name).read_bytes() for name in names]
    assert lines("quickstart", "--out", folder, *flags(SETTINGS))
    assert [(folder / name).read_bytes() for name in names] == before


# ---- translate


def test_translating_from_stdin_and_from_a_file(folder: Path, run: Run, short: Texts, lines: Any) -> None:
    expected = run.translate(short.sources[:6], depth="2-1")
    text = "".join(f"{source}\n" for source in short.sources[:6])
    piped = anydepth_command("translate", folder, "--depth", "2-1", text=text)
    assert (piped.returncode, piped.stderr) == (0, "")
    assert piped.stdout.splitlines() == expected
    assert lines("translate", folder, short.source, "--depth", "2-1")[:6] == expected


@pytest.mark.parametrize("depth", DEPTHS)
def test_the_python_twin_says_the_same(folder: Path, run: Run, short: Texts, lines: Any, depth: str) -> None:
    assert lines("translate", folder, short.source, "--depth", depth) == run.translate(short.sources, depth=depth)


def test_depth_and_beam_matter_and_the_deepest_is_the_default(folder: Path, short: Texts, lines: Any) -> None:
    deepest = lines("translate", folder, short.source)
    assert deepest == lines("translate", folder, short.source, "--depth", "2-2", "--beam", 1)
    assert deepest != lines("translate", folder, short.source, "--depth", "1-1")
    assert deepest != lines("translate", folder, short.source, "--beam", 6)


def test_n_best_come_with_their_scores(folder: Path, run: Run, short: Texts, lines: Any) -> None:
    printed = lines("translate", folder, short.source, "--beam", 4, "--n-best", 3)
    found = run.translations(short.sources, beam=4, n_best=3)
    assert [line.split("\t") for line in printed] == [
        [str(number), f"{one.score:.4f}", one.text] for number, best in enumerate(found, start=1) for one in best
    ]
    assert lines("translate", folder, short.source, "--beam", 4) == [best[0].text for best in found]
    for best in found:
        assert [one.score for one in best] == sorted((one.score for one in best), reverse=True)


@pytest.mark.parametrize("depth", DEPTHS)
def test_the_score_of_a_search_is_the_score_of_its_output(run: Run, short: Texts, depth: str) -> None:
    for beam in (1, 4):
        found = run.translations(short.sources, depth, beam=beam)
        lengths = map(len, run.tokenizers.source.encode(short.sources))
        limits = map(run.config.decoding.most_tokens, lengths)
        ended = [(s, b) for s, [b], limit in zip(short.sources, found, limits) if len(b.tokens) < limit]
        assert len(ended) > 0.9 * len(found)
        totals = run.score([source for source, _ in ended], [best.tokens for _, best in ended], depth)
        assert totals == pytest.approx([best.log_probability for _, best in ended], abs=CLOSE)
        for total, (_, best) in zip(totals, ended):
            assert total / (len(best.tokens) + 1) == pytest.approx(best.score, abs=CLOSE)


def test_samples_depend_on_the_seed_alone(folder: Path, short: Texts, lines: Any) -> None:
    draw = "translate", folder, short.source, "--sample", "--seed"
    first = lines(*draw, 1)
    assert first == lines(*draw, 1, "--batch", 5)
    assert first != lines(*draw, 2)


# ---- batch mates (design: the same tokens, or a choice too close to call)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("beam", [1, 4])
def test_batch_mates_do_not_matter(run: Run, short: Texts, depth: str, beam: int) -> None:
    alone = run.translations(short.sources, depth, beam=beam, batch=1)
    together = run.translations(short.sources, depth, beam=beam, batch=8)
    different = [
        (text, one, other) for text, [one], [other] in zip(short.sources, alone, together) if one.tokens != other.tokens
    ]
    for text, one, other in different:
        assert is_close(run, text, depth, beam, one, other), (text, one, other)
    assert len(different) <= 1, f"{len(different)} translations differ, if only by a hair"


def is_close(run: Run, text: str, depth: str, beam: int, one: Translation, other: Translation) -> bool:
    """Whether the two could not be told apart: as whole translations, or at the word where greedy search parts."""
    if beam > 1:
        return abs(one.score - other.score) < CLOSE
    eos = run.tokenizers.target.eos
    parting = next(place for place, (a, b) in enumerate(zip([*one.tokens, eos], [*other.tokens, eos])) if a != b)
    decoder = run.model.start(torch.tensor([run.ended(run.tokenizers.source.encode([text])[0])]), run.plan(depth))
    with torch.no_grad():
        for token in [run.tokenizers.target.bos, *one.tokens[:parting]]:
            logits = decoder.step(torch.tensor([token]))
    best, second = logits.log_softmax(-1).topk(2).values[0].tolist()
    return bool(best - second < CLOSE)


# ---- train


def test_over_long_dev_lines_do_not_stop_a_training(tmp_path: Path, lines: Any) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[data]\ntrain = [{ type = "builtin", size = 300 }]\ndev = { type = "builtin", size = 20 }\n')
    settings = [*SETTINGS[3:], "data.train.0.size=300", "training.steps=1", "model.max_positions=32"]
    settings += ['training.validate_depths=["2-2"]']
    lines("train", recipe, "--out", tmp_path / "run", *flags(settings))
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert (last["step"], last["kind"]) == (1, "valid")
    assert "chrf" in last


def test_two_vocabularies_cannot_share_a_matrix(folder: Path, cli: Cli) -> None:
    line = refusal(cli("describe", folder / "config.toml", "--set", "tokenizer.joint=false"))
    assert 'model.tie: "all" needs one tokenizer for both sides' in line


# ---- evaluate, report


def test_evaluating_given_files_reaches_the_floor(copied: Path, short: Texts, lines: Any) -> None:
    said = lines("evaluate", copied, "--source", short.source, "--reference", short.reference)
    assert "report.html" in said[-1]
    grid = json.loads((copied / "grid.json").read_text(encoding="utf-8"))
    chrf = {f"{cell['encoder']}-{cell['decoder']}": cell["chrf"] for cell in grid["cells"]}
    assert list(chrf) == DEPTHS
    assert min(chrf.values()) > CHRF_FLOOR
    for shallow, deep in (("1-1", "1-2"), ("1-1", "2-1"), ("1-2", "2-2"), ("2-1", "2-2")):
        assert chrf[deep] > chrf[shallow] - 5
    hypotheses = (copied / "outputs" / "2-2.txt").read_text(encoding="utf-8").splitlines()
    assert CHRF().corpus_score(hypotheses, [short.references]).score == pytest.approx(chrf["2-2"])


def test_evaluating_some_depths_with_a_beam(copied: Path, short: Texts, lines: Any) -> None:
    files = "--source", short.source, "--reference", short.reference
    lines("evaluate", copied, *files, "--depths", "2-1,1-2", "--beam", 2, "--batch", 7)
    grid = json.loads((copied / "grid.json").read_text(encoding="utf-8"))
    assert [(cell["encoder"], cell["decoder"]) for cell in grid["cells"]] == [(1, 2), (2, 1)]
    assert (grid["beam"], grid["batch"]) == (2, 7)
    assert sorted(path.name for path in (copied / "outputs").iterdir()) == [
        "1-2.txt", "2-1.txt", "reference.txt", "source.txt",
    ]  # fmt: skip


def test_a_report_tells_two_runs_apart(folder: Path, copied: Path, short: Texts, tmp_path: Path, lines: Any) -> None:
    half = tmp_path / "half-trained"
    shutil.copytree(copied, half)
    shutil.copyfile(folder / "checkpoints" / "step-00000300" / "model.safetensors", half / "model.safetensors")
    for one in (copied, half):
        files = "--source", short.source, "--reference", short.reference
        lines("evaluate", one, *files, "--depths", "2-2")
    lines("report", copied, half, "--out", tmp_path / "both.html")
    page = (tmp_path / "both.html").read_text(encoding="utf-8")
    assert "half-trained" in page
    section = page[page.index('<section id="differences">') :]
    section = section[: section.index("</section>")]
    assert "paired bootstrap" in section
    assert "half-trained" in section


# ---- one model evaluated in several ways


def test_greedy_and_beam_in_folders_of_their_own(
    folder: Path, short: Texts, lines: Any, cli: Cli, tmp_path: Path
) -> None:
    files = "--source", short.source, "--reference", short.reference
    before = (folder / "grid.json").read_bytes()
    for name, beam in (("greedy", 1), ("beam", 4)):
        said = lines("evaluate", folder, *files, "--beam", beam, "--out", tmp_path / name)
        assert said[-1] == f"The report is in {tmp_path / name / 'report.html'}."
        assert f"beam = {beam}\n" in (tmp_path / name / "config.toml").read_text(encoding="utf-8")
    assert (folder / "grid.json").read_bytes() == before
    made = {path.name for path in (tmp_path / "greedy").iterdir()}
    assert made == {"config.toml", "grid.json", "outputs", "statistics", "report.html"}
    greedy = (tmp_path / "greedy" / "grid.json").read_bytes()
    lines("evaluate", folder, *files, "--beam", 1, "--out", tmp_path / "greedy")
    assert (tmp_path / "greedy" / "grid.json").read_bytes() == greedy  # not decoded again
    told = json.loads(cli("report", tmp_path / "greedy", tmp_path / "beam", "--out", tmp_path / "r.html", "--json")[1])
    assert told["incomparable"] == ["The runs were decoded with different beams."]
    assert [one["depth"] for one in told["differences"][0]["depths"]] == DEPTHS
    assert told["runs"][0]["flops"] == told["runs"][1]["flops"] == json.loads(greedy)["training_flops"]
    described = json.loads(cli("describe", folder, "--json")[1])
    assert json.loads(greedy)["training_flops"] == described["training_flops"]
    assert "decoding.beam" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_other_plans_for_the_same_weights(folder: Path, run: Run, short: Texts, lines: Any, tmp_path: Path) -> None:
    """The training cost stays that of the training, whatever the settings say now; other settings are measured anew."""
    files = "--source", short.source, "--reference", short.reference
    out = tmp_path / "changed"
    for plan, depths in (("full", ["2-1", "2-2"]), ("subnetwork", ["1-1", "1-2", "2-1", "2-2"])):
        change = f'model.encoder.depth={{type="{plan}"}}'
        lines("evaluate", folder, *files, "--set", change, "--out", out)
        grid = json.loads((out / "grid.json").read_text(encoding="utf-8"))
        assert [f"{cell['encoder']}-{cell['decoder']}" for cell in grid["cells"]] == depths
        assert (grid["run"], grid["changes"]) == (str(folder), [change])
        assert grid["training_flops"] == describe_path(folder)["training_flops"]
        translated = lines("translate", folder, short.source, "--set", change, "--depth", "2-1")
        assert translated == (out / "outputs" / "2-1.txt").read_text(encoding="utf-8").splitlines()
        assert translated == run.translate(short.sources, depth="2-1")


# ---- describe, subnetworks


def test_describing_a_recipe_and_a_run(folder: Path, run: Run, tmp_path: Path, cli: Cli) -> None:
    recipe = tmp_path / "recipe.toml"
    shutil.copyfile(folder / "config.toml", recipe)
    descriptions = [json.loads(cli("describe", path, "--json")[1]) for path in (recipe, folder)]
    # the same, but for words: the built-in text may have fewer than a recipe asks for
    assert [plan["name"] for plan in descriptions[0]["plans"]] == DEPTHS
    for description in descriptions:
        assert isinstance(description["parameters"], int)
        assert description["plans"][2]["encoder"] == [1, 2]
        assert description["plans"][2]["decoder"] == [1]
        assert description["plans"][3]["parameters"] == description["parameters"]
        assert description["plans"][0]["parameters"] < description["parameters"]
    assert descriptions[1]["parameters"] == sum(parameter.numel() for parameter in run.model.parameters())


@pytest.mark.parametrize(
    ("strategy", "balance", "distance", "four"),
    [
        ("head", 1.7753, 1.0, [1, 2, 3, 4]),
        ("seq", 0.4924, 1.0, [7, 8, 9, 10]),
        ("left", 1.4975, 2.0, [1, 4, 7, 10]),
        ("middle-left", 0.7785, 2.0, [2, 5, 8, 11]),
        ("optimal", 0.4924, 2.0455, [2, 6, 8, 12]),
    ],
)
def test_subnetworks(cli: Cli, strategy: str, balance: float, distance: float, four: list[int]) -> None:
    code, out, _ = cli("subnetworks", 12, "--strategy", strategy, "--json")
    found = json.loads(out)
    assert code == 0
    assert list(found["subnetworks"]) == ["1", "2", "3", "4", "6", "12"]
    assert found["subnetworks"]["4"] == four
    assert round(found["task_balance"], 4) == balance
    assert round(found["average_layer_distance"], 4) == distance


# ---- runs that something happened to


def refusal(answer: tuple[int, str, str]) -> str:
    """The one line of a command that must fail."""
    code, out, err = answer
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("anydepth: ")
    return err


def test_another_tokenizer_is_refused(copied: Path, short: Texts, cli: Cli) -> None:
    path = copied / "tokenizer.json"
    before = path.read_text(encoding="utf-8")
    assert '"NFC"' in before
    path.write_text(before.replace('"NFC"', '"NFKC"'), encoding="utf-8")
    line = refusal(cli("translate", copied, short.source))
    assert f"{path}: not the tokenizer of this run" in line


def test_a_broken_tokenizer_is_refused(copied: Path, short: Texts, cli: Cli) -> None:
    path = copied / "tokenizer.json"
    path.write_bytes(path.read_bytes()[:-100])
    assert f"{path} is not a tokenizer.json" in refusal(cli("translate", copied, short.source))


@pytest.mark.parametrize("kept", [0, 5, 100, 10_000, -1])
def test_truncated_weights_are_refused(copied: Path, short: Texts, cli: Cli, kept: int) -> None:
    path = copied / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    assert f"{path} is damaged" in refusal(cli("translate", copied, short.source))


def test_a_run_of_a_newer_schema_is_refused(copied: Path, short: Texts) -> None:
    path = copied / "config.toml"
    path.write_text(path.read_text(encoding="utf-8").replace("schema = 1", "schema = 2"), encoding="utf-8")
    done = anydepth_command("translate", copied, short.source)
    line = refusal((done.returncode, done.stdout, done.stderr))
    assert line == f"anydepth: {path}: was written by a newer anydepth (schema 2; this one reads up to 1)\n"


# ---- export


def test_an_exported_depth_translates_as_its_parent_does(
    folder: Path, run: Run, short: Texts, lines: Callable[..., list[str]], cli: Cli, tmp_path: Path
) -> None:
    for depth in run.depths():
        small = tmp_path / depth
        lines("export", folder, "--to", "anydepth", "--depth", depth, "--out", small)
        exported = anydepth.load(small, device="cpu")
        assert exported.depths() == [depth]
        parent = run.translations(short.sources, depth, beam=3)
        assert [found[0].tokens for found in exported.translations(short.sources, beam=3)] == [
            found[0].tokens for found in parent
        ]
    assert (tmp_path / "1-1" / "model.safetensors").stat().st_size < (folder / "model.safetensors").stat().st_size
    code, _, err = cli("export", folder, "--to", "anydepth", "--depth", "1-1", "--out", tmp_path / "1-1")
    assert code == 2
    assert f"{tmp_path / '1-1'} is not empty: give another --out" in err


def test_an_exported_run_is_not_resumed(folder: Path, cli: Cli, tmp_path: Path) -> None:
    small = tmp_path / "small"
    assert cli("export", folder, "--to", "anydepth", "--depth", "1-1", "--out", small)[0] == 0
    before = (small / "model.safetensors").read_bytes()
    code, _, err = cli("train", small / "config.toml", "--out", small, "--resume")
    assert code == 2
    assert "was not trained here" in err
    assert (small / "model.safetensors").read_bytes() == before
