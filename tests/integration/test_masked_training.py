"""Masked language models from text to a report, through interruptions and through the command line."""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Cli
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny_training import NUMBERS, Crash, crash, metrics, outcome, when

from anydepth.chain.planning import planned
from anydepth.config import Config, load, loads
from anydepth.data.store import Store
from anydepth.describe import describe
from anydepth.errors import UserError
from anydepth.run import load as load_run
from anydepth.tasks import MaskedText
from anydepth.training.loop import train
from anydepth.training.validation import held_out_batches, held_out_loss

RECIPES = Path(__file__).parents[2] / "recipes" / "latent-depth"
RECIPE = """
seed = 3
[data]
train = [
    { type = "text", path = "FOLDER/train.a", key = "a" },
    { type = "text", path = "FOLDER/train.b", key = "b", column = 1 },
]
dev = [
    { type = "text", path = "FOLDER/dev.a", key = "a" },
    { type = "text", path = "FOLDER/dev.b", key = "b", column = 1 },
]
test = [{ type = "text", path = "FOLDER/dev.a", key = "a" }]
temperature = 2.0
workers = 1
max_length = 63
[tokenizer]
vocabulary = 360
[batching]
tokens = 256
window = 40
[model]
type = "masked-lm"
max_positions = 64
layer = { width = 16, ffn = 32, heads = 2, dropout = 0.1, attention_dropout = 0.1 }
encoder = { layers = 2, depth = { type = "prefix" } }
[training]
steps = 12
accumulate = 2
device = "cpu"
log_every = 1
save_every = 3
average = 2
validate_every = 5
label_smoothing = 0.0
optimizer = { learning_rate = 1e-2, warmup = 4, clip = 1.0 }
"""
EXITS = ("training.objective={type='exit-grid'}", "batching.layout=packed")
LATENT = (
    "model.encoder.depth={type='latent', per='pair', anneal='linear', anneal_steps=8}",
    "training.objective={type='latent', kl_scale='step', encoder_layers=1}",
    "training.depth_optimizer={learning_rate=0.1, warmup=0}",
    "training.inner_steps=2",
    "data.mixing=turns",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Counting up, in two languages: what is hidden follows from its neighbours."""
    folder, draw = tmp_path_factory.mktemp("texts"), random.Random(1)
    for name, size in (("train", 100), ("dev", 30)):
        for key in "ab":
            starts = [draw.randint(0, 5) for _ in range(size)]
            lines = [" ".join(NUMBERS[start : start + draw.randint(3, 5)]) for start in starts]
            lines = lines if key == "a" else [f"{n}\t{line.upper()}" for n, line in enumerate(lines)]
            (folder / f"{name}.{key}").write_text("".join(f"{line}\n" for line in lines))
    (folder / "tiny.toml").write_text(RECIPE.replace("FOLDER", str(folder)))
    return folder


def config(folder: Path, *changes: str) -> Config:
    return load(folder / "tiny.toml", changes)


@pytest.mark.parametrize("changes", [EXITS, LATENT], ids=["exits", "latent"])
def test_a_resume_ends_with_the_same_bits(folder: Path, tmp_path: Path, changes: tuple[str, ...]) -> None:
    torch.set_num_threads(1)
    finished = train(config(folder, *changes), tmp_path / "finished", quiet=True)
    for step, kind in ((4, "train"), (10, "train")):
        run = tmp_path / f"{step}"
        with when(step, kind, crash), pytest.raises(Crash):
            train(config(folder, *changes), run, quiet=True)
        train(config(folder, *changes), run, resume=True, quiet=True)
        assert outcome(run) == outcome(finished)


def test_languages_computed_as_one_give_the_same_weights(folder: Path, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    same = (*LATENT, "batching.layout=packed", "model.layer.dropout=0.0", "model.layer.attention_dropout=0.0")
    settings = [config(folder, *same, f"training.at_once={number}") for number in (1, 2)]
    runs = [train(chosen, tmp_path / str(number), quiet=True) for number, chosen in enumerate(settings)]
    one_by_one, as_one = (load_file(run / "model.safetensors") for run in runs)
    for name, weight in one_by_one.items():
        if not name.endswith("kv.bias"):  # that of keys has no gradient: Adam makes steps of its rounding
            assert torch.allclose(weight, as_one[name], atol=1e-4), name


@pytest.fixture(scope="module")
def trained(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    longer = ("training.steps=300", "training.validate_every=300", "training.save_every=300", "training.keep=1")
    depths = (
        "training.validate_depths=['1', '2']",
        "training.average=1",
        "training.accumulate=1",
        "training.optimizer.schedule=linear",
    )
    settings = config(folder, EXITS[0], *longer, *depths, "model.masking.share=0.3", "training.log_every=25")
    return train(settings, tmp_path_factory.mktemp("runs") / "run", quiet=True)


def test_validation_is_the_perplexity_of_hidden_words_at_every_depth(trained: Path) -> None:
    lines = [line for line in metrics(trained) if line["kind"] == "valid"]
    assert [(line["language"], line["depth"]) for line in lines] == [("a", "1"), ("a", "2"), ("b", "1"), ("b", "2")]
    for line in lines:
        assert line["perplexity"] == pytest.approx(math.exp(line["loss"]))
        assert line["perplexity"] < 8  # guessing among the numbers of one language gives 10, among all words 300
        assert "bleu" not in line


def test_evaluate_describe_export_and_report(trained: Path, folder: Path, tmp_path: Path, cli: Cli) -> None:
    code, out, err = cli("evaluate", trained, "--language", "a")
    assert (code, err) == (0, "")
    grid = json.loads((trained / "grid.json").read_text())
    assert [(cell["encoder"], "decoder" in cell) for cell in grid["cells"]] == [(1, False), (2, False)]
    assert f"{grid['cells'][1]['perplexity']:.3f}" in out
    valid = {line["depth"]: line for line in metrics(trained) if line["kind"] == "valid" and line["language"] == "a"}
    for cell in grid["cells"]:  # the test set is the dev set here
        assert cell["loss"] == pytest.approx(valid[str(cell["encoder"])]["loss"], rel=1e-9)
        assert cell["perplexity"] == pytest.approx(math.exp(cell["loss"]))
    assert "share:0.3|" in grid["signatures"]["perplexity"]
    assert f"{grid['cells'][0]['perplexity']:.3f}" in (trained / "report.html").read_text()

    code, out, _ = cli("describe", trained, "--json")
    assert code == 0
    plans = json.loads(out)["plans"]
    assert [(plan["name"], plan["encoder"], "decoder" in plan) for plan in plans] == [
        ("1", [1], False),
        ("2", [1, 2], False),
    ]

    small = tmp_path / "small"
    assert cli("export", trained, "--to", "anydepth", "--depth", "1", "--out", small)[0] == 0
    assert cli("evaluate", small, "--data", folder / "dev.a")[0] == 0
    odd = tmp_path / "odd"
    odd.write_bytes(b"one two three\n" * 20 + b"\xff\n")
    err = cli("evaluate", trained, "--data", odd, "--out", tmp_path / "twice")[2]
    assert f"skipped 1 lines: 1 invalid UTF-8 ({odd}:21)" in err
    assert "evaluated-before" not in err
    kept = (tmp_path / "twice" / "grid.json").read_bytes()
    again = ("evaluate", trained, "--data", folder / "dev.a", "--out", tmp_path / "twice")
    assert cli(*again, "--depths", "9")[0] == 2
    assert (tmp_path / "twice" / "grid.json").read_bytes() == kept
    assert "evaluated-before" in cli(*again)[2]
    assert (tmp_path / "twice" / "evaluated-before" / "grid.json").read_bytes() == kept
    alone = json.loads((small / "grid.json").read_text())
    assert [cell["loss"] for cell in alone["cells"]] == [grid["cells"][0]["loss"]]
    assert "the oracle chooses between translations" in cli("oracle", trained)[2]
    assert cli("report", trained, small, "--out", tmp_path / "both.html")[0] == 0
    assert "cannot be compared" not in (tmp_path / "both.html").read_text()


def test_depths_measured_before_are_kept(trained: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "measured"
    assert cli("evaluate", trained, "--depths", "2", "--language", "a", "--out", out)[0] == 0
    (first,) = json.loads((out / "grid.json").read_text())["cells"]
    assert cli("evaluate", trained, "--depths", "1", "--language", "a", "--out", out)[0] == 0
    assert json.loads((out / "grid.json").read_text())["cells"][1] == first


def test_several_test_sets_count_together(trained: Path, folder: Path, tmp_path: Path, cli: Cli) -> None:
    both = [f"{{type='text', path='{folder}/dev.{key}', key='{key}'}}" for key in "ab"]
    out = tmp_path / "both"
    code, _, err = cli("evaluate", trained, "--set", f"data.test=[{', '.join(both)}]", "--depths", "2", "--out", out)
    assert (code, err) == (0, "")
    grid = json.loads((out / "grid.json").read_text())
    (cell,) = grid["cells"]
    losses = {key: math.log(perplexity) for key, perplexity in cell["languages"].items()}
    assert losses.keys() == {"a", "b"}
    assert min(losses.values()) < cell["loss"] < max(losses.values())
    valid = [line for line in metrics(trained) if line["kind"] == "valid" and line["depth"] == "2"]
    assert losses["a"] == pytest.approx(valid[0]["loss"], rel=1e-9)

    code, _, _ = cli("report", trained, out, "--out", tmp_path / "page.html")  # of other text
    assert code == 0
    assert "cannot be compared" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("evaluate", "--source", "x", "--reference", "x"), "--source is for translation"),
        (("evaluate", "--depths", "2-1", "--language", "a"), "this model has no decoder; expected encoder layers"),
        (("evaluate", "--depths", "7", "--language", "a"), "depth 7: this run has encoder depths 1, 2"),
        (("evaluate", "--data", "nowhere.txt"), "nowhere.txt"),
        (("evaluate", "--language", "b"), "names no test set for b; give --data"),
        (("translate", "pyproject.toml"), "is a masked-lm: it does not translate"),
    ],
)
def test_what_a_masked_language_model_cannot_do_is_one_line(
    trained: Path, cli: Cli, arguments: tuple[str, ...], message: str
) -> None:
    verb, *rest = arguments
    code, _, err = cli(verb, trained, *rest)
    assert (code, err.count("\n")) == (2, 1)
    assert message in err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("data.train.0={type='builtin'}", "data.train.0.type: builtin, but masked-lm needs text or builtin-text"),
        ("data.tags=target", "data.tags: a masked-lm reads text without tags"),
        ("tokenizer.joint=false", "tokenizer.joint: text has one side"),
        ("model.decoder={layers=2}", "model.decoder: no such setting"),
        ("training.objective={type='exit-grid', together=2}", "no decoders that could run as one batch"),
        ("training.objective={type='multitask', decoder_depths=1}", "decoder_depths: this model has no decoder"),
        ("training.objective={type='latent'}", "latent needs a stack with latent depth"),
        ("model.masking.share=2.0", "model.masking.share: must be above 0 and below 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(folder: Path, change: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        config(folder, change)
    with pytest.raises(UserError, match="text, but translator needs parallel"):
        loads('[data]\ntrain = { type = "text", path = "x" }')


def test_only_hidden_words_go_through_the_head(trained: Path) -> None:
    run, rows = load_run(trained, "cpu"), list[int]()
    run.model.dense.register_forward_hook(lambda module, given, out: rows.append(len(given[0])))
    store = Store(next((trained / "data").glob("dev-*")))
    batches = held_out_batches(MaskedText(run.config, run.tokenizers), store)
    found = held_out_loss(run.model, batches, run.plan("1"), run.device)
    assert found.predictions <= sum(rows) < found.predictions + 8 * len(rows)
    assert sum(rows) < 0.4 * store.target_tokens


def test_gradients_and_the_words_read_are_counted(folder: Path, tmp_path: Path) -> None:
    changes = "training.log_gradients=true", "model.encoder.initialisation=depth-scaled", "training.steps=2"
    run = train(config(folder, *changes), tmp_path / "run", quiet=True)
    lines = metrics(run)
    assert {(line["stack"], len(line["norms"])) for line in lines if line["kind"] == "gradients"} == {("encoder", 2)}
    tokens = [line["tokens"] for line in lines if line["kind"] == "train"]
    assert 0 < tokens[0] < tokens[1]
    cost = describe(load(run / "config.toml"), run)["training"]
    assert (cost["target_tokens"], cost["bound"]) == (tokens[-1], False)


def test_a_chain_scores_all_languages_together_once(folder: Path, tmp_path: Path, cli: Cli) -> None:
    both = config(folder).data.dev
    test = ", ".join(f"{{ type='text', path='{corpus.path}', key='{corpus.key}' }}" for corpus in both)
    settings = ["training.steps=2", "training.average=1", f"data.test=[{test}]"]
    stages = f"""
recipe = "{folder}/tiny.toml"
[[stages]]
type = "train"
name = "model"
settings = {json.dumps(settings)}
[[stages]]
type = "evaluate"
name = "scores"
of = ["model"]
"""
    (tmp_path / "chain.toml").write_text(stages)
    assert cli("chain", tmp_path / "chain.toml", "--out", tmp_path / "out")[0] == 0
    grid = json.loads((tmp_path / "out" / "model" / "grid.json").read_text())
    assert [cell["languages"].keys() for cell in grid["cells"]] == [{"a", "b"}] * 2
    assert [work.state() for work in planned(tmp_path / "chain.toml", tmp_path / "out")] == ["done", "done"]


# ---- recipes


@pytest.mark.parametrize(("layers", "millions", "printed"), [(24, 201.86, 202), (48, 371.97, 372), (96, 712.18, 712)])
def test_sizes_are_those_of_the_paper(layers: int, millions: float, printed: int) -> None:
    latent = describe(load(RECIPES / f"mlm-{layers}.toml"))["parameters"]
    assert round(latent / 1e6) == printed
    plain = ("model.encoder.depth={type='full'}", "training.objective={type='single'}")
    counted = describe(load(RECIPES / f"mlm-{layers}.toml", plain))["parameters"]
    assert round(counted / 1e6, 2) == millions
    assert latent - counted == layers  # a logit for each


@pytest.fixture(scope="module")
def three_languages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in recipe, very small, with layers chosen for each language."""
    small = [
        f"data.{split}.{n}.size={size}" for split, size in (("train", 60), ("dev", 20), ("test", 20)) for n in range(3)
    ]
    small += ["training.steps=4", "model.layer.width=16", "model.layer.ffn=16", "batching.tokens=256"]
    small += ["training.optimizer.learning_rate=1e-2", "tokenizer.vocabulary=400"]
    run = train(load(RECIPES / "mlm-builtin.toml", small), tmp_path_factory.mktemp("runs") / "three", quiet=True)
    weights = load_file(run / "model.safetensors")
    rows = {"en": (1, 2, 4), "de": (2, 5), "fi": (4,)}
    for number, chosen in enumerate(rows.values()):
        weights[f"encoder_depth.logits.{number}"] = torch.tensor([1.0 if n in chosen else -1.0 for n in range(1, 7)])
    with safe_open(run / "model.safetensors", "pt") as opened:
        notes = opened.metadata()
    save_file(weights, run / "model.safetensors", notes)
    return run


def cells_of(folder: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads((folder / "grid.json").read_text())["cells"]
    return cells


def test_every_language_is_measured_with_its_own_layers(three_languages: Path, tmp_path: Path, cli: Cli) -> None:
    run = three_languages
    code, printed, err = cli("evaluate", run)
    assert (code, err.count("over-long (builtin")) == (0, 3), err  # a few of each language
    (cell,) = cells_of(run)
    assert (cell["encoder"], cell["layers"]) == (2, {"en": 3, "de": 2, "fi": 1})
    model = load_run(run, "cpu").model
    whole, layer = (sum(p.numel() for p in part.parameters()) for part in (model, model.encoder.layers[0]))
    assert cell["parameters"] == whole - 2 * layer  # nobody uses 3 and 6
    page = (run / "report.html").read_text()
    for language, perplexity in cell["languages"].items():
        alone = tmp_path / language
        assert cli("evaluate", run, "--language", language, "--out", alone)[0] == 0
        (own,) = cells_of(alone)
        assert (own["encoder"], own["perplexity"]) == (cell["layers"][language], perplexity)
        assert f"{language} {cell['layers'][language]} {perplexity:.3f}" in " ".join(printed.split())
        assert f'<th scope="row">{language}</th><td>{perplexity:.3f}</td>' in page
        small = tmp_path / f"small-{language}"
        assert cli("export", run, "--to", "anydepth", "--language", language, "--out", small)[0] == 0
        assert cli("evaluate", small)[0] == 0
        assert cells_of(small)[0]["loss"] == own["loss"]
        assert len(load_run(small, "cpu").model.encoder.layers) == own["encoder"]
    union = tmp_path / "union"
    assert cli("export", run, "--to", "anydepth", "--language", "all", "--out", union)[0] == 0
    assert cli("evaluate", union)[0] == 0
    assert cells_of(union)[0]["languages"] == cell["languages"]
    assert len(load_run(union, "cpu").model.encoder.layers) == 4
    # soft gates run every layer in every language
    soft = ("--set", "model.encoder.depth.inference=soft", "--out", tmp_path / "soft")
    assert cli("evaluate", run, *soft)[0] == 0
    (other,) = cells_of(tmp_path / "soft")
    assert (other["encoder"], "layers" in other) == (6, False)


def test_given_text_is_read_in_the_language_given(three_languages: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "text").write_text("on Monday at nine\nfive or six of them\n" * 8)
    arguments = ("evaluate", three_languages, "--data", tmp_path / "text", "--out", tmp_path / "here")
    layers = []
    for language in ("en", "de", "en"):
        assert cli(*arguments, "--language", language)[0] == 0
        layers += [cell["encoder"] for cell in cells_of(tmp_path / "here")]
    assert layers == [3, 2, 3]  # what was measured in another language is not taken for this one's
    code, _, err = cli(*arguments)
    assert (code, "say which (--language)" in err) == (2, True)
