"""Is one system really better than another? Paired bootstrap resampling (Koehn 2004), sacreBLEU's."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from anydepth.evaluation.metrics import sacrebleu_metrics


@dataclass(frozen=True)
class Estimate:
    """One system under one metric."""

    score: float
    """On the test set as it is."""
    mean: float
    """Over the resampled test sets."""
    interval: float
    """Half the width of the 95 % interval around the mean."""
    p_value: float | None
    """How likely a difference from the baseline this large is by chance; the baseline itself has none."""


@dataclass(frozen=True)
class Comparison:
    system: str
    bleu: Estimate
    chrf: Estimate


@dataclass(frozen=True)
class PairedBootstrap:
    comparisons: list[Comparison]
    """The baseline first, then every other system compared with it."""
    signatures: dict[str, str]
    samples: int


def paired_bootstrap(
    systems: dict[str, list[str]],
    references: Sequence[str],
    samples: int = 1000,
    seed: int = 12345,
    lowercase: bool = False,
) -> PairedBootstrap:
    """Compare every system with the first one on `samples` resampled test sets.

    sacreBLEU calls two equal scores a difference that is not due to chance (p = 1 / (samples + 1)): whoever
    shows a p-value should say "equal" there instead.
    """
    from sacrebleu.significance import PairedTest

    for name, hypotheses in systems.items():
        if len(hypotheses) != len(references):
            raise ValueError(f"{name}: {len(hypotheses)} hypotheses for {len(references)} references")
    if samples < 1 or seed < 1:  # sacreBLEU takes 0 for "the default" and "no seed"
        raise ValueError("samples and seed must be positive")
    metrics = sacrebleu_metrics(references, lowercase)
    with _sacrebleu_seed(seed):
        test = PairedTest(list(systems.items()), metrics, None, test_type="bs", n_samples=samples, n_jobs=1)
        signatures, results = test()
    # sacreBLEU renames metrics ("chrF2"), but keeps their order
    titles = dict(zip(metrics, signatures, strict=True))
    columns = {name: [_estimate(result) for result in results[title]] for name, title in titles.items()}
    return PairedBootstrap(
        comparisons=[
            Comparison(system, bleu, chrf)
            for system, bleu, chrf in zip(systems, columns["bleu"], columns["chrf"], strict=True)
        ],
        signatures={name: signatures[title].format() for name, title in titles.items()},
        samples=samples,
    )


def _estimate(result: Any) -> Estimate:
    p_value = None if result.p_value is None else float(result.p_value)
    return Estimate(float(result.score), float(result.mean), float(result.ci), p_value)


@contextmanager
def _sacrebleu_seed(seed: int) -> Iterator[None]:
    """sacreBLEU takes its seed from the environment only."""
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ["SACREBLEU_SEED"]
        else:
            os.environ["SACREBLEU_SEED"] = before
