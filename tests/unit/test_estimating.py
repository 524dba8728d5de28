"""How deep words are estimated to be."""

import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from masked_models import tiny_masked_lm

from anydepth.data.tokenizer import MASK, Tokenizer, TokenizerConfig
from anydepth.data.tokenizer_training import train_tokenizer
from anydepth.depth.perword import MutualInformationConfig
from anydepth.depth.prefix import PrefixConfig
from anydepth.errors import UserError
from anydepth.estimating import reconstruction
from anydepth.estimating.mutual_information import FLOOR, WordDepths, bins, estimate, even_bins, mutual_information
from anydepth.estimating.pieces import Pieces, with_special
from anydepth.estimating.reconstruction import Reconstruction, agreement, depths_of

TEXTS = [("good", "a good film"), ("good", "good good fun"), ("bad", "a bad film"), ("bad", "a dull film")]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    texts = ["a good film, fun bad dull another unbelievable"] * 4
    return train_tokenizer(texts, TokenizerConfig(vocabulary=330)).with_tokens([MASK])


def flat(tokenizer: Tokenizer, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    rows = [[tokenizer.bos, *ids, tokenizer.eos] for ids in tokenizer.encode(texts)]
    return np.array([number for row in rows for number in row]), np.array([len(row) for row in rows])


def learnt(
    tokenizer: Tokenizer, layers: int = 3, whole_words: bool = True, **settings: Any
) -> tuple[WordDepths, Pieces]:
    ids, lengths = flat(tokenizer, [text for _, text in TEXTS])
    labels, pieces = np.array([label == "good" for label, _ in TEXTS]).astype(int), Pieces(tokenizer)
    asked = MutualInformationConfig(unit="words" if whole_words else "pieces", **settings)
    return estimate(ids, lengths, labels, pieces, layers, asked), pieces


def by_hand(word: str) -> float:
    """Equation 2, read aloud."""
    total, texts = 0.0, len(TEXTS)
    for label in ("good", "bad"):
        for i in (0, 1):
            for j in (0, 1):
                has = [(word in text.split()) == bool(i) for _, text in TEXTS]
                is_label = [(one == label) == bool(j) for one, _ in TEXTS]
                both = sum(a and b for a, b in zip(has, is_label))
                p, p_x, p_y = ((count + 0.1) / (texts + 0.1) for count in (both, sum(has), sum(is_label)))
                total += p * math.log(p / (p_x * p_y))
    return total


def test_mutual_information_of_a_small_corpus(tokenizer: Tokenizer) -> None:
    found, pieces = learnt(tokenizer)
    information = {pieces.name(word): value for word, value in found.information.items()}
    assert set(information) == {"a", "good", "film", "fun", "bad", "dull"}
    for word, value in information.items():
        assert value == pytest.approx(by_hand(word), rel=1e-9)
    assert max(information, key=information.__getitem__) == "good"
    assert {pieces.name(word): count for word, count in found.texts.items()}["good"] == 2  # twice in one text is once


def test_many_labels_are_taken_in_turns() -> None:
    draw = np.random.default_rng(1)
    counts, texts = draw.integers(0, 4, (2000, 500)), np.full(500, 20)
    tracemalloc.start()
    found = mutual_information(counts, texts)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * counts.nbytes  # all at once would be twenty times as much
    words = counts.sum(1, keepdims=True)
    expected = 0.0
    for both, word, label in (
        (counts, words, texts),
        (words - counts, words, 10_000 - texts),
        (texts - counts, 10_000 - words, texts),
        (10_000 - words - texts + counts, 10_000 - words, 10_000 - texts),
    ):
        p, p_x, p_y = ((count + 0.1) / 10_000.1 for count in (both, word, label))
        expected += (p * np.log(p / (p_x * p_y))).sum(1)
    assert np.allclose(found, expected, rtol=1e-9)


def test_bins_are_equally_wide_in_minus_log() -> None:
    scores = np.array([0.0, 0.9, 1.0, 1.9, 2.0, 3.0])
    assert bins(scores, 3).tolist() == [1, 1, 2, 2, 3, 3]
    assert bins(np.array([2.0, 2.0]), 3).tolist() == [3, 3]


def test_bins_with_equally_many_words_keep_equal_ones_together() -> None:
    assert even_bins(np.array([0.0, 0.1, 5.0, 0.2, 9.0, 7.0]), 3).tolist() == [1, 1, 2, 2, 3, 3]
    assert even_bins(np.array([1.0, 2.0, 2.0, 2.0, 2.0, 3.0]), 3).tolist() == [1, 1, 1, 1, 1, 3]


def test_joint_counts_smoothed_are_a_distribution() -> None:
    counts, texts = np.array([[3, 1], [2, 2], [0, 0], [4, 0]]), np.array([4, 4])
    found = mutual_information(counts, texts, joint=True)
    table = np.array([[3.1, 1.1], [1.1, 3.1]]) / 8.4  # the first word: (there or not) x (label)
    by_hand = (table * np.log(table / (table.sum(1, keepdims=True) * table.sum(0)))).sum()
    assert found[0] == pytest.approx(2 * by_hand)  # once for each label
    assert found[1:3].tolist() == [FLOOR, FLOOR]  # as often with either label, and never
    assert found[3] == found.max()


def test_fewer_bins_than_layers(tokenizer: Tokenizer) -> None:
    for settings in ({}, {"smoothed": "joint"}):
        found, pieces = learnt(tokenizer, layers=12, deepest=2, **settings)
        assert set(found.depths.values()) == {1, 2}
        ids, lengths = flat(tokenizer, ["another"])
        assert found.of(ids, lengths, pieces).max() == 2  # a word that never occurred
        assert found.depths != learnt(tokenizer, layers=12)[0].depths


def test_information_is_above_zero_even_for_words_that_tell_nothing() -> None:
    counts = np.array([[0, 0], [50, 50], [25, 25], [50, 0]])
    found = mutual_information(counts, np.array([50, 50]))
    assert (found > 1e-6).all()
    little = mutual_information(np.array([[5010, 4990]]), np.array([10_000, 10_000]), joint=True)
    assert 1e-8 < little < 1e-5  # more than nothing
    assert found[3] > 100 * found[2]


@pytest.mark.parametrize("whole_words", [True, False])
def test_unknown_words_get_all_layers_and_the_best_word_one(tokenizer: Tokenizer, whole_words: bool) -> None:
    found, pieces = learnt(tokenizer, whole_words=whole_words)
    ids, lengths = flat(tokenizer, ["good another"])
    depths = found.of(ids, lengths, pieces)
    words = pieces.words(ids, lengths)
    assert depths[1] == 1  # good
    assert set(depths[words == 2]) == {3}  # another


@pytest.mark.parametrize("whole_words", [True, False])
def test_the_file_is_read_back_as_it_was_written(tokenizer: Tokenizer, tmp_path: Path, whole_words: bool) -> None:
    found, pieces = learnt(tokenizer, whole_words=whole_words)
    found.write(tmp_path / "depths.tsv", pieces)
    again = WordDepths.read(tmp_path / "depths.tsv")
    assert again.depths == found.depths
    assert again.texts == found.texts
    ids, lengths = flat(tokenizer, ["a good bad unbelievable film"])
    assert again.of(ids, lengths, pieces).tolist() == found.of(ids, lengths, pieces).tolist()
    (tmp_path / "depths.tsv").write_text("something else\n")
    with pytest.raises(UserError, match="not a list of depths"):
        WordDepths.read(tmp_path / "depths.tsv")


def test_pieces_of_a_word_share_its_depth(tokenizer: Tokenizer) -> None:
    found, pieces = learnt(tokenizer)
    ids, lengths = flat(tokenizer, ["fundwull good", "good,bad"])  # w is not in the alphabet: a byte
    words = pieces.words(ids, lengths)
    assert lengths[0] > 4  # several pieces
    assert words[lengths[0]] == words[lengths[0] - 1] + 1  # no word goes on in the next text
    names = [pieces.name(tuple(ids[words == word])) for word in range(words[-1] + 1)]
    assert names == ["<bos>", "fund<0x77>ull", "good", "<eos>", "<bos>", "good", ",", "bad", "<eos>"]
    assert len(set(found.of(ids, lengths, pieces)[words == 1])) == 1


def test_special_tokens_are_as_deep_as_the_deepest_word_of_their_text(tokenizer: Tokenizer) -> None:
    ids, lengths = flat(tokenizer, ["good good", "a"])
    pieces = Pieces(tokenizer)
    depths = np.full(len(ids), 9)
    depths[1], depths[2], depths[lengths[0] + 1] = 2, 4, 1
    assert with_special(depths, ids, lengths, pieces, 12, deepest=True).tolist() == [4, 2, 4, 4, 1, 1, 1]
    assert with_special(depths, ids, lengths, pieces, 12, deepest=False).tolist() == [12, 2, 4, 12, 12, 1, 12]


# ---- reconstruction


def naive_losses(model: torch.nn.Module, ids: np.ndarray, mask: int, word: np.ndarray) -> np.ndarray:
    """One text, one word hidden, one pass."""
    from anydepth.data.masking import MaskedBatch

    hidden = torch.from_numpy(ids.copy())[None]
    hidden[0, word] = mask
    batch = MaskedBatch(hidden, torch.from_numpy(word), torch.from_numpy(ids[word]), None, "", len(ids), 1, len(word))
    x, sees = model.embed(batch)
    states = list(model.encoder.states(x, model.plan().encoder, None, sees))[1:]
    each = [F.cross_entropy(model.logits(model.predict(state, batch)), batch.target_out) for state in states]
    return torch.stack(each).detach().numpy()


class TwoPieces(Pieces):
    """The tiny model's words: numbers from 4 on; every odd one goes on with the word before it."""

    def __init__(self) -> None:
        numbers = np.arange(23)
        self.names = [str(number) for number in numbers]
        self.special = numbers < 4
        self.alone = np.zeros(23, dtype=bool)
        self.begins = numbers % 2 == 0


def test_one_word_at_a_time_with_all_its_pieces() -> None:
    model, pieces = tiny_masked_lm(PrefixConfig(), layers=3), TwoPieces()
    ids, lengths = np.array([1, 4, 5, 8, 2, 1, 6, 7, 9, 10, 12, 2]), np.array([5, 7])
    found = Reconstruction(model, pieces, mask=3).losses(ids, lengths)
    words = [[1, 2], [3], [6, 7, 8], [9], [10]]
    for word in words:
        first, last = (0, 5) if word[0] < 5 else (5, 12)
        expected = naive_losses(model, ids[first:last], 3, np.array(word) - first)
        for piece in word:
            assert np.allclose(found[piece], expected, atol=1e-4)
    assert not found[[0, 4, 5, 11]].any()


def test_many_texts_are_read_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    model, pieces = tiny_masked_lm(PrefixConfig(), layers=3), TwoPieces()
    ids, lengths = np.array([1, 4, 6, 8, 2, 1, 6, 10, 12, 14, 2]), np.array([5, 6])
    asked = Reconstruction(model, pieces, mask=3)
    together = asked.losses(ids, lengths)
    for name, limit in (("tokens", 12), ("CHOSEN", 2)):
        asked = Reconstruction(model, pieces, mask=3)
        monkeypatch.setattr(asked if name == "tokens" else reconstruction, name, limit)
        sizes = [len(batch.ids) for batch in asked.batches(ids, lengths, pieces.words(ids, lengths))]
        assert max(sizes) == 2
        assert sum(sizes) == 7
        assert np.allclose(asked.losses(ids, lengths), together, atol=1e-4)


def test_several_words_at_a_time_hide_each_once() -> None:
    model, pieces = tiny_masked_lm(PrefixConfig(), layers=3), TwoPieces()
    ids, lengths = np.array([1, 4, 6, 8, 10, 12, 14, 2]), np.array([8])
    rows = [row for batch in Reconstruction(model, pieces, 3, every=2).batches(ids, lengths, pieces.words(ids, lengths))
            for row in batch.hidden]  # fmt: skip
    assert [row.tolist() for row in rows] == [[1, 3, 5], [2, 4, 6]]
    one, many = (Reconstruction(model, pieces, 3, every=every).losses(ids, lengths) for every in (0, 16))
    assert np.allclose(one, many, atol=1e-4)  # fewer words than that: one at a time


def test_depth_falls_as_the_penalty_grows() -> None:
    losses = np.abs(np.random.default_rng(1).normal(size=(500, 6)))
    means = [depths_of(losses, penalty).mean() for penalty in (0.0, 0.05, 0.1, 0.2, 0.5, 5.0)]
    assert means == sorted(means, reverse=True)
    assert means[0] > 3
    assert means[-1] == 1
    assert depths_of(np.array([[3.0, 2.0, 1.95]]), 0.1).tolist() == [2]
    assert depths_of(np.array([[1.0, 1.0, 1.0]]), 0.0).tolist() == [1]


def test_agreement() -> None:
    equal, near, apart = agreement(np.array([1, 2, 3, 4], dtype=np.uint8), np.array([1, 3, 1, 4], dtype=np.uint8))
    assert (equal, near, apart) == (0.5, 0.75, -0.25)
