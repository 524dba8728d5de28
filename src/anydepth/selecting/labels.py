"""How well a run translates every sentence of a corpus at each of its depths: what a selector learns from.

Each depth is a distillation of the corpus (data/distillation.py: resumable block by block, shared by processes), scored
sentence by sentence. In the folder of the labels:

    outputs/6-2.txt.gz   the translations
    chrf/6-2.npz         their chrF, with what it was counted from
"""

import gzip
import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np

from anydepth.config import Config
from anydepth.data.distillation import BLOCK, distill
from anydepth.data.lines import count_lines, read_lines
from anydepth.data.reading import Skips, read_pairs
from anydepth.errors import UserError
from anydepth.evaluation.metrics import Array, Statistics, sacrebleu_metrics, score_of_counts
from anydepth.files import checksum, write_atomically
from anydepth.plan import parse_depth
from anydepth.run import Progress, Run
from anydepth.selecting.oracle import SAME, fastest_of_the_best
from anydepth.training.distributed import stay


class Labels(NamedTuple):
    """Usable sentences of a corpus."""

    depths: list[str]
    """Fast ones first."""
    texts: list[str]
    ids: list[list[int]]
    """Their tokens, as the translation model reads them."""
    chrf: Array
    """(sentences, depths)"""

    @property
    def full(self) -> int:
        """The place of the deepest depth."""
        return self.depths.index(deepest_of(self.depths))

    def ties(self) -> Array:
        """(sentences, depths) 1 for every depth that reaches the best chrF of a sentence, else 0: no tie-break."""
        return (self.chrf >= self.chrf.max(axis=1, keepdims=True) - SAME).astype(np.float32)

    def gains(self) -> Array:
        """(sentences, depths) chrF above that of the deepest depth. Between sentences chrF varies far more than between
        depths, and only the latter matters for the choice."""
        return self.chrf - self.chrf[:, [self.full]]

    @property
    def best(self) -> str:
        """The depth with the best mean chrF."""
        return self.depths[fastest_of_the_best(self.chrf.mean(axis=0)[:, None])[0]]

    def take(self, rows: Array) -> "Labels":
        texts, ids = [self.texts[row] for row in rows], [self.ids[row] for row in rows]
        return Labels(self.depths, texts, ids, self.chrf[rows])


def fast_first(depths: list[str]) -> list[str]:
    """The paper's order (tied-multi, Eq. 1): by decoder layers, then by encoder layers."""
    return sorted(depths, key=lambda depth: parse_depth(depth)[::-1])


def deepest_of(depths: list[str]) -> str:
    return max(depths, key=lambda depth: (sum(parse_depth(depth)), parse_depth(depth)[0]))


def label(run: Run, source: Path, reference: Path, folder: Path, **settings: Any) -> Labels:
    """Both steps: see `decode_depths` for the settings."""
    decode_depths(run, source, folder, **settings)
    return read_labels(run, source, reference, folder)


def decode_depths(
    run: Run,
    source: Path,
    folder: Path,
    depths: Sequence[str] = (),
    *,
    beam: int | None = None,
    batch: int | None = None,
    block: int = BLOCK,
    progress: Progress | None = None,
) -> None:
    """Decodes a file, plain or .gz, at these depths, or every one. After a kill call it again: finished blocks of lines
    are kept. The processes of torchrun share the work. `progress` counts sentences times depths."""
    if len(run.depths()) < 2:
        raise UserError(f"{run.folder or 'this run'} has one depth, {run.depths()[0]}: nothing to choose from")
    depths = depths or fast_first(run.depths())
    outputs = folder / "outputs"
    outputs.mkdir(parents=True, exist_ok=True)
    with stay(str(run.device)):
        for number, depth in enumerate(depths):
            show = shifted(progress, number, len(depths))
            distill(run, source, outputs / f"{depth}.txt.gz", depth, beam=beam, batch=batch, block=block, progress=show)


def read_labels(run: Run, source: Path, reference: Path, folder: Path, progress: Progress | None = None) -> Labels:
    """The labels of a source that was decoded at every depth. `progress` counts depths."""
    lines = {path: count_lines(path) for path in (source, reference)}
    if len(set(lines.values())) > 1:
        raise UserError(f"{source} has {lines[source]} lines but {reference} {lines[reference]}: expected as many")
    depths, lowercase = fast_first(run.depths()), run.config.tokenizer.lowercase
    rows, texts, ids, references = usable(run, source, reference)
    each = []
    for depth in depths:
        each.append(scored(folder, depth, reference, rows, references, lowercase))
        if progress:
            progress(len(each), len(depths))
    return Labels(depths, texts, ids, np.stack(each, axis=1))


def shifted(progress: Progress | None, number: int, depths: int) -> Progress | None:
    """Progress at one depth as progress at all."""
    return progress and (lambda done, total: progress(number * total + done, depths * total))


def usable(run: Run, source: Path, reference: Path) -> tuple[list[int], list[str], list[list[int]], list[str]]:
    """Numbers, texts, tokens and references of the lines that have both sides and that the model can read."""
    room, found = run.config.model.max_positions - 1, []
    for number, (one, other) in enumerate(zip(read_lines(source), read_lines(reference))):
        if not (one.problem or other.problem) and one.text.strip() and other.text.strip():
            found.append((number, one.text, other.text))
    ids = run.sources([text for _, text, _ in found], run.key)
    kept = [(*entry, tokens) for entry, tokens in zip(found, ids) if len(tokens) <= room]
    if not kept:
        raise UserError(f"{source} and {reference}: no line has a sentence and its translation")
    numbers, texts, references, tokens = map(list, zip(*kept))
    return numbers, texts, tokens, references


def scored(folder: Path, depth: str, reference: Path, rows: list[int], references: list[str], lowercase: bool) -> Array:
    """(sentences,) chrF at one depth: read if it was counted before, else counted and kept."""
    output, kept = folder / "outputs" / f"{depth}.txt.gz", folder / "chrf" / f"{depth}.npz"
    made_from = [checksum(output), checksum(reference), len(rows), *Statistics.made_with(lowercase)]
    origin = hashlib.sha256(repr(made_from).encode()).hexdigest()
    try:
        with np.load(kept) as before:
            if before["origin"] == origin:
                return before["chrf"]
    except (OSError, ValueError, KeyError, BadZipFile):
        pass  # not counted yet, or by a process that was killed
    lines = gzip.decompress(output.read_bytes()).decode().split("\n")
    chrf = sentence_chrf([lines[row] for row in rows], references, lowercase)
    kept.parent.mkdir(exist_ok=True)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, origin=np.array(origin), chrf=chrf)
    write_atomically(kept, buffer.getvalue())
    return chrf


def sentence_chrf(hypotheses: list[str], references: list[str], lowercase: bool = False) -> Array:
    """Of each sentence, without counting what BLEU would need."""
    metric = sacrebleu_metrics(lowercase)["chrf"]
    counts = metric._extract_corpus_statistics(hypotheses, [references])
    return np.array([score_of_counts("chrf", row) for row in counts])


def seen_in_training(config: Config, texts: list[str]) -> tuple[float | None, str]:
    """The share of the sentences that the training corpora of a run contain, and that in words; None where the corpora
    are no longer there."""
    wanted, found = set(texts), set()
    try:
        for corpus in config.data.train:
            found |= {source for source, _ in read_pairs(corpus, "train", Skips()) if source in wanted}
    except (UserError, OSError) as error:
        return None, f"whether the translation model was trained on these sentences is not known: {error}"
    share = sum(text in found for text in texts) / len(texts)
    return share, f"the translation model was trained on {100 * share:.1f} % of these {len(texts)} sentences"
