"""Several languages in one model: rows, tags, turns, and what people call a language."""

from pathlib import Path

import pytest
from word_corpora import word_store

from anydepth.config import Config, dump, loads
from anydepth.data.batching import Batches
from anydepth.data.builtin_corpora import Builtin
from anydepth.data.corpora import DataConfig
from anydepth.data.cutting import BatchingConfig
from anydepth.data.languages import find_language, known_languages
from anydepth.data.store import Store, tokenize_all
from anydepth.data.tokenizer import TokenizerConfig
from anydepth.data.tokenizer_training import build
from anydepth.errors import UserError

CORPORA = """
[data]
train = [
    { type = "builtin", source = "en", target = "de", key = "en-de" },
    { type = "builtin", source = "en", target = "fr", key = "en-fr" },
    { type = "builtin", source = "fi", target = "de", key = "fi-de" },
]
dev = { type = "builtin", source = "en", target = "fr", key = "en-fr" }
"""


def config(*settings: str) -> Config:
    return loads(CORPORA, settings)


# ---- rows of logits


@pytest.mark.parametrize(
    ("per", "keys"),
    [("pair", ("en-de", "en-fr", "fi-de")), ("source", ("en", "fi")), ("target", ("de", "fr")), ("model", ())],
)
def test_rows_come_from_the_training_corpora(per: str, keys: tuple[str, ...]) -> None:
    found = config(f"model.decoder.depth={{type='latent', per='{per}'}}")
    assert found.model.decoder.depth.keys == keys
    assert loads(dump(found)) == found
    assert found.model.encoder.depth.type == "full"


def test_rows_can_be_given() -> None:
    depth = "model.decoder.depth={type='latent', per='target', keys=['fr', 'it', 'de']}"
    assert config(depth).model.decoder.depth.keys == ("fr", "it", "de")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["data.train.1.key="], "data.train.1.key: expected languages such as en-de"),
        (["data.train.1.key=french"], "data.train.1.key: expected languages such as en-de"),
        (["data.dev.key=en-it"], "data.dev.0.key: decoder.depth has rows for de, fr alone"),
        (["model.decoder.depth.keys=['de']"], "data.train.1.key: decoder.depth has rows for de alone"),
    ],
)
def test_corpora_without_a_row_are_refused(settings: list[str], message: str) -> None:
    with pytest.raises(UserError) as error:
        config("model.decoder.depth={type='latent', per='target'}", *settings)
    assert message in str(error.value)


# ---- names


def test_a_language_is_found_by_its_key_or_a_part_of_it() -> None:
    run = config()
    assert known_languages(run) == ["en-de", "en-fr", "fi-de"]
    assert find_language(run, "fi-de") == find_language(run, "fi") == "fi-de"
    assert find_language(run, "fr") == "en-fr"
    assert find_language(run, None) == ""
    assert find_language(Config(), None) == ""
    with pytest.raises(UserError, match="language 'de': could be en-de or fi-de"):
        find_language(run, "de")
    with pytest.raises(UserError, match="language 'it': unknown to this run; it knows en-de, en-fr, fi-de"):
        find_language(run, "it")
    with pytest.raises(UserError, match="its training corpora have no keys"):
        find_language(Config(), "de")


# ---- tags


def two_targets(**settings: object) -> DataConfig:
    corpora = tuple(Builtin(target=target, size=60, key=f"en-{target}") for target in ("fr", "de"))
    return DataConfig(train=corpora, workers=1, **settings)


def test_tags_are_part_of_the_vocabulary() -> None:
    data = two_targets(tags="target")
    pair = build(TokenizerConfig(vocabulary=500), data, print)
    assert len(pair.source) == len(build(TokenizerConfig(vocabulary=500), two_targets(), print).source) == 500
    german, french = pair.source.tag("de"), pair.source.tag("fr")
    assert german != french
    assert pair.source.decode([[german, *pair.source.encode(["one"])[0]]]) == ["one"]
    assert pair.source.encode(["<2de>"])[0] != [german]  # written in a text it is text
    with pytest.raises(UserError, match="language 'it': the tokenizer has no token <2it>"):
        pair.source.tag("it")


def test_separate_tokenizers_have_tags_on_the_source_side_only() -> None:
    pair = build(TokenizerConfig(vocabulary=400, joint=False), two_targets(tags="target"), print)
    assert (len(pair.source), len(pair.target)) == (400, 400)
    assert pair.source.tag("de") < 400
    with pytest.raises(UserError, match="no token <2de>"):
        pair.target.tag("de")


def test_tags_stand_in_front_of_the_sources(tmp_path: Path) -> None:
    pair = build(TokenizerConfig(vocabulary=500), two_targets(tags="target"), print)
    tagged = tokenize_all(two_targets(tags="target"), "train", pair, tmp_path)
    plain = tokenize_all(two_targets(), "train", pair, tmp_path)
    for language, one, other in zip(("fr", "de"), tagged, plain):
        with_tag, without = one.source([0])[0].tolist(), other.source([0])[0].tolist()
        assert with_tag == [pair.source.tag(language), *without]
        assert one.target([0])[0].tolist() == other.target([0])[0].tolist()


def test_tags_need_keys() -> None:
    with pytest.raises(ValueError, match=r"train\.0\.key: tags need a key"):
        DataConfig(train=(Builtin(),), tags="target")
    with pytest.raises(ValueError, match=r"test\.1\.key: tags need a key"):
        DataConfig(train=(Builtin(key="en-de"),), test=(Builtin(key="en-de"), Builtin()), tags="target")


# ---- turns


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[Store]:
    """Two corpora of one language, a small one of another."""
    folder, sizes = tmp_path_factory.mktemp("stores"), {"en-de": 200, "en-fr": 40, "more en-de": 100}
    return [word_store(folder / name, size, key=name.split()[-1]) for name, size in sizes.items()]


def test_keys_take_turns(stores: list[Store]) -> None:
    batches = Batches(stores, BatchingConfig(tokens=512), seed=1, turns=True)
    keys = [stores[next(batches).corpus].key for _ in range(40)]
    assert keys == ["en-de", "en-fr"] * 20


def test_within_a_turn_corpora_are_drawn_by_size(stores: list[Store]) -> None:
    batches = Batches(stores, BatchingConfig(tokens=512), seed=1, turns=True)
    german = [corpus for corpus in (next(batches).corpus for _ in range(1200)) if corpus != 1]
    sizes = [store.target_tokens for store in stores]
    assert german.count(0) / len(german) == pytest.approx(sizes[0] / (sizes[0] + sizes[2]), abs=0.05)


def test_turns_go_on_after_a_resume(stores: list[Store]) -> None:
    batches, resumed = (Batches(stores, BatchingConfig(tokens=512), seed=1, turns=True) for _ in range(2))
    for _ in range(7):
        next(batches)
    resumed.seek(batches.position())
    for _ in range(5):
        one, other = next(batches), next(resumed)
        assert one.corpus == other.corpus
        assert one.pairs.tolist() == other.pairs.tolist()
