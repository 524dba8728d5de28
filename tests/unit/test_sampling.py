from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toy_decoder import BOS, EOS, PAD, ToyDecoder, every_output, log_probability, logits

from anydepth.decoding.decoder import Hypothesis
from anydepth.decoding.greedy import greedy
from anydepth.decoding.sampling import draw_words, keep_top_k, keep_top_p, sample, uniform_noise
from anydepth.errors import UserError


def run(tables: list[int], max_lengths: list[int], seed: int = 1, **settings: Any) -> list[list[Hypothesis]]:
    return sample(ToyDecoder(tables), BOS, EOS, PAD, torch.tensor(max_lengths), seed=seed, **settings)


def chi_square(counts: Counter, expected: dict[tuple[int, ...], float]) -> float:
    assert counts.keys() <= expected.keys()
    return sum((counts[key] - mean) ** 2 / mean for key, mean in expected.items())


def test_frequencies_are_the_probabilities_of_whole_outputs() -> None:
    counts = Counter(tuple(drawn.tokens) for drawn in run([3], [3], draws=4000)[0])
    outputs = [tuple(output.tokens) for output in every_output(3, 3, 1.0)]
    expected = {tokens: 4000 * chance(3, tokens, 3) for tokens in outputs}
    assert sum(expected.values()) == pytest.approx(4000)
    assert chi_square(counts, expected) < 73  # 39 degrees of freedom: 1 in 1000


def chance(table: int, tokens: tuple[int, ...], max_length: int) -> float:
    """The probability of an output where bos and pad cannot be generated."""
    product = 1.0
    for position, token in enumerate(tokens if len(tokens) == max_length else (*tokens, EOS)):
        product *= logits(table, tokens[:position], 3).double()[EOS:].softmax(-1)[token - EOS].item()
    return product


def test_temperature_sharpens() -> None:
    row = logits(5, (), 3).double()[EOS:]
    for temperature in (0.5, 2.0):
        drawn = run([5], [1], draws=3000, temperature=temperature)[0]
        counts = Counter(tuple(hypothesis.tokens) for hypothesis in drawn)
        chances = (row / temperature).softmax(-1).tolist()
        expected = {(() if word == 0 else (EOS + word,)): 3000 * p for word, p in enumerate(chances)}
        assert chi_square(counts, expected) < 16.3  # 3 degrees of freedom: 1 in 1000


def test_the_best_word_alone_is_greedy() -> None:
    tables, max_lengths = list(range(30)), [1 + table % 6 for table in range(30)]
    found = greedy(ToyDecoder(tables), BOS, EOS, PAD, torch.tensor(max_lengths))
    best = [[hypothesis] for hypothesis in found]
    assert run(tables, max_lengths, top_k=1) == best
    assert run(tables, max_lengths, top_p=1e-6) == best
    assert run(tables, max_lengths) != best


def test_batch_mates_and_further_draws_do_not_matter() -> None:
    tables, max_lengths = list(range(20)), [1 + table % 9 for table in range(20)]
    together = run(tables, max_lengths, seed=7)
    for place in (0, 3, 19):
        alone = run([tables[place]], [max_lengths[place]], seed=7, sentences=[place])
        assert alone == [together[place]]
    assert [drawn[:1] for drawn in run(tables, max_lengths, seed=7, draws=3)] == together
    assert run(tables, max_lengths, seed=7) == together
    assert run(tables, max_lengths, seed=8) != together


def test_log_probabilities_are_those_of_the_model() -> None:
    for table, drawn in enumerate(run(list(range(10)), [4] * 10, draws=5, temperature=0.7, top_k=2)):
        for tokens, score, total in drawn:
            scored = tokens if len(tokens) == 4 else [*tokens, EOS]
            assert total == pytest.approx(log_probability(table, scored), abs=1e-5)
            assert score == pytest.approx(total / len(scored), abs=1e-5)


def test_logits_that_are_not_numbers_are_an_error() -> None:
    decoder = ToyDecoder([0])
    decoder.row_logits = lambda table, prefix: torch.full((6,), torch.nan)
    with pytest.raises(UserError, match="not numbers"):
        sample(decoder, BOS, EOS, PAD, torch.tensor([4]), seed=1)


# -- its parts, by hand


def test_top_k_keeps_exactly_k() -> None:
    rows = torch.tensor([[1.0, 3.0, 2.0], [5.0, 5.0, 5.0]])
    assert keep_top_k(rows, 2)[0].tolist() == [-torch.inf, 3.0, 2.0]
    assert (keep_top_k(rows, 2)[1] > -torch.inf).sum() == 2
    assert keep_top_k(rows, 0) is rows
    assert keep_top_k(rows, 9) is rows


def test_top_p_keeps_the_fewest_that_reach_p() -> None:
    row = torch.tensor([[0.25, 0.5, 0.125, 0.125]])
    assert keep_top_p(row, 0.5).tolist() == [[0.0, 0.5, 0.0, 0.0]]
    assert keep_top_p(row, 0.6).tolist() == [[0.25, 0.5, 0.0, 0.0]]
    assert keep_top_p(row, 0.01).tolist() == [[0.0, 0.5, 0.0, 0.0]]
    assert keep_top_p(row, 1.0) is row


def test_draw_passes_the_running_total() -> None:
    weights = torch.tensor([[0.0, 1.0, 0.0, 3.0, 0.0]]).expand(5, -1)
    noise = torch.tensor([0.0, 0.2, 0.25, 0.9, 1 - 2**-53], dtype=torch.float64)
    assert draw_words(weights, noise).tolist() == [1, 1, 3, 3, 3]


@given(
    weights=st.lists(st.sampled_from([0.0, 1e-30, 0.1, 1 / 3, 1.0]), min_size=1, max_size=8).filter(any),
    noise=st.floats(0, 1, exclude_max=True),
)
def test_words_without_weight_are_never_drawn(weights: list[float], noise: float) -> None:
    word = draw_words(torch.tensor([weights]), torch.tensor([noise], dtype=torch.float64))
    assert weights[int(word)] > 0


def test_noise_of_a_longer_sentence_begins_alike() -> None:
    assert uniform_noise(1, 2, 3, 4).tolist() == uniform_noise(1, 2, 3, 9)[:4].tolist()
    assert uniform_noise(1, 2, 3, 4).tolist() != uniform_noise(1, 3, 2, 4).tolist()
