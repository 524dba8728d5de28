"""Searches in fixed places against those that grow, on any device."""

import pytest
import torch
from conftest import BOS, PAD, random_batch

from anydepth.decoding.decoder import DecodingConfig, Marks
from anydepth.models import Translator
from anydepth.plan import Plans
from anydepth.translating.searching import Asked, Searcher

END = 7
MARKS = Marks(BOS, END, PAD)
BATCHES = ((5, 12), (8, 9), (1, 3), (7, 15), (30, 40), (6, 11))
"""Sentences, and words of the longest: of three shapes."""
SEARCHES = {
    "greedy": DecodingConfig(beam=1),
    "speculation": DecodingConfig(beam=1, speculate=True, draft=1, draft_words=3),
    "beam": DecodingConfig(beam=4, length_penalty=0.6),
    "n best": DecodingConfig(beam=3, n_best=3),
}


def batches_of_many_shapes(plans: Plans, decoding: DecodingConfig, longest: int = 14) -> list[Asked]:
    """The words allowed differ."""
    return [
        Asked(
            random_batch([(n % words + 1, 2) for n in range(batch)]).source,
            torch.tensor([1 + (5 * n + 2) % longest for n in range(batch)]),
            plans,
            "",
            decoding,
            range(batch),
        )
        for batch, words in BATCHES
    ]


def assert_replayed_searches_find_the_same(model: Translator, decoding: DecodingConfig, longest: int = 14) -> None:
    """One after the other in the same places, at several shapes."""
    searcher, said = Searcher(model, MARKS), set()
    for asked in batches_of_many_shapes(model.plan(), decoding, longest):
        with torch.no_grad():
            expected, found = searcher.grow(asked), searcher.replay(asked)
        assert [[one.tokens for one in each] for each in found] == [[one.tokens for one in each] for each in expected]
        for ours, theirs in zip(found, expected):
            for name in ("score", "log_probability"):
                values = [[getattr(one, name) for one in each] for each in (ours, theirs)]
                assert values[0] == pytest.approx(values[1], abs=1e-4)
        said |= {tuple(one.tokens) for each in found for one in each}
    assert len(said) > 8
    assert len({token for tokens in said for token in tokens}) > 5
