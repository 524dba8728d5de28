"""Summaries through the command line: trained on built-in notices, written, scored by ROUGE and reported."""

import json
from pathlib import Path

import pytest
from conftest import Cli

import anydepth
from anydepth.config import load
from anydepth.data.builtin import notices
from anydepth.data.reading import Skips, read_pairs
from anydepth.data.sources import encode_sources
from anydepth.data.tokenizer_training import train_tokenizer
from anydepth.errors import UserError
from anydepth.evaluation.attention import read_attention
from anydepth.evaluation.lead import lead_scores

RECIPES = Path(__file__).parents[2] / "recipes"
RECIPE = RECIPES / "tied-multi/notices.toml"
AESLC = sorted((RECIPES / "multiscale").glob("aeslc-*.toml"))
TINY = [
    "data.train.0.size=60", "data.dev.size=6", "data.test.size=12", "data.max_source=60", "data.workers=1",
    "tokenizer.vocabulary=400", "batching.tokens=256", "model.layer.width=16", "model.layer.ffn=16",
    "model.layer.heads=2", "model.encoder.layers=2", "model.decoder.layers=2", "training.steps=6",
    "training.validate_every=3", 'training.validate_depths=["2-2"]', "training.validate_sentences=2",
    "training.device=cpu", "training.optimizer.warmup=2", "decoding.max_length=12", "decoding.beam=2",
]  # fmt: skip


def flags(*settings: str) -> list[str]:
    return [part for setting in (*TINY, *settings) for part in ("--set", setting)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from anydepth.training.loop import train

    folder = tmp_path_factory.mktemp("runs") / "notices"
    train(load(RECIPE, TINY), folder, quiet=True)
    return folder


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    path = tmp_path / "documents"
    path.write_text("".join(f"{notice}\n" for notice, _ in notices("en", "test", 3)) + "\n")
    return path


def test_training_says_how_many_sources_were_cut_and_validates_by_rouge(tmp_path: Path, cli: Cli) -> None:
    code, _, said = cli("train", RECIPE, "--out", tmp_path / "run", *flags())
    assert code == 0, said
    assert "sources to data.max_source = 60 tokens" in said
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    (first, *_) = (line for line in lines if line["kind"] == "valid")
    assert {"rouge1", "rouge2", "rougeL"} < first.keys()
    assert "bleu" not in first


def test_summaries_keep_to_their_limits_at_every_depth(run: Path, documents: Path, cli: Cli) -> None:
    for depth in ("1-1", "2-2"):
        code, out, said = cli("summarize", run, documents, "--depth", depth, "--min-length", 4, "--max-length", 9)
        assert code == 0, said
        lines = out.split("\n")[:-1]
        assert len(lines) == 4
        assert not lines[3]
        assert "only the first 60 tokens of 3 of 4 texts were read" in said
        texts = documents.read_text().split("\n")[:-1]
        loaded = anydepth.load(run, "cpu")
        found = loaded.summaries(texts, depth, min_length=4, max_length=9)
        assert [each[0].text for each in found] == lines == loaded.summarize(texts, depth, min_length=4, max_length=9)
        assert all(4 <= len(each[0].tokens) <= 9 for each in found[:3])


def test_a_limit_of_0_is_none(run: Path, documents: Path, cli: Cli) -> None:
    """As the help says; the recipe's own is 12 tokens."""
    out = cli("summarize", run, documents, "--min-length", 15, "--max-length", 0)[1]
    loaded = anydepth.load(run, "cpu")
    texts = documents.read_text().split("\n")[:-1]
    found = loaded.summaries(texts, min_length=15, max_length=0)
    assert [each[0].text for each in found] == out.split("\n")[:-1]
    assert all(len(each[0].tokens) >= 15 for each in found[:3])
    assert "0 for no such limit" in " ".join(cli("summarize", "--help")[1].replace("│", " ").split())


def test_no_trigram_comes_twice(run: Path, documents: Path) -> None:
    loaded, texts = anydepth.load(run, "cpu"), documents.read_text().split("\n")[:3]
    for blocked in (0, 3):
        found = loaded.summaries(texts, min_length=30, max_length=40, block_ngrams=blocked)
        trigrams = [list(zip(one.tokens, one.tokens[1:], one.tokens[2:])) for (one,) in found]
        assert any(len(each) > len(set(each)) for each in trigrams) == (blocked == 0)


def test_n_best_and_a_file_for_the_output(run: Path, documents: Path, tmp_path: Path, cli: Cli) -> None:
    code, out, said = cli("summarize", run, documents, "--n-best", 2, "--output", tmp_path / "out")
    assert (code, out) == (0, ""), said
    lines = [line.split("\t") for line in (tmp_path / "out").read_text().splitlines()]
    assert [line[0] for line in lines] == ["1", "1", "2", "2", "3", "3", "4"]


def test_the_depth_grid_has_rouge_and_the_lead_beside(run: Path, tmp_path: Path, cli: Cli) -> None:
    code, out, said = cli("evaluate", run, "--out", tmp_path / "here")
    assert code == 0, said
    assert "texts were read" in said
    grid = json.loads((tmp_path / "here/grid.json").read_text())
    assert [(cell["encoder"], cell["decoder"]) for cell in grid["cells"]] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    for cell in grid["cells"]:
        assert {"rouge1", "rouge2", "rougeL", "seconds", "parameters"} < cell.keys()
        assert "bleu" not in cell
        assert 0 <= cell["rouge2"] <= cell["rouge1"] <= 100
    assert set(grid["signatures"]) == {"rouge1", "rouge2", "rougeL"}
    assert "rouge-score:" in grid["signatures"]["rouge1"]
    pairs = list(notices("en", "test", 12))
    assert grid["lead"] == lead_scores([notice for notice, _ in pairs], [line for _, line in pairs])
    assert grid["lead"][0]["rouge1"] > 5
    assert "best ROUGE-1" in out
    assert "first sentence of each document: ROUGE-1" in out
    page = (tmp_path / "here/report.html").read_text()
    for text in ("ROUGE-1 by encoder", "ROUGE-L by encoder", "The beginning of each document", "pick-rougeL"):
        assert text in page
    assert "BLEU" not in page
    again, _, _ = cli("evaluate", run, "--out", tmp_path / "here")
    assert again == 0
    assert json.loads((tmp_path / "here/grid.json").read_text()) == grid  # kept, not measured again


def test_two_runs_are_compared_by_rouge(run: Path, tmp_path: Path, cli: Cli) -> None:
    for name, beam in (("one", 1), ("two", 3)):
        code, _, said = cli("evaluate", run, "--out", tmp_path / name, "--depths", "1-1,2-2", "--beam", beam)
        assert code == 0, said
    page = tmp_path / "page.html"
    code, out, said = cli("report", tmp_path / "one", tmp_path / "two", "--out", page, "--json")
    assert code == 0, said
    found = json.loads(out)
    assert {one["metric"] for one in found["differences"]} == {"rouge1", "rouge2", "rougeL"}
    assert [one["depth"] for one in found["differences"][0]["depths"]] == ["1-1", "2-2"]
    assert "bs:" in found["signatures"]["rougeL"]
    assert "ROUGE-2 differences" in page.read_text()
    code, out, _ = cli("report", tmp_path / "one", tmp_path / "two", "--out", page)
    assert "ROUGE-1 and difference" in out
    code, _, said = cli("oracle", tmp_path / "one")
    assert code == 2
    assert "summarizes: the oracle chooses between translations" in said


def test_verbs_of_other_tasks_refuse(run: Path, documents: Path, tmp_path: Path, cli: Cli) -> None:
    code, _, said = cli("translate", run, documents)
    assert code == 2
    assert said.strip() == f"anydepth: {run} summarizes: it does not translate"
    code, _, said = cli("classify", run, documents)
    assert (code, said.strip()) == (2, f"anydepth: {run} summarizes: it does not classify")
    code, _, said = cli("evaluate", run, "--lowercase", "--out", tmp_path / "here")
    assert code == 2
    assert "ROUGE never looks at case" in said
    golden = Path(__file__).parents[1] / "golden/model"
    code, _, said = cli("summarize", golden, documents)
    assert code == 2
    assert said.strip() == f"anydepth: {golden} translates: it does not summarize"
    with pytest.raises(UserError, match="it does not summarize"):
        anydepth.load(golden, "cpu").summarize(["text"])


def test_one_depth_can_be_exported(run: Path, documents: Path, tmp_path: Path, cli: Cli) -> None:
    code, _, said = cli("export", run, "--to", "anydepth", "--depth", "1-2", "--out", tmp_path / "small")
    assert code == 0, said
    _, there, _ = cli("summarize", run, documents, "--depth", "1-2")
    _, here, _ = cli("summarize", tmp_path / "small", documents)
    assert here == there


def test_where_a_summary_looks(run: Path, documents: Path, cli: Cli) -> None:
    text = documents.read_text().split("\n")[0]
    code, _, said = cli("attention", run, "--text", text)
    assert code == 0, said
    (found,) = read_attention(run)
    loaded = anydepth.load(run, "cpu")
    ((best,),) = loaded.summaries([text], n_best=1)
    assert len(found.target) == len(best.tokens) + 1
    assert len(found.source) == 60 + 1  # of the document only so much is read
    assert "attention to the encoder&#x27;s states" in (run / "report.html").read_text()


def test_a_hierarchical_model_trains_and_summarizes(documents: Path, tmp_path: Path, cli: Cli) -> None:
    hierarchy = ["data.sentences=true", "model.sentence_layers=1", 'model.encoder.depth={type="full"}']
    code, _, said = cli("train", RECIPE, "--out", tmp_path / "run", *flags(*hierarchy))
    assert code == 0, said
    losses = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert losses[-1]["loss"] < 6.5
    loaded, texts = anydepth.load(tmp_path / "run", "cpu"), documents.read_text().split("\n")[:3]
    assert loaded.depths() == ["2-1", "2-2"]
    (ids, *_) = loaded.sources(texts, "")
    assert ids.count(loaded.tokenizers.source.eos) >= 2
    assert loaded.summarize(texts, batch=3) == [loaded.summarize([text])[0] for text in texts]
    code, _, said = cli("evaluate", tmp_path / "run", "--depths", "2-1")
    assert code == 0, said


@pytest.mark.parametrize("path", AESLC, ids=lambda path: path.stem)
def test_the_real_e_mails_fit_their_recipes(path: Path) -> None:
    config = load(path)
    (corpus,) = config.data.test
    if not Path(corpus.path).exists():
        pytest.skip(f"{corpus.path} is not here: see recipes/multiscale/README.md")
    pairs = list(read_pairs(corpus, "test", Skips()))
    assert len(pairs) == 1906
    assert not any("\n" in text for pair in pairs for text in pair)
    tokenizer = train_tokenizer([text for pair in pairs for text in pair], config.tokenizer)
    sources = encode_sources([document for document, _ in pairs], tokenizer, config.data)
    assert 0 < sources.cut < 190  # less than one in ten
    assert 5 < lead_scores(*zip(*pairs))[0]["rouge1"] < 30
