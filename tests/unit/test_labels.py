"""Labelled corpora and what is said about predicted labels."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anydepth.config import loads
from anydepth.data.builtin_corpora import BuiltinLabelled
from anydepth.data.corpora import DataConfig
from anydepth.data.labelled import Labelled, labels_of
from anydepth.data.reading import Skips, count_rows, read_rows
from anydepth.data.store import tokenize
from anydepth.data.tokenizer import TokenizerConfig, TokenizerPair
from anydepth.data.tokenizer_training import train_tokenizer
from anydepth.encoder_models import ClassifierConfig
from anydepth.errors import UserError
from anydepth.evaluation.labels import accuracy, interval, macro_f1, paired, sign_test, wilson
from anydepth.evaluation.records import Record
from anydepth.evaluation.repeated import repeated
from anydepth.reporting.accuracy_page import picture
from anydepth.reporting.coloured import colours, for_page, spoken


def written(folder: Path, lines: list[str]) -> Path:
    file = folder / "texts.tsv"
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


def test_the_parts_of_a_file_are_equal_disjoint_and_whole(tmp_path: Path) -> None:
    file = written(tmp_path, [f"{n % 3}\ttext {n}" for n in range(50)])
    parts = [
        [row.source for row in read_rows(Labelled(path=str(file), folds=5, take=(k,)), "train", Skips())]
        for k in range(5)
    ]
    assert [len(part) for part in parts] == [10] * 5
    everything = [text for part in parts for text in part]
    assert sorted(everything) == sorted(f"text {n}" for n in range(50))
    rest = Labelled(path=str(file), folds=5, leave=(2,))
    assert {row.source for row in read_rows(rest, "train", Skips())} == set(everything) - set(parts[2])
    assert count_rows(rest) == 40
    assert parts[0] != [f"text {n}" for n in range(10)]


def test_parts_do_not_follow_the_order_of_a_file(tmp_path: Path) -> None:
    file = written(tmp_path, [f"{n % 2}\ttext {n}" for n in range(60)])
    for part in range(2):
        rows = read_rows(Labelled(path=str(file), folds=2, take=(part,)), "train", Skips())
        assert 5 < sum(row.label == "1" for row in rows) < 25  # not every other row


def test_rows_that_cannot_be_used_are_counted(tmp_path: Path) -> None:
    file = written(tmp_path, ["yes\tgood", "only one column", "", "no\t ", "\tno label", "no\tbad"])
    skips = Skips()
    rows = list(read_rows(Labelled(path=str(file)), "train", skips))
    assert [(row.source, row.label) for row in rows] == [("good", "yes"), ("bad", "no")]
    assert skips.counts == {"with too few columns": 1, "empty line": 3}


def test_labels_are_sorted_as_numbers_where_they_are_numbers(tmp_path: Path) -> None:
    numbers = Labelled(path=str(written(tmp_path, ["10\ta", "9\tb", "1\tc"])))
    assert labels_of((numbers,)) == ("1", "9", "10")
    zeros = Labelled(path=str(written(tmp_path, [f"{'0' * n}1\ta" for n in range(9)])))
    assert labels_of((zeros,)) == tuple(f"{'0' * n}1" for n in reversed(range(9)))
    words = Labelled(path=str(written(tmp_path, ["b\tx", "a\ty"])), label_column=0)
    assert labels_of((words,)) == ("a", "b")
    squares = Labelled(path=str(written(tmp_path, ["²\tx", "1\ty"])))  # a digit, but no number
    assert labels_of((squares,)) == ("1", "²")
    assert len(labels_of((BuiltinLabelled(size=3),))) == 8
    file = written(tmp_path, ["a\tx", "no tab"])
    with pytest.raises(UserError, match=rf"1 label found, 'a'; .* 1 with too few columns \({file}:2\)"):
        labels_of((Labelled(path=str(file)),))


def test_labels_that_are_written_alike_are_one(tmp_path: Path) -> None:
    """é in one character, and as e and an accent."""
    corpus = Labelled(path=str(written(tmp_path, ["caf\u00e9\ta", "cafe\u0301\tb", "tea\tc"])))
    assert labels_of((corpus,)) == ("caf\u00e9", "tea")
    assert [row.label for row in read_rows(corpus, "train", Skips())] == ["caf\u00e9", "caf\u00e9", "tea"]
    assert ClassifierConfig(labels=("cafe\u0301", "tea")).labels == ("caf\u00e9", "tea")
    with pytest.raises(ValueError, match="labels: expected two or more different ones"):
        ClassifierConfig(labels=("cafe\u0301", "caf\u00e9"))


def test_a_store_keeps_labels_and_cuts_long_texts(tmp_path: Path) -> None:
    tokens = train_tokenizer(["one two three four five six seven"] * 4, TokenizerConfig(vocabulary=300))
    file = written(tmp_path, ["b\tone two", "a\tone two three four five six", "b\tthree"])
    corpus = Labelled(path=str(file))
    data = DataConfig(train=(corpus,), max_length=3, max_source=3, tags="begin")
    store = tokenize(corpus, "train", TokenizerPair(tokens, tokens), tmp_path / "store", data)
    assert [store.label_names[n] for n in store.labels(np.arange(3))] == ["b", "a", "b"]
    words, lengths = store.source(np.arange(3))
    assert lengths.tolist() == [4, 4, 3]
    assert words[[0, 4, 8]].tolist() == [tokens.bos] * 3
    assert words[[3, 7, 10]].tolist() == [tokens.eos] * 3
    assert tokens.decode([words[4:8].tolist()]) == ["one two"]


def test_a_finished_store_of_some_parts_is_used_as_it_is(tmp_path: Path) -> None:
    """Others may be reading it: made anew, its files would vanish under them."""
    tokens = train_tokenizer(["one two three"] * 4, TokenizerConfig(vocabulary=300))
    corpus = Labelled(path=str(written(tmp_path, [f"{n % 2}\tone two" for n in range(8)])), folds=4, leave=(3,))
    made = []
    for _ in range(2):
        tokenize(corpus, "train", TokenizerPair(tokens, tokens), tmp_path / "store", DataConfig(train=(corpus,)))
        made.append((tmp_path / "store" / "labels").stat().st_mtime_ns)
    assert made[0] == made[1]


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ('type="labelled", path="x", folds=3, take=[3]', "take: there is no part 3"),
        ('type="labelled", path="x", folds=2, take=[0], leave=[1]', "not both"),
        ('type="labelled", path="x", folds=1, leave=[0]', "no part is left"),
        ('type="labelled", path="x", text_column=0', "same column"),
        ('type="text", path="x"', "classifier needs labelled or builtin-labelled"),
    ],
)
def test_mistakes_are_named(setting: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        loads('[model]\ntype="classifier"\n', [f"data.train=[{{{setting}}}]"])


def test_a_classifier_learns_from_the_built_in_corpus_unless_told_otherwise() -> None:
    assert loads('[model]\ntype="classifier"\n').data.train == (BuiltinLabelled(),)


def test_scores_by_hand() -> None:
    right, found = np.array([0, 0, 0, 1, 1, 2]), np.array([0, 0, 1, 1, 1, 0])
    assert accuracy(found, right) == pytest.approx(100 * 4 / 6)
    # label 0: precision 2/3, recall 2/3; label 1: precision 2/3, recall 1; label 2: never found
    assert macro_f1(found, right) == pytest.approx(100 * (2 / 3 + 0.8 + 0) / 3)
    low, high = interval(found, right)  # Wilson's formula in its quadratic form: |p - share| = z √(p (1 - p) / n)
    for p in (low / 100, high / 100):
        assert abs(p - 4 / 6) == pytest.approx(1.959964 * math.sqrt(p * (1 - p) / 6))
    other = np.array([0, 0, 0, 1, 1, 2])  # right in the two places where `found` is wrong
    assert sign_test(other, found, right) == pytest.approx(2 * 0.25)
    assert sign_test(found, found, right) == 1.0


def test_differences_of_classifiers_by_hand() -> None:
    right = np.array([0, 1, 0, 1] * 25)
    first, second = right.copy(), right.copy()
    first[:5], second[5:20] = 1 - first[:5], 1 - second[5:20]  # 5 and 15 mistakes, in other texts
    difference, low, high, p = paired(first, second, right)
    spread = math.sqrt(0.2 - 0.1**2)  # of -1 (5), 1 (15) and 0 (80)
    assert (difference, high - difference) == (pytest.approx(10), pytest.approx(100 * 1.959964 * spread / 10))
    assert low == pytest.approx(2 * difference - high)
    assert p == sign_test(first, second, right)
    assert paired(second, first, right)[:3] == pytest.approx((-10, -high, -low))
    assert paired(first, first, right) == (0.0, 0.0, 0.0, 1.0)


def test_pieces_are_written_as_they_stand_in_a_text() -> None:
    assert spoken([("▁un", 1), ("believ", 2), ("▁", 3), (",", 1)]) == [" un", "believ", "␣", ","]
    assert spoken([("[CLS]", 4), ("un", 1), ("##believ", 2), ("##ably", 3)]) == [" [CLS]", " un", "believ", "ably"]
    assert colours(1, 12)[0] == "#fff7bc"
    assert colours(12, 12) == ("#8c1446", "#ffffff")
    assert [piece["depth"] for piece in for_page([("a", 1), ("b", 2)], 2)] == [1, 2]


def test_runs_on_parts_of_the_data_count_every_text_alike() -> None:
    def grid(test_set: str, sentences: int, accuracy: float, depths: list[int]) -> dict[str, Any]:
        cell = {"encoder": 2, "accuracy": accuracy, "interval": [accuracy - 5, accuracy + 5], "macro_f1": accuracy,
                "loss": 0.5, "seconds": 1.0, "mean_depth": 1.5, "depths": depths, "parameters": 7}  # fmt: skip
        return {"signatures": {}, "labels": ["a", "b"], "test_set": test_set, "sentences": sentences, "cells": [cell]}

    (cell,) = repeated("mr", [grid("one", 30, 80.0, [1, 2]), grid("two", 10, 60.0, [3, 4])])["cells"]
    assert cell["accuracy"] == 75
    assert cell["interval"] == list(wilson(0.75, 40))
    assert cell["depths"] == [4, 6]
    assert (cell["runs"], cell["deviation"]) == (2, pytest.approx(200**0.5))
    (cell,) = repeated("mr", [grid("one", 30, 80.0, [1, 2]), grid("one", 30, 60.0, [3, 4])])["cells"]
    assert (cell["accuracy"], cell["interval"]) == (70, [65, 75])  # the same texts: what seeds give on average


def test_the_names_of_many_runs_fit_beside_their_accuracies() -> None:
    cell = {"encoder": 6, "accuracy": 50.0, "interval": [40.0, 60.0]}
    records = [Record(f"information_health_personal_care_{n}", (), {"cells": [cell]}) for n in range(60)]
    drawn = picture(records)  # matplotlib would warn, which is an error here
    assert "information_health_personal_care_59" in drawn
