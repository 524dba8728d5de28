import pytest
import torch
from toy_decoder import BOS, EOS, PAD, ToyDecoder, log_probability, logits

from anydepth.decoding.decoder import DecodingConfig, next_log_probabilities, normalise
from anydepth.decoding.greedy import greedy
from anydepth.decoding.search import decode


def run(tables: list[int], max_lengths: list[int], **settings: float) -> list:
    return greedy(ToyDecoder(tables), BOS, EOS, PAD, torch.tensor(max_lengths), **settings)


def by_hand(table: int, max_length: int) -> list[int]:
    tokens: list[int] = []
    while len(tokens) < max_length:
        row = logits(table, tuple(tokens), 3).clone()
        row[[PAD, BOS]] = -torch.inf
        if row.argmax() == EOS:
            break
        tokens.append(int(row.argmax()))
    return tokens


def test_takes_the_best_word_at_every_step() -> None:
    tables = list(range(40))
    found = run(tables, [6] * 40)
    assert [hypothesis.tokens for hypothesis in found] == [by_hand(table, 6) for table in tables]
    assert {len(hypothesis.tokens) for hypothesis in found} >= {0, 1, 2, 6}, "a poor choice of tables"


def test_score_is_the_log_probability_of_what_was_generated() -> None:
    for table, (tokens, score, total) in enumerate(run(list(range(30)), [5] * 30, length_penalty=0.7)):
        scored = tokens if len(tokens) == 5 else [*tokens, EOS]
        assert total == pytest.approx(log_probability(table, scored), abs=1e-5)
        assert score == pytest.approx(total / len(scored) ** 0.7, abs=1e-5)


def test_batch_mates_and_their_lengths_do_not_matter() -> None:
    tables, max_lengths = list(range(30)), [1 + table % 7 for table in range(30)]
    alone = [run([table], [length])[0] for table, length in zip(tables, max_lengths)]
    assert run(tables, max_lengths) == alone
    assert all(len(hypothesis.tokens) <= length for hypothesis, length in zip(alone, max_lengths))


def test_finished_rows_leave_and_the_search_ends_with_the_last() -> None:
    decoder = ToyDecoder(list(range(40)))
    found = greedy(decoder, BOS, EOS, PAD, torch.full((40,), 100))
    steps = [len(hypothesis.tokens) + 1 for hypothesis in found]
    assert len(decoder.rows_at_each_step) == max(steps)
    for step, rows in enumerate(decoder.rows_at_each_step):
        needed = sum(length > step for length in steps)
        assert needed <= rows <= max(needed / 0.75, needed + 1)


def test_asking_less_often_what_has_finished_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tables, max_lengths = list(range(30)), [1 + table % 11 for table in range(30)]
    often = run(tables, max_lengths)
    monkeypatch.setattr("anydepth.decoding.greedy.steps_between_checks", lambda device: 4)
    assert run(tables, max_lengths) == often


def test_bos_and_pad_are_never_generated_but_their_probability_is_not_given_away() -> None:
    log_probabilities = next_log_probabilities(torch.zeros(1, 4), bos=BOS, eos=EOS, pad=PAD)
    assert log_probabilities[0, :2].tolist() == [-torch.inf, -torch.inf]
    torch.testing.assert_close(log_probabilities[0, 2:].exp(), torch.tensor([0.25, 0.25]))
    starts_from_eos = next_log_probabilities(torch.zeros(1, 4), bos=EOS, eos=EOS, pad=PAD)
    assert starts_from_eos[0, EOS] > -torch.inf


def test_log_softmax_is_computed_in_fp32() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.01, 3.0]], dtype=torch.bfloat16)
    found = next_log_probabilities(logits, BOS, EOS, PAD)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found[0, 3], logits.float().log_softmax(-1)[0, 3])


def test_length_penalty() -> None:
    totals = torch.tensor([-6.0, -6.0])
    assert normalise(totals, torch.tensor([2, 3]), 1.0).tolist() == [-3.0, -2.0]
    assert normalise(totals, 4, 0.5).tolist() == [-3.0, -3.0]
    assert normalise(totals, torch.tensor([2, 3]), 0.0).tolist() == [-6.0, -6.0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beam": 0}, "beam must be at least 1, not 0"),
        ({"length_penalty": -0.5}, "length_penalty must be at least 0"),
        ({"max_extra": 0}, "max_extra must be at least 1"),
        ({"beam": 4, "n_best": 5}, r"n_best must be at most beam \(4\), not 5"),
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"top_p": 1.5}, "top_p must be above 0 and at most 1"),
        ({"seed": -1}, "seed must be at least 0"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DecodingConfig(**settings)


def test_maximal_length_follows_the_source() -> None:
    settings = DecodingConfig(max_ratio=1.5, max_extra=4)
    assert [settings.most_tokens(length) for length in (0, 3, 10)] == [4, 8, 19]


def test_the_settings_choose_the_search() -> None:
    def found(settings: DecodingConfig) -> list:
        return decode(ToyDecoder([0, 1, 2]), BOS, EOS, PAD, torch.tensor([5, 5, 5]), settings)

    best = [[hypothesis] for hypothesis in run([0, 1, 2], [5, 5, 5])]
    assert found(DecodingConfig(beam=1)) == best
    assert found(DecodingConfig(sample=True, top_k=1)) == best
    assert [len(hypotheses) for hypotheses in found(DecodingConfig(beam=4, n_best=3))] == [3, 3, 3]
    assert [len(drawn) for drawn in found(DecodingConfig(beam=1, sample=True, n_best=6))] == [6, 6, 6]
