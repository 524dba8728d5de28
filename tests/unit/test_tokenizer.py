"""Tokenizers: nothing is lost, training is reproducible, a run only loads its own."""

import os
import subprocess
import sys
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from anydepth.data.corpora import DataConfig, ParallelText
from anydepth.data.tokenizer import SPECIAL, Tokenizer, TokenizerConfig, TokenizerPair
from anydepth.data.tokenizer_training import build, train_tokenizer
from anydepth.errors import UserError

Kind = Literal["bpe", "unigram"]
KINDS: tuple[Kind, ...] = ("bpe", "unigram")
TEXTS = [
    f"The {size} {animal} {verb} {number} times; isn't it {size}?"
    for size in ("small", "large", "smaller", "largest", "über-große")
    for animal in ("cat", "cats", "dog", "dogs", "Füchse", "strangers")
    for verb in ("jumps", "jumped", "is jumping", "sleeps", "slept")
    for number in (3, 17, 2024)
]


@cache
def trained(kind: Kind) -> Tokenizer:
    return train_tokenizer(TEXTS, TokenizerConfig(type=kind, vocabulary=400))


# A space at the very start and the character that stands for spaces are the documented exceptions.
nfc_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁")).map(
    lambda text: unicodedata.normalize("NFC", text).lstrip(" ")
)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=300)
@given(text=nfc_text)
def test_no_character_is_lost(kind: Kind, text: str) -> None:
    tokenizer = trained(kind)
    ids = tokenizer.encode([text])
    assert tokenizer.decode(ids) == [text]
    assert not {tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.unk} & set(ids[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "text", ["", "<eos>", "a <pad><0x41> b", "two  spaces", "end ", "日本語 🎉", "\x00\t\u2028", "½ 2½ 10%"]
)
def test_texts_that_could_go_wrong(kind: Kind, text: str) -> None:
    tokenizer = trained(kind)
    assert tokenizer.decode(tokenizer.encode([text])) == [text]


@pytest.mark.parametrize("kind", KINDS)
def test_vocabulary(kind: Kind) -> None:
    tokenizer = trained(kind)
    assert (tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.unk) == (0, 1, 2, 3)
    assert len(tokenizer) <= 400
    (ids,) = tokenizer.encode(["The dogs jumped"])
    assert len(ids) <= 5  # frequent words have become pieces, "The" too, which is part of no other word
    assert max(ids) < len(tokenizer)
    assert tokenizer.decode([[1, *ids, 2, 0, 0]]) == ["The dogs jumped"]


def test_lowercase() -> None:
    tokenizer = train_tokenizer(TEXTS, TokenizerConfig(vocabulary=300, lowercase=True))
    assert tokenizer.decode(tokenizer.encode(["DIE Füchse, İ"])) == [unicodedata.normalize("NFC", "die füchse, i̇")]


def test_decomposed_text_is_composed() -> None:
    assert trained("bpe").decode(trained("bpe").encode(["u\u0308ber"])) == ["über"]


def test_rare_characters_get_no_token_of_their_own() -> None:
    rare = "".join(chr(0x4E00 + number) for number in range(300))
    texts = ["common words again and again"] * 100_000
    tokenizer = train_tokenizer([*texts[:30_000], *rare], TokenizerConfig(vocabulary=320))
    assert len(tokenizer) <= 320
    assert tokenizer.decode(tokenizer.encode([rare])) == [rare]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_data_give_the_same_tokenizer(kind: Kind) -> None:
    """In another process too: the library's hash tables are ordered differently in each."""
    program = (
        "import sys; from test_tokenizer import *; "
        "print(train_tokenizer(TEXTS, TokenizerConfig(type=sys.argv[1], vocabulary=400)).hash)"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", program, kind],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TOKENIZERS_PARALLELISM": parallel},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for parallel in ("true", "false")
    }
    assert hashes == {trained(kind).hash}


def test_save_and_load(tmp_path: Path) -> None:
    tokenizer = trained("bpe")
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.hash == tokenizer.hash
    assert loaded.encode(TEXTS[:5]) == tokenizer.encode(TEXTS[:5])
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()


def foreign(folder: Path, vocabulary: list[str], special: list[str], **settings: Any) -> Path:
    inner = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: number for number, word in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    inner.add_special_tokens(special)
    inner.enable_truncation(2)
    inner.enable_padding()
    inner.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def test_an_existing_tokenizer_with_its_own_names(tmp_path: Path) -> None:
    special = ["[UNK]", "[PAD]", "[SEP]", "[CLS]"]
    tokenizer = Tokenizer.load(foreign(tmp_path, [*special, "a", "b", "c"], special))
    assert (tokenizer.unk, tokenizer.pad, tokenizer.eos, tokenizer.bos) == (0, 1, 2, 3)
    assert len(tokenizer) == 7
    assert tokenizer.encode(["a b c x", "c"]) == [[4, 5, 6, 0], [6]]  # its truncation and padding are off
    assert tokenizer.decode([[3, 4, 5, 2, 1]]) == ["a b"]


def test_an_existing_tokenizer_without_special_tokens(tmp_path: Path) -> None:
    path = foreign(tmp_path, ["[UNK]", "a", "b"], [])
    tokenizer = Tokenizer.load(path)
    assert (tokenizer.unk, tokenizer.pad, tokenizer.bos, tokenizer.eos) == (0, 3, 4, 5)
    assert len(tokenizer) == 6
    tokenizer.save(path)
    assert Tokenizer.load(path).hash == tokenizer.hash
    assert tokenizer.decode([[4, 1, 2, 5]]) == ["a b"]


def test_what_is_no_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text('{"version": "1.0"}', encoding="utf-8")
    with pytest.raises(UserError, match=r"broken.json is not a tokenizer.json"):
        Tokenizer.load(tmp_path / "broken.json")
    with pytest.raises(UserError, match=r"none.json: No such file"):
        Tokenizer.load(tmp_path / "none.json")


@pytest.fixture
def data(tmp_path: Path) -> DataConfig:
    (tmp_path / "source").write_text("\n".join(TEXTS), encoding="utf-8")
    (tmp_path / "target").write_text("\n".join(text.upper() for text in TEXTS), encoding="utf-8")
    return DataConfig(train=(ParallelText(source=str(tmp_path / "source"), target=str(tmp_path / "target")),))


def test_joint(tmp_path: Path, data: DataConfig) -> None:
    pair = build(TokenizerConfig(vocabulary=400), data, print)
    assert pair.source is pair.target
    pair.save(tmp_path)
    assert [path.name for path in tmp_path.glob("tokenizer*")] == ["tokenizer.json"]
    loaded = TokenizerPair.load(tmp_path, pair.hash)
    assert loaded.joint
    assert loaded.hash == pair.hash


def test_separate(tmp_path: Path, data: DataConfig) -> None:
    pair = build(TokenizerConfig(vocabulary=320, joint=False), data, print)
    assert pair.source.hash != pair.target.hash
    assert len(pair.target.encode(["THE DOGS JUMPED"])[0]) < len(pair.source.encode(["THE DOGS JUMPED"])[0])
    pair.save(tmp_path)
    loaded = TokenizerPair.load(tmp_path, pair.hash)
    assert (loaded.source.hash, loaded.target.hash) == (pair.source.hash, pair.target.hash)


def test_a_run_refuses_another_tokenizer(tmp_path: Path) -> None:
    TokenizerPair(trained("bpe"), trained("bpe")).save(tmp_path)
    other = TokenizerPair(trained("unigram"), trained("unigram"))
    with pytest.raises(UserError, match=r"tokenizer.json: not the tokenizer of this run"):
        TokenizerPair.load(tmp_path, other.hash)


def test_existing_files_instead_of_training(tmp_path: Path, data: DataConfig) -> None:
    trained("bpe").save(tmp_path / "one.json")
    trained("unigram").save(tmp_path / "two.json")
    joint = build(TokenizerConfig(path=str(tmp_path / "one.json")), data, print)
    assert joint.joint
    assert joint.hash == trained("bpe").hash
    paths = {"source_path": str(tmp_path / "one.json"), "target_path": str(tmp_path / "two.json")}
    two = build(TokenizerConfig(**paths), data, print)
    assert (two.source.hash, two.target.hash) == (trained("bpe").hash, trained("unigram").hash)


def test_training_on_a_sample(tmp_path: Path, data: DataConfig) -> None:
    reports: list[str] = []
    sampled = build(TokenizerConfig(vocabulary=300, sample=50), data, reports.append)
    assert "on up to 50 lines" in reports[0]
    taken = [text for number, text in enumerate(TEXTS) if (number + 1) * 50 // len(TEXTS) > number * 50 // len(TEXTS)]
    assert len(taken) == 50
    both = [side for text in taken for side in (text, text.upper())]
    assert sampled.hash == train_tokenizer(both, TokenizerConfig(vocabulary=300)).hash


def test_nothing_to_train_on(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n\n", encoding="utf-8")
    corpus = ParallelText(source=str(tmp_path / "empty"), target=str(tmp_path / "empty"))
    with pytest.raises(UserError, match="empty: no usable line; skipped 2 lines: 2 empty line"):
        build(TokenizerConfig(), DataConfig(train=(corpus,)), print)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [({"vocabulary": 100}, "vocabulary"), ({"source_path": "a"}, "target_path"), ({"sample": 0}, "sample")],
)
def test_settings_out_of_range(wrong: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        TokenizerConfig(**wrong)


def test_special_names_come_first() -> None:
    ids = [trained("bpe")._inner.token_to_id(name) for name in SPECIAL]
    assert ids == [0, 1, 2, 3]
