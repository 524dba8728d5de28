"""Easy and difficult sentences, attention maps, gradients of very deep encoders: from the command line to the page."""

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Cli, random_batch, tiny_translator
from tiny_training import recipe

from anydepth.depth.prefix import PrefixConfig
from anydepth.errors import UserError
from anydepth.evaluation.attention import Seen, attention_map, read_attention
from anydepth.evaluation.difficulty import by_losses, cut, judge, last_checkpoints, read_difficulty
from anydepth.evaluation.metrics import score
from anydepth.evaluation.texts import read_test_set
from anydepth.nn.attention import CrossAttention, Padded
from anydepth.run import load
from anydepth.training.gradients import layer_norms, read_norms

PLAIN = ['model.encoder.depth={type="full"}', 'model.decoder.depth={type="full"}', "training.average=1"]
BLOCKS = ['model.bridge={type="multiscale"}', "model.encoder.layers=4"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A plain model with four checkpoints, and one with a multiscale encoder; both evaluated."""
    from anydepth.config import load as load_config
    from anydepth.evaluation.filling import fill_grid
    from anydepth.evaluation.texts import read_test_sets
    from anydepth.training.loop import train

    folder = tmp_path_factory.mktemp("analyses")
    test = f'data.test={{type="parallel", source="{folder}/dev.source", target="{folder}/dev.target"}}'
    common = [*PLAIN, test, "training.keep=4", "decoding.beam=2"]
    found = {}
    for name, more in (("plain", []), ("deep", BLOCKS)):
        found[name] = train(load_config(recipe(folder), [*common, *more]), folder / name, quiet=True)
        fill_grid(load(found[name], "cpu"), found[name], read_test_sets(found[name]), None, 2, 64, lambda *_: None)
    return found


def test_difficulty_is_mean_and_deviation_over_checkpoints(runs: dict[str, Path]) -> None:
    test_set = read_test_set(runs["plain"])
    source, reference, _ = test_set
    found = judge(runs["plain"], test_set, checkpoints=3, device="cpu")
    assert found.steps == [6, 9, 12]
    losses = np.array(
        [[-x for x in load(runs["plain"], "cpu", str(step)).score(source, reference)] for step in (6, 9, 12)]
    )
    mean = losses.sum(0) / 3
    deviation = np.sqrt(((losses - mean) ** 2).sum(0) / 3)
    assert found.mean == pytest.approx(mean)
    assert found.deviation == pytest.approx(deviation)
    assert np.bincount(found.part).tolist() == [5, 5, 5, 5]
    for part in range(3):
        easier, harder = ((mean + deviation)[np.array(found.part) == number] for number in (part, part + 1))
        assert easier.max() <= harder.min()
    assert read_difficulty(runs["plain"]) == found


def test_a_sentence_whose_losses_vary_is_not_easy() -> None:
    """The first is worse on average, 2 against 1.8, but never better or worse."""
    mean, deviation, part = by_losses(np.array([[2.0, 0.8], [2.0, 2.8]]), 2)
    assert mean.tolist() == pytest.approx([2.0, 1.8])
    assert deviation.tolist() == pytest.approx([0.0, 1.0])
    assert part == [0, 1]


def test_parts_are_equal_and_ties_keep_their_order() -> None:
    assert cut(np.array([3.0, 1.0, 2.0, 1.0, 5.0]), 2) == [1, 0, 0, 0, 1]
    assert cut(np.zeros(4), 4) == [0, 1, 2, 3]


def test_one_checkpoint_cannot_judge(runs: dict[str, Path], tmp_path: Path) -> None:
    assert len(last_checkpoints(runs["plain"], 20)) == 4
    with pytest.raises(UserError, match="0 checkpoints cannot tell how losses vary"):
        last_checkpoints(tmp_path, 20)
    with pytest.raises(UserError, match="--parts 21: expected 2 to 20"):
        judge(runs["plain"], read_test_set(runs["plain"]), parts=21)


def test_other_texts_can_be_judged(runs: dict[str, Path], tmp_path: Path, cli: Cli) -> None:
    """Of a run whose recipe names no test set, say."""
    run = Path(shutil.copytree(runs["plain"], tmp_path / "run"))
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace("[[data.test]]", "[[data.dev]]"))
    code, _, said = cli("difficulty", run)
    assert code == 2
    assert "names no test set; give --source and --reference" in said
    files = [runs["plain"].parent / f"dev.{side}" for side in ("source", "target")]
    code, printed, said = cli("difficulty", run, "--source", files[0], "--reference", files[1])
    assert code == 0, said
    assert printed.startswith("20 sentences in 4 parts, by 4 checkpoints.")
    assert '<section id="difficulty">' in (run / "report.html").read_text()


def test_the_report_scores_every_run_on_each_part(runs: dict[str, Path], tmp_path: Path, cli: Cli) -> None:
    code, printed, said = cli("difficulty", runs["plain"], "--checkpoints", 4, "--parts", 2)
    assert code == 0, said
    assert printed == f"20 sentences in 2 parts, by 4 checkpoints. The report is in {runs['plain']}/report.html.\n"
    code, _, said = cli("report", runs["deep"], runs["plain"], "--out", tmp_path / "both.html")
    assert code == 0, said
    part = np.array(json.loads((runs["plain"] / "difficulty.json").read_text())["part"])
    page = (tmp_path / "both.html").read_text().split('<section id="difficulty">')[1].split("</section>")[0]
    assert "by the loss of plain on each sentence" in page
    for name, depth in (("plain", "2-2"), ("deep", "4-2")):
        texts = [(runs[name] / "outputs" / f"{file}.txt").read_text().splitlines() for file in (depth, "reference")]
        row = page.split(f"{name}</th>")[1].split("</tr>")[0]
        for number, shown in enumerate(re.findall(r"<td>([\d.]+)", row)):
            hypotheses, references = ([text for text, at in zip(each, part) if at == number] for each in texts)
            assert float(shown) == pytest.approx(score(hypotheses, references).bleu, abs=0.006)


# ---- attention


def test_weights_are_those_that_the_attention_uses() -> None:
    attention = CrossAttention(8, 1, bias=True, dropout=0.0).eval()
    x, memory = torch.randn(1, 3, 8), torch.randn(1, 5, 8)
    seen = Seen(attention)
    out = attention(x, memory, Padded(None))
    weights = torch.tensor(seen.weights())
    assert weights.shape == (3, 5)
    _, values = attention.keys_and_values(memory)
    torch.testing.assert_close(attention.out(weights @ values[0, :, 0]), out[0], atol=2e-3, rtol=0)
    assert not attention._forward_pre_hooks


@pytest.mark.parametrize("name", ["plain", "deep"])
def test_a_map_has_a_row_for_every_word_of_the_translation(runs: dict[str, Path], name: str) -> None:
    run = load(runs[name], "cpu")
    found = attention_map(run, "one three")
    ((best,),) = run.translations(["one three"])
    assert len(found.target) == len(best.tokens) + 1
    assert "".join(found.source) == "▁one▁three<eos>"
    for weights in (found.memory, found.context):
        for row in weights:
            assert len(row) == len(found.source)
            assert sum(row) == pytest.approx(1, abs=0.01)
    assert bool(found.context) == (name == "deep")


@pytest.mark.parametrize("name", ["plain", "deep"])
def test_a_map_is_of_the_top_layer(runs: dict[str, Path], name: str) -> None:
    """Queries of 0 look everywhere alike; below the top they do not show."""
    run = load(runs[name], "cpu")
    for number, alike in ((0, False), (-1, True)):
        layer = run.translator.decoder.layers[number]
        for attention in [layer.cross, *([layer.context.attention] if layer.context else [])]:
            torch.nn.init.zeros_(attention.query.weight)
            torch.nn.init.zeros_(attention.query.bias)
        found = attention_map(run, "one three")
        for weights in [found.memory, *([found.context] if name == "deep" else [])]:
            everywhere = [pytest.approx([1 / len(found.source)] * len(found.source), abs=1e-4)] * len(weights)
            assert (weights == everywhere) == alike


def test_attention_is_on_the_page(runs: dict[str, Path], tmp_path: Path, cli: Cli) -> None:
    code, printed, said = cli(
        "attention", runs["deep"], "--text", "one two", "--text", "three <four>", "--depth", "4-2"
    )
    assert code == 0, said
    assert printed == f"The report is in {runs['deep']}/report.html.\n"
    assert [one.text for one in read_attention(runs["deep"])] == ["one two", "three <four>"]
    page = (runs["deep"] / "report.html").read_text()
    assert page.count("attention to the context") == page.count("attention to the encoder&#x27;s states") == 2
    assert "<h3>three &lt;four&gt;</h3>" in page
    code, _, said = cli("attention", runs["deep"], "--text", "one", "--depth", "9-9")
    assert (code, "depth 9-9: this run has" in said) == (2, True)
    code, _, said = cli("attention", runs["deep"], "--text", " ")
    assert (code, said) == (2, "anydepth: --text: there is no word in it\n")


# ---- gradients


def test_the_norm_of_a_layer_is_that_of_all_its_gradients() -> None:
    model = tiny_translator(PrefixConfig(), layers=3)
    model(random_batch([(3, 3), (5, 2)]), model.plan("3-2")).square().sum().backward()
    found = {stack: read_norms(norms) for stack, norms in layer_norms(model).items()}
    for stack, norms in found.items():
        for layer, norm in zip(getattr(model, stack).layers, norms, strict=True):
            gradients = [parameter.grad for parameter in layer.parameters() if parameter.grad is not None]
            expected = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
            assert norm == (pytest.approx(expected, rel=1e-5) if gradients else None)
    assert [norm is None for norm in found["decoder"]] == [False, False, True]


def test_gradients_of_every_encoder_layer_are_logged(runs: dict[str, Path]) -> None:
    lines = [json.loads(line) for line in (runs["deep"] / "metrics.jsonl").read_text().splitlines()]
    norms = [line["norms"] for line in lines if line["kind"] == "gradients" and line["stack"] == "encoder"]
    assert len(norms) == 12
    assert all(len(each) == 4 and all(norm > 0 for norm in each) for each in norms)
