"""Which sentences to show, and which of their words differ."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Literal

from anydepth.evaluation.metrics import sentence_chrf

READABLE = 240
"""Longer sources (in characters) are not shown if there are shorter ones."""
WORDS = re.compile(
    r"\s+"
    # scripts without spaces between words: every character counts as one
    r"|[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
    r"|\w+(?:['’-]\w+)*"
    r"|."
)


def choose_samples(
    source: Sequence[str], reference: Sequence[str], outputs: dict[str, list[str]], count: int = 8
) -> list[dict[str, Any]]:
    """Half of them where the depths disagree most, the others evenly spaced over the test set, so that the
    remarkable is seen beside the usual. `outputs` holds every depth's lines, the deepest last."""
    lines = [i for i, text in enumerate(source) if text.strip() and len(text) <= READABLE] or list(range(len(source)))
    disagreeing = _most_disagreement(lines, list(outputs.values()), count // 2)
    others = [i for i in lines if i not in set(disagreeing)]
    wanted = min(count - len(disagreeing), len(others))
    evenly = [others[(2 * k + 1) * len(others) // (2 * wanted)] for k in range(wanted)]
    return [
        {
            "line": i + 1,
            "chosen": chosen,
            "source": source[i],
            "reference": reference[i],
            "outputs": {depth: texts[i] for depth, texts in outputs.items()},
        }
        for chosen, indices in (("disagreement", disagreeing), ("evenly", evenly))
        for i in indices
    ]


def _most_disagreement(lines: list[int], outputs: list[list[str]], count: int) -> list[int]:
    """The lines with the most variants; among these, the ones furthest (chrF) from the deepest output."""

    def variants(i: int) -> int:
        return len({texts[i] for texts in outputs})

    def distance(i: int) -> float:
        deepest = outputs[-1][i]
        likeness = {text: sentence_chrf(text, deepest) for text in {texts[i] for texts in outputs}}
        return -sum(likeness[texts[i]] for texts in outputs)

    candidates = sorted((i for i in lines if variants(i) > 1), key=variants, reverse=True)[: 3 * count]
    return sorted(candidates, key=distance, reverse=True)[:count]


@dataclass(frozen=True)
class Piece:
    """A stretch of a text compared with another text."""

    text: str
    kind: Literal["same", "different", "missing"]


def differences(text: str, other: str) -> list[Piece]:
    """Cut `text` into words shared with `other`, words of its own, and places where words of `other` miss."""
    words, others = WORDS.findall(text), WORDS.findall(other)
    pieces = []
    for operation, a, b, c, d in SequenceMatcher(None, words, others, autojunk=False).get_opcodes():
        if operation == "delete" or operation == "replace":
            pieces.append(Piece("".join(words[a:b]), "different"))
        elif operation == "equal":
            pieces.append(Piece("".join(words[a:b]), "same"))
        elif missing := "".join(others[c:d]).strip():
            pieces.append(Piece(missing, "missing"))
    return pieces
