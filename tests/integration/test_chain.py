"""Chains: trainings and what is made of them, with one command."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import Cli
from tiny_training import Crash, crash, outcome, recipe, when

from anydepth.chain import list_chain, run_chain
from anydepth.chain.planning import planned
from anydepth.chain.work import Report, Training, dev_loss
from anydepth.config import Config
from anydepth.errors import UserError
from anydepth.files import checksum
from anydepth.progress import progress_for
from anydepth.run import load as load_run

CHAIN = """
recipe = "tiny.toml"

[[stages]]
type = "train"
name = "teacher"
settings = ['model.encoder.depth={type="full"}', 'model.decoder.depth={type="full"}', "training.steps=6"]

[[stages]]
type = "distill"
name = "distilled"
teacher = "teacher"
beam = 2

[[stages]]
type = "train"
name = "student"
settings = ["training.start_from=$teacher", "data.train.0.target=$distilled", 'training.objective={type="exit-grid"}']
"""

TABLE = """
recipe = "tiny.toml"

[[stages]]
type = "train"
name = "plain"
each = [{ layers = [1, 2] }]
settings = ['model.decoder.depth={type="full"}', "model.encoder.layers=$layers", 'model.encoder.depth={type="full"}']

[[stages]]
type = "train"
name = "seeds"
each = [{ seed = [5, 6, 7] }]
settings = ["seed=$seed"]

[[stages]]
type = "best"
name = "winner"
of = "seeds"

[[stages]]
type = "evaluate"
name = "scores"
of = ["plain", "winner"]
encoder = [1, 2]
decoder = [2]

[[stages]]
type = "report"
name = "page"
of = ["plain", "winner"]
"""

SMALL = [
    'data.test={type="parallel", source="FOLDER/dev.source", target="FOLDER/dev.target"}',
    "training.steps=2",
    "training.accumulate=1",
    "decoding.beam=1",
    "decoding.max_extra=2",
    "decoding.max_ratio=0",
]


def chain(folder: Path, text: str = CHAIN) -> Path:
    recipe(folder)
    path = folder / "chain.toml"
    path.write_text(text.replace("FOLDER", str(folder)))
    return path


def small(folder: Path) -> list[str]:
    return [setting.replace("FOLDER", str(folder)) for setting in SMALL]


def configs(path: Path, folder: Path, **given: Any) -> dict[str, Config]:
    return {work.name: work.config for work in planned(path, folder, **given) if isinstance(work, Training)}


def states(path: Path, folder: Path, **given: Any) -> dict[str, str]:
    return {work.name: state for work, state in list_chain(path, folder, **given)}


def test_a_chain_is_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = run_chain(chain(tmp_path), tmp_path / "out", quiet=True)
    assert left == {
        "teacher": tmp_path / "out" / "teacher",
        "distilled": tmp_path / "out" / "distilled.txt.gz",
        "student": tmp_path / "out" / "student",
    }
    assert load_run(left["student"], device="cpu").depths() == ["1-1", "1-2", "2-1", "2-2"]
    hashes = {name: checksum(left[name] / "model.safetensors") for name in ("teacher", "student")}

    def refuse(*_: object) -> None:
        raise AssertionError("a finished stage is done again")

    monkeypatch.setattr("anydepth.chain.work.train", refuse)
    monkeypatch.setattr("anydepth.run.Run.translations", refuse)
    assert run_chain(tmp_path / "chain.toml", tmp_path / "out", quiet=True) == left
    for name, before in hashes.items():
        assert checksum(left[name] / "model.safetensors") == before


def test_an_interrupted_stage_goes_on(tmp_path: Path) -> None:
    path, whole, cut = chain(tmp_path), tmp_path / "whole", tmp_path / "cut"
    data = [f"data.cache={tmp_path}/data"]  # the only setting in which the folders' runs would differ
    run_chain(path, whole, settings=data, only=["teacher"], quiet=True)
    with pytest.raises(Crash), when(4, "train", crash):
        run_chain(path, cut, settings=data, only=["teacher"], quiet=True)
    assert states(path, cut, settings=data) == {"teacher": "interrupted", "distilled": "to do", "student": "to do"}
    run_chain(path, cut, settings=data, only=["teacher"], quiet=True)
    assert outcome(cut / "teacher") == outcome(whole / "teacher")


def test_several_processes_go_through_a_chain_together(tmp_path: Path) -> None:
    """More than one training: the group of torchrun must last for all of them."""
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "anydepth",
    ]
    command = [*torchrun, "chain", chain(tmp_path), "--out", tmp_path / "out", "--set", "training.steps=2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"The chain is done, in {tmp_path / 'out'}.\n"
    assert set(states(tmp_path / "chain.toml", tmp_path / "out", settings=["training.steps=2"]).values()) == {"done"}


def test_a_table(tmp_path: Path, cli: Cli) -> None:
    """Repeated trainings, the best of them, scores and a page, told in plain lines; then nothing is left to do."""
    path, out = chain(tmp_path, TABLE), tmp_path / "out"
    changes = [part for setting in small(tmp_path) for part in ("--set", setting)]
    code, printed, said = cli("chain", path, "--out", out, *changes)
    assert code == 0, said
    assert printed.splitlines() == [f"The chain is done, in {out}.", f"The report is in {out / 'page.html'}."]
    lines = said.splitlines()
    assert "1/10 train plain_1: begins" in lines
    assert any(line.startswith("10/10 report page: done in ") for line in lines)

    depths = {run: load_run(out / run, device="cpu").depths() for run in ("plain_1", "plain_2", "seeds_5")}
    assert depths == {"plain_1": ["1-2"], "plain_2": ["2-2"], "seeds_5": ["1-1", "1-2", "2-1", "2-2"]}
    losses = {seed: dev_loss(out / f"seeds_{seed}") for seed in (5, 6, 7)}
    assert os.readlink(out / "winner") == f"seeds_{min(losses, key=lambda seed: losses[seed])}"
    cells = json.loads((out / "winner" / "grid.json").read_text())["cells"]
    assert [(cell["encoder"], cell["decoder"]) for cell in cells] == [(1, 2), (2, 2)]
    (page,) = (work for work in planned(path, out, None, small(tmp_path)) if isinstance(work, Report))
    shown = {name: tuple(work.run for work in works) for name, works in page.shown.items()}
    assert shown == {"plain": (out / "plain_1", out / "plain_2"), "winner": (out / "winner",)}

    code, printed, _ = cli("chain", path, "--out", out, "--list", *changes)
    assert code == 0
    assert [line.split(maxsplit=1)[0] for line in printed.splitlines()] == ["done"] * 10
    assert ["done", "train", "seeds_7"] in [line.split() for line in printed.splitlines()]
    code, _, said = cli("chain", path, "--out", out, *changes)
    assert (code, said) == (0, "")


SIDE_BY_SIDE = """
recipe = "tiny.toml"

[[stages]]
type = "train"
name = "first"
settings = ["training.steps=20"]

[[stages]]
type = "train"
name = "second"
settings = ["training.steps=2", "tokenizer.path=$first/tokenizer.json"]

[[stages]]
type = "train"
name = "broken"
settings = ["training.steps=2", "tokenizer.path=chain.toml"]

[[stages]]
type = "train"
name = "after"
settings = ["training.steps=2", "training.start_from=$broken"]

[[stages]]
type = "best"
name = "winner"
of = "second"
"""


def test_pieces_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    """The second begins when the first has its tokenizer; what fails takes along only what needs it."""
    monkeypatch.chdir(tmp_path)
    path, out = chain(tmp_path, SIDE_BY_SIDE), tmp_path / "out"
    code, _, said = cli("chain", path, "--out", out, "--jobs", 3)
    assert code == 2
    assert "broken, after failed: see " in said
    assert "not a tokenizer.json" in (out / "logs" / "broken.txt").read_text()
    assert states(path, out) == {
        "first": "done", "second": "done", "broken": "to do", "after": "to do", "winner": "done",
    }  # fmt: skip
    assert said.index("train second: begins") < said.index("train first: done")


def test_sigterm_ends_what_runs_side_by_side(tmp_path: Path) -> None:
    stages = '[[stages]]\ntype = "train"\nname = "long"\neach = [{ seed = [1, 2] }]\nsettings = ["seed=$seed"]\n'
    path, out = chain(tmp_path, f'recipe = "tiny.toml"\n{stages}'), tmp_path / "out"
    command = [sys.executable, "-m", "anydepth", "chain", str(path), "--out", str(out), "--jobs", "2"]
    command += ["--set", "training.steps=1000000", "--set", "training.log_every=1"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while len(list(out.glob("long_*/metrics.jsonl"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        process.terminate()
        _, said = process.communicate(timeout=60)
    assert "stopping long_1, long_2; the same command goes on from there" in said
    for seed in (1, 2):
        assert list((out / f"long_{seed}" / "checkpoints").glob("step-*"))
        log = (out / "logs" / f"long_{seed}.txt").read_text()
        assert f"train long_{seed}: interrupted; the same command goes on from there" in log
        assert "--resume" not in log  # which a chain does not have


def test_the_dev_loss_of_a_run_is_that_of_its_weights(tmp_path: Path) -> None:
    """The mean over the validated depths, at the best of the validations or of the averaged checkpoints."""
    lines = [
        {"step": 1, "kind": "train", "loss": 0.1},
        {"step": 1, "kind": "valid", "depth": "1-1", "loss": 5.0},
        {"step": 1, "kind": "valid", "depth": "2-2", "loss": 1.0},
        {"step": 2, "kind": "valid", "depth": "1-1", "loss": 3.0},
        {"step": 2, "kind": "valid", "depth": "2-2", "loss": 2.0},
        {"step": 2, "kind": "average", "depth": "1-1", "loss": 2.0},
        {"step": 2, "kind": "average", "depth": "2-2", "loss": 2.5},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert dev_loss(tmp_path) == 2.25
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines[:5]))
    assert dev_loss(tmp_path) == 2.5


def test_settings_of_the_command_hold_except_where_the_chain_computes_its_own(tmp_path: Path) -> None:
    path = chain(tmp_path)
    corpus = '[{type="parallel", source="a.source", target="a.target"}]'
    changes = ["training.steps=3", f"data.train={corpus}", "training.start_from=elsewhere"]
    found = configs(path, tmp_path / "out", settings=changes)
    assert {config.training.steps for config in found.values()} == {3}
    assert found["teacher"].training.start_from == "elsewhere"
    assert found["student"].training.start_from == str(tmp_path / "out/teacher")
    assert found["teacher"].data.train[0].target == "a.target"
    assert found["student"].data.train[0].target == str(tmp_path / "out/distilled.txt.gz")
    assert found["student"].data.train[0].source == "a.source"


def test_another_recipe_in_the_place_of_the_chains(tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text(recipe(tmp_path).read_text().replace("width = 16", "width = 32"))
    found = configs(chain(tmp_path), tmp_path / "out", recipe=other)
    assert {config.model.layer.width for config in found.values()} == {32}


def test_a_chain_after_another(tmp_path: Path) -> None:
    more = '[[stages]]\ntype = "train"\nname = "later"\nsettings = ["data.train.0.target=$distilled"]\n'
    chain(tmp_path)
    path = tmp_path / "more.toml"
    path.write_text(f'after = "chain.toml"\nrecipe = "tiny.toml"\n{more}')
    assert list(configs(path, tmp_path / "out")) == ["teacher", "student", "later"]
    path.write_text(f'after = "more.toml"\n{more}')
    with pytest.raises(UserError, match=r"more.toml: comes after itself"):
        planned(path, tmp_path / "out")


def test_the_chain_in_the_documentation_with_the_recipe_there(tmp_path: Path) -> None:
    def toml(page: str, beginning: str) -> str:
        text = (Path(__file__).parents[2] / "docs" / page).read_text()
        return beginning + text.partition(f"```toml\n{beginning}")[2].partition("```")[0]

    (tmp_path / "my.toml").write_text(toml("getting-started.md", "# my.toml\n"))
    (tmp_path / "chain.toml").write_text(toml("chains.md", "recipe = "))
    works = planned(tmp_path / "chain.toml", tmp_path / "out")
    assert [work.name for work in works if work.stage == "separate"] == [
        f"separate_{encoder}_{decoder}" for encoder in (1, 2, 6) for decoder in (1, 2)
    ]


def test_combinations_of_values(tmp_path: Path) -> None:
    each = 'each = [{ layers = [1, 2], drop = 0.25 }, { layers = 2, drop = "0" }]'
    settings = """settings = ["model.encoder.layers=$layers", 'model.decoder.depth={type="layerdrop", drop=$drop}']"""
    text = f'[[stages]]\ntype = "train"\nname = "a"\nrecipe = "tiny.toml"\n{each}\n{settings}\n'
    found = configs(chain(tmp_path, text), tmp_path / "out")
    assert {name: (c.model.encoder.layers, c.model.decoder.depth.drop) for name, c in found.items()} == {
        "a_1_0_25": (1, 0.25),
        "a_2_0_25": (2, 0.25),
        "a_2_0": (2, 0.0),
    }


def test_a_part_of_a_chain_needs_what_comes_before_it(tmp_path: Path) -> None:
    path, out = chain(tmp_path), tmp_path / "out"
    with pytest.raises(UserError, match=r"--only: student needs teacher, which is to do: name it as well"):
        run_chain(path, out, only=["student"], quiet=True)
    with pytest.raises(UserError, match=r"--only studnet: no such stage; there are teacher, distilled, student"):
        run_chain(path, out, only=["studnet"], quiet=True)
    assert not out.exists()
    assert list(run_chain(path, out, only=["teacher"], quiet=True)) == ["teacher"]
    assert list(run_chain(path, out, only=["distilled"], quiet=True)) == ["distilled"]
    assert states(path, out) == {"teacher": "done", "distilled": "done", "student": "to do"}


def test_runs_with_other_settings_do_not_pass_for_those_of_the_chain(tmp_path: Path) -> None:
    path, out = chain(tmp_path), tmp_path / "out"
    run_chain(path, out, settings=["training.steps=2"], only=["teacher"], quiet=True)
    assert states(path, out)["teacher"] == "made otherwise"
    with pytest.raises(
        UserError, match=r"teacher was made with other settings: training.steps was 2, now 6; remove it"
    ):
        run_chain(path, out, quiet=True)
    run_chain(path, out, settings=["training.steps=2", "training.device=auto"], only=["teacher"], quiet=True)


def test_new_weights_are_scored_again(tmp_path: Path) -> None:
    path, out = chain(tmp_path, TABLE), tmp_path / "out"
    stages = ["plain_1", "scores_plain_1"]
    run_chain(path, out, settings=small(tmp_path), only=stages, quiet=True)
    assert states(path, out, settings=small(tmp_path))["scores_plain_1"] == "done"
    weights = out / "plain_1" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert states(path, out, settings=small(tmp_path))["scores_plain_1"] == "to do"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (('name = "student"', 'name = "teacher"'), "two stages have the name teacher"),
        (('teacher = "teacher"', 'teacher = "nobody"'), "distilled: teacher: there is no training 'nobody' before"),
        (("=$distilled", "=$distiled"), "no stage 'distiled' before it, only teacher, distilled"),
        (('recipe = "tiny.toml"', 'recipe = "other.toml"'), "teacher: .*other.toml: no such file"),
        (('recipe = "tiny.toml"', ""), "teacher: recipe: missing"),
        (('name = "student"', 'name = "tied-multi"'), "tied-multi: a name must be letters"),
        (("=$distilled", "=$5"), "must begin the name of a stage"),
        (("beam = 2", "beam = 0"), r"stages.1.beam: must be at least 1"),
        (("beam = 2", 'source = "nowhere.source"'), "distilled: nowhere.source: no such file"),
        (("beam = 2", "beem = 2"), "stages.1.beem: no such setting, did you mean"),
        (("beam = 2", 'depth = "9-9"'), "distilled: depth: teacher has 2-2, not 9-9"),
        (("training.steps=6", "model.layer.width=32"), "student: cannot start from teacher: .* not the same in both"),
        (('data.train.0.target=$distilled', "data.train.0.source=gone"), "student: gone: no such file"),
        (("training.steps=6", "training.stepz=6"), "teacher: --set training.stepz: no such setting"),
        (("training.steps=6", "training.validate_depths=['2-1']"), "teacher: training.validate_depths: depth 2-1"),
    ],
)  # fmt: skip
def test_mistakes_are_found_before_the_first_stage(tmp_path: Path, change: tuple[str, str], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        run_chain(chain(tmp_path, CHAIN.replace(*change)), tmp_path / "out", quiet=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (('of = "seeds"', 'of = "scores"'), "winner: of: there is no training 'scores' before this stage"),
        (('of = ["plain", "winner"]\nencoder', 'of = ["winner"]\nencoder'), "page: plain_1 is not evaluated"),
        (("encoder = [1, 2]\n", "encoder = [3]\n"), "scores: plain_1 has none of these depths, only 1-2"),
        (("{ layers = [1, 2] }", "{ layers = [1, 1] }"), "two stages have the name plain_1"),
        (("{ layers = [1, 2] }", "{ layers = 1 }, { depth = 2 }"), "stages.0.each: all its tables need the same names"),
        (("{ layers = [1, 2] }", "{ layers = [true] }"), "stages.0.each: expected a list of tables"),
        (('type = "best"\nname = "winner"\nof = "seeds"', 'type = "distill"\nname = "winner"\nteacher = "seeds"'),
         "winner: teacher: seeds has 3 runs; expected one"),
    ],
)  # fmt: skip
def test_mistakes_in_a_table(tmp_path: Path, change: tuple[str, str], complaint: str) -> None:
    assert change[0] in TABLE
    with pytest.raises(UserError, match=complaint):
        run_chain(chain(tmp_path, TABLE.replace(*change)), tmp_path / "out", settings=small(tmp_path), quiet=True)
    assert not (tmp_path / "out").exists()


APART = """
[[stages]]
type = "evaluate"
name = "fitted"
of = ["plain"]
on = "train"
sentences = 3
settings = ['decoding.length_penalty=0.5']

[[stages]]
type = "report"
name = "fits"
of = ["fitted", "winner"]

[[stages]]
type = "report"
name = "trainings"
curves = ["seeds"]
"""


def test_other_evaluations_have_folders_of_their_own(tmp_path: Path) -> None:
    """Three sentences of the first training corpus, decoded in another way, beside the run's own scores."""
    one_corpus = f'data.train=[{{type="parallel", source="{tmp_path}/train.source", target="{tmp_path}/train.target"}}]'
    settings, out = [*small(tmp_path), one_corpus], tmp_path / "out"
    path = chain(tmp_path, TABLE + APART)
    run_chain(path, out, settings=settings, quiet=True)
    grid = json.loads((out / "fitted_plain_2/grid.json").read_text())
    assert (grid["sentences"], grid["on"], grid["changes"]) == (3, "train", ["decoding.length_penalty=0.5"])
    assert (out / "fitted_plain_2/outputs/source.txt").read_text() == "".join(
        (tmp_path / "train.source").read_text().splitlines(keepends=True)[:3]
    )
    assert json.loads((out / "plain_2/grid.json").read_text())["sentences"] == 20
    assert "length_penalty = 0.5" in (out / "fitted_plain_2/config.toml").read_text()
    assert "fitted" in (out / "fits.html").read_text()
    trainings = (out / "trainings.html").read_text()
    assert all(f"seeds_{seed}" in trainings for seed in (5, 6, 7))
    assert 'id="training"' in trainings
    assert set(states(path, out, settings=settings).values()) == {"done"}
    changed = chain(tmp_path, TABLE + APART.replace("sentences = 3", "sentences = 4"))
    assert states(changed, out, settings=settings)["fitted_plain_2"] == "interrupted"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (('of = ["fitted", "winner"]', 'of = ["fited"]'), "fits: of, curves: there is no training 'fited' before"),
        (("length_penalty=0.5", "length=0.5"), "fitted: --set decoding.length: no such setting"),
        (('on = "train"', 'on = "training"'), "on: expected one of"),
        (('name = "fitted"', 'name = "seeds"'), "two stages have the name seeds"),
        (('curves = ["seeds"]', ""), "of, curves: expected at least one stage to show"),
        (('curves = ["seeds"]', 'curves = ["seed"]'), "trainings: of, curves: there is no training 'seed' before"),
    ],
)
def test_mistakes_in_other_evaluations(tmp_path: Path, change: tuple[str, str], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        planned(chain(tmp_path, TABLE + APART.replace(*change)), tmp_path / "out", settings=small(tmp_path))


def test_a_training_that_diverges_is_a_result(tmp_path: Path, cli: Cli) -> None:
    """The others go on; it has no score, is never the best, and the page says what became of it."""
    text = TABLE.replace("each = [{ seed = [5, 6, 7] }]", "each = [{ rate = [1e-2, 1e12] }]")
    text = text.replace('"seed=$seed"', '"training.optimizer.learning_rate=$rate", "training.optimizer.warmup=0"')
    text = text.replace('of = ["plain", "winner"]\nencoder', 'of = ["plain", "winner", "seeds"]\nencoder')
    text = text.replace('of = ["plain", "winner"]', 'of = ["plain", "seeds"]')
    path, out = chain(tmp_path, text), tmp_path / "out"
    changes = [*small(tmp_path), "training.steps=6"]
    code, _, said = cli("chain", path, "--out", out, *(part for change in changes for part in ("--set", change)))
    assert code == 0, said
    assert "4/11 train seeds_1000000000000_0: diverged in" in said
    found = states(path, out, settings=changes)
    lost = ("seeds_1000000000000_0", "scores_seeds_1000000000000_0")
    assert {name for name, state in found.items() if state == "diverged"} == set(lost)
    assert {state for name, state in found.items() if name not in lost} == {"done"}
    assert os.readlink(out / "winner") == "seeds_0_01"
    page = (out / "page.html").read_text()
    assert "seeds_1000000000000_0: training diverged at step" in page

    all_lost = chain(tmp_path, text.replace("1e-2, 1e12", "1e11, 1e12"))
    run_chain(all_lost, tmp_path / "lost", settings=changes, quiet=True)
    assert states(all_lost, tmp_path / "lost", settings=changes)["scores_winner"] == "diverged"


def test_without_a_test_set_there_is_nothing_to_score(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"scores: plain_1 has no data.test to be scored on"):
        planned(chain(tmp_path, TABLE), tmp_path / "out")


def test_long_work_is_told_of_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anydepth.progress.LOG_SECONDS", 0.0)
    for visible in (True, False):
        with progress_for("distilled", "sentences", visible) as show:
            show(0, 10)
            show(4, 10)
    assert capsys.readouterr().err == "distilled: 0 of 10 sentences\ndistilled: 4 of 10 sentences\n"
