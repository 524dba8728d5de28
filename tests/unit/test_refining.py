"""A draft and then the answer: what a search without a draft finds, for less work."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

import anydepth
from anydepth.run import Run
from anydepth.translating.refining import draft, draft_depth, refine

GOLDEN = Path(__file__).parent.parent / "golden" / "model"
TEXTS = json.loads((GOLDEN.parent / "outputs.json").read_text())["sentences"]
GREEDY = "decoding.beam=1"
SUBNETWORKS = 'model.decoder.depth={type="subnetwork", strategy="seq"}'
LAST_FIRST = 'model.decoder.depth={type="subnetwork", strategy="optimal"}'


def load(*settings: str) -> Run:
    return anydepth.load(GOLDEN, "cpu", settings=settings)


@contextmanager
def counted(run: Run) -> Iterator[Counter[str]]:
    """Words that every layer has computed."""
    count: Counter[str] = Counter()

    def hook(name: str) -> Any:
        def add(module: nn.Module, given: tuple[Any, ...], out: Tensor) -> None:
            count[name] += out.shape[0] * out.shape[1]

        return add

    model = run.searcher(run.config.decoding.precision).model
    stacks = {"encoder": model.encoder, "decoder": model.decoder}
    hooks = [
        layer.register_forward_hook(hook(f"{name} {number}"))
        for name, stack in stacks.items()
        for number, layer in enumerate(stack.layers)
    ]
    try:
        yield count
    finally:
        for one in hooks:
            one.remove()


@pytest.mark.parametrize(
    "settings",
    [
        (GREEDY,),
        ("decoding.beam=3",),
        (GREEDY, SUBNETWORKS),
        (GREEDY, LAST_FIRST),
        (GREEDY, "decoding.max_ratio=0", "decoding.max_extra=2"),
        (GREEDY, "decoding.block_ngrams=2"),
        ("decoding.sample=true", "decoding.beam=1"),
    ],
    ids=str,
)
def test_drafts_and_answers_are_those_of_plain_searches(settings: tuple[str, ...]) -> None:
    run, texts = load(*settings), [*TEXTS, "x"]
    begun = draft(run, texts, "2-1")
    assert [one.text for one in begun] == run.translate(texts, "2-1")
    assert refine(run, begun, "2-2", texts) == run.translate(texts, "2-2")
    mixed = [5, 0, 3]  # other mates than the draft had
    assert refine(run, [begun[place] for place in mixed], "2-2", [texts[place] for place in mixed]) == run.translate(
        [texts[place] for place in mixed], "2-2"
    )


def test_words_of_a_draft_have_nowhere_to_stop_early() -> None:
    """The shallowest depth has no exit below it; those of the answer may stop."""
    run = load(GREEDY, "decoding.exit=1", "decoding.exit_margin=0.5")
    begun = draft(run, TEXTS, "2-1")
    assert [one.text for one in begun] == load(GREEDY).translate(TEXTS, "2-1")
    assert refine(run, begun, "2-2", TEXTS) == run.translate(TEXTS, "2-2")


def test_an_empty_text_among_others() -> None:
    run, texts = load(GREEDY), [TEXTS[0], " "]
    begun = draft(run, texts, "2-1")
    assert [one.text for one in begun] == run.translate(texts, "2-1")
    assert refine(run, begun, "2-2", texts) == run.translate(texts, "2-2")


def test_greedy_answers_run_the_encoder_not_at_all_and_lower_layers_only_where_the_draft_was_wrong() -> None:
    run = load(GREEDY)
    same = [text for text in TEXTS if run.translate([text], "2-1") == run.translate([text], "2-2")]
    other = [text for text in TEXTS if text not in same]
    assert same
    assert other
    for texts in (same, other):
        with counted(run) as anew:
            run.translate(texts, "2-2")
        begun = draft(run, texts, "2-1")
        with counted(run) as count:
            refine(run, begun, "2-2", texts)
        assert count["encoder 0"] == count["encoder 1"] == 0
        assert anew["encoder 0"] > 0
        assert (count["decoder 0"] == 0) == (texts is same)
        assert count["decoder 0"] < anew["decoder 0"]


def test_beam_search_shares_the_encoder() -> None:
    run = load("decoding.beam=3")
    with counted(run) as anew:
        run.translate(TEXTS, "2-2")
    begun = draft(run, TEXTS, "2-1")
    with counted(run) as count:
        refine(run, begun, "2-2", TEXTS)
    assert count["encoder 0"] == count["encoder 1"] == 0
    assert count["decoder 1"] == anew["decoder 1"]


def test_draft_depths() -> None:
    run = load()
    assert [draft_depth(run, depth) for depth in ("2-2", "1-2", "2-1")] == ["2-1", "1-1", None]
