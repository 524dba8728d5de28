"""The recipes of depth-adaptive Transformers, at a tiny size: all of them are read, and all kinds are run."""

import gzip
import json
import random
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from conftest import Cli
from safetensors.torch import save_file
from tiny_training import shrunk

from anydepth.chain.planning import planned
from anydepth.chain.work import Evaluation, Report, Training
from anydepth.config import load

RECIPES = Path(__file__).parents[2] / "recipes" / "depth-adaptive"
CHAINS = [path for path in sorted(RECIPES.glob("*.toml")) if "stages" in tomllib.loads(path.read_text())]
PLAIN = [path for path in sorted(RECIPES.glob("*.toml")) if path not in CHAINS]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "a", "no", "who", "##s", "."]
WIDTH, FFN, LAYERS = 12, 16, 6
TINY = [
    f"model.layer.width={WIDTH}", f"model.layer.ffn={FFN}", "model.layer.heads=2", f"model.encoder.layers={LAYERS}",
    "training.steps=2", "training.validate_every=2", "training.save_every=2", "training.device=cpu",
    "training.optimizer.warmup=1", "data.workers=1", "batching.tokens=512",
]  # fmt: skip
CONTENTS = {
    "amazon16": 53,
    "figure3": 72,
    "imdb-rates": 23,
    "imdb-table": 29,
    "layer-weights": 3,
    "table4": 6,
    "trec-table": 16,
}
"""Trainings of each chain."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the recipes name: a few texts, and a BERT of a few thousand weights."""
    folder, draw = tmp_path_factory.mktemp("place"), random.Random(1)
    domains = tomllib.loads((RECIPES / "amazon16.toml").read_text())["stages"][-3]["each"][0]["domain"]
    corpora = ["imdb", "trec6", "mr", "subj", *(f"amazon16/{name}" for name in domains)]
    for corpus in corpora:
        (folder / "data/cls" / corpus).mkdir(parents=True)
        for split, size in (("train", 40), ("test", 10)):
            rows = [("pos", "good") if n % 2 else ("neg", "bad") for n in range(size)]
            lines = [f"{label}\t{' '.join(draw.choices(['a', 'film', 'whos', word], k=5))} .\n" for label, word in rows]
            with gzip.open(folder / "data/cls" / corpus / f"{split}.tsv.gz", "wt") as file:
                file.writelines(lines)
    write_bert(folder / "models/minilm")
    return folder


def write_bert(folder: Path) -> None:
    folder.mkdir(parents=True)
    settings = {
        "model_type": "bert", "hidden_size": WIDTH, "intermediate_size": FFN, "num_attention_heads": 2,
        "num_hidden_layers": 1, "hidden_act": "gelu", "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))
    shapes = {
        "embeddings.word_embeddings.weight": (len(WORDS), WIDTH),
        "embeddings.position_embeddings.weight": (512, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
    }
    layer = {
        "attention.self.query": (WIDTH, WIDTH), "attention.self.key": (WIDTH, WIDTH),
        "attention.self.value": (WIDTH, WIDTH), "attention.output.dense": (WIDTH, WIDTH),
        "intermediate.dense": (FFN, WIDTH), "output.dense": (WIDTH, FFN),
        "attention.output.LayerNorm": (WIDTH,), "output.LayerNorm": (WIDTH,),
    }  # fmt: skip
    for name, shape in {
        "embeddings.LayerNorm": (WIDTH,),
        **{f"encoder.layer.0.{k}": v for k, v in layer.items()},
    }.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    save_file({name: 0.1 * torch.randn(shape) for name, shape in shapes.items()}, folder / "model.safetensors")


def changes(*settings: str) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


@pytest.mark.parametrize("path", CHAINS, ids=lambda path: path.stem)
def test_a_chain_has_all_its_rows(path: Path) -> None:
    works = planned(path, Path("runs/here"))
    runs = {work.name for work in works if isinstance(work, Training)}
    assert len(runs) == CONTENTS[path.stem]
    assert {work.needs[0] for work in works if isinstance(work, Evaluation)} == runs - {"mlm"}


def test_table_2_has_means_over_the_domains(tmp_path: Path) -> None:
    page = planned(RECIPES / "amazon16.toml", tmp_path)[-1]
    assert isinstance(page, Report)
    methods = {name: len(runs) for name, runs in page.means.items()}
    assert methods == dict.fromkeys(("plain", "halting", "information", "reconstruction"), 13)


def test_the_recipes_are_about_what_they_say() -> None:
    for path in PLAIN:
        config = load(path)
        layers, depth = config.model.encoder.layers, config.model.encoder.depth
        if path.stem != "builtin":
            assert (layers, config.model.layer.width) == (12, 384)
            assert depth.type == ("prefix" if path.stem.endswith("mlm") else "per-word")
    scratch = load(RECIPES / "imdb-scratch.toml")
    assert (scratch.training.start_from, scratch.model.layer.norm) == ("", "pre")


@pytest.mark.parametrize("path", PLAIN, ids=lambda path: path.stem)
def test_a_recipe_trains(path: Path, place: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    settings = list(TINY)
    if path.stem in ("builtin", "imdb-scratch"):
        settings += ["tokenizer.vocabulary=400", "batching.tokens=2048"]
    if path.stem == "builtin":
        settings += [f'data.{split}=[{{type="builtin-labelled", size=20}}]' for split in ("train", "dev", "test")]
    code, _, err = cli("train", path, "--out", tmp_path / "run", *changes(*settings))
    assert code == 0, err
    assert (tmp_path / "run" / "depths.tsv").exists() == (load(path).model.encoder.depth.type == "per-word")


@pytest.mark.parametrize(
    ("name", "only"),
    [
        ("imdb-table", ""),
        (
            "imdb-rates",
            "mlm,plain_0_0001,plain_6_0_0001,exits_6_0_0001,reconstruction_after,exits_6_after_labels,exit_once_4_deepest",
        ),
        ("table4", "mlm,penalty_0_0,penalty_0_2"),
        ("figure3", "plain_1_1,information_2_1,halting_2_1"),
        ("amazon16", "mlm,plain_apparel,halting_apparel,information_baby,reconstruction_baby"),
        ("layer-weights", ""),
    ],
)
def test_a_chain_runs(
    name: str, only: str, place: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    settings = [*TINY, "tokenizer.vocabulary=400", "batching.tokens=2048"] if name == "figure3" else TINY
    limited = ("--only", only) if only else ()
    code, _, err = cli("chain", RECIPES / f"{name}.toml", "--out", tmp_path, *limited, *changes(*settings))
    assert code == 0, err
    if name == "imdb-table":
        page = (tmp_path / "imdb_table.html").read_text()
        rows = ("plain_6", "constant_4", "joint_keep", "information_6", "reconstruction_refresh")
        rows += ("halting_correctness_likeliest_0_01", "halting_likelihood_expected_0_1")
        assert all(row in page for row in rows)
        assert "patience 2" in page
        assert "How deep words are read" in page
        assert list((tmp_path / "mlm" / "losses").iterdir())


def test_cross_validation_with_several_seeds(
    place: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    command = ("repeat", RECIPES / "mr.toml", "--folds", 3, "--seeds", "1,2", "--out", tmp_path, *changes(*TINY))
    code, out, err = cli(*command)
    assert code == 0, err
    runs = sorted(path.name for path in tmp_path.iterdir() if (path / "grid.json").exists())
    assert runs == [f"fold_{fold}_seed_{seed}" for fold in range(3) for seed in (1, 2)]
    grids = [json.loads((tmp_path / run / "grid.json").read_text()) for run in runs]
    assert sum(grid["sentences"] for grid in grids[::2]) == 50  # all texts of both files, each once
    seen = [load(tmp_path / run / "config.toml").data for run in runs]
    assert all(set(data.train[0].parts).isdisjoint(data.test[0].parts + data.dev[0].parts) for data in seen)
    assert all(set(data.dev[0].parts).isdisjoint(data.test[0].parts) for data in seen)
    mean = sum(grid["cells"][0]["accuracy"] * grid["sentences"] for grid in grids) / 100
    assert f"{mean:.2f} ±" in out
    assert "of 50 texts" in out
    assert f"{mean:.2f} ±" in (tmp_path / "report.html").read_text()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("model.safetensors")}
    assert cli(*command)[0] == 0  # nothing is left to do
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("model.safetensors")}


def test_batch_sizes_are_swept(tmp_path: Path) -> None:
    """Fig. 4, in small."""
    written, picture = tmp_path / "speeds.json", tmp_path / "speeds.svg"
    command = (sys.executable, RECIPES.parents[1] / "benchmarks" / "perword.py", "--tiny", "--threads", "1")
    subprocess.run([*command, "--batches", "1", "3", "--json", written, "--picture", picture], check=True)
    swept = json.loads(written.read_text())
    assert [one["batch"] for one in swept] == [1, 3]
    assert all({"plain, packed", "per-word, refresh", "per-word, keep"} <= one["milliseconds"].keys() for one in swept)
    assert "texts a second" in picture.read_text()


def test_words_in_colour(place: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    cli("train", RECIPES / "imdb.toml", "--out", tmp_path / "run", *changes(*TINY))
    (tmp_path / "in.txt").write_text("a good film .\n")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    code, out, err = cli("classify", tmp_path / "run", tmp_path / "in.txt", "--show")
    assert code == 0, err
    assert "48;2;255;247;188" in out  # the colour of one layer
    assert "good" in out


def test_other_models_are_repeated_too(tmp_path: Path, cli: Cli) -> None:
    settings = [
        *shrunk(tmp_path),
        "training.steps=2",
        "decoding.beam=1",
        "decoding.max_ratio=0",
        "decoding.max_extra=2",
    ]
    settings += ["model.encoder.layers=1", "model.decoder.layers=1"]
    recipe = RECIPES.parent / "baselines" / "multi30k-en-de.toml"
    code, _, err = cli("repeat", recipe, "--seeds", "1,2", "--out", tmp_path / "out", *changes(*settings))
    assert code == 0, err
    assert "seed_2" in (tmp_path / "out" / "report.html").read_text()
    code, _, err = cli("repeat", recipe, "--folds", 3, "--out", tmp_path / "folds", *changes(*settings))
    assert (code, "--folds: cuts labelled files" in err) == (2, True)
    code, _, err = cli("repeat", recipe, "--folds", -1, "--out", tmp_path / "folds", *changes(*settings))
    assert (code, "'--folds': Input should be greater" in err) == (2, True)
    code, _, err = cli("repeat", recipe, "--folds", 2, "--out", tmp_path / "folds", *changes(*settings))
    assert code == 2
    assert "--folds 2: too few parts to train, validate and test on; expected 3 or more" in err
