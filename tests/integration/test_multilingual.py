"""Several languages in one network with latent depth, through the command line."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Cli
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import anydepth
from anydepth.chain.planning import planned
from anydepth.config import Config, load, loads
from anydepth.data.collate import Batch
from anydepth.errors import UserError
from anydepth.interop.extract import extract, extract_languages
from anydepth.models import Translator
from anydepth.plan import Plans
from anydepth.run import Run
from anydepth.training.journal import read_metrics
from anydepth.training.loop import train

RECIPE = """
seed = 2
[data]
max_length = 40
workers = 1
tags = "target"
mixing = "turns"
train = [
    { type = "builtin", source = "en", target = "de", size = 400, key = "en-de" },
    { type = "builtin", source = "en", target = "fr", size = 200, key = "en-fr" },
    { type = "builtin", source = "de", target = "fr", size = 300, key = "de-fr" },
]
dev = [
    { type = "builtin", source = "en", target = "de", size = 20, key = "en-de" },
    { type = "builtin", source = "de", target = "fr", size = 20, key = "de-fr" },
]
test = [
    { type = "builtin", source = "en", target = "de", size = 6, key = "en-de" },
    { type = "builtin", source = "en", target = "fr", size = 6, key = "en-fr" },
]
[tokenizer]
vocabulary = 500
[batching]
tokens = 256
[model.layer]
width = 16
ffn = 32
heads = 2
[model.encoder]
layers = 3
depth = { type = "latent", per = "source" }
[model.decoder]
layers = 4
depth = { type = "latent", per = "pair" }
[training]
steps = 6
accumulate = 3
device = "cpu"
log_every = 2
log_gradients = true
save_every = 6
validate_every = 3
validate_sentences = 2
objective = { type = "latent", kl_scale = "step", prior = "aggregated", decoder_layers = 2 }
depth_optimizer = { learning_rate = 0.3, warmup = 0 }
[decoding]
beam = 1
"""
CHAIN = """
recipe = "recipe.toml"
[[stages]]
type = "train"
name = "latent"
[[stages]]
type = "train"
name = "plain"
settings = [
    'model.encoder.depth={type="full"}', 'model.decoder.depth={type="full"}', 'training.objective={type="single"}',
]
[[stages]]
type = "evaluate"
name = "scores"
of = ["latent", "plain"]
[[stages]]
type = "report"
name = "table"
of = ["latent", "plain"]
"""
TWICE = "{ type = 'builtin', source = 'en', target = 'de', size = 6, key = 'en-de' }"
TEXTS = ["one", "two hundred and five", "May 23, 2024"]
CHOICES = {  # a layer is used where its logit is above 0
    "encoder_depth.logits.0": [1.0, -1.0, 1.0],
    "encoder_depth.logits.1": [0.05, -1.0, -1.0],
    "decoder_depth.logits.0": [1.0, -1.0, -1.0, 1.0],
    "decoder_depth.logits.1": [1.0, -1.0, -1.0, -1.0],
    "decoder_depth.logits.2": [-2.0, -1.0, -3.0, -0.05],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short training, and then logits as if it had been a long one."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("multilingual")
    train(loads(RECIPE), folder / "run", quiet=True)
    file = folder / "run" / "model.safetensors"
    weights = load_file(file)
    with_choices = {name: torch.tensor(CHOICES[name]) if name in CHOICES else w for name, w in weights.items()}
    with safe_open(file, "pt") as opened:
        notes = opened.metadata()
    save_file(with_choices, file, notes)
    return folder / "run"


def test_training_validates_every_language_and_takes_turns(run: Path) -> None:
    lines = read_metrics(run / "metrics.jsonl")
    assert {(line["step"], line["language"]) for line in lines if line["kind"] == "valid"} == {
        (step, key) for step in (3, 6) for key in ("en-de", "de-fr")
    }
    logits = [line["logits"] for line in lines if line["kind"] == "logits" and line["stack"] == "decoder"]
    assert logits[-1].keys() == {"en-de", "en-fr", "de-fr"}
    assert all(any(row) for row in logits[-1].values())  # an update has a batch of every language


@pytest.mark.parametrize(
    "settings",
    [  # the public code raises at the first step of the first two
        ("many-to-one", "de-en", "fr-en", "model.decoder.depth={type='latent', per='pair'}"),
        ("one-to-many", "en-de", "en-fr", "model.encoder.depth={type='latent', per='pair'}"),
        ("many-to-many", "en-de", "fr-en", "model.encoder.depth={type='latent', per='target'}"),
    ],
    ids=lambda settings: settings[0],
)
def test_any_direction_with_gates_on_either_side(settings: tuple[str, ...], tmp_path: Path) -> None:
    _, *keys, depth = settings
    corpora = [f"{{type='builtin', source='{key[:2]}', target='{key[3:]}', size=60, key='{key}'}}" for key in keys]
    side = depth.split(".")[1]
    plain = ("model.encoder.depth={type='full'}", "model.decoder.depth={type='full'}")
    loss = f"training.objective={{type='latent', {side}_layers=2}}"
    changes = (f"data.train=[{', '.join(corpora)}]", f"data.dev=[{corpora[0]}]", "data.test=[]", *plain, depth, loss)
    loaded = loads(RECIPE, [*changes, "training.steps=2", "training.validate_sentences=0", "training.accumulate=2"])
    train(loaded, tmp_path / "run", quiet=True)
    learnt = load_file(tmp_path / "run" / "checkpoints" / "step-00000002" / "model.safetensors")
    rows = [tensor for name, tensor in learnt.items() if "_depth." in name]
    assert len(rows) == 2
    assert all(bool(row.any()) for row in rows)


def test_each_language_runs_its_own_layers(run: Path) -> None:
    loaded = anydepth.load(run, "cpu")
    plans = loaded.in_language("en-de").plan()
    assert (plans.encoder.layers, plans.decoder.layers) == ((0, 2), (0, 3))
    assert loaded.in_language("de-fr").plan().decoder.layers == (3,)  # the largest stays
    assert loaded.in_language("en-fr").depths() == ["2-1"]
    german, french = (tokens(loaded.in_language(key)) for key in ("en-de", "en-fr"))
    assert all(german + french)
    assert german != french
    assert loaded.translate(TEXTS, key="en-de") == loaded.in_language("en-de").translate(TEXTS)


def test_describe_shows_what_was_learnt(run: Path, cli: Cli) -> None:
    code, out, _ = cli("describe", run, "--json")
    assert code == 0
    description: dict[str, Any] = json.loads(out)
    plans = {plan["language"]: plan for plan in description["plans"]}
    assert plans["en-de"]["name"] == "2-2"
    assert (plans["en-de"]["encoder"], plans["en-de"]["decoder"]) == ([1, 3], [1, 4])
    assert (plans["de-fr"]["encoder"], plans["de-fr"]["decoder"]) == ([1], [4])
    encoder, decoder = description["latent"]["encoder"], description["latent"]["decoder"]
    assert decoder["effective_depth"] == pytest.approx(4 / 3)
    assert decoder["rows"]["de-fr"]["undecided"] == [4]
    assert encoder["rows"]["de"]["undecided"] == [1]
    assert encoder["rows"]["en"]["logits"] == [1.0, -1.0, 1.0]
    code, out, _ = cli("describe", run)
    assert code == 0
    text = " ".join(out.split())
    assert "en-de 2-2 1 3 1 4" in text
    assert "encoder: effective depth 1.5, undecided layers (|α| < 0.1): de 1" in text


def test_a_recipe_is_described_with_all_layers(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    code, out, _ = cli("describe", tmp_path / "recipe.toml", "--json")
    assert code == 0
    description = json.loads(out)
    assert {plan["name"] for plan in description["plans"]} == {"3-4"}
    assert "latent" not in description


@pytest.mark.parametrize("language", ["en-de", "en-fr", "de-fr"])
def test_the_model_of_one_language_translates_as_the_large_one(
    run: Path, tmp_path: Path, cli: Cli, language: str
) -> None:
    code, _, err = cli("export", run, "--to", "anydepth", "--language", language, "--out", tmp_path / "small")
    assert (code, err) == (0, "")
    large, small = anydepth.load(run, "cpu").in_language(language), anydepth.load(tmp_path / "small", "cpu")
    assert small.key == language
    assert len(small.model.encoder.layers) == len(large.plan().encoder)
    assert len(small.model.decoder.layers) == len(large.plan().decoder)
    assert exactly(small) == exactly(large)
    with pytest.raises(UserError, match="unknown to this run"):
        small.in_language("fi")


def tokens(run: Any) -> list[list[int]]:
    return [best.tokens for (best,) in run.translations(TEXTS, n_best=1)]


def exactly(run: Any) -> list[Any]:
    """Words and their log-probabilities to the last bit, found by beam search and given."""
    found = [(best.tokens, best.log_probability) for (best,) in run.translations(TEXTS, n_best=1, beam=3)]
    return [*found, *run.score(TEXTS, TEXTS)]


def test_the_model_of_all_languages_has_the_layers_of_any(run: Path, tmp_path: Path, cli: Cli) -> None:
    code, _, err = cli("export", run, "--to", "anydepth", "--language", "all", "--out", tmp_path / "union")
    assert (code, err) == (0, "")
    large, union = anydepth.load(run, "cpu"), anydepth.load(tmp_path / "union", "cpu")
    assert (len(union.model.encoder.layers), len(union.model.decoder.layers)) == (2, 2)
    for language in ("en-de", "en-fr", "de-fr"):
        assert union.in_language(language).plan().name == large.in_language(language).plan().name
        assert exactly(union.in_language(language)) == exactly(large.in_language(language))


def in_mode(run: Path, mode: str, language: str) -> Run:
    """The run with other gates at inference."""
    modes = [f"model.{stack}.depth.inference={mode}" for stack in ("encoder", "decoder")]
    return anydepth.load(run, "cpu", settings=modes).in_language(language)


@pytest.mark.parametrize(
    ("language", "encoder", "decoder"), [("en-de", (0, 2), (0, 3)), ("en-fr", (0, 2), (0,)), ("de-fr", (0,), (3,))]
)
def test_translating_computes_the_layers_of_the_language_and_no_others(
    run: Path, language: str, encoder: tuple[int, ...], decoder: tuple[int, ...]
) -> None:
    loaded, calls = anydepth.load(run, "cpu").in_language(language), Counter[tuple[str, int]]()
    model = loaded.searcher(loaded.config.decoding.precision).model
    for name in ("encoder", "decoder"):
        for number, layer in enumerate(getattr(model, name).layers):
            layer.register_forward_hook(lambda *_, which=(name, number): calls.update([which]))
    ((best,),) = loaded.translations(TEXTS[:1], n_best=1, beam=2, max_length=5, min_length=4)
    assert len(best.tokens) >= 4
    words = max(calls.values())
    assert words in (5, 6)  # perhaps the end
    once = {("encoder", layer): 1 for layer in encoder}
    assert calls == once | {("decoder", layer): words for layer in decoder}


@pytest.mark.parametrize("mode", ["hard", "soft", "sample"])
@pytest.mark.parametrize("beam", [1, 3])
def test_gates_of_a_sentence_do_not_depend_on_its_batch(run: Path, mode: str, beam: int) -> None:
    """Sampled ones are drawn for the sentence: alone, in a batch, in another order, in a second run."""
    texts = [*TEXTS, f"{TEXTS[0]} {TEXTS[-1]}"]
    loaded = in_mode(run, mode, "en-fr")
    together = loaded.translations(texts, n_best=1, beam=beam, batch=len(texts))
    alone = loaded.translations(texts, n_best=1, beam=beam, batch=1)
    again = in_mode(run, mode, "en-fr").translations(texts[::-1], n_best=1, beam=beam, batch=2)[::-1]
    for (first,), (second,), (third,) in zip(together, alone, again):
        assert first.tokens == second.tokens == third.tokens
        assert [second.log_probability, third.log_probability] == pytest.approx([first.log_probability] * 2, abs=1e-4)


@pytest.mark.parametrize("mode", ["soft", "sample"])
def test_other_modes_are_exported_too(run: Path, tmp_path: Path, mode: str) -> None:
    large = in_mode(run, mode, "en-fr")
    assert large.plan().name == "3-4"
    assert exactly(anydepth.load(extract(large, None, tmp_path / "one"), "cpu")) == exactly(large)
    both = anydepth.load(extract_languages(large, tmp_path / "all"), "cpu")
    assert exactly(both.in_language("en-fr")) == exactly(large)


def test_translate_and_evaluate_in_a_language(run: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "input.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    code, out, _ = cli("translate", run, tmp_path / "input.txt", "--language", "en-de", "--device", "cpu")
    assert code == 0
    assert out.splitlines() == anydepth.load(run, "cpu").in_language("en-de").translate(TEXTS)
    code, out, _ = cli("evaluate", run, "--language", "en-fr", "--device", "cpu")
    assert code == 0
    (cell,) = json.loads((run / "grid.json").read_text())["cells"]
    assert (cell["language"], cell["encoder"], cell["decoder"]) == ("en-fr", 2, 1)


def test_evaluate_in_all_languages(run: Path, cli: Cli) -> None:
    """Each has a grid of its own; the run's own has all of them and their mean."""
    code, out, _ = cli("evaluate", run, "--device", "cpu")
    assert code == 0
    assert out.split("─")[-1].split()[:2] == ["en-de", "2-2"]
    grid = json.loads((run / "grid.json").read_text())
    assert grid["languages"] == ["en-de", "en-fr"]
    assert [(cell["language"], cell["encoder"], cell["decoder"]) for cell in grid["cells"]] == [
        ("en-de", 2, 2),
        ("en-fr", 2, 1),
    ]
    assert grid["average"]["chrf"] == pytest.approx(sum(cell["chrf"] for cell in grid["cells"]) / 2)
    assert grid["average"]["decoder"] == 1.5
    for cell in grid["cells"]:
        folder = run / "languages" / cell["language"]
        alone = json.loads((folder / "grid.json").read_text())
        assert alone["cells"] == [{name: value for name, value in cell.items() if name != "language"}]
        assert len((folder / "outputs" / f"{cell['encoder']}-{cell['decoder']}.txt").read_text().splitlines()) == 6
        assert alone["parameters"] > cell["parameters"]  # of the run, and of the layers used
    page = (run / "report.html").read_text()
    for part in ("languages", "layers", "training", "gradients"):
        assert f'<section id="{part}">' in page
    # what was measured is not measured again; given files replace one language
    files = [run / "languages" / "en-fr" / "outputs" / f"{side}.txt" for side in ("source", "reference")]
    for number, file in enumerate(files):
        (run / f"{number}.txt").write_text("".join(file.read_text().splitlines(keepends=True)[:2]))
    given = ("--source", run / "0.txt", "--reference", run / "1.txt", "--language", "fr", "--device", "cpu")
    code, _, err = cli("evaluate", run, *given)
    assert (code, err) == (2, "anydepth: language 'fr': could be en-fr or de-fr\n")
    assert cli("evaluate", run, *given[:4], "--language", "en-fr", "--device", "cpu")[0] == 0
    again = json.loads((run / "grid.json").read_text())
    assert again["cells"][0] == grid["cells"][0]
    assert again["sentences"] == 6 + 2


def test_the_sentences_of_one_language_are_judged(run: Path, tmp_path: Path, cli: Cli) -> None:
    folder = Path(shutil.copytree(run, tmp_path / "run"))
    shutil.copytree(folder / "checkpoints" / "step-00000006", folder / "checkpoints" / "step-00000005")
    code, _, err = cli("difficulty", folder, "--device", "cpu")
    assert (code, err) == (2, f"anydepth: {folder}: its recipe names 2 test sets; give --language\n")
    assert cli("evaluate", folder, "--device", "cpu")[0] == 0
    code, _, err = cli("difficulty", folder, "--language", "en-fr", "--parts", 2, "--device", "cpu")
    assert code == 0, err
    judged, grid = (
        json.loads((folder / name).read_text()) for name in ("difficulty.json", "languages/en-fr/grid.json")
    )
    assert (judged["language"], judged["test_set"]) == ("en-fr", grid["test_set"])
    losses = [-total for total in anydepth.load(folder, "cpu", "6").score(*texts_of(folder, "en-fr"), key="en-fr")]
    assert judged["mean"] == pytest.approx(losses)
    part = (folder / "report.html").read_text().split('<section id="difficulty">')[1].split("</section>")[0]
    assert "The test set of en-fr in 2 equal parts" in part


def texts_of(run: Path, language: str) -> list[list[str]]:
    folder = run / "languages" / language / "outputs"
    return [(folder / f"{side}.txt").read_text().splitlines() for side in ("source", "reference")]


def test_a_chain_judges_one_language(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    stage = '[[stages]]\ntype = "difficulty"\nname = "parts"\nof = "latent"\n'
    for more, expected in (
        ("", "parts: language: missing, and latent has 2 test sets"),
        ('language = "de-fr"', "parts: latent has no data.test for de-fr to be judged"),
        ('language = "it"', "parts: language 'it': unknown to this run"),
    ):
        (tmp_path / "chain.toml").write_text(CHAIN + stage + more)
        with pytest.raises(UserError, match=expected):
            planned(tmp_path / "chain.toml", tmp_path / "out")
    (tmp_path / "chain.toml").write_text(CHAIN + stage + 'language = "en-de"')
    assert planned(tmp_path / "chain.toml", tmp_path / "out")[-1].language == "en-de"


def test_reports_of_runs_with_languages(run: Path, tmp_path: Path, cli: Cli) -> None:
    assert cli("evaluate", run, "--device", "cpu")[0] == 0
    change = "model.decoder.depth.inference=soft"
    assert cli("evaluate", run, "--device", "cpu", "--set", change, "--out", tmp_path / "soft")[0] == 0
    code, out, _ = cli("report", f"hard={run}", f"soft={tmp_path / 'soft'}", "--json", "--out", tmp_path / "both.html")
    assert code == 0
    rows = json.loads(out)["languages"]["rows"]
    assert [row["language"] for row in rows] == ["en-de", "en-fr", "mean"]
    assert (rows[2]["hard"]["decoder"], rows[2]["soft"]["decoder"]) == (1.5, 4)


def test_a_chain_scores_every_language(tmp_path: Path, cli: Cli) -> None:
    """Nobody knows before the training which depths there will be."""
    recipe = RECIPE.replace("steps = 6", "steps = 2").replace("validate_sentences = 2", "validate_sentences = 0")
    (tmp_path / "recipe.toml").write_text(recipe)
    (tmp_path / "chain.toml").write_text(CHAIN)
    assert cli("chain", tmp_path / "chain.toml", "--out", tmp_path / "out")[0] == 0
    code, out, _ = cli("chain", tmp_path / "chain.toml", "--out", tmp_path / "out", "--list")
    assert code == 0
    assert "to do" not in out
    assert "interrupted" not in out
    assert '<section id="languages">' in (tmp_path / "out" / "table.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("translate", "RUN", "FILE"), "say which language is meant (--language): this run knows en-de, en-fr"),
        (("translate", "RUN", "FILE", "--language", "fi"), "language 'fi': unknown to this run; it knows en-de, en-fr"),
        (("translate", "RUN", "FILE", "--language", "en"), "language 'en': could be en-de or en-fr"),
        (("evaluate", "RUN", "--language", "de-fr"), "its recipe names no test set for de-fr"),
        (
            ("evaluate", "RUN", "--set", f"data.test=[{TWICE}, {TWICE}]", "--out", "OUT"),
            "its recipe names 2 test sets for en-de; give --source and --reference",
        ),
        (("export", "RUN", "--to", "anydepth", "--out", "OUT"), "say which (--language)"),
        (
            ("export", "RUN", "--to", "anydepth", "--out", "OUT", "--language", "all", "--depth", "2-2"),
            "--depth: with --language all every language keeps its own",
        ),
    ],
)
def test_mistakes(run: Path, tmp_path: Path, cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    (tmp_path / "input.txt").write_text("one\n")
    places = {"RUN": run, "FILE": tmp_path / "input.txt", "OUT": tmp_path / "out"}
    code, _, err = cli(*(places.get(argument, argument) for argument in arguments))
    assert code == 2
    assert message in err
    assert not (tmp_path / "out").exists()


# ---- the recipes, at a size that takes a second

RECIPES = Path(__file__).parents[2] / "recipes" / "latent-depth"
TINY = (
    "data.max_length=40", "data.workers=1", "tokenizer.vocabulary=500", "batching.tokens=256", "model.layer.width=16",
    "model.layer.ffn=16", "model.encoder.layers=2", "model.decoder.layers=3", "training.steps=2",
    "training.validate_every=2", "training.validate_sentences=0", "training.device=cpu", "training.accumulate=2",
    "training.log_every=1",
)  # fmt: skip


def tiny_recipe(name: str, folder: Path, *changes: str) -> Config:
    """With two languages of the built-in corpus in place of its own."""
    one_way = {"wmt": "", "plain-wmt": "", "europarl-de-en": ""}
    languages = [("en", "de"), ("en", "fr")] if "one-to-many" in name else [("de", "en"), ("fr", "en")]
    corpora = [
        f"{{type='builtin', source='{s}', target='{t}', size=60, key='{one_way.get(name, f'{s}-{t}')}'}}"
        for s, t in languages
    ]
    data = [f"data.{split}=[{', '.join(corpora)}]" for split in ("train", "dev", "test")]
    sizes = (*TINY, "tokenizer.target_vocabulary=400") if "ted" in name else TINY
    sizes = sizes if "plain" in name else (*sizes, "training.objective.decoder_layers=2")
    return load(RECIPES / f"{name}.toml", [*data, *sizes, f"data.cache={folder}", *changes])


SINGLE = sorted(path.stem for path in RECIPES.glob("*.toml") if "[[stages]]" not in path.read_text())


@pytest.mark.parametrize("name", [name for name in SINGLE if not name.startswith("mlm")])
def test_recipes_train(name: str, tmp_path: Path) -> None:
    run = train(tiny_recipe(name, tmp_path / "cache"), tmp_path / "run", quiet=True)
    assert [line["step"] for line in read_metrics(run / "metrics.jsonl") if line["kind"] == "train"] == [1, 2]


@pytest.mark.parametrize(("norm", "samples"), [("pre", "hard"), ("none", "soft")])
def test_other_models_of_the_recipes(norm: str, samples: str, tmp_path: Path) -> None:
    """LL-both with the public code's loss. Without norms hard gates, twice as large, begin far from a good loss."""
    changes = (
        "model.encoder.depth={type='latent', per='source'}",
        "model.decoder.depth={type='latent', per='target', samples='SAMPLES', soft_steps=1}".replace(
            "SAMPLES", samples
        ),
        "training.objective={type='latent-fairseq', sparsity_weight=0.1, share_weight=0.1, target_layers=2}",
        f"model.layer.norm={norm}",
        "training.steps=6",
    )
    run = train(tiny_recipe("ted-one-to-many", tmp_path / "cache", *changes), tmp_path / "run", quiet=True)
    losses = [line for line in read_metrics(run / "metrics.jsonl") if line["kind"] == "train"]
    assert len(losses) == 6
    assert losses[-1]["loss"] != losses[-1]["nll"]


def test_batches_of_an_update_computed_as_one_give_the_same_weights(tmp_path: Path) -> None:
    """Each language keeps its gates, of both stacks; a pass over all replaces one over each."""
    torch.set_num_threads(1)
    changes = ("batching.layout=packed", "model.layer.dropout=0.0", "training.steps=3", "training.validate_every=0")
    ends, passes = [], []
    for at_once in (1, 3):
        seen: list[tuple[str, ...]] = []
        with pytest.MonkeyPatch.context() as patch:
            forward = Translator.forward

            def watched(model: Translator, batch: Batch, plans: Plans, seen=seen, forward=forward) -> torch.Tensor:  # type: ignore[no-untyped-def]
                if model.training:
                    seen.append(tuple(part.key for part in batch.parts) or (batch.key,))
                return forward(model, batch, plans)

            patch.setattr(Translator, "forward", watched)
            config = loads(RECIPE, [*changes, f"training.at_once={at_once}"])
            ends.append(load_file(train(config, tmp_path / str(at_once), quiet=True) / "model.safetensors"))
        passes.append(seen)
    assert passes == [[("en-de",), ("en-fr",), ("de-fr",)] * 3, [("en-de", "en-fr", "de-fr")] * 3]
    assert ends[0]["decoder_depth.logits.1"].abs().max() > 0.1
    for name, weight in ends[0].items():
        if not name.endswith("kv.bias"):  # that of keys has no gradient: Adam makes steps of its rounding
            assert torch.allclose(weight, ends[1][name], atol=2e-5), name


def test_gates_drawn_for_sentences_validate_packed_batches_too(tmp_path: Path) -> None:
    sampled = ("model.encoder.depth.inference=sample", "model.decoder.depth.inference=sample")
    config = loads(RECIPE, ["batching.layout=packed", "training.steps=1", *sampled])
    lines = read_metrics(train(config, tmp_path / "run", quiet=True) / "metrics.jsonl")
    assert [line["depth"] for line in lines if line["kind"] == "valid"] == ["3-4", "3-4"]


def test_batches_to_compute_at_once_must_share_out_the_update() -> None:
    with pytest.raises(UserError, match=r"training.*at_once: accumulate = 3 batches cannot be shared out by 2"):
        loads(RECIPE, ["training.at_once=2"])
