"""Speculative decoding finds what plain greedy search finds, whatever is drafted."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import BOS, FULL, PAD, Cli, random_batch, talkative_translator, tiny_translator
from torch import nn

from anydepth.decoding.greedy import greedy
from anydepth.decoding.speculative import Outcome, speculate
from anydepth.depth import DepthConfig
from anydepth.depth.latent import LatentConfig
from anydepth.depth.prefix import PrefixConfig
from anydepth.depth.recurrent import RecurrentConfig
from anydepth.depth.subnetwork import SubnetworkConfig
from anydepth.errors import UserError
from anydepth.models import Translator
from anydepth.plan import Plan
from anydepth.translating.alone import DrafterAlone
from anydepth.translating.drafter import TranslatorDrafter
from anydepth.translating.precision import for_searching

SOURCE = random_batch([(n % 7 + 2, 2) for n in range(24)]).source
LIMITS = torch.tensor([3 + n % 11 for n in range(24)])
GOLDEN = Path(__file__).parent.parent / "golden" / "model"
END = 7
"""Random models like some words more than the end mark: let one of those be it."""


def plain(translator: Translator, rows: slice = slice(None)) -> list[list[int]]:
    found = greedy(translator.start(SOURCE[rows], translator.plan()), BOS, END, PAD, LIMITS[rows])
    return [one.tokens for one in found]


def drafted(translator: Translator, draft: Plan, words: int, rows: slice = slice(None)) -> Outcome:
    room = int(LIMITS.max()) + words + 1
    drafter = TranslatorDrafter(translator, translator.plan(), draft, room).open(SOURCE[rows])
    return speculate(drafter, BOS, END, PAD, LIMITS[rows], words)


@pytest.mark.parametrize("words", [0, 1, 2, 5])
@pytest.mark.parametrize(
    "depth", [PrefixConfig(), SubnetworkConfig(), RecurrentConfig(depth=5), LatentConfig(inference="soft")], ids=str
)
def test_every_draft_gives_what_greedy_search_gives(depth: DepthConfig, words: int) -> None:
    translator = talkative_translator(depth)
    expected = plain(translator)
    assert len({token for tokens in expected for token in tokens}) > 3
    assert len({tuple(tokens) for tokens in expected}) > 10
    assert len({len(tokens) for tokens in expected}) > 3
    for draft in translator.decoder_depth.plans().values():
        outcome = drafted(translator, draft, words)
        assert [one.tokens for one in outcome.found] == expected, draft


def test_some_drafts_are_right_and_some_are_not() -> None:
    """Otherwise the tests above would show little."""
    translator = talkative_translator(PrefixConfig())
    outcome = drafted(translator, Plan((0, 1, 2)), 2)
    assert 1.05 < outcome.words / outcome.rounds < 2.9


def test_scores_are_those_of_greedy_search() -> None:
    translator = talkative_translator(PrefixConfig())
    expected = greedy(translator.start(SOURCE, translator.plan()), BOS, END, PAD, LIMITS)
    for ours, theirs in zip(drafted(translator, Plan((0,)), 3).found, expected):
        assert ours.log_probability == pytest.approx(theirs.log_probability, abs=1e-5)
        assert ours.score == pytest.approx(theirs.score, abs=1e-5)


def test_batch_mates_do_not_matter() -> None:
    translator = talkative_translator(PrefixConfig())
    together = [one.tokens for one in drafted(translator, Plan((0, 1)), 3).found]
    for n in range(0, 24, 5):
        (alone,) = drafted(translator, Plan((0, 1)), 3, slice(n, n + 1)).found
        assert alone.tokens == together[n]


def test_a_draft_that_is_always_right_saves_rounds() -> None:
    """The full depth as its own draft: every word is accepted, so that a round gives four."""
    translator = talkative_translator(PrefixConfig())
    outcome = drafted(translator, translator.plan().decoder, 3)
    longest = [len(tokens) for tokens in plain(translator)]
    words = [min(length + 1, limit) for length, limit in zip(longest, LIMITS.tolist())]  # the end mark too
    assert outcome.words == sum(words)
    assert outcome.rounds == sum(-(-count // 4) for count in words)


def test_only_the_layers_above_the_draft_judge() -> None:
    """Layer calls: each of 1 + drafts words passes the layer below once, a round passes the layers above once. A
    sentence alone drafts nothing behind an end mark or its limit."""
    translator = talkative_translator(PrefixConfig())
    calls = dict.fromkeys(range(4), 0)
    for number, layer in enumerate(translator.decoder.layers):
        layer.register_forward_hook(lambda *_, number=number: calls.__setitem__(number, calls[number] + 1))
    twice = speculate(
        TranslatorDrafter(translator, translator.plan(), Plan((0,)), 20).open(SOURCE[[8, 8]]),
        BOS, END, PAD, LIMITS[[8, 8]], 3,
    )  # fmt: skip
    rounds = twice.rounds // 2
    assert rounds > 2
    assert [calls[n] for n in range(4)] == [4 * rounds, *[rounds] * 3]
    calls.update(dict.fromkeys(range(4), 0))
    once = drafted(translator, Plan((0,)), 3, slice(8, 9))
    assert once.found[0].tokens == twice.found[0].tokens
    assert once.rounds == rounds
    assert calls[1] == calls[2] == calls[3] == rounds < calls[0] < 4 * rounds


def test_positions_may_run_out_while_drafting() -> None:
    translator = talkative_translator(PrefixConfig(), max_positions=14)
    limits = torch.full((24,), 14)
    drafter = TranslatorDrafter(translator, translator.plan(), Plan((0,)), 14 + 5).open(SOURCE)
    found = speculate(drafter, BOS, 99, PAD, limits, 4).found
    expected = greedy(translator.start(SOURCE, translator.plan()), BOS, 99, PAD, limits)
    assert [one.tokens for one in found] == [one.tokens for one in expected]
    assert {len(one.tokens) for one in found} == {14}


@pytest.mark.parametrize("head", [None, "rough", "wrong"])
@pytest.mark.parametrize("depth", [PrefixConfig(), RecurrentConfig(depth=5), LatentConfig(inference="soft")], ids=str)
def test_a_sentence_alone_drafts_in_another_way_and_gives_the_same(depth: DepthConfig, head: str | None) -> None:
    translator = talkative_translator(depth)
    rough = for_searching(translator.float(), "int8").head if head else None
    translator.double()
    wrong = nn.Linear(16, 23).double().eval()
    heads, rounds = {None: None, "rough": InFloat(rough), "wrong": wrong}, {0: 0, 1: 0, 4: 0}
    for n in range(0, 24, 2):
        source, limit = SOURCE[n : n + 1], LIMITS[n : n + 1]
        source = source[:, source[0] != PAD]
        (expected,) = greedy(translator.start(source, translator.plan()), BOS, END, PAD, limit)
        for draft in translator.decoder_depth.plans().values():
            for words in rounds:
                begun = translator.start(source, translator.plan())
                drafter = DrafterAlone(begun, draft, int(limit), heads[head])
                outcome = speculate(drafter, BOS, END, PAD, limit, words)
                assert outcome.found[0].tokens == expected.tokens, draft
                assert outcome.found[0].log_probability == pytest.approx(expected.log_probability, abs=1e-5)
                rounds[words] += outcome.rounds
    assert head == "wrong" or rounds[4] < rounds[1] < rounds[0]


class InFloat(nn.Module):
    """A single-precision layer in a model of double precision."""

    def __init__(self, inner: nn.Module | None) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.inner is not None
        found: torch.Tensor = self.inner(x.float())
        return found.double()


def test_dlcl_is_refused() -> None:
    config = tiny_translator(FULL).config
    translator = replace(config, decoder=replace(config.decoder, mix="dlcl")).build(23, 23, PAD).eval()
    with pytest.raises(UserError, match="DLCL"):
        TranslatorDrafter(translator, translator.plan(), Plan((0,)), 20)


def test_from_the_command_line(tmp_path: Path, cli: Cli) -> None:
    text = tmp_path / "text"
    text.write_text("the first of May\ntwenty-three euros\n\nMonday, 4 July 2011\n")
    plain = cli("translate", GOLDEN, text, "--beam", 1)
    assert plain[0] == 0
    for words in (1, 6):
        assert cli("translate", GOLDEN, text, "--speculate", "--draft", 1, "--draft-words", words) == plain
    for wrong, message in (
        (["--speculate", "--beam", 4], "speculate: drafts what greedy search finds; set beam to 1"),
        (["--speculate", "--set", "decoding.block_ngrams=3"], "speculate: words are judged without block_ngrams"),
        (["--draft-words", 4], "--draft-words is for speculation: give --speculate as well"),
        (["--speculate", "--draft", 2], "draft 2: for 2-2 this run can draft at 1 decoder layers"),
        (["--speculate", "--draft", 1, "--depth", "2-1"], "draft 1: for 2-1 this run can draft at no shallower depth"),
        (["--speculate", "--engine", "ctranslate2"], "--speculate: not with --engine ctranslate2"),
        (["--precision", "bfloat16", "--engine", "ctranslate2"], "--precision: not with --engine ctranslate2"),
    ):
        code, _, error = cli("translate", GOLDEN, text, *wrong)
        assert code == 2
        assert message in error


@pytest.mark.filterwarnings("default:speculation is off")
def test_a_depth_that_cannot_draft_is_searched_plainly(tmp_path: Path, cli: Cli) -> None:
    """A budget, `auto` and a selector may choose it."""
    text = tmp_path / "text"
    text.write_text("the first of May\ntwenty-three euros\n")
    _, plain, _ = cli("translate", GOLDEN, text, "--beam", 1, "--depth", "2-1")
    code, said, error = cli("translate", GOLDEN, text, "--speculate", "--depth", "2-1")
    assert (code, said) == (0, plain)
    assert "speculation is off: depth 2-1 has no shallower exit with 1 decoder layers" in error
    _, _, error = cli("translate", GOLDEN, text, "--speculate", "--set", "decoding.draft=2")
    assert "depth 2-2 has no shallower exit with 2 decoder layers (a draft can have 1)" in " ".join(error.split())


@pytest.mark.filterwarnings("default:speculation is off")
def test_a_run_may_say_how_it_searches(tmp_path: Path, cli: Cli) -> None:
    """What the command line does not ask for is the run's own choice, not off."""
    text = tmp_path / "text"
    text.write_text("the first of May\n")
    ask = ["translate", GOLDEN, text, "--beam", 1]
    _, _, error = cli(*ask, "--set", "decoding.beam=1", "--set", "decoding.speculate=true", "--depth", "2-1")
    assert "speculation is off" in error
    assert cli(*ask, "--set", "decoding.sample=true") == cli(*ask, "--sample") != cli(*ask)
