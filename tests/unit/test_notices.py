"""The built-in notices: any size, no line in two splits, and the line is what comes first."""

import re
from datetime import datetime
from itertools import islice

import pytest

from anydepth.data.builtin import LANGUAGES, notices
from anydepth.data.builtin_corpora import BuiltinNotices
from anydepth.data.reading import Skips, count_rows, read_pairs
from anydepth.errors import UserError

EVENT = re.compile(r"([A-Z][^.–]*) – ([A-Z][a-z]+ \d+, \d{4}|\d+/\d+/\d{4})\.")


def events(text: str) -> list[tuple[str, datetime]]:
    """Place and day of each event of an English text."""
    found = []
    for place, day in EVENT.findall(text):
        found.append((place.strip(), datetime.strptime(day, "%m/%d/%Y" if "/" in day else "%B %d, %Y")))
    return found


def test_the_line_is_the_event_that_comes_first() -> None:
    places = set()
    for notice, line in notices("en", "train", 300):
        dated = events(notice)
        assert 3 <= len(dated) <= 5
        first = min(dated, key=lambda event: event[1])
        assert events(line) == [first]
        places.add(dated.index(first))
    assert places == {0, 1, 2, 3, 4}  # the beginning of a notice does not tell


def test_seed_and_size_decide_the_text() -> None:
    some = list(notices("en", "train", 20, seed=3))
    assert some == list(islice(notices("en", "train", 100, seed=3), 20))
    assert some != list(notices("en", "train", 20, seed=4))
    assert len(set(some)) == 20


def test_no_line_is_in_two_splits() -> None:
    lines = {
        split: {line for seed in (1, 2) for _, line in notices("en", split, 800, seed)}
        for split in ("train", "dev", "test")
    }
    assert not lines["train"] & (lines["dev"] | lines["test"])
    assert not lines["dev"] & lines["test"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_has_notices_about_the_same(language: str) -> None:
    for (notice, line), (english, _) in zip(notices(language, "dev", 10), notices("en", "dev", 10)):
        year = str(events(english)[0][1].year)
        assert notice.count(year) >= len(events(english)) > line.count(year) > 0
        assert "\n" not in notice + line


def test_as_a_corpus() -> None:
    corpus = BuiltinNotices(language="fi", size=5)
    assert count_rows(corpus) == 5
    assert list(read_pairs(corpus, "test", Skips())) == list(notices("fi", "test", 5))
    with pytest.raises(ValueError, match="size must be at least 1"):
        BuiltinNotices(size=0)
    with pytest.raises(UserError, match="no language 'xx'"):
        notices("xx", "train", 1)
