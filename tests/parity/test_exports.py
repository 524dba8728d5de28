"""Runs written for other engines, against ourselves: one plan as a plain Transformer, as a CTranslate2 model, and as
one that `transformers` loads."""

import errno
import json
import pkgutil
import shutil
import subprocess
import sys
import typing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import FULL, Cli, random_batch, tiny_translator

from anydepth.data.tokenizer import Tokenizer, TokenizerPair
from anydepth.depth import DepthConfig
from anydepth.depth.latent import LatentConfig
from anydepth.depth.layerdrop import LayerDropConfig
from anydepth.depth.prefix import PrefixConfig
from anydepth.depth.recurrent import RecurrentConfig
from anydepth.errors import UserError
from anydepth.interop.ctranslate2 import CTranslate2Run
from anydepth.interop.export import export_run
from anydepth.interop.unrolled import unrolled
from anydepth.nn.bridge import TransparentConfig
from anydepth.run import Run, load

GOLDEN = Path(__file__).parent.parent / "golden" / "model"
TEXTS = ["the first of May", "twenty-three euros", "Monday, 4 July 2011", "five kilometres and two hours", "a", ""]
NORMAL = [kind() for kind in typing.get_args(DepthConfig) if kind().type != "rezero"]


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def random_run(depth: DepthConfig, **settings: Any) -> Run:
    """A random model with the words of the golden run."""
    golden = load(GOLDEN, "cpu")
    words = len(golden.tokenizers.target)
    model = tiny_translator(depth, layers=4, vocabulary=words, **settings)
    model.pad = golden.tokenizers.target.pad
    for name, parameter in model.named_parameters():
        if "words" in name:  # weak words: otherwise greedy search only repeats one
            torch.nn.init.normal_(parameter, std=0.05)
    data = replace(golden.config.data, sentences=model.config.sentence_layers > 0)
    return Run(
        replace(golden.config, data=data, model=model.config), model, golden.tokenizers, weights=GOLDEN / "config.toml"
    )


@pytest.mark.parametrize("depth", [*NORMAL, LatentConfig(inference="soft")], ids=str)
def test_unrolled_is_the_model_at_that_depth(depth: DepthConfig) -> None:
    model = tiny_translator(depth).double()
    run = Run(load(GOLDEN, "cpu").config, model, load(GOLDEN, "cpu").tokenizers)
    batch = random_batch([(5, 6), (2, 4), (7, 3)])
    for name in model.depths():
        alone = unrolled(run, model.plan(name), "test").double()
        assert (alone.config.encoder.layers, alone.config.decoder.layers) == model.parse(name)
        assert torch.allclose(alone(batch, alone.plan()), model(batch, model.plan(name)), atol=1e-6), name


@pytest.mark.parametrize(
    ("depth", "settings", "reason"),
    [
        (PrefixConfig(), {"norm": "none"}, "layers without normalisation"),
        (
            LatentConfig(inference="sample"),
            {},
            "anew for every sentence; give --set model.encoder.*inference=hard --set model.decoder",
        ),
        (FULL, {"bridge": TransparentConfig()}, "a transparent encoder"),
        (FULL, {"sentence_layers": 2}, "a hierarchical encoder"),
    ],
    ids=["no norm", "sampled", "transparent", "hierarchical"],
)
@pytest.mark.parametrize("engine", ["ctranslate2", "huggingface"])
def test_what_an_engine_cannot_express_is_refused(
    engine: str, depth: DepthConfig, settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=f"--to {engine}: .*{reason}"):
        export_run(random_run(depth, **settings), tmp_path / "out", engine)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("depth", "settings"),
    [
        (PrefixConfig(), {}),
        (RecurrentConfig(depth=6), {}),
        (LatentConfig(inference="soft"), {}),
        (PrefixConfig(), {"norm": "post"}),
        (PrefixConfig(), {"embedding_norm": True, "positions": "learned"}),
        (PrefixConfig(), {"tie": "none"}),
        (PrefixConfig(), {"activation": "gelu", "norm_epsilon": 0.3}),
    ],
    ids=["prefix", "recurrent", "soft gates", "post-norm", "embedding norm", "untied", "other layers"],
)
def test_ctranslate2_says_the_same_at_every_depth(depth: DepthConfig, settings: dict[str, Any], tmp_path: Path) -> None:
    run = random_run(depth, **settings)
    run.folder = tmp_path
    engine = CTranslate2Run.of(run)
    found = set()
    for name in run.depths():
        ours, theirs = (one.translations(TEXTS, name, beam=1) for one in (run, engine))
        assert [one[0].tokens for one in theirs] == [one[0].tokens for one in ours], name
        # it shares the probability of words that are never generated among the others
        assert [one[0].score for one in theirs] == pytest.approx([one[0].score for one in ours], rel=0.02)
        found |= {tuple(one[0].tokens) for one in ours}
    assert len(found) >= len(TEXTS)


def test_ctranslate2_leaves_no_words_early(tmp_path: Path) -> None:
    run = random_run(PrefixConfig())
    run.folder = tmp_path
    with pytest.raises(UserError, match="exit: CTranslate2 runs all layers"):
        CTranslate2Run.of(run).translate(TEXTS, beam=1, exit=1, exit_margin=0.5)


@pytest.mark.parametrize("eager", [True, False], ids=["wants to end", "goes on"])
def test_ctranslate2_keeps_the_rules_of_a_search(eager: bool, tmp_path: Path) -> None:
    """Also where the first word is the end mark."""
    run = random_run(PrefixConfig(), tie="none")
    run.folder, words = tmp_path, run.model.output.weight
    ((first,), *_) = run.translations(TEXTS, beam=1)
    if eager:
        with torch.no_grad():
            words[run.tokenizers.target.eos] = 1.5 * words[first.tokens[0]]
        run.searchers.clear()
    said = []
    for rules in ({}, {"min_length": 9} if eager else {"block_ngrams": 2}):
        ours, theirs = (one.translations(TEXTS, beam=1, **rules) for one in (run, CTranslate2Run.of(run)))
        said.append([one[0].tokens for one in ours])
        assert [one[0].tokens for one in theirs] == said[-1]
    assert said[0] != said[1]
    assert ([] in said[0][:-1]) == eager


def tempted_run() -> Run:
    """One that would say bos and pad, if they were not forbidden."""
    run = random_run(PrefixConfig())
    said = [token for (best,) in run.translations(TEXTS, beam=1) for token in best.tokens]
    target, words = run.tokenizers.target, run.model.output.weight
    with torch.no_grad():
        words[target.bos] = words[target.pad] = 2 * words[max(said, key=said.count)]
    run.searchers.clear()
    return run


def as_its_readme_says(folder: Path, texts: list[str]) -> list[str]:
    """By a process of its own, in that folder."""
    code = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    assert "anydepth" not in code
    asked = f"{code}\nprint(*(text for one in {texts!r} for text in translate([one])), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", asked], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")[1:-1]  # the first is that of its own example


CUT = {"max_source": 6}


@pytest.mark.parametrize(
    ("data", "decoding"),
    [
        ({}, {}),
        ({"tags": "begin", **CUT}, {"block_ngrams": 2}),
        ({"sentences": True, **CUT}, {"min_length": 5, "max_length": 9}),
    ],
    ids=["plain", "tagged and cut", "summaries"],
)
def test_the_readme_of_an_export_is_true(data: dict[str, Any], decoding: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    run, texts = random_run(PrefixConfig()), [*TEXTS[:-1], "five <eos> two", "One. Two! And three, é"]
    config = run.config
    search = replace(config.decoding, beam=1, **decoding)
    run.config = replace(config, data=replace(config.data, **data), decoding=search)
    export_run(run, tmp_path / "out", "ctranslate2", "4-2")
    assert as_its_readme_says(tmp_path / "out", texts) == run.translate(texts, "4-2")


@pytest.mark.parametrize(
    ("data", "decoding"),
    [({}, {}), ({"tags": "begin", **CUT}, {"block_ngrams": 2}), (CUT, {"min_length": 5, "max_length": 9})],
    ids=["plain", "tagged and cut", "limits"],
)
def test_the_readme_of_a_huggingface_export_is_true(
    data: dict[str, Any], decoding: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    run, texts = random_run(PrefixConfig()), [*TEXTS[:-1], "five <eos> two"]
    search = replace(run.config.decoding, beam=1, **decoding)
    run.config = replace(run.config, data=replace(run.config.data, **data), decoding=search)
    export_run(run, tmp_path / "out", "huggingface", "4-2")
    assert as_its_readme_says(tmp_path / "out", texts) == run.translate(texts, "4-2")


def test_the_readme_of_an_export_with_two_tokenizers(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    run = random_run(PrefixConfig(), tie="none")
    run.config = replace(run.config, decoding=replace(run.config.decoding, beam=1))
    run.tokenizers = TokenizerPair(run.tokenizers.source, Tokenizer(run.tokenizers.target.json))
    assert not run.tokenizers.joint
    export_run(run, tmp_path / "out", "ctranslate2")
    assert as_its_readme_says(tmp_path / "out", TEXTS[:-1]) == run.translate(TEXTS[:-1])


def test_ctranslate2_says_no_marks(tmp_path: Path) -> None:
    run = tempted_run()
    run.folder = tmp_path
    ours, theirs = (one.translations(TEXTS, beam=1) for one in (run, CTranslate2Run.of(run)))
    assert [one[0].tokens for one in theirs] == [one[0].tokens for one in ours]


def test_other_layers_of_the_same_weights_are_another_export(tmp_path: Path) -> None:
    """`--set` may choose them."""
    weights, layers = random_run(PrefixConfig()).model.state_dict(), set()
    for depth in (PrefixConfig(), LayerDropConfig()):
        run = random_run(depth)
        run.folder = tmp_path
        run.model.load_state_dict(weights)
        ours, theirs = (one.translations(TEXTS, "2-2", beam=1) for one in (run, CTranslate2Run.of(run)))
        assert [one[0].tokens for one in theirs] == [one[0].tokens for one in ours], depth
        layers.add(run.plan("2-2").decoder.layers)
    assert len(layers) == 2


@pytest.mark.parametrize(
    ("engine", "writer"),
    [
        ("anydepth", "anydepth.interop.extract.write_durably"),
        ("huggingface", "anydepth.interop.huggingface.write_durably"),
        ("ctranslate2", "ctranslate2.specs.TransformerSpec.save"),
    ],
)
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")], ids=repr)
def test_an_export_that_is_cut_off_leaves_nothing(
    engine: str, writer: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ctranslate2")
    write = pkgutil.resolve_name(writer)

    def cut_off(*given: Any) -> None:
        write(*given)
        assert len([*tmp_path.rglob("*")]) > 1
        raise error

    monkeypatch.setattr(writer, cut_off)
    with pytest.raises((KeyboardInterrupt, UserError)):
        export_run(random_run(PrefixConfig()), tmp_path / "out", engine)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    "settings", [{"activation": "gelu"}, {"embedding_norm": True, "positions": "learned"}], ids=["pegasus", "mbart"]
)
def test_transformers_loads_it_and_says_the_same(settings: dict[str, Any], tmp_path: Path) -> None:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    run = random_run(PrefixConfig(), **settings)
    for name in ("4-4", "2-1"):
        export_run(run, tmp_path / name, "huggingface", name)
        model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / name).eval()
        words = AutoTokenizer.from_pretrained(tmp_path / name)
        for text in [*TEXTS[:-1], "five <eos> two"]:  # a mark that is written in a text is text
            ((ours,),) = run.translations([text], name, beam=1)
            inputs = words([text], return_tensors="pt")
            assert inputs.input_ids.tolist() == [run.ended(run.tokenizers.source.encode([text])[0])]
            limit = run.config.decoding.most_tokens(inputs.input_ids.shape[1] - 1)
            inputs.pop("token_type_ids", None)
            (row,) = model.generate(**inputs, num_beams=1, max_new_tokens=limit).tolist()
            ends = (run.tokenizers.target.eos, run.tokenizers.target.pad)
            assert [token for token in row[1:] if token not in ends] == ours.tokens
            assert words.decode(row, skip_special_tokens=True) == ours.text


def test_generate_searches_as_the_run_does(tmp_path: Path) -> None:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    run = tempted_run()
    run.config = replace(run.config, decoding=replace(run.config.decoding, beam=1, length_penalty=0.3))
    model = AutoModelForSeq2SeqLM.from_pretrained(export_run(run, tmp_path / "out", "huggingface")).eval()
    assert (model.generation_config.num_beams, model.generation_config.length_penalty) == (1, 0.3)
    words, marks = AutoTokenizer.from_pretrained(tmp_path / "out"), run.tokenizers.target
    for text in TEXTS[:-1]:
        ((ours,),) = run.translations([text])
        inputs = words([text], return_tensors="pt")
        (row,) = model.generate(input_ids=inputs.input_ids, attention_mask=inputs.attention_mask).tolist()
        assert row[1 : len(ours.tokens) + 1] == ours.tokens
        assert marks.bos not in row[1:]


def test_generate_keeps_the_rules_of_a_search(tmp_path: Path) -> None:
    """As a summarizer has them: no n-gram twice, lengths within limits, long sources cut."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    run = random_run(PrefixConfig())
    rules = replace(run.config.decoding, beam=1, max_length=9, min_length=4, block_ngrams=2)
    free = [best.tokens for (best,) in run.translations(TEXTS[:-1], beam=1, max_length=9)]
    run.config = replace(run.config, decoding=rules, data=replace(run.config.data, max_source=5))
    model = AutoModelForSeq2SeqLM.from_pretrained(export_run(run, tmp_path / "out", "huggingface")).eval()
    words, eos = AutoTokenizer.from_pretrained(tmp_path / "out"), run.tokenizers.target.eos
    kept = [best.tokens for (best,) in run.translations(TEXTS[:-1])]
    assert kept != free
    for text, tokens in zip(TEXTS, kept):
        inputs = words([text], return_tensors="pt", truncation=True)
        (row,) = model.generate(input_ids=inputs.input_ids, attention_mask=inputs.attention_mask).tolist()
        assert row[1:] == [*tokens, eos][:9]


def test_huggingface_has_no_place_for_these(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="none is post-norm"):
        export_run(random_run(PrefixConfig(), norm="post"), tmp_path / "a", "huggingface")
    with pytest.raises(UserError, match="one word matrix"):
        export_run(random_run(PrefixConfig(), tie="decoder"), tmp_path / "a", "huggingface")
    with pytest.raises(UserError, match=r"normalise with an epsilon of 1e-05, not 0\.001"):
        export_run(random_run(PrefixConfig(), norm_epsilon=1e-3), tmp_path / "a", "huggingface")
    marked = random_run(PrefixConfig())
    marked.config = replace(marked.config, data=replace(marked.config.data, sentences=True))
    with pytest.raises(UserError, match="no end marks between sentences"):
        export_run(marked, tmp_path / "a", "huggingface")
    assert not (tmp_path / "a").exists()


# ---- through the command line


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "run"))


def test_translating_with_ctranslate2_from_the_command_line(golden: Path, tmp_path: Path, cli: Cli) -> None:
    text = tmp_path / "text"
    text.write_text("".join(f"{line}\n" for line in TEXTS))
    greedy = ["translate", golden, text, "--depth", "2-1", "--beam", 1]
    native = cli(*greedy)
    for _ in range(2):
        assert cli(*greedy, "--engine", "ctranslate2") == native
    (kept,) = (golden / "exports").iterdir()
    assert "2-1" in kept.name
    code, _, error = cli("translate", golden, text, "--engine", "ctranslate2", "--sample")
    assert code == 2
    assert "--sample: not with --engine ctranslate2" in error
    code, _, error = cli("translate", golden, text, "--engine", "ctranslate2", "--device", "cuda")
    assert code == 2
    assert "--device cuda: --engine ctranslate2 runs on the CPU" in error


def test_an_export_in_eight_bits_is_smaller(golden: Path, tmp_path: Path, cli: Cli) -> None:
    import ctranslate2

    sizes = {}
    for kind in ("float32", "int8"):
        arguments = ["--to", "ctranslate2", "--depth", "1-1", "--quantization", kind, "--out", tmp_path / kind]
        assert cli("export", golden, *arguments)[0] == 0
        sizes[kind] = (tmp_path / kind / "model.bin").stat().st_size
        engine = ctranslate2.Translator(str(tmp_path / kind), device="cpu")
        assert engine.translate_batch([["▁a", "<eos>"]])[0].hypotheses
    assert sizes["int8"] < 0.7 * sizes["float32"]  # positions stay as they are
    code, _, error = cli("export", golden, "--to", "ctranslate2", "--out", tmp_path / "int8")
    assert code == 2
    assert "int8 is not empty" in error
    code, _, error = cli("export", golden, "--to", "ctranslate2", "--quantization", "int3", "--out", tmp_path / "x")
    assert code == 2
    assert "--quantization int3: expected one of int8, " in error


def test_an_export_with_other_settings(golden: Path, tmp_path: Path, cli: Cli) -> None:
    assert cli("export", golden, "--to", "anydepth", "--set", "decoding.beam=3", "--out", tmp_path / "three")[0] == 0
    assert load(tmp_path / "three", "cpu").config.decoding.beam == 3 != load(golden, "cpu").config.decoding.beam


def test_the_exported_tokenizer_writes_the_language_tag(tmp_path: Path) -> None:
    golden = load(GOLDEN, "cpu")
    words = golden.tokenizers.source.with_tokens(["<2de>"])
    model = tiny_translator(PrefixConfig(), layers=2, vocabulary=len(words))
    corpora = tuple(replace(corpus, key="en-de") for corpus in golden.config.data.train)
    data = replace(golden.config.data, train=corpora, dev=(), tags="target")
    run = Run(replace(golden.config, data=data, model=model.config), model, TokenizerPair(words, words))
    with pytest.raises(UserError, match=r"say which language is meant \(--language\): this run knows en-de"):
        export_run(run, tmp_path / "none", "huggingface")
    begun = replace(run.config, data=replace(data, tags="begin"))
    for one, front in ((run, "<2de>"), (Run(begun, model, run.tokenizers), "<bos>")):
        export_run(one, tmp_path / front, "huggingface", language="en-de")
        template = json.loads((tmp_path / front / "tokenizer.json").read_text())["post_processor"]["single"]
        assert [next(iter(part.values()))["id"] for part in template] == [front, "A", "<eos>"]


def test_the_readme_names_the_language_tags(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    golden = load(GOLDEN, "cpu")
    words = golden.tokenizers.source.with_tokens(["<2de>", "<2fr>"])
    model = tiny_translator(PrefixConfig(), layers=2, vocabulary=len(words))
    corpora = tuple(replace(golden.config.data.train[0], key=key) for key in ("en-de", "en-fr"))
    data = replace(golden.config.data, train=corpora, dev=(), tags="target")
    run = Run(replace(golden.config, data=data, model=model.config), model, TokenizerPair(words, words))
    for language, line in (
        (None, "front = ['<2de>']  # the language to translate into; or <2fr>\n"),  # whoever uses it says which
        ("en-fr", "front = ['<2fr>']\n"),
    ):
        export_run(run, tmp_path / str(language), "ctranslate2", language=language)
        assert line in (tmp_path / str(language) / "README.md").read_text()
