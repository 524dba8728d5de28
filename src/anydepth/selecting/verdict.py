"""What `judgement.json` says: every way to choose a depth on one test set."""

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = "judgement.json"
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Difference:
    """Between two systems under one metric."""

    value: float
    low: float
    high: float
    """Of its 95 % interval."""
    p_value: float


@dataclass(frozen=True)
class Row:
    """One way to choose."""

    name: str
    scores: dict[str, tuple[float, float, float]]
    """By metric: the score and its 95 % interval."""
    ms: tuple[float, float, float]
    """Mean time of a sentence and its 95 % interval, the choice included."""
    regret: Difference
    """chrF below that of the oracle."""
    fixed: str
    """The fixed depth, or the two of a mixture, that take as long."""
    gain: dict[str, Difference]
    """By metric: above them."""
    shares: dict[str, float]
    """Of the sentences, by depth."""


@dataclass(frozen=True)
class Judgement:
    sentences: int
    settings: dict[str, Any]
    signatures: dict[str, str]
    seen: dict[str, str]
    """Whether the translation model was trained on the test sentences, and on those that the selector learnt from."""
    selector_ms: float
    """Of the selector alone, a sentence."""
    rows: list[Row]
    explained: dict[str, float]
    """The share of the variance of the gains over full depth that each predictor explains."""
    curves: dict[str, list[tuple[float, float]]]
    """Milliseconds and chrF: of fixed depths, and of predictors at several prices of time."""

    def verdicts(self) -> list[str]:
        """In words, whether each choice beats fixed depths that take as long."""
        said = []
        for row in self.rows:
            if row.fixed and row.name != "oracle":
                one = row.gain["chrf"]
                how = "better than" if one.value > 0 else "worse than"
                how = how if one.p_value < SIGNIFICANT else "not significantly different from"
                figures = f"{one.value:+.2f} chrF, {one.low:+.2f} … {one.high:+.2f}, p = {one.p_value:.3f}"
                said.append(f"{row.name}: {how} fixed depths in the same time ({row.fixed}): {figures}")
        return said

    def reason(self) -> str:
        """How much of what matters can be known beforehand."""
        shares = ", ".join(f"{name} {100 * value:.1f} %" for name, value in self.explained.items())
        return f"variance of the gains over full depth that is explained by {shares}"


def read_judgement(folder: Path) -> Judgement | None:
    """None where nothing was judged yet; and, with a warning, where it cannot be read."""
    file = folder / FILE
    try:
        values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return Judgement(**{**values, "rows": [_row(**row) for row in values["rows"]]})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError):
        again = f"judge again with anydepth selector {folder.parent} --evaluate"
        warnings.warn(f"{file} is damaged, or of another version, and left out: {again}", stacklevel=2)
        return None


def _row(**values: Any) -> Row:
    gain = {metric: Difference(**one) for metric, one in values["gain"].items()}
    return Row(**{**values, "regret": Difference(**values["regret"]), "gain": gain})
