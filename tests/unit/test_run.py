import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from random_runs import write_random_run
from safetensors.torch import load_file, save_file

import anydepth
from anydepth.data.sources import batches
from anydepth.decoding.decoder import Precision
from anydepth.errors import UserError
from anydepth.files import checksum
from anydepth.run import Run

TEXTS = ["one two three", "", "two", "three three one two one", "  ", "one", "two three", "three one two"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write_random_run(folder)
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return anydepth.load(folder, device="cpu")


def test_a_loaded_run_knows_itself(run: Run, folder: Path) -> None:
    assert run.depths() == ["1-1", "1-2", "2-1", "2-2"]
    assert (run.device, run.folder) == (torch.device("cpu"), folder)
    assert not run.model.training
    assert run.describe("1-2")["parameters"] < run.describe()["parameters"]
    assert run.weights_hash == checksum(folder / "model.safetensors")


def test_texts_come_back_in_order_and_empty_ones_empty(run: Run) -> None:
    together = run.translate(TEXTS)
    assert together == [run.translate([text])[0] for text in TEXTS]
    assert together[1] == together[4] == ""
    assert run.translate([]) == []
    assert len(set(together)) >= 4


@pytest.mark.parametrize("settings", [{}, {"beam": 1}, {"sample": True}], ids=["beam", "greedy", "sample"])
def test_batch_mates_do_not_matter(run: Run, settings: dict) -> None:
    assert run.translate(TEXTS, "2-1", batch=1, **settings) == run.translate(TEXTS, "2-1", batch=3, **settings)


@pytest.mark.parametrize("precision", ["bfloat16", "float16", "int8"])
def test_precision_changes_little_and_the_weights_not_at_all(run: Run, precision: Precision) -> None:
    before = run.model.output.weight.clone()
    exact, rounded = (run.translations(TEXTS, beam=1, precision=name) for name in ("float32", precision))
    same = [(a.score, b.score) for (a,), (b,) in zip(exact, rounded) if a.text and a.tokens == b.tokens]
    assert len(same) >= 2
    assert all(a != b and a == pytest.approx(b, abs=0.1) for a, b in same)
    assert torch.equal(run.model.output.weight, before)
    assert run.in_language(None).searcher(precision) is run.searcher(precision)
    assert run.searcher(precision).model is not run.searcher("float32").model


def test_depths_differ_and_the_deepest_is_the_default(run: Run) -> None:
    assert run.translate(TEXTS, "2-2") == run.translate(TEXTS)
    assert run.translate(TEXTS, "1-1") != run.translate(TEXTS)


@pytest.mark.parametrize("depth", ["1-1", "2-2"])
def test_the_score_of_a_search_is_that_of_forced_decoding(run: Run, depth: str) -> None:
    found = run.translations(TEXTS, depth, n_best=5, length_penalty=0.5)
    ended = [
        (text, best)
        for text, translations in zip(TEXTS, found)
        for best in translations
        if text.strip() and len(best.tokens) < 10  # none is cut before that: max_extra is 10
    ]
    assert len(ended) > 5
    totals = run.score([text for text, _ in ended], [best.tokens for _, best in ended], depth)
    assert totals == pytest.approx([best.log_probability for _, best in ended], abs=1e-4)
    for _, best in ended:
        assert best.score == pytest.approx(best.log_probability / (len(best.tokens) + 1) ** 0.5, abs=1e-5)


def test_n_best_are_different_and_begin_with_the_best(run: Run) -> None:
    found = run.translations(TEXTS, n_best=3)
    assert [len(translations) for translations in found] == [1 if not text.strip() else 3 for text in TEXTS]
    assert [translations[0].text for translations in found] == run.translate(TEXTS)
    assert all(len({tuple(t.tokens) for t in translations}) == len(translations) for translations in found)


def test_targets_are_scored_as_texts_or_tokens(run: Run) -> None:
    ids = run.tokenizers.target.encode(["two one"])[0]
    text, tokens, other = run.score(["one", "one", "one"], ["two one", ids, "two"])
    assert text == pytest.approx(tokens, abs=1e-5)
    assert text != pytest.approx(other, abs=1e-2)


def test_progress_counts_sentences(run: Run) -> None:
    seen: list[tuple[int, int]] = []
    run.translate(TEXTS, beam=1, batch=4, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(6, 8), (8, 8)]


def test_batches_put_like_lengths_together_within_both_limits() -> None:
    assert list(batches([1, 9, 4, 9, 2, 50], sentences=2, tokens=30)) == [[5], [1, 3], [2, 4], [0]]
    assert list(batches([9, 9, 9, 9], sentences=10, tokens=30)) == [[0, 1, 2], [3]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": "3-1"}, "depth 3-1: this run has encoder depths 1, 2 and decoder depths 1, 2"),
        ({"depth": "deep"}, "depth 'deep': expected encoder-decoder layers"),
        ({"beam": 0}, "beam must be at least 1"),
        ({"beams": 3}, "beams: no such decoding setting; there are beam, "),
    ],
)
def test_mistakes_are_named(run: Run, arguments: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        run.translate(TEXTS, **arguments)


def test_a_single_text_is_not_taken_for_its_characters(run: Run) -> None:
    with pytest.raises(UserError, match=r"texts: expected a list, such as \['one two'\], not a single text"):
        run.translate("one two")
    with pytest.raises(UserError, match=r"depth: expected a text, such as '6-2' \(a classifier: '6'\), not int 3"):
        run.translate(["one two"], 3)
    with pytest.raises(UserError, match=r"line 2: expected a text, not NoneType None"):
        run.translate(["one two", None])


def test_numbers_of_numpy_are_numbers(run: Run) -> None:
    expected = run.translate(TEXTS, beam=2, length_penalty=0.5)
    assert run.translate(TEXTS, beam=np.int64(2), length_penalty=np.float32(0.5)) == expected
    with pytest.raises(UserError, match="beam: expected an integer, got the number"):
        run.translate(TEXTS, beam=np.float64(2.5))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"precision": "fp16"}, "precision: expected one of 'float32', 'bfloat16', 'float16', 'int8', got the text"),
        ({"beam": "4"}, "beam: expected an integer, got the text '4'"),
        ({"beam": 2.5}, "beam: expected an integer, got the number 2.5"),
        ({"speculate": "no"}, "speculate: expected true or false, got the text 'no'"),
        ({"length_penalty": "a", "seed": True}, "length_penalty: expected a number, .*; seed: expected an integer"),
    ],
)
def test_settings_of_another_kind_are_refused(run: Run, settings: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        run.translate(TEXTS, **settings)


def test_too_long_a_text_is_named_by_its_line(run: Run) -> None:
    with pytest.raises(UserError, match="line 2: 40 tokens, but this model reads 39 at most"):
        run.translate(["one", "!" * 39])  # a space is put before it
    assert run.translate(["!" * 38])
    with pytest.raises(UserError, match="target line 1: 40 tokens"):
        run.score(["one"], [[5] * 40])


def test_a_checkpoint_can_be_chosen(folder: Path) -> None:
    best = anydepth.load(folder)
    last = anydepth.load(folder, checkpoint="last")
    torch.testing.assert_close(last.model.output.weight, -best.model.output.weight)
    assert anydepth.load(folder, checkpoint="7").weights_hash == last.weights_hash != best.weights_hash
    with pytest.raises(UserError, match=r"checkpoint '8': .* has best, last, 7"):
        anydepth.load(folder, checkpoint="8")


def test_what_is_no_run_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run"):
        anydepth.load(tmp_path)
    with pytest.raises(UserError, match="device 'toaster'"):
        anydepth.load(folder, device="toaster")
    (tmp_path / "config.toml").write_bytes((folder / "config.toml").read_bytes())
    with pytest.raises(UserError, match=r"model\.safetensors: no such file"):
        anydepth.load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(UserError, match="is damaged"):
        anydepth.load(tmp_path)


def test_other_weights_or_another_tokenizer_are_refused(folder: Path, tmp_path: Path) -> None:
    for name in ("config.toml", "tokenizer.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    weights = load_file(folder / "model.safetensors")
    save_file(weights, tmp_path / "model.safetensors", {"tokenizer": "0" * 64})
    with pytest.raises(UserError, match="not the tokenizer of this run"):
        anydepth.load(tmp_path)
    weights.pop(next(iter(weights)))
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="weights do not fit the model"):
        anydepth.load(tmp_path)


def test_settings_of_a_call_leave_those_of_the_run(run: Run) -> None:
    before = dataclasses.replace(run.config.decoding)
    assert run.translate(TEXTS, beam=None) == run.translate(TEXTS, beam=before.beam)
    run.translate(TEXTS, beam=2, n_best=None)
    assert run.config.decoding == before


# ---- settings changed for one call


def test_a_plain_model_is_cut_short(folder: Path, tmp_path: Path) -> None:
    """The run of this file offers all prefixes; as a plain model it has one depth, and its layers can still be had."""
    plain = tmp_path / "plain"
    shutil.copytree(folder, plain)
    text = (
        (folder / "config.toml")
        .read_text()
        .replace('"prefix"', '"full"')
        .replace('sample = "uniform"\n', "")
        .replace("exits = []\n", "")
    )
    (plain / "config.toml").write_text(text)
    assert anydepth.load(plain).depths() == ["2-2"]
    cut = anydepth.load(plain, settings=['model.encoder.depth={type="prefix"}', 'model.decoder.depth.type="prefix"'])
    assert cut.depths() == ["1-1", "1-2", "2-1", "2-2"]
    assert cut.translate(TEXTS, "1-1") == anydepth.load(folder).translate(TEXTS, "1-1")
    assert cut.translate(TEXTS) == anydepth.load(plain).translate(TEXTS)
    assert anydepth.load(plain, settings=["decoding.beam=2"]).config.decoding.beam == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["decoding.beam=2", "model.encoder.layers=1"], r"--set model.encoder.layers=1: .*weights do not fit"),
        (["model.layer.ffn=32"], r"--set model.layer.ffn=32: .*weights do not fit"),
        (['model.decoder.depth={type="rezero"}'], r"--set model.decoder.depth=.*: decoder_depth.scale is missing"),
        (["model.encoder.depht=1"], "--set model.encoder.depht: no such setting, did you mean depth"),
    ],
)
def test_settings_that_the_weights_do_not_fit_are_named(folder: Path, settings: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        anydepth.load(folder, settings=settings)
    assert "--set decoding" not in str(caught.value)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("settings", [{}, {"beam": 1}, {"sample": True}], ids=["beam", "greedy", "sample"])
def test_a_gpu_translates_alike(run: Run, folder: Path, settings: dict) -> None:
    assert anydepth.load(folder, "cuda").translate(TEXTS, **settings) == run.translate(TEXTS, **settings)
