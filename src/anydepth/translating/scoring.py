"""How probable given outputs are: the log-probability of each target, from one pass over all its words."""

from collections.abc import Sequence

import torch

from anydepth.data.collate import Batch, collate_sources
from anydepth.data.sources import batches
from anydepth.errors import UserError
from anydepth.models import Translator
from anydepth.plan import Plans
from anydepth.run import Run

TOKENS = 4_096
"""Target tokens scored together at most: each has a logit for every word."""


@torch.no_grad()
def score(
    run: Run, sources: Sequence[str], targets: Sequence[str | list[int]], depth: str | None, key: str
) -> list[float]:
    """The log-probability of each target (a text, or its tokens) and its end, given its source."""
    if len(sources) != len(targets):
        raise UserError(f"{len(sources)} sources but {len(targets)} targets: expected as many")
    plans, target = run.plan(depth, key), run.tokenizers.target
    source_ids = run.sources(sources, key)
    texts = iter(target.encode([text for text in targets if isinstance(text, str)]))
    target_ids = [next(texts) if isinstance(given, str) else given for given in targets]
    run.check_lengths(source_ids, "source")
    run.check_lengths(target_ids, "target")
    results = [0.0] * len(sources)
    longest = [max(len(s), len(t)) for s, t in zip(source_ids, target_ids)]
    for numbers in batches(longest, run.config.decoding.batch, TOKENS):
        pairs = [(run.ended(source_ids[n]), target_ids[n]) for n in numbers]
        batch = forced(pairs, run.model.pad, target.bos, target.eos, key).to(run.device)
        for number, total in zip(numbers, log_probabilities(run.translator, batch, plans)):
            results[number] = total
    return results


def forced(pairs: list[tuple[list[int], list[int]]], pad: int, bos: int, eos: int, key: str) -> Batch:
    """A padded batch of ended sources and the targets to be said."""
    return Batch(
        source=collate_sources([source for source, _ in pairs], pad),
        target_in=collate_sources([[bos, *target] for _, target in pairs], pad),
        target_out=collate_sources([[*target, eos] for _, target in pairs], pad),
        source_packing=None,
        target_packing=None,
        key=key,
        tokens=sum(len(target) + 1 for _, target in pairs),
        sentences=len(pairs),
    )


def log_probabilities(model: Translator, batch: Batch, plans: Plans) -> list[float]:
    """Of each target, from one pass over all its words."""
    logits = model.logits(model(batch, plans))
    words = torch.log_softmax(logits, dim=-1, dtype=torch.float32).gather(-1, batch.target_out[:, :, None])
    totals: list[float] = words.squeeze(-1).masked_fill(batch.target_out == model.pad, 0.0).sum(dim=1).tolist()
    return totals
