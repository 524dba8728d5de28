"""No n-gram twice, no output too short: against all outputs there are, and by hand."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_decoder import BOS, EOS, PAD, ToyDecoder, every_output, log_probability

from anydepth.decoding.beam import beam_search
from anydepth.decoding.decoder import DecodingConfig, Hypothesis
from anydepth.decoding.greedy import greedy
from anydepth.decoding.rules import NO_RULES, Rules, without_repetitions
from anydepth.decoding.sampling import sample
from anydepth.decoding.search import decode

WIDE = 500
"""More than there are of 3 words in 5 steps."""


def repeats(tokens: list[int], n: int) -> bool:
    """Whether some n-gram stands there twice: the definition, without tensors."""
    ngrams = [tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1)]
    return len(ngrams) > len(set(ngrams))


def allowed(outputs: list[Hypothesis], max_length: int, rules: Rules) -> list[Hypothesis]:
    n, least = rules.block_ngrams, rules.min_length
    return [
        output
        for output in outputs
        if not (n and repeats(output.tokens, n)) and (len(output.tokens) >= least or len(output.tokens) == max_length)
    ]


def search(table: int, max_length: int, rules: Rules, beam: int = WIDE, n_best: int = WIDE) -> list[Hypothesis]:
    lengths = torch.tensor([max_length])
    return beam_search(ToyDecoder([table]), BOS, EOS, PAD, lengths, beam=beam, n_best=n_best, rules=rules)[0]


@pytest.mark.parametrize("rules", [Rules(2), Rules(3), Rules(1), Rules(0, 3), Rules(2, 2), NO_RULES], ids=str)
@pytest.mark.parametrize("table", range(3))
def test_a_wide_beam_finds_all_that_the_rules_allow(table: int, rules: Rules) -> None:
    expected = allowed(every_output(table, 5, 1.0), 5, rules)
    found = search(table, 5, rules)
    assert [one.tokens for one in found] == [one.tokens for one in expected]
    for ours, true in zip(found, expected):  # the scores stay those of the model
        assert ours[1:] == pytest.approx(true[1:], abs=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(3, 6), min_size=7, max_size=7), min_size=1, max_size=4),
    length=st.integers(0, 7),
    n=st.integers(1, 4),
)
def test_exactly_the_words_that_would_repeat_are_forbidden(rows: list[list[int]], length: int, n: int) -> None:
    rows = [row[:length] for row in rows]
    tokens = torch.tensor(rows, dtype=torch.long).view(len(rows), length)
    found = without_repetitions(torch.zeros(len(rows), 7), tokens, n)
    for row, words in zip(rows, found.tolist()):
        if repeats(row, n):
            continue  # no search gets there
        assert [word for word in range(7) if words[word] != 0] == [
            word for word in range(7) if repeats([*row, word], n)
        ]


def test_forbidden_words_do_not_change_the_others() -> None:
    before = torch.randn(1, 7)
    after = Rules(2).apply(before, torch.tensor([[3, 4, 5, 3]]), EOS)
    assert after[0, 4] == -torch.inf
    kept = [0, 1, 2, 3, 5, 6]
    assert torch.equal(after[0, kept], before[0, kept])


def test_a_row_that_cannot_go_on_may_end_too_early() -> None:
    """Of three words, each once, no output of five can be made."""
    (best, *_) = search(0, 8, Rules(1, 5))
    assert sorted(best.tokens) == [3, 4, 5]


def test_batch_mates_do_not_matter() -> None:
    draw, rules = random.Random(1), Rules(2, 3)
    tables, lengths = list(range(20)), [draw.randint(1, 9) for _ in range(20)]
    together = beam_search(ToyDecoder(tables), BOS, EOS, PAD, torch.tensor(lengths), beam=3, n_best=3, rules=rules)
    for table, length, found in zip(tables, lengths, together):
        assert found == search(table, length, rules, beam=3, n_best=3)


def test_greedy_search_and_sampling_keep_the_rules() -> None:
    tables, rules, lengths = list(range(30)), Rules(2, 4), torch.full((30,), 9)
    greedily = greedy(ToyDecoder(tables), BOS, EOS, PAD, lengths, 1.0, rules)
    beam = beam_search(ToyDecoder(tables), BOS, EOS, PAD, lengths, beam=1, rules=rules)
    assert [[one] for one in greedily] == beam
    drawn = sample(ToyDecoder(tables), BOS, EOS, PAD, lengths, seed=1, draws=3, rules=rules)
    free = sample(ToyDecoder(tables), BOS, EOS, PAD, lengths, seed=1, draws=3)
    assert any(repeats(one.tokens, 2) or len(one.tokens) < 4 for each in free for one in each)
    for table, each in zip(tables, [[*one, *more] for one, more in zip(beam, drawn)]):
        for tokens, _, total in each:
            assert not repeats(tokens, 2)
            assert len(tokens) >= 4
            scored = [*tokens, EOS] if len(tokens) < 9 else tokens
            assert total == pytest.approx(log_probability(table, scored), abs=1e-4)


def test_settings_reach_the_search() -> None:
    settings = DecodingConfig(beam=3, min_length=2, max_length=6, block_ngrams=1, max_extra=50)
    lengths = [settings.most_tokens(length) for length in (1, 2, 3)]
    assert lengths == [6, 6, 6]
    for (best,) in decode(ToyDecoder([0, 1, 2]), BOS, EOS, PAD, torch.tensor(lengths), settings):
        assert 2 <= len(best.tokens) <= 3
        assert not repeats(best.tokens, 1)
    assert DecodingConfig(max_ratio=2, max_extra=1).most_tokens(4) == 9
    with pytest.raises(ValueError, match="min_length must be below max_length"):
        DecodingConfig(min_length=6, max_length=6)


def test_a_short_source_leaves_room_for_the_shortest_output() -> None:
    """And for its end mark, within the longest output of all."""

    def limits(**settings: float) -> list[int]:
        return [DecodingConfig(**settings).most_tokens(length) for length in (1, 40)]

    assert limits(max_ratio=2.0, max_extra=10) == [12, 90]
    assert limits(max_ratio=2.0, max_extra=10, min_length=30) == [31, 90]
    assert limits(min_length=30, max_length=40) == [31, 40]
