"""How good a model is on the dev sets, at the depths asked for."""

import math
from typing import TYPE_CHECKING, Any

import torch

from anydepth.data.batching import BatchingConfig, Limits, one_pass
from anydepth.data.collate import collate
from anydepth.data.corpora import CorpusConfig, Skips, read_pairs
from anydepth.data.store import Store
from anydepth.models import Translator
from anydepth.objectives.single import single
from anydepth.plan import Plans
from anydepth.training.data import TrainingData

if TYPE_CHECKING:
    from anydepth.config import Config


@torch.no_grad()
def validate(config: "Config", model: Translator, data: TrainingData, device: torch.device) -> list[dict[str, Any]]:
    """One line for the journal per dev set and depth: loss, perplexity, and BLEU and chrF of greedy translations."""
    model.eval()
    lines = []
    for corpus, store in zip(config.data.dev, data.dev):
        for depth in config.training.validate_depths or (model.plan(key=store.key).name,):
            nll = nll_per_word(model, store, model.plan(depth, store.key), device)
            line: dict[str, Any] = {"depth": depth, "loss": nll, "perplexity": math.exp(min(nll, 50))}
            if store.key:
                line["language"] = store.key
            if config.training.validate_sentences:
                line |= scores(config, model, data, corpus, depth)
            lines.append(line)
    model.train()
    return lines


def nll_per_word(model: Translator, store: Store, plans: Plans, device: torch.device) -> float:
    """Mean negative log-likelihood of a target word, without label smoothing, in full precision."""
    config = BatchingConfig(tokens=max(4096, store.longest_target), layout="padded", lengths=1)
    limits = Limits.of([store], config)
    total, words = torch.zeros((), dtype=torch.double, device=device), 0
    for pairs in one_pass(store, config, limits):
        batch = collate(store, pairs, limits).to(device)
        total += single(model, batch, plans).nll.double()
        words += batch.tokens
    return float(total) / words


def scores(
    config: "Config", model: Translator, data: TrainingData, corpus: CorpusConfig, depth: str
) -> dict[str, float]:
    from anydepth.evaluation.metrics import score
    from anydepth.run import Run

    run, pairs = Run(config, model, data.tokenizers, key=corpus.key), []
    for source, target in read_pairs(corpus, "dev", Skips()):
        (source_ids,), (target_ids,) = run.sources([source], corpus.key), run.tokenizers.target.encode([target])
        if max(len(source_ids), len(target_ids)) > config.data.max_length:  # nor does the loss see it
            continue
        pairs.append((source, target))
        if len(pairs) == config.training.validate_sentences:
            break
    hypotheses = run.translate([source for source, _ in pairs], depth, beam=1, sample=False)
    found = score(hypotheses, [target for _, target in pairs], config.tokenizer.lowercase)
    return {"bleu": found.bleu, "chrf": found.chrf}
