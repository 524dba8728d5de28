"""Texts into batches, each with the depth and the settings it is decoded with."""

import warnings
from collections.abc import Iterator
from dataclasses import replace
from numbers import Real
from random import Random
from typing import Any, NamedTuple

from anydepth.calibrating.calibration import command
from anydepth.choosing.budget import Chosen, Guide, Options
from anydepth.data.sources import batches
from anydepth.decoding.decoder import SEARCH_TOKENS, DecodingConfig
from anydepth.errors import UserError
from anydepth.plan import parse_depth

AUTO = "auto"


class Choice(NamedTuple):
    """What the user leaves to us."""

    depth: str | None
    """A fixed one, None for the deepest, or `auto`."""
    budget_ms: float | None
    drafts: bool
    """Whether the settings of speculation may be changed."""

    def options(self, decoding: DecodingConfig, guide: Guide) -> Options:
        return guide.drafting if decoding.speculate and self.drafts else guide.options


def drafts_are_open(settings: dict[str, Any]) -> bool:
    """Whether a call leaves the settings of speculation to us."""
    return settings.get("draft") is None and settings.get("draft_words") is None


class Share(NamedTuple):
    """Texts that are decoded together."""

    places: list[int]
    depth: str | None
    decoding: DecodingConfig


def schedule(
    lengths: list[int], decoding: DecodingConfig, choice: Choice, guide: Guide, asked: float
) -> Iterator[Share]:
    """Texts of so many tokens, at a fixed depth, at the one that `auto` finds for all, or each batch at the best within
    the budget, chosen when its turn comes. Each is decoded before the next is asked for. `asked` is when they were, by
    the run's clock."""
    some = list(batches(lengths, decoding.batch, SEARCH_TOKENS))
    if choice.budget_ms is not None:
        yield from within_budget(some, lengths, decoding, choice, guide, choice.budget_ms, asked)
        return
    depth = choice.depth
    if depth == AUTO:
        depth = choice.options(decoding, guide).automatic(decoding.batch).depth
    else:
        guide.run.plan(depth, guide.key)  # complains about a wrong one, even if there is no text
    for places in some:
        yield share(places, depth, decoding, choice, guide)


def share(places: list[int], depth: str | None, decoding: DecodingConfig, choice: Choice, guide: Guide) -> Share:
    if decoding.speculate and choice.drafts:
        decoding = with_drafts(decoding, depth, len(places), guide)
    return Share(places, depth, decoding)


def within_budget(
    some: list[list[int]],
    lengths: list[int],
    decoding: DecodingConfig,
    choice: Choice,
    guide: Guide,
    budget_ms: float,
    asked: float,
) -> Iterator[Share]:
    """Learns from each answer that could be in time. Batches come in an order that says nothing of their length: after
    answers to the longest alone, all would be taken to be slow. There is speculation where its time is known."""
    check_budget(decoding, choice, budget_ms)
    run, options = guide.run, choice.options(decoding, guide)
    say_what_is_late([(len(places), lengths[places[0]]) for places in some], options, budget_ms)
    for places in Random(1).sample(some, len(some)):
        began, prepared = run.clock() if len(some) > 1 else asked, run.preparations
        chosen = options.within(budget_ms, lengths[places[0]], len(places))
        draft = with_known_drafts if options.drafts else with_drafts_as_set
        how = draft(decoding, chosen.depth, len(places), guide) if decoding.speculate else decoding
        yield Share(places, chosen.depth, how)
        if chosen.fits and run.preparations == prepared:  # it took longer where it has prepared something
            spent = 1000 * (run.clock() - began)
            options.answered(budget_ms, len(places), spent <= budget_ms * len(places))


def check_budget(decoding: DecodingConfig, choice: Choice, budget_ms: float) -> None:
    if choice.depth not in (None, AUTO):
        raise UserError(f"depth {choice.depth}: a budget chooses the depth; give one of the two")
    if not isinstance(budget_ms, Real) or not budget_ms > 0:
        raise UserError(f"budget_ms: expected a number above 0, not {budget_ms!r}")
    if decoding.sample:
        raise UserError("budget_ms: the time of sampling is not calibrated; set sample to false")


def say_what_is_late(some: list[tuple[int, int]], options: Options, budget_ms: float) -> None:
    """Batches of so many sentences, the longest of so many tokens, longest first: where not even the fastest depth is
    predicted to be done in time it is said; where that is so for every batch, it is an error."""
    chosen = [options.within(budget_ms, tokens, count) for count, tokens in some]
    late = [(*batch, one) for batch, one in zip(some, chosen) if not one.fits]
    if not late:
        return
    if len(late) == len(some):
        raise UserError(f"budget of {budget_ms:g} ms: no depth is fast enough; {fastest(*late[-1])}")
    late_texts, texts = (sum(count for count, *_ in those) for those in (late, some))
    message = f"{late_texts} of {texts} sentences do not fit a budget of {budget_ms:g} ms: {fastest(*late[0])}"
    warnings.warn(message, stacklevel=2)


def fastest(count: int, tokens: int, chosen: Chosen) -> str:
    together = f", {count} at a time" if count > 1 else ""
    time = f"a sentence of {tokens} tokens takes up to {chosen.ms / count:.3g} ms"
    return f"{time} at the fastest depth, {chosen.depth}{together}"


def with_drafts(decoding: DecodingConfig, depth: str | None, sentences: int, guide: Guide) -> DecodingConfig:
    """With the drafts that calibration found best for so many sentences, or without any where it found none to pay or
    never saw so many. Without calibration of this depth the settings stay as they are, if it can draft so."""
    depth = guide.run.plan(depth, guide.key).name
    found = guide.calibrated.speculation_at(depth, sentences) if guide.calibrated else None
    if found is None:
        as_set = with_drafts_as_set(decoding, depth, sentences, guide)
        if as_set.speculate and (why := why_uncalibrated(depth, guide)):
            guide.warn(f"speculation may be slower than plain search at depth {depth}: {why}")
        return as_set
    if found.best and sentences <= found.batch:
        return with_known_drafts(decoding, depth, sentences, guide)
    if sentences > found.batch:
        return without_drafts(decoding, f"at depth {depth} no batch of more than {found.batch} was calibrated", guide)
    where = f"at depth {depth} and batch {found.batch}"
    return without_drafts(decoding, f"{where} plain search was as fast when calibrated", guide)


def with_known_drafts(decoding: DecodingConfig, depth: str, sentences: int, guide: Guide) -> DecodingConfig:
    """With those that calibration found to pay, or without any."""
    draft = guide.calibration.draft_at(depth, sentences)
    if draft:
        return replace(decoding, draft=draft.draft, draft_words=draft.draft_words)
    if not any(guide.calibration.draft_at(other, sentences) for other in guide.options.depths):
        return without_drafts(decoding, f"no draft was calibrated to pay for {sentences} at a time", guide)
    return replace(decoding, speculate=False)


def with_drafts_as_set(decoding: DecodingConfig, depth: str, _: int, guide: Guide) -> DecodingConfig:
    """As the settings are, if a depth can draft so."""
    layers, known = parse_depth(depth)[1], guide.run.model.policies["decoder"].plans(guide.key)
    shallower = [each for each in sorted(known) if each < layers]
    if decoding.draft in shallower:
        return decoding
    others = f" (a draft can have {', '.join(map(str, shallower))})" if shallower else ""
    reason = f"depth {depth} has no shallower exit with {decoding.draft} decoder layers{others}"
    return without_drafts(decoding, reason, guide)


def why_uncalibrated(depth: str, guide: Guide) -> str:
    if guide.calibrated:
        tried = guide.calibrated.tried
        again = f"{command(guide.run, guide.calibrated.origin)} --drafts-at {depth}"
        return f"drafts were calibrated at {', '.join(sorted(tried))}: run {again}" if tried else ""
    return guide.sought[1] if guide.run.folder else ""


def without_drafts(decoding: DecodingConfig, reason: str, guide: Guide) -> DecodingConfig:
    guide.warn(f"speculation is off: {reason}")
    return replace(decoding, speculate=False)
