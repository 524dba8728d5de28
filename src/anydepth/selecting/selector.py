"""The a-priori choice of a depth (tied-multi §4): from the source sentence alone, before anything is decoded.

`RUN/selector/` keeps it: `selector.toml`, a file of weights for each network (`ties`, perhaps `tuned`; `quality`), the
cheap baselines, and what the search found (`search.json`).

    run.translate(texts, depth="selector")       the depth that is most probably among the best, else full depth
    run.translate(texts, depth="selector@20")    the best predicted quality at 20 ms a sentence on average
"""

import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tomli_w
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from anydepth.calibrating.calibration import Calibration
from anydepth.config_reader import read
from anydepth.decoding.decoder import changed
from anydepth.errors import UserError
from anydepth.evaluation.metrics import Array
from anydepth.files import write_atomically
from anydepth.nn.layers import LayerConfig
from anydepth.selecting.cheap import Cheap, fit_cheap
from anydepth.selecting.labels import Labels, deepest_of, fast_first
from anydepth.selecting.model import Kind, SelectorConfig, SelectorNet
from anydepth.selecting.predictor import Predictor
from anydepth.selecting.rules import most_probable, within
from anydepth.selecting.search import JOURNAL, SENTENCES, candidates, search
from anydepth.selecting.training import Fitted, Progress, Source, fine_tune

if TYPE_CHECKING:
    from anydepth.run import Run, Translation

NAME = "selector"
FILE = "selector.toml"
SCHEMA = 1
CHEAP = ("length", "length and rarity")
KINDS: tuple[Kind, ...] = ("ties", "quality")


@dataclass(frozen=True)
class Selector:
    depths: list[str]
    """To choose from, fast ones first."""
    nets: dict[str, SelectorNet]
    """`ties`, `quality`; `tuned` is `ties` fine-tuned."""
    cheap: dict[str, Cheap]
    """The baselines, by what they look at."""
    facts: dict[str, Any]
    """What selector.toml says."""

    @property
    def full(self) -> int:
        return self.depths.index(deepest_of(self.depths))

    @property
    def used(self) -> str:
        """The network that `--depth selector` asks: the fine-tuned one where that was better on held-out sentences."""
        return str(self.facts["used"])

    @cached_property
    def predictors(self) -> dict[str, Predictor]:
        return {name: Predictor(net) for name, net in self.nets.items()}

    def probabilities(self, ids: list[list[int]], net: str = "") -> Array:
        """(sentences, depths) that a depth is among the best."""
        return self.predictors[net or self.used](ids).sigmoid().cpu().numpy()

    def gains(self, ids: list[list[int]]) -> Array:
        """(sentences, depths) predicted chrF above that of full depth."""
        return self.predictors["quality"](ids).double().cpu().numpy()

    def choose(self, ids: list[list[int]]) -> list[str]:
        """The depth of each sentence that is most probably among the best."""
        if not ids:
            return []
        return [self.depths[place] for place in most_probable(self.probabilities(ids), self.full)]

    def choose_within(self, ids: list[list[int]], limit_ms: float, known: Calibration, batch: int = 1) -> list[str]:
        """The best predicted quality that takes so long a sentence, on average, among depths of known times."""
        if not ids:
            return []
        places = [place for place, depth in enumerate(self.depths) if depth in known.depths]
        if not places:
            raise UserError(f"none of the selector's depths is calibrated: {', '.join(known.depths)} are")
        depths = [self.depths[place] for place in places]
        ms = np.array([[known.predict(depth, len(one), batch, None) / batch for depth in depths] for one in ids])
        return [depths[place] for place in within(self.gains(ids)[:, places], ms, limit_ms)]


# ---- training


def source_of(run: "Run") -> Source:
    """What a selector's network takes over from the translation model."""
    words = run.model.source.words.weight.detach().float().cpu()
    return Source(words, run.config.model.max_positions, run.device)


def networks(run: "Run", config: SelectorConfig, wide: bool) -> list[tuple[Kind, SelectorConfig]]:
    """Those to be trained, of each kind: with these settings, or a search around them."""
    width = run.model.source.words.weight.shape[1]
    try:
        if not wide:
            LayerConfig(width=config.width or width, ffn=config.ffn, heads=config.heads)  # may not fit together
        return [(kind, one) for kind in KINDS for one in (candidates(config, kind, width) if wide else [config])]
    except ValueError as error:
        raise UserError(f"selector: {error}") from None


def train_selector(
    run: "Run",
    labels: Labels,
    config: SelectorConfig | None = None,
    *,
    wide: bool = False,
    searched: int = SENTENCES,
    folder: Path | None = None,
    dev: Labels | None = None,
    notes: dict[str, Any] | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> tuple[Selector, list[dict[str, Any]]]:
    """A selector and the figures of all networks that were tried. `wide` searches sizes and losses around the settings,
    on so many of the sentences (`searched`, 0 for all), and `folder` keeps what it has found so far; `jobs` networks
    are trained at a time; `dev` are other sentences to fine-tune on."""
    source, work = source_of(run), networks(run, config or SelectorConfig(), wide)
    found, tried = search(work, source, labels, jobs, sentences=searched, folder=folder, progress=progress)
    best: dict[str, Fitted] = {str(kind): fitted for kind, fitted in found.items()}
    used = "ties"
    if dev is not None:
        best["tuned"], better = fine_tune("ties", best["ties"], source, dev)
        used = "tuned" if better else "ties"
    facts: dict[str, Any] = {"schema": SCHEMA, "used": used, "depths": labels.depths, "key": run.key}
    facts |= {"weights": run.weights_hash or "", "best": labels.best, "sentences": len(labels.ids), **(notes or {})}
    facts |= {name: asdict(fitted.config) for name, fitted in best.items()}
    cheap = {name: fit_cheap(labels, len(source.words), rarity=name != CHEAP[0]) for name in CHEAP}
    return Selector(labels.depths, {name: fitted.net for name, fitted in best.items()}, cheap, facts), tried


# ---- files


def save(selector: Selector, folder: Path, tried: list[dict[str, Any]]) -> None:
    """selector.toml comes last: it says that the rest is there."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).unlink(missing_ok=True)
    for name, net in selector.nets.items():
        save_file({key: tensor.cpu().contiguous() for key, tensor in net.state_dict().items()}, weights(folder, name))
    columns = {
        f"{name}.{key}": torch.from_numpy(np.ascontiguousarray(array))
        for name, one in selector.cheap.items()
        for key, array in vars(one).items()
    }
    save_file(columns, weights(folder, "cheap"))
    write_atomically(folder / "search.json", json.dumps(tried, indent=1) + "\n")
    write_atomically(folder / FILE, tomli_w.dumps(selector.facts))
    (folder / JOURNAL).unlink(missing_ok=True)


def weights(folder: Path, name: str) -> Path:
    return folder / f"{name}.safetensors"


def load_selector(run: "Run", folder: Path) -> Selector:
    """The selector of a run, for the weights that it was trained for."""
    file = folder / FILE
    if not file.is_file():
        raise UserError(f"{folder} has no selector: train it with anydepth selector {run.folder}")
    try:
        return read_selector(run, folder, tomllib.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise UserError(f"{folder} is damaged ({error}): train the selector again") from None


def read_selector(run: "Run", folder: Path, facts: dict[str, Any]) -> Selector:
    file = folder / FILE
    if facts.get("schema", SCHEMA) > SCHEMA:
        raise UserError(f"{file}: was written by a newer anydepth")
    if facts["weights"] != (run.weights_hash or ""):
        raise UserError(f"{file}: trained for other weights than those of {run.folder}; train it again")
    if facts["key"] != run.key or facts["depths"] != fast_first(run.depths()):
        raise UserError(f"{file}: trained for other depths or another language; train it again")
    source = source_of(run)
    nets: dict[str, SelectorNet] = {}
    for name in ("ties", "tuned", "quality"):
        if name in facts:
            config = read(SelectorConfig, facts[name], name=f"{file}: {name}")
            net = SelectorNet(config, source.words, source.longest, len(facts["depths"]))
            net.load_state_dict(load_file(weights(folder, name)))
            nets[name] = net.eval().to(source.device)
    columns = load_file(weights(folder, "cheap"))
    cheap = {
        name: Cheap(*(columns[f"{name}.{key}"].numpy() for key in ("edges", "weights", "counts"))) for name in CHEAP
    }
    return Selector(facts["depths"], nets, cheap, facts)


# ---- use


def parse_limit(depth: str) -> float | None:
    """Of "selector@20", the milliseconds."""
    match = re.fullmatch(r"selector(?:@(\d+(?:\.\d+)?))?", depth)
    if not match:
        raise UserError(f"depth {depth!r}: expected selector, or selector@20 for 20 ms a sentence")
    return float(match[1]) if match[1] else None


def outputs_at_chosen_depths(
    run: "Run",
    texts: Sequence[str],
    depth: str,
    *,
    budget_ms: float | None = None,
    key: str = "",
    progress: Any = None,
    **settings: Any,
) -> list[list["Translation"]]:
    """As `run.outputs`, each text at the depth that the selector chooses; those of one depth are decoded together."""
    if budget_ms is not None:
        raise UserError(f"depth {depth}: a budget chooses the depth; give one of the two, or selector@{budget_ms:g}")
    limit, selector = parse_limit(depth), run.selector
    if key and key != selector.facts["key"]:
        raise UserError(f"depth {depth}: the selector was not trained for {key}")
    ids = run.sources(texts, run.key)
    run.check_lengths(ids)
    if limit is None:
        chosen = selector.choose(ids)
    else:
        decoding = changed(run.config.decoding, settings)
        known = run.guide(decoding.beam, precision=decoding.precision).calibration
        chosen = selector.choose_within(ids, limit, known, min(decoding.batch, len(texts)))
    results: list[list[Translation]] = [[] for _ in texts]
    before = 0
    for one in dict.fromkeys(chosen):
        places = [place for place, other in enumerate(chosen) if other == one]
        show = progress and (lambda done, _, before=before: progress(before + done, len(texts)))
        found = run.outputs([texts[place] for place in places], one, progress=show, **settings)
        for place, translations in zip(places, found):
            results[place] = translations
        before += len(places)
    return results
