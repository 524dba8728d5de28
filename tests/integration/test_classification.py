"""Classifiers from labelled text to a report, through interruptions and through the command line."""

import json
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Cli
from safetensors.torch import load_file
from tiny_training import NUMBERS, Crash, crash, metrics, outcome, when

from anydepth.chain import list_chain, run_chain
from anydepth.classifying.answering import answer
from anydepth.classifying.awaiting import Coming
from anydepth.classifying.leaving import Rule
from anydepth.config import Config, load
from anydepth.data.labelled_batch import LabelledBatch
from anydepth.errors import UserError
from anydepth.evaluation.labels import accuracy, sign_test
from anydepth.plan import Plans
from anydepth.run import load as load_run
from anydepth.training.loop import train

RECIPE = """
seed = 3
[data]
train = [{ type = "labelled", path = "FOLDER/train.tsv" }]
dev = [{ type = "labelled", path = "FOLDER/dev.tsv" }]
test = [{ type = "labelled", path = "FOLDER/dev.tsv" }]
workers = 1
max_length = 20
max_source = 20
tags = "begin"
[tokenizer]
vocabulary = 360
[batching]
tokens = 256
[model]
type = "classifier"
max_positions = 64
layer = { width = 16, ffn = 32, heads = 2, dropout = 0.1 }
encoder = { layers = 2, depth = { type = "prefix" } }
[training]
steps = 12
device = "cpu"
log_every = 1
save_every = 3
average = 2
validate_every = 5
label_smoothing = 0.0
objective = { type = "exit-grid" }
optimizer = { learning_rate = 1e-2, warmup = 4, clip = 1.0 }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whether the larger of the first and the last number is the first: words alone do not tell."""
    folder, draw = tmp_path_factory.mktemp("texts"), random.Random(1)
    for name, size in (("train", 300), ("dev", 60)):
        rows = [[draw.randrange(10) for _ in range(draw.randint(2, 5))] for _ in range(size)]
        lines = [f"{'falls' if row[0] > row[-1] else 'rises'}\t{' '.join(NUMBERS[n] for n in row)}" for row in rows]
        (folder / f"{name}.tsv").write_text("".join(f"{line}\n" for line in lines))
    (folder / "tiny.toml").write_text(RECIPE.replace("FOLDER", str(folder)))
    return folder


def config(folder: Path, *changes: str) -> Config:
    return load(folder / "tiny.toml", changes)


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_a_resume_ends_with_the_same_bits(folder: Path, tmp_path: Path, layout: str) -> None:
    settings = config(folder, f"batching.layout={layout}")
    finished = train(settings, tmp_path / "finished", quiet=True)
    with when(10, "train", crash), pytest.raises(Crash):
        train(settings, tmp_path / "killed", quiet=True)
    train(settings, tmp_path / "killed", resume=True, quiet=True)
    assert outcome(tmp_path / "killed") == outcome(finished)


def test_the_model_is_the_best_by_loss_or_by_accuracy(folder: Path, tmp_path: Path) -> None:
    every = "training.validate_every=2", "training.save_every=2", "training.keep=9", "training.average=1"
    hot = *every, "training.optimizer.learning_rate=0.03", "training.validate_depths=['2']"
    chosen = {}
    for best in ("loss", "score"):
        run = train(config(folder, *hot, f"training.best={best}"), tmp_path / best, quiet=True)
        valid = [line for line in metrics(run) if line["kind"] == "valid"]
        wanted = min(valid, key=lambda line: line["loss"] if best == "loss" else -line["accuracy"])["step"]
        model, saved = (path / "model.safetensors" for path in (run, run / "checkpoints" / f"step-{wanted:08}"))
        assert all(map(torch.equal, load_file(model).values(), load_file(saved).values()))
        chosen[best] = wanted
    assert chosen["loss"] != chosen["score"]


@pytest.fixture(scope="module")
def trained(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    longer = ("training.steps=200", "training.validate_every=200", "training.save_every=200", "training.average=1")
    settings = config(folder, *longer, "training.validate_depths=['1', '2']", "training.log_every=50")
    return train(settings, tmp_path_factory.mktemp("runs") / "run", quiet=True)


def test_evaluate_describe_and_report(trained: Path, folder: Path, tmp_path: Path, cli: Cli) -> None:
    code, out, err = cli("evaluate", trained)
    assert (code, err) == (0, "")
    grid = json.loads((trained / "grid.json").read_text())
    assert grid["labels"] == ["falls", "rises"]
    assert load(trained / "config.toml").model.labels == ("falls", "rises")
    valid = {line["depth"]: line for line in metrics(trained) if line["kind"] == "valid"}
    right = [line.split("\t")[0] for line in (folder / "dev.tsv").read_text().splitlines()]
    assert (trained / "outputs" / "reference.txt").read_text().split() == right
    for cell in grid["cells"]:  # the test set is the dev set here
        depth = str(cell["encoder"])
        assert cell["loss"] == pytest.approx(valid[depth]["loss"], rel=1e-5)
        assert cell["accuracy"] == valid[depth]["accuracy"]
        found = (trained / "outputs" / f"{depth}.txt").read_text().split()
        assert cell["accuracy"] == accuracy(np.array(found), np.array(right))
        assert cell["interval"][0] < cell["accuracy"] < cell["interval"][1]
        assert f"{cell['accuracy']:.2f}" in out
        assert f"{cell['macro_f1']:.2f}" in (trained / "report.html").read_text()
    assert "<li>batch" not in (trained / "report.html").read_text()  # as many as are good: none was asked for
    guessing = 100 * max(right.count(label) for label in right) / len(right)
    assert grid["cells"][1]["interval"][0] > guessing
    code, out, _ = cli("evaluate", trained, "--data", folder / "train.tsv", "--batch", 7, "--out", tmp_path / "other")
    assert code == 0
    assert json.loads((tmp_path / "other" / "grid.json").read_text())["sentences"] == 300
    cli("evaluate", trained, "--data", folder / "dev.tsv", "--batch", 7, "--out", tmp_path / "third")
    again = json.loads((tmp_path / "third" / "grid.json").read_text())
    odd = tmp_path / "some-odd.tsv"
    odd.write_text((folder / "dev.tsv").read_text() + "no label\n")
    code, _, err = cli("evaluate", trained, "--data", odd, "--batch", 7, "--out", tmp_path / "other")
    assert f"skipped 1 lines: 1 with too few columns ({odd}:" in err
    assert f"the scores of before are in {tmp_path / 'other' / 'evaluated-before'} now" in err
    replaced = json.loads((tmp_path / "other" / "grid.json").read_text())  # other texts: nothing is kept
    assert [cell["loss"] for cell in replaced["cells"]] == [cell["loss"] for cell in again["cells"]]
    code, _, err = cli(
        "evaluate", trained, "--data", folder / "train.tsv", "--depths", "9", "--out", tmp_path / "other"
    )
    assert (code, "depth 9: this run has" in err) == (2, True)
    assert json.loads((tmp_path / "other" / "grid.json").read_text()) == replaced
    cli("evaluate", trained, "--data", folder / "train.tsv", "--out", tmp_path / "other")
    code, out, err = cli("report", trained, tmp_path / "other", "--out", tmp_path / "both.html")
    assert code == 0
    assert "cannot be compared" in (tmp_path / "both.html").read_text()
    code, _, err = cli("evaluate", trained, "--source", "x", "--reference", "y")
    assert (code, "a classifier takes --data" in err) == (2, True)
    code, out, _ = cli("describe", trained, "--json")
    assert [plan["name"] for plan in json.loads(out)["plans"]] == ["1", "2"]


def test_classify(trained: Path, tmp_path: Path, cli: Cli) -> None:
    texts = ["nine two one", "one five nine", "ten", "six " * 40]
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in texts))
    code, out, err = cli("classify", trained, tmp_path / "in.txt")
    assert err == "anydepth: only the first 20 tokens of 1 of 4 texts were read\n"
    lines = [line.split("\t") for line in out.splitlines()]
    assert code == 0
    assert [line[0] for line in lines[:2]] == ["falls", "rises"]
    assert [line[2] for line in lines] == texts
    run = load_run(trained)
    alone = [run.classify([text])[0] for text in texts]
    assert [found.label for found in alone] == [line[0] for line in lines]
    code, out, _ = cli("classify", trained, tmp_path / "in.txt", "--depth", 1, "--json", "--batch", 2)
    found = [json.loads(line) for line in out.splitlines()]
    assert [sum(one["probabilities"].values()) for one in found] == pytest.approx([1.0] * 4)
    assert found[0]["probability"] != pytest.approx(alone[0].probability, abs=1e-6)
    code, _, err = cli("translate", trained, tmp_path / "in.txt")
    assert (code, "it does not translate" in err) == (2, True)
    code, _, err = cli("classify", trained, tmp_path / "in.txt", "--depth", "7")
    assert (code, "encoder depths 1, 2" in err) == (2, True)


def test_probabilities_are_as_exact_where_logits_are_not(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU computes logits in bfloat16, which cannot tell 0.9985 from 1."""
    run = load_run(trained)
    run.classifier.output_bias.data.copy_(torch.tensor([0.0, 6.5]))

    def rounded(batch: LabelledBatch, plans: Plans, rule: Rule | None) -> Coming:
        with torch.autocast("cpu", torch.bfloat16):
            return Coming(answer(run.classifier, batch, plans, rule))

    monkeypatch.setattr(run.answering, "ask", rounded)
    for found in run.classify(["nine two one", "one five nine"]):
        assert sum(found.probabilities.values()) == pytest.approx(1.0, abs=1e-6)


def test_empty_texts_have_no_label(trained: Path, adaptive: Path, tmp_path: Path, cli: Cli) -> None:
    texts = ["", "nine two one", " ", "one five nine"]
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in texts))
    code, out, err = cli("classify", trained, tmp_path / "in.txt")
    assert (code, err) == (0, "anydepth: 2 of 4 texts are empty and have no label\n")
    lines = [line.split("\t") for line in out.split("\n")[:-1]]
    assert [(label, text) for label, _, text in lines] == list(zip(["", "falls", "", "rises"], texts))
    _, out, _ = cli("classify", trained, tmp_path / "in.txt", "--json", "--batch", 1)
    found = [json.loads(line) for line in out.splitlines()]
    assert found[0] == found[2] == {"label": None, "probability": None, "probabilities": {}, "words": []}
    assert (found[1]["label"], found[3]["label"]) == ("falls", "rises")
    code, out, _ = cli("classify", adaptive, tmp_path / "in.txt", "--show")
    assert (code, [bool(line) for line in out.split("\n")[:-1]]) == (0, [False, True, False, True])
    assert load_run(trained).classify([""]) == [(None, None, {}, [])]


def test_too_long_a_text_is_named_by_file_and_line(trained: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "in.txt").write_text("one\n" + "six " * 80)
    code, out, err = cli("classify", trained, tmp_path / "in.txt", "--set", "data.max_source=0")
    assert (code, out) == (2, "")
    assert err.startswith(f"anydepth: {tmp_path / 'in.txt'}:2: ")


def test_a_classifier_is_not_calibrated(trained: Path, cli: Cli) -> None:
    code, _, said = cli("calibrate", trained)
    assert (code, said.count("\n")) == (2, 1)
    assert "is a classifier: only runs that translate or summarize are calibrated" in said


def test_labels_are_counted_before_training(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "rows.tsv"
    rows.write_text("label\ttext\n" + "good\tfine words\nbad\tpoor words\n" * 4, encoding="utf-8")
    changes = (f"data.train=[{{type='labelled',path='{rows}'}}]", "data.dev=[]", "training.steps=1")
    train(config(folder, *changes), tmp_path / "run")
    assert "3 labels: good 4, bad 4, label 1" in capfd.readouterr().err


def test_a_label_that_was_not_trained_for_is_refused(trained: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "odd.tsv").write_text("rises\tone two\n\nfalls\tstays\nstays\tone one\n")
    code, _, err = cli("evaluate", trained, "--data", tmp_path / "odd.tsv", "--out", tmp_path / "out")
    complaint = f"{tmp_path}/odd.tsv:4: label 'stays' is not among those trained for: falls, rises"
    assert (code, complaint in err) == (2, True)


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_positions_are_needed_for_what_is_read_of_a_text(folder: Path, tmp_path: Path, layout: str) -> None:
    """max_length is for targets where sources are cut, and a classifier has none."""
    settings = ("data.max_length=256", f"batching.layout={layout}", "training.steps=2")
    train(config(folder, *settings), tmp_path / "run", quiet=True)
    with pytest.raises(UserError, match=r"max_positions: 64 is too small for data.max_source = 80"):
        train(config(folder, *settings, "data.max_source=80"), tmp_path / "long", quiet=True)


def test_cross_validation_knows_labels_that_only_one_part_has(folder: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "train.tsv").write_text("stays\tone one\n" + (folder / "train.tsv").read_text())
    corpus = f'data.train=[{{type="labelled", path="{tmp_path}/train.tsv"}}]'
    command = ("repeat", folder / "tiny.toml", "--folds", 3, "--seeds", 1, "--set", corpus, "--set", "training.steps=1")
    code, out, err = cli(*command, "--out", tmp_path / "runs")
    assert code == 0, err
    assert "of 301 texts and 3 labels" in out


def test_several_runs_do_not_write_into_one(trained: Path, folder: Path, cli: Cli) -> None:
    code, _, err = cli("repeat", folder / "tiny.toml", "--out", trained)
    assert (code, f"{trained} holds a run: give another --out" in err) == (2, True)


def test_chains_of_classifiers(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "chain.toml").write_text(
        f"""
        recipe = "{folder}/tiny.toml"
        stages = [
            {{ type = "train", name = "runs", each = [{{ seed = [1, 2] }}], settings = ["seed=$seed"] }},
            {{ type = "train", name = "kept", each = [{{ keep = [2, 3] }}], settings = ["training.keep=$keep"] }},
            {{ type = "evaluate", name = "scores", of = ["runs", "kept"] }},
            {{ type = "report", name = "page", of = ["kept", "runs"] }},
        ]
        """
    )
    run_chain(tmp_path / "chain.toml", tmp_path / "out", settings=["training.steps=2"])
    states = {
        state for _, state in list_chain(tmp_path / "chain.toml", tmp_path / "out", settings=["training.steps=2"])
    }
    assert states == {"done"}
    page = (tmp_path / "out" / "page.html").read_text()
    assert all(name in page for name in ("kept_2", "kept_3", "McNemar"))
    cells = [json.loads((tmp_path / "out" / f"runs_{seed}" / "grid.json").read_text())["cells"][0] for seed in (1, 2)]
    first, second = (cell["accuracy"] for cell in cells)
    # runs that differ in their seed are shown as one, with their deviation
    assert f"{(first + second) / 2:.2f} ± {abs(first - second) / 2**0.5:.2f}" in page
    written = (tmp_path / "chain.toml").read_text().replace('of = ["runs", "kept"]', 'of = ["runs"], batch = 4')
    (tmp_path / "chain.toml").write_text(written)
    with pytest.raises(UserError, match="scores: batch: is for translation, and runs_1 is a classifier"):
        list_chain(tmp_path / "chain.toml", tmp_path / "out")


def test_chains_over_data_sets_show_means(folder: Path, tmp_path: Path) -> None:
    lines = (folder / "dev.tsv").read_text().splitlines(keepends=True)
    for name, some in (("few", lines[:10]), ("many", lines[10:])):
        (tmp_path / f"{name}.tsv").write_text("".join(some))
    (tmp_path / "chain.toml").write_text(
        f"""
        recipe = "{folder}/tiny.toml"
        [[stages]]
        type = "train"
        name = "sets"
        each = [{{ set = ["few", "many"], seed = [1, 2] }}]
        settings = ["data.test.0.path={tmp_path}/$set.tsv", "seed=$seed"]
        [[stages]]
        type = "train"
        name = "steps"
        each = [{{ set = ["few", "many"], steps = [1, 2] }}]
        settings = ["data.test.0.path={tmp_path}/$set.tsv", "training.steps=$steps"]
        [[stages]]
        type = "evaluate"
        name = "scores"
        of = ["sets", "steps"]
        exits = ["patience 1"]
        [[stages]]
        type = "report"
        name = "page"
        of = ["sets", "steps"]
        """
    )
    run_chain(tmp_path / "chain.toml", tmp_path / "out", settings=["training.average=1", "training.save_every=1"])
    grids = [json.loads((tmp_path / "out" / f"sets_{name}_{seed}" / "grid.json").read_text())
             for name in ("few", "many") for seed in (1, 2)]  # fmt: skip
    page = (tmp_path / "out" / "page.html").read_text().split("<h3>Means over data sets</h3>")[1].split("</table>")[0]
    rows = [re.findall(r"<t[hd][^>]*>([^<]*)", row) for row in page.split("<tbody>")[1].split("</tr>")[:-1]]
    cells = [[*grid["cells"], *grid["exits"]] for grid in grids]
    means = [sum(cell["accuracy"] for cell in each) / 4 for each in zip(*cells, strict=True)]
    # those of other settings are no means over data sets
    assert [(*row[:3], row[4]) for row in rows] == [
        ("sets", "2", depth, f"{mean:.2f}") for depth, mean in zip(("1", "2", "patience 1"), means, strict=True)
    ]


# ---- depth per word


@pytest.fixture(scope="module")
def adaptive(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    settings = ("model.encoder={layers=4, depth={type='per-word'}}", "training.objective={type='single'}")
    return train(config(folder, *settings), tmp_path_factory.mktemp("runs") / "adaptive", quiet=True)


def test_a_resume_with_depth_per_word_ends_with_the_same_bits(folder: Path, adaptive: Path, tmp_path: Path) -> None:
    settings = ("model.encoder={layers=4, depth={type='per-word'}}", "training.objective={type='single'}")
    with when(10, "train", crash), pytest.raises(Crash):
        train(config(folder, *settings), tmp_path / "killed", quiet=True)
    train(config(folder, *settings), tmp_path / "killed", resume=True, quiet=True)
    assert outcome(tmp_path / "killed") == outcome(adaptive)


def test_models_of_several_sizes_are_drawn_by_their_layers(folder: Path, tmp_path: Path) -> None:
    words = """'model.encoder.depth={type="per-word"}', 'training.objective={type="single"}'"""
    (tmp_path / "chain.toml").write_text(
        f"""
        recipe = "{folder}/tiny.toml"
        [[stages]]
        type = "train"
        name = "words"
        each = [{{ layers = [1, 3], seed = [1, 2] }}]
        settings = [{words}, "model.encoder.layers=$layers", "seed=$seed"]
        [[stages]]
        type = "evaluate"
        name = "scores"
        of = ["words"]
        [[stages]]
        type = "report"
        name = "page"
        of = ["words"]
        """
    )
    run_chain(tmp_path / "chain.toml", tmp_path / "out", settings=["training.steps=1", "training.average=1"])
    page = (tmp_path / "out" / "page.html").read_text()
    for label in ("accuracy, % by layers", "texts a second by layers"):
        assert page.count(f'aria-label="{label}"') == 1
    assert "The band is the standard deviation between runs." in page


def test_depths_come_from_training_labels_alone(folder: Path, adaptive: Path, tmp_path: Path) -> None:
    turned = {"falls": "rises", "rises": "falls"}
    lines = [line.split("\t") for line in (folder / "dev.tsv").read_text().splitlines()]
    (tmp_path / "dev.tsv").write_text("".join(f"{turned[label]}\t{text}\n" for label, text in lines))
    other = f'[{{type="labelled", path="{tmp_path}/dev.tsv"}}]'
    settings = ("model.encoder={layers=4, depth={type='per-word'}}", "training.objective={type='single'}")
    changed = config(folder, *settings, f"data.dev={other}", f"data.test={other}", "training.steps=1")
    run = train(changed, tmp_path / "run", quiet=True)
    assert (run / "depths.tsv").read_bytes() == (adaptive / "depths.tsv").read_bytes()


def test_evaluation_and_classification_use_the_depths_of_training(adaptive: Path, folder: Path, cli: Cli) -> None:
    code, _, err = cli("evaluate", adaptive, "--text", "seven eight nine")
    assert (code, err) == (0, "")
    page = (adaptive / "report.html").read_text()
    assert all(f">{word}</span>" in page for word in (" seven", " eight"))
    grid = json.loads((adaptive / "grid.json").read_text())
    shown = ["".join(piece for piece, _ in sample["words"]).replace("▁", " ") for sample in grid["samples"]]
    first = [line.split("\t")[1] for line in (folder / "dev.tsv").read_text().splitlines()[:6]]
    assert shown == [f"<bos> {text}<eos>" for text in ("seven eight nine", *first)]
    (cell,) = grid["cells"]
    assert 1 < cell["mean_depth"] < 4
    assert sum(depth * count for depth, count in enumerate(cell["depths"], 1)) / sum(cell["depths"]) == pytest.approx(
        cell["mean_depth"]
    )
    best = min(line["loss"] for line in metrics(adaptive) if line["kind"] in ("valid", "average"))
    assert cell["loss"] == pytest.approx(best, rel=1e-5)
    run = load_run(adaptive)
    listed = [line.split("\t") for line in (adaptive / "depths.tsv").read_text().splitlines()[2:]]
    known = {row[1]: int(row[4]) for row in listed}
    (found,) = run.classify(["nine two one"])
    pieces = run.tokenizers.source.encode(["nine two one"])[0]
    assert [depth for _, depth in found.words[1:-1]] == [known.get(str(piece), 4) for piece in pieces]
    assert found.words[0][1] == found.words[-1][1] == max(depth for _, depth in found.words[1:-1])


def test_an_exported_model_keeps_its_depths(adaptive: Path, tmp_path: Path, cli: Cli) -> None:
    code, _, err = cli("export", adaptive, "--to", "anydepth", "--out", tmp_path / "exported")
    assert code == 0, err
    texts = ["nine two one", "one ten", "five"]
    assert load_run(tmp_path / "exported").classify(texts) == load_run(adaptive).classify(texts)


def test_depths_of_another_model_are_refused(adaptive: Path, tmp_path: Path) -> None:
    shutil.copytree(adaptive, tmp_path / "run")
    depths = tmp_path / "run" / "depths.tsv"
    depths.write_text(depths.read_text().replace("# 4 layers", "# 6 layers", 1))
    with pytest.raises(UserError, match=r"depths.tsv: depths of up to 6 layers; expected 4"):
        load_run(tmp_path / "run").classify(["one"])
    good = (adaptive / "depths.tsv").read_text()
    word, pieces, *_, depth = good.splitlines()[2].split("\t")
    for line, changed, complaint in (
        (f"\t{depth}\n", "\t5\n", rf"not a list of depths: '{word}' has pieces {pieces} and depth 5, of # 4 layers"),
        (f"\t{depth}\n", "\t0\n", "and depth 0, of"),
        (f"{word}\t{pieces}", f"{word}\t{pieces} 7", f"has pieces {pieces} 7"),
        (f"{word}\t{pieces}", f"{word}\t4600", "has pieces that the tokenizer of this run does not have"),
    ):
        depths.write_text(good.replace(line, changed, 1))
        with pytest.raises(UserError, match=rf"depths.tsv: .*{complaint}"):
            load_run(tmp_path / "run").classify(["one"])
    depths.unlink()
    with pytest.raises(UserError, match=r"depths.tsv: no such file; training makes it"):
        load_run(tmp_path / "run").classify(["one"])


def test_the_command_writes_the_same_depths(folder: Path, adaptive: Path, tmp_path: Path, cli: Cli) -> None:
    for path in (adaptive, folder / "tiny.toml"):
        out = tmp_path / f"{path.name}.tsv"
        layers = () if path == adaptive else ("--set", "model.encoder.layers=4")
        code, printed, err = cli("depths", path, "--method", "mi", "--out", out, "--text", "one ten", *layers)
        assert code == 0, err
        assert out.read_bytes() == (adaptive / "depths.tsv").read_bytes()
        assert out.with_suffix(".png").read_bytes()[:4] == b"\x89PNG"
    assert "layers on average" in printed


def test_depths_by_reconstruction(folder: Path, tmp_path: Path, cli: Cli) -> None:
    texts = f'[{{type="text", path="{folder}/train.tsv", column=1}}]'
    stack = "{layers=2, depth={type='prefix'}}"
    masked = (
        f"model={{type='masked-lm', max_positions=64, layer={{width=16, ffn=32, heads=2}}, encoder={stack}}}",
        f"data.train={texts}", "data.dev=[]", f"data.test={texts}",
    )  # fmt: skip
    guesser = train(config(folder, *masked), tmp_path / "guesser", quiet=True)
    depth = f"{{type='per-word', estimate={{type='reconstruction', model='{guesser}', every=2, penalty=0.01}}}}"
    settings = (f"model.encoder={{layers=2, depth={depth}}}", "training.objective={type='single'}")
    run = train(
        config(folder, *settings, f"training.start_from={guesser}", "training.steps=2"), tmp_path / "run", quiet=True
    )
    code, out, err = cli("evaluate", run)
    assert code == 0, err
    kept = set((guesser / "losses").iterdir())
    assert len(kept) == 2  # of the training and of the dev texts, which are the test texts here
    (found,) = load_run(run).classify(["one ten"])
    assert all(1 <= depth <= 2 for _, depth in found.words)
    assert set((guesser / "losses").iterdir()) == kept  # passing texts leave nothing behind
    out = tmp_path / "depths.jsonl"
    asked = ("--method", "reconstruction", "--texts", 5, "--compare", "--json", "--text", "ten two")
    code, printed, err = cli("depths", run, "--out", out, *asked)
    assert code == 0, err
    found = json.loads(printed)
    assert len(list((guesser / "losses").iterdir())) == 4  # these few texts, two words and one at a time
    assert sum(found["counts"]) == sum(len(json.loads(line)["words"]) - 2 for line in out.read_text().splitlines())
    assert json.loads(cli("depths", run, "--out", out, *asked, "--penalty", 0.01, "--every", 2)[1]) == found
    assert json.loads(cli("depths", run, "--out", out, *asked, "--penalty", 5)[1])["mean_depth"] == 1
    assert len(out.read_text().splitlines()) == 5
    means = list(found["by_penalty"].values())
    assert means == sorted(means, reverse=True)
    assert 0 <= found["agreement"][0] <= 1
    code, _, err = cli("depths", folder / "tiny.toml", "--method", "reconstruction", "--out", out)
    assert (code, "--model" in err) == (2, True)
    for model, complaint in ((tmp_path / "none", "is not a run"), (run, "is a classifier: expected a masked-lm")):
        depth = f"{{type='per-word', estimate={{type='reconstruction', model='{model}'}}}}"
        changed = config(folder, f"model.encoder={{layers=2, depth={depth}}}", settings[1])
        with pytest.raises(UserError, match=rf"^model.encoder.depth.estimate.model: .* {complaint}"):
            train(changed, tmp_path / f"from_{model.name}", quiet=True)
    for changes, complaint in (
        ((), "has another tokenizer"),
        ((f"tokenizer.path={guesser}/tokenizer.json", "model.encoder.layers=3"), "has 2 layers, this classifier 3"),
    ):
        with pytest.raises(UserError, match=rf"^model.encoder.depth.estimate.model: .* {complaint}"):
            train(config(folder, *settings, *changes), tmp_path / f"with_{len(changes)}", quiet=True)
    long = tmp_path / "long.tsv"
    long.write_text(f"falls\t{'six ' * 80}\n{(folder / 'train.tsv').read_text()}")
    longer = (f"tokenizer.path={guesser}/tokenizer.json", "data.max_source=90", "model.max_positions=128")
    with pytest.raises(UserError, match=r"guesser: this masked-lm reads texts of up to 64 tokens, and one has 83"):
        train(config(folder, *settings, *longer, f"data.train.0.path={long}"), tmp_path / "longer", quiet=True)
    full = ("model.encoder.depth={type='full'}", settings[1], "training.steps=1")
    plain = train(config(folder, *masked, *full), tmp_path / "plain", quiet=True)
    code, _, err = cli("depths", run, "--out", out, "--method", "reconstruction", "--model", plain)
    assert (code, "expected a masked-lm with an exit at every layer" in err) == (2, True)


def test_a_classifier_finds_what_guesses_its_words_from_anywhere(
    folder: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for place in (here, elsewhere):
        place.mkdir()
    monkeypatch.chdir(here)
    masked = (
        "model={type='masked-lm', max_positions=64, layer={width=16, ffn=32, heads=2},"
        " encoder={layers=2, depth={type='prefix'}}}",
        f'data.train=[{{type="text", path="{folder}/train.tsv", column=1}}]',
        "data.dev=[]", "data.test=[]", "training.steps=1",
    )  # fmt: skip
    train(config(folder, *masked), Path("runs/guesser"), quiet=True)
    depth = "{type='per-word', estimate={type='reconstruction', model='runs/guesser'}}"
    settings = (f"model.encoder={{layers=2, depth={depth}}}", "training.objective={type='single'}")
    settings += ("training.steps=1", "tokenizer.path=runs/guesser/tokenizer.json")
    train(config(folder, *settings), Path("runs/mine"), quiet=True)
    assert load(Path("runs/mine/config.toml")).model.encoder.depth.estimate.model == "runs/guesser"
    texts = ["nine two one", "one ten"]
    found = load_run("runs/mine").classify(texts)
    monkeypatch.chdir(elsewhere)
    assert load_run(here / "runs" / "mine").classify(texts) == found
    code, _, err = cli("depths", here / "runs" / "mine", "--method", "reconstruction", "--out", "depths.jsonl")
    assert code == 0, err
    (elsewhere / "exports").mkdir()
    code, _, err = cli("export", here / "runs" / "mine", "--to", "anydepth", "--out", "exports/small")
    assert code == 0, err
    assert load_run("exports/small").classify(texts) == found
    moved = (here / "runs").rename(elsewhere / "moved")  # together
    assert load_run(moved / "mine").classify(texts) == found
    guesser = (moved / "guesser").rename(elsewhere / "guesser")
    name = "model.encoder.depth.estimate.model"
    with pytest.raises(UserError, match=rf"^{name}: .* is not a run.* --set {name}=RUN says where it is"):
        load_run(moved / "mine").classify(texts)
    assert load_run(moved / "mine", settings=[f"{name}={guesser}"]).classify(texts) == found


def test_words_tell_nothing_about_a_single_label(folder: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "one.tsv").write_text("falls\tone two\nfalls\tthree\n")
    corpus = ("--set", f"data.train.0.path={tmp_path}/one.tsv")
    code, _, err = cli("depths", folder / "tiny.toml", "--method", "mi", "--out", tmp_path / "depths.tsv", *corpus)
    assert (code, "1 label found, 'falls'; expected two or more" in err) == (2, True)


def test_flags_of_depths_that_would_mean_nothing_are_refused(folder: Path, tmp_path: Path, cli: Cli) -> None:
    for out, further, complaint in (
        ("depths.png", (), "the picture will be there; give a name such as"),
        ("depths.tsv", ("--every", 4), "--every is for --method reconstruction"),
        ("depths.tsv", ("--compare",), "--compare is for --method reconstruction"),
        ("none/depths.tsv", (), "there is no folder"),
    ):
        code, _, err = cli("depths", folder / "tiny.toml", "--method", "mi", "--out", tmp_path / out, *further)
        assert (code, complaint in err) == (2, True), err


def test_texts_that_leave_early(trained: Path, tmp_path: Path, cli: Cli) -> None:
    code, out, err = cli("evaluate", trained, "--exits", "0.7,patience 1", "--depths", "2")
    assert code == 0, err
    grid = json.loads((trained / "grid.json").read_text())
    found = {cell["exit"]: cell for cell in grid["exits"]}
    assert list(found) == ["confidence 0.7", "patience 1"]
    assert all(1 <= cell["mean_depth"] <= 2 for cell in found.values())
    assert found["patience 1"]["mean_depth"] == 2  # two exits can agree at the second for the first time
    assert found["patience 1"]["accuracy"] == grid["cells"][-1]["accuracy"]
    assert "confidence 0.7" in out
    page = (trained / "report.html").read_text()
    assert "confidence 0.7" in page
    assert page.count('aria-label="words by depth"') == 1
    labels = {name: (trained / "outputs" / f"{name}.txt").read_text().split("\n") for name in ("2", "confidence 0.7")}
    right = (trained / "outputs" / "reference.txt").read_text().split("\n")
    chance = sign_test(*(np.array(each) for each in (labels["confidence 0.7"], labels["2"], right)))
    row = page[page.index("confidence 0.7</td>") :].partition("</tr>")[0]
    assert row.endswith(f"<td>{chance:.3f}</td>")
    (tmp_path / "in.txt").write_text("nine two one\n")
    code, out, err = cli("classify", trained, tmp_path / "in.txt", "--depth", "adaptive", "--exit", "patience 1")
    assert (code, out.split("\t")[0]) == (0, "falls")


def test_classifiers_compared(trained: Path, adaptive: Path, tmp_path: Path, cli: Cli) -> None:
    for run in (trained, adaptive):
        assert cli("evaluate", run)[0] == 0
    page = tmp_path / "both.html"
    code, out, err = cli("report", trained, adaptive, "--out", page, "--json", "--baseline", adaptive.name)
    assert code == 0, err
    found = json.loads(out)
    deepest = max(row["encoder"] for row in found["rows"] if row["run"] == adaptive.name)
    assert found["against"] == f"{adaptive.name} at depth {deepest}"
    ours = next(row for row in found["rows"] if row["run"] == adaptive.name and row["apart"] is None)
    for row in found["rows"]:
        if row["apart"] is not None:
            assert row["apart"]["difference"] == pytest.approx(row["accuracy"] - ours["accuracy"])
            assert row["apart"]["low"] <= row["apart"]["difference"] <= row["apart"]["high"]
            assert f"<td>{row['apart']['difference']:+.2f}</td>" in page.read_text()
    assert {row["run"] for row in found["rows"] if row["apart"]} >= {trained.name}
    assert cli("report", trained, adaptive, "--out", page, "--baseline", "other")[0] == 2


def test_flags_that_would_mean_nothing_are_refused(trained: Path, adaptive: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "in.txt").write_text("nine two one\n")
    classify, early = ("classify", trained, tmp_path / "in.txt"), ("--depth", "adaptive", "--exit", "0.5")
    for command, complaint in (
        ((*classify, "--exit", "0.5"), "--exit says when texts leave early: give --depth adaptive"),
        ((*classify, "--show", "--json"), "--show, --json: give one of them"),
        ((*classify, "--show"), "--show: all words of this run are equally deep"),
        ((*classify, "--depth", "adaptive", "--exit", "soon"), "exit 'soon': expected a probability"),
        (("classify", adaptive, tmp_path / "in.txt", *early), "--exit: the words of this run have depths of their own"),
        (("evaluate", trained, "--text", "one"), "--text: all words of this run are equally deep"),
        (("evaluate", adaptive, "--exits", "0.9"), "needs exits below the last layer"),
        (("evaluate", trained, "--batch", "-1"), "--batch -1: expected 0 or more"),
    ):
        code, out, err = cli(*command)
        assert (code, out, complaint in err) == (2, "", True), err


@pytest.mark.parametrize(
    ("layout", "choice", "oracle", "stopped"),
    [("padded", "likeliest", "correctness", "refresh"), ("packed", "expected", "likelihood", "keep")],
)
def test_a_halting_unit_is_trained_and_used(
    layout: str, choice: str, oracle: str, stopped: str, folder: Path, tmp_path: Path, cli: Cli
) -> None:
    estimate = f"estimate={{type='halting', choice='{choice}'}}, stopped='{stopped}'"
    settings = (
        f"model.encoder={{layers=3, depth={{type='per-word', {estimate}}}}}",
        f"training.objective={{type='halting', oracle='{oracle}'}}",
        f"batching.layout={layout}",
    )
    run = train(config(folder, *settings), tmp_path / "run", quiet=True)
    code, _, err = cli("evaluate", run)
    assert code == 0, err
    (cell,) = json.loads((run / "grid.json").read_text())["cells"]
    assert 1 <= cell["mean_depth"] <= 3
    (tmp_path / "in.txt").write_text("a text\nand one more\n")
    code, out, err = cli("classify", run, tmp_path / "in.txt")
    assert (code, len(out.splitlines())) == (0, 2), err


def test_a_halting_unit_of_before_takes_the_likeliest_depth(folder: Path, tmp_path: Path, cli: Cli) -> None:
    """A run whose settings know neither `choice` nor `oracle`."""
    settings = (
        "model.encoder={layers=3, depth={type='per-word', estimate={type='halting'}}}",
        "training.objective={type='halting'}",
    )
    run = train(config(folder, *settings), tmp_path / "run", quiet=True)
    written = (run / "config.toml").read_text()
    before = re.sub(r"^(choice|oracle) = .*\n", "", written, flags=re.M)
    assert len(written.splitlines()) - len(before.splitlines()) == 2
    found = []
    for text in (written, before):
        (run / "config.toml").write_text(text)
        code, _, err = cli("evaluate", run)
        assert code == 0, err
        (cell,) = json.loads((run / "grid.json").read_text())["cells"]
        found.append((cell["accuracy"], cell["mean_depth"], cell["loss"]))
    assert found[0] == found[1]
