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
    "flexible-depth/decisive": (11, 1 + 6 + 2 * 24 + 2 * 36),
    "latent-depth/mlm-table2": (7, 2),  # what latent depth can be scored at is learnt
    "tied-multi/table1": (37, 36 + 36),
    "tied-multi/table3": (10, 4 * 36 + 2),
    "tied-multi/table4": (74, 36 + 36 + 36 + 36),
}
"""Trainings and scored depths of each chain: the sizes of the papers' tables."""
WITH_PAGE = ("flexible-depth/table4", "flexible-depth/decisive", "tied-multi/table3", "latent-depth/mlm-table2")
"""Pages take seconds: these have separate models as one grid, grids of different shapes, and a link to the best run."""
COMPARISONS = [name for name in CONTENTS if name.startswith("flexible-depth") and not name.endswith("chain")]


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


@pytest.mark.parametrize("path", CHAINS, ids=name_of)
def test_a_chain_runs(path: Path, tiny: list[str], results: Path, cli: Cli) -> None:
    out, settings = results / path.parent.name, tiny
    if path.stem == "decisive":  # its trainings have other lengths than those of the tables
        out = results / "decisive"
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
