import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_decoder import BOS, EOS, PAD, ToyDecoder, every_output, log_probability

from anydepth.decoding.beam import (
    Hypotheses,
    append,
    attainable,
    beam_search,
    empty_beginnings,
    extend,
    merge,
    read,
    those_that_end,
    those_that_grow,
)
from anydepth.decoding.decoder import Hypothesis
from anydepth.decoding.greedy import greedy
from anydepth.errors import UserError

WIDE = 200
"""More than there are of 3 words in 4 steps: 81 that grow, 40 that end, 108 candidates in the last step."""
NOTHING = -torch.inf


def run(
    tables: list[int], max_lengths: list[int], beam: int, length_penalty: float = 1.0, n_best: int = 1
) -> list[list[Hypothesis]]:
    return beam_search(
        ToyDecoder(tables),
        BOS,
        EOS,
        PAD,
        torch.tensor(max_lengths),
        beam=beam,
        length_penalty=length_penalty,
        n_best=n_best,
    )


# -- whole searches


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("table", range(5))
def test_a_wide_beam_finds_all_there_is_in_order(table: int, penalty: float) -> None:
    expected = every_output(table, 4, penalty)
    assert len(expected) == 1 + 3 + 9 + 27 + 81
    found = run([table], [4], WIDE, penalty, n_best=WIDE)[0]
    assert [hypothesis.tokens for hypothesis in found] == [hypothesis.tokens for hypothesis in expected]
    for ours, true in zip(found, expected):
        assert ours[1:] == pytest.approx(true[1:], abs=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    table=st.integers(0, 10**6),
    max_length=st.integers(1, 4),
    penalty=st.floats(0, 3),
    n_best=st.integers(1, 8),
)
def test_stopping_early_loses_nothing(table: int, max_length: int, penalty: float, n_best: int) -> None:
    expected = every_output(table, max_length, penalty)[:n_best]
    found = run([table], [max_length], WIDE, penalty, n_best)[0]
    # scores rather than tokens: two outputs may be as good as equal
    assert [ours.score for ours in found] == pytest.approx([best.score for best in expected], abs=1e-5)


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_a_beam_of_one_is_greedy(penalty: float) -> None:
    tables, max_lengths = list(range(40)), [1 + table % 8 for table in range(40)]
    best = greedy(ToyDecoder(tables), BOS, EOS, PAD, torch.tensor(max_lengths), penalty)
    assert run(tables, max_lengths, 1, penalty) == [[hypothesis] for hypothesis in best]


@settings(max_examples=40, deadline=None)
@given(
    sentences=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 9)), min_size=2, max_size=8),
    beam=st.integers(1, 5),
    penalty=st.sampled_from([0.0, 1.0, 1.4]),
)
def test_batch_mates_do_not_matter(sentences: list[tuple[int, int]], beam: int, penalty: float) -> None:
    tables, max_lengths = [list(column) for column in zip(*sentences)]
    alone = [run([table], [length], beam, penalty, beam)[0] for table, length in sentences]
    assert run(tables, max_lengths, beam, penalty, beam) == alone


def test_scores_are_those_of_forced_decoding_and_fall() -> None:
    max_lengths = [2 + table % 5 for table in range(30)]
    results, lengths = run(list(range(30)), max_lengths, 4, 0.8, 4), set()
    for table, (max_length, found) in enumerate(zip(max_lengths, results)):
        ended = [len(hypothesis.tokens) < max_length for hypothesis in found]
        assert ended == sorted(ended, reverse=True), "what was cut comes after what ended"
        for (tokens, score, total), with_eos in zip(found, ended):
            scored = [*tokens, EOS] if with_eos else tokens
            assert len(scored) <= max_length
            assert total == pytest.approx(log_probability(table, scored), abs=1e-5)
            assert score == pytest.approx(total / len(scored) ** 0.8, abs=1e-5)
            lengths.add(len(tokens))
        scores = [hypothesis.score for hypothesis in found]
        assert scores[: sum(ended)] == sorted(scores[: sum(ended)], reverse=True)
        assert len({tuple(hypothesis.tokens) for hypothesis in found}) == len(found) == 4
    assert lengths >= {0, 1, 2, 3}


def test_a_wider_beam_is_better_on_average() -> None:
    tables = list(range(100))
    one, two, five = (
        sum(found[0].log_probability for found in run(tables, [6] * 100, beam, 0.0)) for beam in (1, 2, 5)
    )
    assert one < two < five


def test_finished_sentences_leave_the_batch() -> None:
    max_lengths = [3] * 9 + [12]
    decoder = ToyDecoder(list(range(10)))
    beam_search(decoder, BOS, EOS, PAD, torch.tensor(max_lengths), beam=3, length_penalty=1.0, n_best=3)
    rows = decoder.rows_at_each_step
    assert rows[0] == 10
    assert rows[1:] == sorted(rows[1:], reverse=True)
    assert all(count == 3 for count in rows[3:])


@pytest.mark.parametrize(("n_best", "steps"), [(1, 1), (2, 2)])
def test_the_search_stops_as_soon_as_nothing_better_can_come(n_best: int, steps: int) -> None:
    decoder = ToyDecoder([0])
    decoder.row_logits = lambda table, prefix: torch.tensor([0, 0, 9.0, 0, 0, 0])  # eos takes nearly all
    beam_search(decoder, BOS, EOS, PAD, torch.tensor([50]), beam=4, length_penalty=0.0, n_best=n_best)
    assert len(decoder.rows_at_each_step) == steps


def test_asking_less_often_what_has_finished_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tables, max_lengths = list(range(100)), [10 + 5 * (table % 3) for table in range(100)]
    often = run(tables, max_lengths, beam=2, n_best=2)
    monkeypatch.setattr("anydepth.decoding.beam.steps_between_checks", lambda device: 7)
    assert run(tables, max_lengths, beam=2, n_best=2) == often


def test_logits_that_are_not_numbers_are_an_error() -> None:
    decoder = ToyDecoder([0])
    decoder.row_logits = lambda table, prefix: torch.full((6,), torch.nan)
    with pytest.raises(UserError, match="not numbers"):
        beam_search(decoder, BOS, EOS, PAD, torch.tensor([4]), beam=2)


@pytest.mark.parametrize(("beam", "n_best", "penalty"), [(0, 1, 1.0), (2, 3, 1.0), (2, 0, 1.0), (2, 1, -1.0)])
def test_impossible_settings_are_refused(beam: int, n_best: int, penalty: float) -> None:
    with pytest.raises(ValueError, match="need length_penalty"):
        run([0], [3], beam, penalty, n_best)


# -- its parts, by hand. One sentence, a beam of two, four words: pad 0, bos 1, eos 2 and the word 3.


def hypotheses(tokens: list[list[int]], totals: list[float], scores: list[float] | None = None) -> Hypotheses:
    lengths = [[sum(token != PAD for token in row) for row in tokens]]
    columns = ([tokens], lengths, [totals], [scores or totals])
    return Hypotheses(*(torch.tensor(column) for column in columns))


def test_at_first_only_the_empty_hypothesis_grows() -> None:
    growing, ended = empty_beginnings(batch=2, beam=3, longest=5, pad=PAD, device=torch.device("cpu"))
    assert growing.log_probabilities.tolist() == [[0.0, NOTHING, NOTHING]] * 2
    assert ended.scores.tolist() == [[NOTHING] * 3] * 2
    assert growing.tokens.shape == (2, 3, 5)


def test_extend_ranks_all_continuations_of_all_hypotheses() -> None:
    growing = hypotheses([[3, 0, 0], [4, 0, 0]], [-1.0, -2.0])
    words = torch.tensor([[NOTHING, NOTHING, -3.0, -0.5], [NOTHING, NOTHING, -0.25, -4.0]])
    candidates, parents = extend(growing, words, length=2, length_penalty=1.0)
    assert candidates.log_probabilities.tolist() == [[-1.5, -2.25, -4.0, -6.0]]
    assert candidates.scores.tolist() == [[-0.75, -1.125, -2.0, -3.0]]
    assert candidates.tokens.tolist() == [[[3, 3, 0], [4, 2, 0], [3, 2, 0], [4, 3, 0]]]
    assert candidates.lengths.tolist() == [[2, 2, 2, 2]]
    assert parents.tolist() == [[0, 1, 0, 1]]


def test_candidates_end_only_among_the_best_and_the_others_grow() -> None:
    candidates = hypotheses([[3, 3], [4, 2], [3, 2], [4, 3]], [-1.5, -2.25, -4.0, -6.0])
    is_eos = torch.tensor([[False, True, True, False]])
    ended = those_that_end(candidates, is_eos)
    assert ended.scores.tolist() == [[NOTHING, -2.25]]
    growing, parents = those_that_grow(candidates, torch.tensor([[0, 1, 0, 1]]), is_eos)
    assert growing.tokens.tolist() == [[[3, 3], [4, 3]]]
    assert parents.tolist() == [[0, 1]]


def test_merge_keeps_the_best_and_append_fills_what_is_empty() -> None:
    ended = hypotheses([[2, 0], [0, 0]], [-3.0, NOTHING])
    better = hypotheses([[3, 2], [4, 2]], [-2.0, -4.0])
    assert merge(ended, better).scores.tolist() == [[-2.0, -3.0]]
    assert merge(ended, better).tokens.tolist() == [[[3, 2], [2, 0]]]
    assert append(ended, better).scores.tolist() == [[-3.0, -2.0]]
    assert append(append(ended, better), better).scores.tolist() == [[-3.0, -2.0]]


def test_attainable_is_the_log_probability_at_the_greatest_length() -> None:
    growing = hypotheses([[3], [4]], [-6.0, -2.0])
    assert attainable(growing, torch.tensor([8]), 1.0).tolist() == [-0.25]
    assert attainable(growing, torch.tensor([8]), 0.0).tolist() == [-2.0]


def test_read_strips_eos_and_skips_empty_places() -> None:
    ended = hypotheses([[3, 2, 0], [3, 4, 5], [0, 0, 0]], [-2.0, -6.0, NOTHING], [-1.0, -2.0, NOTHING])
    expected = [Hypothesis([3], -1.0, -2.0), Hypothesis([3, 4, 5], -2.0, -6.0)]
    assert read(ended, 3, EOS) == [expected]
    assert read(ended, 1, EOS) == [expected[:1]]
