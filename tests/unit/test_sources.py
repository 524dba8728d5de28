"""Long sources are cut and counted, sentences end with marks, line breaks of JSON are spaces."""

import json
from pathlib import Path

import numpy as np
import pytest
from word_corpora import word_tokenizer

from anydepth.config import loads
from anydepth.data.corpora import DataConfig, Jsonl
from anydepth.data.reading import Skips, read_pairs
from anydepth.data.sources import encode_sources, split_sentences
from anydepth.data.store import Store, tokenize, tokenize_all
from anydepth.errors import UserError


def jsonl(folder: Path, pairs: list[tuple[str, str]]) -> Jsonl:
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps({"source": source, "target": target}) + "\n" for source, target in pairs))
    return Jsonl(path=str(path))


def store_of(folder: Path, pairs: list[tuple[str, str]], **settings: object) -> Store:
    corpus = jsonl(folder, pairs)
    data = DataConfig(train=(corpus,), **settings)  # type: ignore[arg-type]
    return tokenize(corpus, "train", word_tokenizer(), folder / "store", data)


PAIRS = [("aa ab ac ad ae af", "aa"), ("aa ab", "ab ac ad"), ("aa", "ab")]


def test_long_sources_are_cut_and_counted_and_long_targets_skipped(tmp_path: Path) -> None:
    store = store_of(tmp_path, PAIRS, max_source=4, max_length=2)
    eos, pair = word_tokenizer().source.eos, word_tokenizer().source
    tokens, lengths = store.source(np.array([0, 1]))
    assert tokens.tolist() == [*pair.encode(["aa ab ac ad"])[0], eos, *pair.encode(["aa"])[0], eos]
    assert lengths.tolist() == [5, 2]
    assert (store.cut, store.skips.total, store.max_length) == (1, 1, 4)
    assert Store(tmp_path / "store").cut == 1


def test_without_a_limit_nothing_is_cut(tmp_path: Path) -> None:
    store = store_of(tmp_path, PAIRS, max_length=5)
    assert (store.cut, store.skips.total, len(store)) == (0, 1, 2)


def test_another_limit_makes_another_store(tmp_path: Path) -> None:
    corpus = jsonl(tmp_path, PAIRS)
    kinds = [{}, {"max_source": 4}, {"sentences": True}, {"max_source": 3, "sentences": True}]
    folders = set()
    for settings in kinds:
        (store,) = tokenize_all(DataConfig(train=(corpus,), **settings), "train", word_tokenizer(), tmp_path / "data")
        folders.add(store.folder)
    assert len(folders) == len(kinds)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two? Three!  Four", ["One.", "Two?", "Three!", "Four"]),
        ("It costs 3.50 euros. Fine.", ["It costs 3.50 euros.", "Fine."]),
        ("Well… no", ["Well…", "no"]),
        ("  no end ", ["no end"]),
        ("", []),
    ],
)
def test_sentences_end_at_their_marks(text: str, sentences: list[str]) -> None:
    assert split_sentences(text) == sentences


def test_an_end_mark_stands_between_sentences(tmp_path: Path) -> None:
    tokenizer, data = word_tokenizer().source, DataConfig(train=(jsonl(tmp_path, PAIRS),), sentences=True)
    first, second = tokenizer.encode(["aa ab.", "ac"])
    found = encode_sources(["aa ab. ac", "ac", ""], tokenizer, data, tag=[9])
    assert found.ids == [[9, *first, tokenizer.eos, *second], [9, *second], [9]]


def test_line_breaks_inside_json_are_spaces(tmp_path: Path) -> None:
    corpus = jsonl(tmp_path, [("one \r\n two\n\n three", "a\nb")])
    assert list(read_pairs(corpus, "train", Skips())) == [("one two three", "a b")]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["data.max_source=-1"], "data.max_source: must be 0 or more"),
        (['data.train=[{type="builtin-notices"}]'], 'data.pairs: "summaries" is what builtin-notices'),
        (["model.sentence_layers=2"], "data.sentences: model.sentence_layers needs the end marks"),
        (["model.sentence_layers=6", "data.sentences=true"], "must leave some of the 6 encoder layers"),
        (
            ["model.sentence_layers=2", "data.sentences=true", "batching.layout=packed"],
            "model.sentence_layers reads padded batches alone",
        ),
        (
            ["model.sentence_layers=2", "data.sentences=true", 'model.encoder.depth={type="prefix"}'],
            "may leave out all layers of sentences",
        ),
        (
            ["model.sentence_layers=2", "data.sentences=true", 'model.bridge={type="transparent"}'],
            "states of words and of sentences cannot be mixed",
        ),
    ],
)
def test_settings_that_cannot_be(settings: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        loads('[data]\ntrain = [{ type = "builtin" }]', settings)
