"""How sure is sure enough: the margin of a shallow exit (translating/confident.py) with outputs as at full depth.

Learn then Test (Angelopoulos et al. 2021), as CALM uses it (Schuster et al. 2022, §4): the loss of a sentence is
1 − chrF / 100 between its output with early exits and that of full depth. Margins are tried from sure to bold; each is
tested on held-out sentences against the hypothesis that the mean loss exceeds the risk. Fixed-sequence testing stops at
the first that cannot be rejected, so the margin before it keeps the risk with the stated confidence, whatever the
sentences are like, if new ones are like them. No reference is needed.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from anydepth.calibrating.measuring import readable
from anydepth.data.sources import batches
from anydepth.decoding.decoder import SEARCH_TOKENS, DecodingConfig, Precision, changed
from anydepth.decoding.search import decode as search
from anydepth.errors import UserError
from anydepth.evaluation.metrics import Scorer
from anydepth.files import locked, write_atomically

if TYPE_CHECKING:
    from anydepth.run import Run

NAME = "confidence.json"
MARGINS = (0.99, 0.98, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5, 0.45, 0.4, 0.35, 0.3, 0.2, 0.1, 0.0)

Progress = Callable[[int, int], None]
"""Called with the number of margins tried and their total."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One margin on the held-out sentences."""

    margin: float
    loss: float
    """The mean over sentences."""
    p_value: float
    """For the hypothesis that new sentences lose more than the risk."""
    layers: float
    """Decoder layers a word, on average."""


@dataclass(frozen=True, kw_only=True)
class Confidence:
    weights: str | None
    language: str
    precision: str = ""
    """That it was found at, on this kind of device: what rounds otherwise is sure of other words. Of before these were
    written down, neither is known."""
    device: str = ""
    depth: str
    exit: int
    risk: float
    confidence: float
    sentences: int
    margin: float
    """The boldest that keeps the risk; 1 where none does."""
    trials: list[Trial]

    @property
    def exits(self) -> tuple[str | None, str, str, int]:
        """What stops where."""
        return self.weights, self.language, self.depth, self.exit

    @property
    def numbers(self) -> str:
        """What it is computed with."""
        return f"{self.precision} on {self.device}" if self.precision else "an unknown precision"


class Outcome(NamedTuple):
    """What a margin gives."""

    losses: Sequence[float]
    """Of each sentence, between 0 and 1."""
    layers: float


def calibrate_exit(
    run: "Run",
    texts: Sequence[str],
    depth: str | None = None,
    exit: int = 1,
    *,
    risk: float = 0.05,
    confidence: float = 0.95,
    precision: Precision | None = None,
    margins: Sequence[float] = MARGINS,
    progress: Progress | None = None,
) -> Confidence:
    """The boldest margin of an exit with so many decoder layers whose outputs keep the risk."""
    for name, value in {"risk": risk, "confidence": confidence}.items():
        if not 0 < value < 1:
            raise UserError(f"{name}: expected between 0 and 1, not {value:g}")
    texts = [one.text for one in readable(run, texts)]
    if len(texts) < (least := fewest_texts(risk, 1 - confidence)):
        raise UserError(
            f"{len(texts)} texts can show no risk of {risk:g} with confidence {confidence:g}: expected {least} at least"
        )
    settings = greedy(run, exit, precision)
    full, _ = decode(run, texts, depth, replace(settings, exit_margin=1.0))

    def outcome(margin: float) -> Outcome:
        outputs, layers = decode(run, texts, depth, replace(settings, exit_margin=margin))
        return Outcome(losses(outputs, full), layers)

    trials = list(fixed_sequence(outcome, margins, risk, 1 - confidence, progress))
    kept = [trial.margin for trial in trials if trial.p_value <= 1 - confidence]
    return Confidence(
        weights=run.weights_hash,
        language=run.key,
        precision=settings.precision,
        device=run.device.type,
        depth=run.plan(depth).name,
        exit=exit,
        risk=risk,
        confidence=confidence,
        sentences=len(texts),
        margin=min(kept, default=1.0),
        trials=trials,
    )


def greedy(run: "Run", exit: int, precision: Precision | None) -> DecodingConfig:
    settings: dict[str, Any] = {"beam": 1, "n_best": 1, "sample": False, "speculate": False}
    return changed(run.config.decoding, settings | {"exit": exit, "precision": precision})


@torch.no_grad()
def decode(run: "Run", texts: Sequence[str], depth: str | None, settings: DecodingConfig) -> tuple[list[str], float]:
    """Outputs of greedy search with early exits, and how many decoder layers a word took."""
    sources, plans = run.sources(texts, run.key), run.plan(depth)
    outputs, words, layers, searcher = [""] * len(texts), 0, 0.0, run.searcher(settings.precision)
    for places in batches([len(ids) for ids in sources], settings.batch, SEARCH_TOKENS):
        asked = run.asked([sources[place] for place in places], places, plans, run.key, settings).to(run.device)
        decoder = searcher.confident(asked)
        for place, found in zip(places, search(decoder, *searcher.marks, asked.max_lengths, settings)):
            outputs[place] = run.read(found, plans.name)[0].text
        words += int(decoder.words)
        layers += decoder.mean_layers * int(decoder.words)
    return outputs, layers / words


def losses(outputs: Sequence[str], full: Sequence[str]) -> list[float]:
    """How unlike those of full depth the outputs are, from 0 to 1."""
    likeness = Scorer(full).statistics(outputs).sentence_chrf()
    return [0.0 if one == other else 1 - float(like) / 100 for one, other, like in zip(outputs, full, likeness)]


def fixed_sequence(
    outcome: Callable[[float], Outcome],
    margins: Sequence[float],
    risk: float,
    error: float,
    progress: Progress | None = None,
) -> Iterator[Trial]:
    """The margins in turn, down to the first that is not shown to keep the risk, with it. The chance that any margin
    before it does not is at most `error`: no correction for their number is due, because testing stops there."""
    for done, margin in enumerate(sorted(margins, reverse=True), start=1):
        found = outcome(margin)
        loss = fmean(found.losses)
        chance = hoeffding_bentkus(loss, len(found.losses), risk)
        if progress:
            progress(done, len(margins))
        yield Trial(margin=margin, loss=loss, p_value=chance, layers=found.layers)
        if chance > error:
            return


def hoeffding_bentkus(mean: float, count: int, risk: float) -> float:
    """A p-value for the hypothesis that losses in [0, 1] with this mean have an expectation above the risk (Bates et
    al. 2021): the smaller of Hoeffding's bound, in its tighter form, and that of Bentkus, e · P(Bin(n, risk) ≤ n·mean).
    """
    low = min(mean, risk)
    divergence = term(low, risk) + term(1 - low, 1 - risk)
    hoeffding = math.exp(-count * divergence)
    bentkus = math.e * binomial_tail(math.ceil(count * mean - 1e-9), count, risk)
    return min(1.0, hoeffding, bentkus)


def fewest_texts(risk: float, error: float) -> int:
    """With which a p-value can be so small, if none of them loses anything: (1 - risk)ⁿ ≤ error."""
    return math.ceil(math.log(error) / math.log1p(-risk) - 1e-9)


def term(a: float, b: float) -> float:
    """a log(a / b)"""
    return a * math.log(a / b) if a > 0 else 0.0


def binomial_tail(successes: int, count: int, chance: float) -> float:
    """P(Bin(count, chance) ≤ successes)"""
    logs = [
        math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
        + k * math.log(chance) + (count - k) * math.log1p(-chance)
        for k in range(min(successes, count) + 1)
    ]  # fmt: skip
    return min(1.0, math.fsum(map(math.exp, logs)))


# ---- beside the run


def keep_confidence(found: Confidence, folder: Path) -> Path:
    """Adds it to those beside the run; one of the same weights, language, depth, exit and numbers is replaced."""
    file = folder / NAME
    with locked(folder, if_possible=True):  # what another process adds meanwhile stays
        others = [one for one in read_confidences(file) if (one.exits, one.numbers) != (found.exits, found.numbers)]
        write_atomically(file, json.dumps([asdict(one) for one in (*others, found)], indent=1) + "\n")
    return file


def read_confidences(file: Path) -> list[Confidence]:
    if not file.exists():
        return []
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
        return [Confidence(**one | {"trials": [Trial(**each) for each in one["trials"]]}) for one in entries]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} is damaged ({error}): delete it and run anydepth confidence again") from None


def find_confidence(
    run: "Run", depth: str | None, exit: int, precision: Precision | None = None, key: str = ""
) -> Confidence:
    """The one for these weights and this exit, computed alike; where there is none, what to do about it."""
    if run.folder is None:
        raise UserError("this run has no folder, so no margin beside it: give exit_margin")
    key, precision, device = key or run.key, precision or run.config.decoding.precision, run.device.type
    depth = run.plan(depth, key).name
    wanted = run.weights_hash, key, depth, exit
    known = {one.numbers: one for one in read_confidences(run.folder / NAME) if one.exits == wanted}
    numbers = f"{precision} on {device}"
    if numbers in known:
        return known[numbers]
    where = f"known for {', '.join(known)}, not for {numbers}" if known else "not known"
    again = f"anydepth confidence {run.folder} --exit {exit} --depth {depth} --precision {precision} --device {device}"
    again += f" --language {key}" if key else ""
    raise UserError(
        f"how sure exit {exit} of depth {depth} must be is {where}: run {again}, or give a margin "
        "(--exit-margin, in Python exit_margin)"
    )
