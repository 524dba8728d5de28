"""Every chain among the recipes does what its table needs, and runs from end to end, very small."""

import json
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest
import torch
from conftest import Cli
from tiny_training import shrunk

from anydepth.chain import list_chain
from anydepth.chain.planning import planned
from anydepth.chain.work import Distillation, Evaluation, Report, Training
from anydepth.config import Config
from anydepth.data.lines import read_lines
from anydepth.evaluation.cells import depth_name
from anydepth.models import Translator

RECIPES = Path(__file__).parents[2] / "recipes"
CHAINS = [
    path
    for path in sorted(RECIPES.glob("*/*.toml"))
    if "stages" in tomllib.loads(path.read_text()) and path.parent.name != "depth-adaptive"  # they have their own tests
]

CONTENTS = {
    "flexible-depth/chain": (2, 0),
    "flexible-depth/baseline": (3, 25),
    "flexible-depth/table1": (27, 24 + 2 * 24),
    "flexible-depth/table2": (53, 2 * (24 + 2 * 24)),
    "flexible-depth/table3": (7, 25 + 4 * 24),
    "flexible-depth/table4": (13, 9 + 6 + 4 + 24),
    "flexible-depth/table5": (11, 25 + 8 * 24),
    "flexible-depth/figure1": (11, 25 + 8 * 24),
    "flexible-depth/from-scratch": (4, 25 + 24),
    "flexible-depth/decisive": (12, 1 + 6 + 3 * 24 + 2 * 36),
    # what latent depth can be scored at is learnt
    "latent-depth/decisive": (19, 3),
    "latent-depth/figure4": (6, 0),
    "latent-depth/figure8": (2, 0),
    "latent-depth/mlm-table2": (13, 10),
    "latent-depth/table1": (16, 2 * 10),
    "latent-depth/table12": (16, 2 * 10),
    "latent-depth/table3": (12, 10),
    "latent-depth/table4": (13, 10),
    "latent-depth/table5": (15, 10),
    "latent-depth/table6": (17, 10),
    "latent-depth/table7": (16, 10),
    "latent-depth/table8": (16, 11),
    "latent-depth/table9": (18, 10),
    "multiscale/decisive": (40, 16 + 16),
    "multiscale/figure2": (7, 3 * 7),
    "multiscale/table2": (12, 12),
    "multiscale/table3": (14, 13),
    "multiscale/table5": (9, 8),
    "multiscale/table6": (4, 4),
    "tied-multi/choosing": (3, 36),
    "tied-multi/table1": (37, 36 + 36),
    "tied-multi/table3": (10, 4 * 36 + 2),
    "tied-multi/table4": (74, 36 + 36 + 36 + 36),
}
"""Trainings and scored depths of each chain: the sizes of the papers' tables."""
WITH_PAGE = (
    "flexible-depth/table4",
    "flexible-depth/decisive",
    "tied-multi/table3",
    "latent-depth/mlm-table2",
    "latent-depth/figure8",
)
"""Pages take seconds: these have separate models as one grid, grids of different shapes, a link to the best run,
perplexities and languages."""
SHARED = {
    "table1": "pair",
    "table12": "pair",
    "table3": "related",
    "table4": "one-to-many",
    "table7": "one-to-many",
    "table5": "many-to-one",
    "table6": "many-to-one",
    "table8": "many-to-one",
    "table9": "many-to-one",
}
"""The tables of latent depth that have stages in common, by the folder they share (README.md)."""


def name_of(chain: Path) -> str:
    return f"{chain.parent.name}/{chain.stem}"


def trainings(chain: Path) -> dict[str, Config]:
    works = planned(chain, Path("runs/here"))
    return {work.name: work.config for work in works if isinstance(work, Training)}


def chain(name: str) -> Path:
    return RECIPES / f"{name}.toml"


# ---- what they contain


@pytest.mark.parametrize("path", CHAINS, ids=name_of)
def test_a_chain_has_the_size_of_its_table(path: Path) -> None:
    works = planned(path, Path("runs/here"))
    scored = {run: depth for work in works if isinstance(work, Evaluation) for run, depth in [(work.left, work.depths)]}
    assert (sum(isinstance(work, Training) for work in works), sum(map(len, scored.values()))) == CONTENTS[
        name_of(path)
    ]


@pytest.mark.parametrize(
    "name", ["table1", "table2", "table3", "table4", "table5", "figure1", "from-scratch", "decisive"]
)
def test_the_strongest_plain_baseline_is_in_every_comparison(name: str) -> None:
    path = chain(f"flexible-depth/{name}")
    config = trainings(path)["separate_12_1"]
    assert (config.model.encoder.layers, config.model.decoder.layers) == (12, 1)
    assert config.data.train[0].target == "runs/here/distilled.txt.gz"
    *_, page = (work for work in planned(path, Path("runs/here")) if isinstance(work, Report))
    assert Path("runs/here/separate_12_1") in page.runs


def test_tables_differ_in_what_they_are_about() -> None:
    separate = trainings(chain("flexible-depth/table1"))
    for m in (1, 2, 3, 4, 6, 12):
        for n in (1, 2, 3, 6):
            model = separate[f"separate_{m}_{n}"].model
            assert (model.encoder.layers, model.decoder.layers, model.encoder.depth.type) == (m, n, "full")
    without = trainings(chain("flexible-depth/table2"))
    assert {config.data.train[0].target for name, config in without.items() if name.startswith("undistilled")} == {
        "data/europarl-de-en/train.en.gz"
    }
    strategies = trainings(chain("flexible-depth/table3"))
    found = {name: config.model.encoder.depth.strategy for name, config in strategies.items() if "strategy_" in name}
    assert set(found.values()) == {"head", "seq", "left", "middle-left"}
    assert strategies["flexible"].model.decoder.depth.strategy == "optimal"
    cheaper = [config for name, config in trainings(chain("flexible-depth/table5")).items() if "cheaper" in name]
    costs = [
        config.batching.tokens * config.training.objective.encoder_depths * config.training.objective.decoder_depths
        for config in cheaper
    ]
    assert Counter(cost / (8192 * 24) for cost in costs) == {0.5: 3, 0.25: 5}
    dropped = trainings(chain("flexible-depth/figure1"))
    assert dropped["layerdrop_0_35_24"].model.decoder.depth.drop == 0.35
    assert dropped["layerdrop_0_35_24"].training.accumulate == 24
    scratch = trainings(chain("flexible-depth/from-scratch"))
    assert (scratch["flexible"].training.start_from, scratch["from_scratch"].training.start_from) == (
        "runs/here/teacher",
        "",
    )
    tied = trainings(chain("tied-multi/table3"))
    assert {tied[f"teachers_{seed}"].seed for seed in range(1, 6)} == {1, 2, 3, 4, 5}
    assert tied["tied_recurrent_distilled"].model.encoder.layers == 1


def layers_of(config: Config) -> tuple[int, int]:
    return config.model.encoder.layers, config.model.decoder.layers


def test_tables_of_latent_depth_differ_in_what_they_are_about() -> None:
    pair = trainings(chain("latent-depth/table1"))
    both = [config for name, config in pair.items() if name.startswith("latent_both")]
    assert [layers_of(config) for config in both] == [(24, 24), (36, 36), (48, 48), (64, 64)]
    assert {config.model.encoder.depth.type for config in both} == {"latent"}
    assert [(config.model.encoder.mix, *layers_of(config)) for name, config in pair.items() if "dlcl" in name] == [
        ("dlcl", 36, 36),
        ("dlcl", 48, 48),
    ]
    for name, side, languages in (("table3", "target", 8), ("table4", "target", 6), ("table5", "source", 6)):
        table = trainings(chain(f"latent-depth/{name}"))
        assert {len(config.data.train) for config in table.values()} == {languages}
        assert {config.training.accumulate for config in table.values()} == {languages}
        drops = [config.model.decoder.depth.drop for run, config in table.items() if run.startswith("layerdrop")]
        assert drops == [0.1, 0.2, 0.5]
        assert (table["rezero"].model.layer.norm, table["rezero"].model.encoder.depth.type) == ("none", "rezero")
        assert table["wide"].model.layer.width == 2 * table["static_6_6"].model.layer.width
        assert table["latent_24_24_12"].model.decoder.depth.per == side
        assert len(table["latent_24_24_12"].model.decoder.depth.keys) == languages
    assert layers_of(trainings(chain("latent-depth/table4"))["latent_12_100_50"]) == (12, 100)
    encoder_only = trainings(chain("latent-depth/table5"))["latent_encoder"]
    assert (*layers_of(encoder_only), encoder_only.model.decoder.depth.type) == (36, 12, "full")
    beta = trainings(chain("latent-depth/table6"))
    runs = ("beta_0_0", "latent_24_24_12", "beta_10_0")
    assert [beta[name].training.objective.beta for name in runs] == [0, 1, 10]
    terms = trainings(chain("latent-depth/table7"))
    runs = ("latent_24_24_12", "without_depth", "without_kl", "without_both")
    losses = [terms[name].training.objective for name in runs]
    assert [(loss.beta, loss.depth_weight) for loss in losses] == [(1, 0.1), (1, 0), (0, 0.1), (0, 0)]
    inner = trainings(chain("latent-depth/table9"))
    assert [inner[f"inner_{steps}"].training.inner_steps for steps in (2, 5, 10)] == [2, 5, 10]
    priors = trainings(chain("latent-depth/figure4"))
    losses = [priors[f"prior_{name}_token"].training.objective for name in ("uniform", "aggregated", "annealed")]
    assert [(loss.prior, loss.kl_warmup) for loss in losses] == [
        ("uniform", 0),
        ("aggregated", 0),
        ("aggregated", 1500),
    ]


@pytest.mark.parametrize("name", [*SHARED, "mlm-table2"])
def test_deep_and_wide_baselines_are_on_the_page_of_every_table(name: str) -> None:
    path = chain(f"latent-depth/{name}")
    page = next(work for work in planned(path, Path("runs/here")) if isinstance(work, Report))
    runs = trainings(path)
    shown = [runs[run.name].model for run in page.runs if run.name in runs]
    widths = Counter(model.layer.width for model in shown)
    assert len(widths) == 2
    assert widths[max(widths)] == 1
    assert {model.encoder.depth.type for model in shown} >= {"full", "rezero", "layerdrop"}
    drops = {model.encoder.depth.drop for model in shown if model.encoder.depth.type == "layerdrop"}
    assert drops == {0.1, 0.2, 0.5}
    assert "dlcl" in {model.encoder.mix for model in shown}
    stacks = [stack for model in shown for stack in (model.encoder, getattr(model, "decoder", model.encoder))]
    assert "latent" in {stack.depth.type for stack in stacks}


def test_the_decisive_comparison_of_latent_depth() -> None:
    runs = trainings(chain("latent-depth/decisive"))
    for layers in (24, 48):
        for kind, depth in (("static", "full"), ("latent", "latent")):
            sweep = [config for name, config in runs.items() if name.startswith(f"{kind}_sweep_{layers}_")]
            assert [config.training.optimizer.learning_rate for config in sweep] == [1.5e-3, 4e-3]
            for config in (*sweep, runs[f"{kind}_{layers}"]):
                assert layers_of(config) == (layers, layers)
                assert config.model.decoder.depth.type == depth
    assert layers_of(runs["latent_100"]) == (12, 100)
    assert {config.model.layer.width for config in runs.values()} == {256}
    assert all(config.training.log_gradients for config in runs.values())
    for config in runs.values():
        if config.model.decoder.depth.type == "latent":
            assert config.model.decoder.depth.anneal_steps < config.training.steps
            assert 2 * config.training.objective.decoder_layers == config.model.decoder.layers


def test_tables_of_multiscale_collaboration_differ_in_what_they_are_about() -> None:
    table2 = trainings(chain("multiscale/table2"))
    for direction, languages in (("", ["de", "en"]), ("en_de_", ["en", "de"])):
        here = [
            table2[f"{direction}{name}"] for name in ("plain_6", "msc_6", "msc_36", "msc_54", "msc_72", "msc_72_l2")
        ]
        assert [config.model.encoder.layers for config in here] == [6, 6, 36, 54, 72, 72]
        assert [config.training.optimizer.weight_decay for config in here] == [0, 0, 0, 0, 0, 2e-5]
        assert [config.model.layer.dropout for config in here] == [0.1, 0.1, 0.3, 0.3, 0.3, 0.3]
        for config in here:
            (corpus,) = config.data.train
            assert [Path(file).suffixes[0] for file in (corpus.source, corpus.target)] == [f".{x}" for x in languages]
    table3 = trainings(chain("multiscale/table3"))
    for layers in (36, 72):
        assert table3[f"transparent_{layers}"].model.bridge.type == "transparent"
        assert table3[f"dlcl_{layers}"].model.encoder.mix == "dlcl"
        assert table3[f"msc_{layers}"].model.bridge.type == "multiscale"
    table5 = trainings(chain("multiscale/table5"))
    assert (table5["addition"].model.bridge.fusion, table5["feed_forward"].model.bridge.context) == ("add", "ffn")
    assert not table5["without_encoder_context"].model.bridge.encoder_context
    assert table5["without_context"].model.bridge.context == "none"
    assert (table5["wide_18"].model.layer.width, table5["wide_18"].model.encoder.layers) == (512, 18)
    decisive = trainings(chain("multiscale/decisive"))
    assert decisive["plain_6_0_004"].training.keep == 20
    assert all(config.training.log_gradients for config in decisive.values())
    rates = [c.training.optimizer.learning_rate for name, c in decisive.items() if name.startswith("plain_sweep_72")]
    assert rates == [1e-3, 2e-3, 4e-3]
    fitted = [work for work in planned(chain("multiscale/decisive"), Path("runs/here")) if work.stage == "fitted"]
    assert {(work.on, work.sentences) for work in fitted if isinstance(work, Evaluation)} == {("train", 3000)}


def test_the_sizes_of_tied_multis_table_4() -> None:
    """In millions, with the vocabulary of the recipe; the paper prints three times as many."""
    sizes: Counter[str] = Counter()
    for work in planned(chain("tied-multi/table4"), Path("runs/here")):
        if isinstance(work, Training):
            words = work.config.tokenizer.vocabulary
            with torch.device("meta"):
                model = Translator(work.config.model, words, words, pad=0)
            sizes[work.stage] += sum(parameter.numel() for parameter in model.parameters())
    assert {stage: round(size / 1e6, 1) for stage, size in sizes.items()} == {
        "tied": 61.0,
        "separate": 1535.9,
        "tied_recurrent": 24.3,
        "separate_recurrent": 874.3,
    }


def test_the_papers_own_data_and_size() -> None:
    """Every table of flexible depth can be run with another recipe in the place of the chain's."""
    works = planned(chain("flexible-depth/table1"), Path("runs/here"), RECIPES / "flexible-depth/iwslt14-de-en.toml")
    flexible = next(work.config for work in works if isinstance(work, Training) and work.name == "flexible")
    assert flexible.model.layer.width == 512
    assert flexible.data.train[0].source == "data/iwslt14/train.de"


# ---- that they run


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A few short sentences of the built-in corpus, a few thousand weights, two updates."""
    settings = [*shrunk(tmp_path_factory.mktemp("corpus")), "training.steps=2"]
    return [*settings, "decoding.beam=1", "decoding.max_ratio=0", "decoding.max_extra=2"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the chains leave their runs. Those of a folder share it, and with it the stages they have in common."""
    return tmp_path_factory.mktemp("runs")


def as_text(setting: str) -> str:
    """Only the source side of the corpora."""
    return re.sub(r"type=\"parallel\", source=(\"[^\"]*\"), target=\"[^\"]*\"", r'type="text", path=\1', setting)


def in_two_languages(setting: str, into: tuple[str, str]) -> str:
    """Each corpus twice, as two languages."""
    name, _, corpora = setting.partition("=")
    if name not in ("data.train", "data.dev", "data.test"):
        return setting
    corpus = corpora.strip("[]").removesuffix("}")
    return f"{name}=[" + ", ".join(f'{corpus}, key="{key}"}}' for key in into) + "]"


def latent(path: Path, tiny: list[str]) -> list[str]:
    """For a chain of latent depth, in one language or in two."""
    key = next(config.data.train[0].key for config in trainings(path).values())
    if not key:
        return tiny
    source, _, target = key.partition("-")
    keys = (f"{source}-xx", f"{source}-yy") if source.startswith("en") else (f"xx-{target}", f"yy-{target}")
    return [*(in_two_languages(setting, keys) for setting in tiny), "training.accumulate=2", "training.at_once=2"]


@pytest.fixture(scope="module")
def shallow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipes of very deep models with two layers wherever they have more: names and all else stay."""
    folder = tmp_path_factory.mktemp("recipes")
    for path in RECIPES.glob("*/*.toml"):
        text = re.sub(r"^((?:\w+_)?layers) = [1-9]\d*", r"\1 = 2", path.read_text(), flags=re.MULTILINE)
        text = re.sub(r"^sentence_layers = 2", "sentence_layers = 1", text, flags=re.MULTILINE)
        text = re.sub(r"(coder\.layers|coder_layers)=(?!0)[\w$]+", r"\1=2", text)
        (folder / path.parent.name).mkdir(exist_ok=True)
        (folder / path.parent.name / path.name).write_text(text)
    return folder


@pytest.mark.parametrize("path", CHAINS, ids=name_of)
def test_a_chain_runs(path: Path, tiny: list[str], results: Path, shallow: Path, cli: Cli) -> None:
    out, settings = results / path.parent.name, tiny
    if path.parent.name == "multiscale":
        path = shallow / path.relative_to(RECIPES)
        out = results / (path.parent.name if path.stem != "decisive" else "multiscale-decisive")
        scored = ["training.validate_sentences=1"] if path.stem == "table6" else []  # weights are chosen by ROUGE
        settings = [*tiny, "training.save_every=1", *scored]
    elif path.parent.name == "latent-depth" and not path.stem.startswith("mlm"):
        path = shallow / path.relative_to(RECIPES)
        out, settings = results / "latent-depth" / SHARED.get(path.stem, path.stem), latent(path, tiny)
    elif path.stem in ("decisive", "choosing"):  # their trainings have other lengths than those of the tables
        out = results / path.stem
    elif path.parent.name == "flexible-depth":  # the separate models keep their sizes, which the table is about
        settings = [*tiny, "model.encoder.layers=4", "model.decoder.layers=2", "training.validate_depths=[]"]
    elif path.stem.startswith("mlm"):
        settings = [*(as_text(setting) for setting in tiny), "model.encoder.layers=3", "training.accumulate=1"]
    planning = planned(path, out, None, settings)
    stages = {work.stage for work in planning if name_of(path) in WITH_PAGE or not isinstance(work, Report)}
    changes = [part for setting in settings for part in ("--set", setting)]
    code, printed, said = cli("chain", path, "--out", out, "--only", ",".join(stages), *changes)
    assert code == 0, said
    done = [work for work, state in list_chain(path, out, settings=settings) if state == "done"]
    assert {work.stage for work in done} >= stages
    for work in done:
        if isinstance(work, Evaluation):
            cells = json.loads(work.left.read_text())["cells"]
            assert {depth_name(cell) for cell in cells} >= set(work.depths)
        if isinstance(work, Distillation):
            assert sum(1 for _ in read_lines(work.left)) == 8
        if isinstance(work, Report):
            assert f"The report is in {work.left}." in printed
            assert all(run.name in work.left.read_text() for run in work.runs)
