"""The report's part about attention: chosen sentences, word by word, in every run that has maps of them."""

from typing import NamedTuple

import numpy as np

from anydepth.evaluation.attention import AttentionMap, read_attention
from anydepth.evaluation.records import Record
from anydepth.reporting.figures import INK, as_svg, empty_figure, styled


class AttentionPicture(NamedTuple):
    run: str
    title: str
    summary: str
    svg: str


def attention_part(records: list[Record]) -> dict[str, list[AttentionPicture]]:
    """By sentence, the maps of all runs side by side."""
    found: dict[str, list[AttentionPicture]] = {}
    for record in records:
        for one in read_attention(record.main.path):
            kinds = [("the encoder's states", one.memory)] + ([("the context", one.context)] if one.context else [])
            for kind, weights in kinds:
                svg = picture(one, weights, f"{record.name}: attention to {kind}: {one.text}")
                found.setdefault(one.text, []).append(AttentionPicture(record.name, f"to {kind}", one.depth, svg))
    return found


@styled
def picture(sentence: AttentionMap, weights: list[list[float]], description: str) -> str:
    """A colour for every word of the translation (down) and of the source (across)."""
    rows, columns = len(sentence.target), len(sentence.source)
    longest = max(map(len, sentence.source)), max(map(len, sentence.target))
    figure, axes = empty_figure(30 + 7 * longest[1] + 17 * columns, 30 + 7 * longest[0] + 17 * rows)
    axes.imshow(np.array(weights), cmap="viridis", vmin=0, aspect="auto", interpolation="none")
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelcolor=INK, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.set_xticks(range(columns), sentence.source, rotation=90)
    axes.set_yticks(range(rows), sentence.target)
    return as_svg(figure, description, {})
