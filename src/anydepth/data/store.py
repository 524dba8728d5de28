"""A corpus tokenized once, in memory-mapped files, so that it may be larger than memory.

A store is a folder: for each side (text alone has only a source) `tokens` (16 or 32 bits each, every sentence ends with
eos), `lengths` (int32) and `offsets` (int64, where each sentence starts); `labels` (int32) of texts that have them; and
`meta.json`, which also serves as journal: it is replaced after every chunk and says how far the files count. A
tokenization that was killed goes on from there.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from anydepth.data.corpora import CorpusConfig, DataConfig, LabelledCorpus, PairCorpus, Split
from anydepth.data.encoding import Encoded, encode_all
from anydepth.data.lines import OVER_LONG
from anydepth.data.reading import Skips, count_rows, files_of, name_of, read_rows
from anydepth.data.tokenizer import TokenizerPair, tokens_in_front
from anydepth.errors import UserError
from anydepth.files import locked

Array = np.ndarray
Progress = Callable[[int, int], None]
"""Called with (lines done, lines in all)."""

VERSION = 1
SIDES = ("source", "target")


class Store:
    """A finished tokenized corpus. Lengths count the eos. Of text alone both sides are the same."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._meta: dict[str, Any] = json.loads((self.folder / "meta.json").read_text(encoding="utf-8"))
        if not self._meta["finished"]:
            raise UserError(f"{folder}: the tokenization of this corpus has not been finished")
        sides = SIDES[: len(self._meta["tokens"])]
        self.label_names: list[str] = self._meta.get("labels", [])
        """What the numbers of `labels` mean, in the order in which they first occur."""
        files = _files(self._meta["dtype"], sides, "labels" in self._meta)
        self._arrays = {name: np.memmap(self.folder / name, dtype=dtype, mode="r") for name, dtype in files}
        self._target = sides[-1]
        self.key: str = self._meta["key"]
        identity = self._meta["identity"]
        self.corpus: dict[str, Any] = identity["corpus"]
        """The settings it was made with."""
        self.files: list[str] = [path for path, *_ in identity["files"]]
        """What it was made of; nothing for a built-in corpus."""
        source = identity.get("max_source", 0) or identity["max_length"]
        self.max_length: int = source if len(sides) == 1 else max(source, identity["max_length"])
        """Tokens of a text at most, the end mark not counted."""
        self.cut: int = self._meta.get("cut", 0)
        self.skips = Skips(**self._meta["skips"])
        self.source_pad, self.target_pad = self._meta["pad"]
        self.target_bos: int = self._meta["bos"]
        self.source_tokens, self.target_tokens = self._meta["tokens"][0], self._meta["tokens"][-1]
        self.longest_source, self.longest_target = self._meta["longest"][0], self._meta["longest"][-1]
        self.source_lengths: Array = self._arrays["source.lengths"]
        self.target_lengths: Array = self._arrays[f"{self._target}.lengths"]

    def __len__(self) -> int:
        return int(self._meta["pairs"])

    def labels(self, texts: Array) -> Array:
        """The labels of these texts, as numbers in `label_names`."""
        return np.asarray(self._arrays["labels"][texts])

    def source(self, pairs: Array) -> tuple[Array, Array]:
        """The source tokens of these pairs one after the other, and the length of each."""
        return self._gather("source", pairs)

    def target(self, pairs: Array) -> tuple[Array, Array]:
        """The target tokens of these pairs one after the other, and the length of each."""
        return self._gather(self._target, pairs)

    def _gather(self, side: str, pairs: Array) -> tuple[Array, Array]:
        lengths = np.asarray(self._arrays[f"{side}.lengths"][pairs])
        ends = np.cumsum(lengths, dtype=np.int64)
        shifts = self._arrays[f"{side}.offsets"][pairs] - (ends - lengths)
        where = np.arange(ends[-1] if len(ends) else 0) + np.repeat(shifts, lengths)
        return np.asarray(self._arrays[f"{side}.tokens"][where]), lengths


def _files(token_type: str, sides: Sequence[str], labelled: bool) -> list[tuple[str, np.dtype[Any]]]:
    kinds: dict[str, Any] = {"tokens": token_type, "lengths": np.int32, "offsets": np.int64}
    files = [(f"{side}.{kind}", np.dtype(dtype)) for side in sides for kind, dtype in kinds.items()]
    return [*files, ("labels", np.dtype(np.int32))] if labelled else files


def tokenize(
    corpus: CorpusConfig,
    split: Split,
    tokenizers: TokenizerPair,
    folder: str | Path,
    data: DataConfig,
    progress: Progress | None = None,
) -> Store:
    """The store of a corpus in `folder`: as it is if it is finished and made from the same files with the
    same tokenizers, otherwise continued or begun anew. Only one process works on a folder, others wait for
    it."""
    folder = Path(folder)
    identity = _identity(corpus, split, tokenizers, data)
    meta = _read_meta(folder, identity)
    if meta is None or not meta["finished"]:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder):
                meta = _read_meta(folder, identity)
                if meta is None:
                    _remove(folder)
                    meta = _new_meta(corpus, identity, tokenizers)
                if not meta["finished"]:
                    _Writer(folder, meta).write(corpus, split, tokenizers, data, progress)
        except OSError as error:
            raise UserError(f"{folder}: cannot keep tokenized data there: {error.strerror}") from None
    return Store(folder)


def tokenize_all(
    data: DataConfig,
    split: Split,
    tokenizers: TokenizerPair,
    folder: str | Path,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[Store]:
    """The stores of all corpora of a split, in `data.cache` or else in `folder`. Their names hold what they
    were made with, so that runs with other tokenizers can share the cache. `progress` also gets the name of
    the corpus."""
    corpora: tuple[CorpusConfig, ...] = getattr(data, split)
    stores = []
    for corpus in corpora:
        made_with = [asdict(corpus), split, tokenizers.hash, data.max_length]
        made_with += _further(data).values()
        digest = hashlib.sha256(json.dumps(made_with).encode()).hexdigest()[:12]
        report = partial(progress, name_of(corpus)) if progress else None
        path = Path(data.cache or folder) / f"{split}-{corpus.type}-{digest}"
        stores.append(tokenize(corpus, split, tokenizers, path, data, report))
    return stores


def _identity(corpus: CorpusConfig, split: Split, tokenizers: TokenizerPair, data: DataConfig) -> dict[str, Any]:
    files = []
    for path in files_of(corpus):
        try:
            status = path.stat()
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}") from None
        files.append([str(path.resolve()), status.st_size, status.st_mtime_ns])
    identity = {
        "version": VERSION,
        "corpus": asdict(corpus),
        "split": split,
        "files": files,
        "tokenizer": tokenizers.hash,
        "max_length": data.max_length,
        **_further(data),
    }
    return json.loads(json.dumps(identity))  # as it will be read: with lists for tuples


def _further(data: DataConfig) -> dict[str, Any]:
    """What else shapes the tokens of a source; nothing where it is as it always was."""
    usual = {"tags": "none", "max_source": 0, "sentences": False}
    return {name: value for name, standard in usual.items() if (value := getattr(data, name)) != standard}


def _new_meta(corpus: CorpusConfig, identity: dict[str, Any], tokenizers: TokenizerPair) -> dict[str, Any]:
    largest = max(len(tokenizers.source), len(tokenizers.target))
    sides = 2 if isinstance(corpus, PairCorpus) else 1
    return {
        **({"labels": []} if isinstance(corpus, LabelledCorpus) else {}),
        "identity": identity,
        "key": corpus.key,
        "dtype": "uint16" if largest <= 1 << 16 else "uint32",
        "pad": [tokenizers.source.pad, tokenizers.target.pad],
        "bos": tokenizers.target.bos,
        "read": 0,  # usable pairs read, over-long ones included
        "pairs": 0,
        "tokens": [0] * sides,
        "longest": [0] * sides,
        "skips": {"counts": {}, "examples": {}},
        "cut": 0,  # sources of which only the beginning is there
        "finished": False,
    }


def _read_meta(folder: Path, identity: dict[str, Any]) -> dict[str, Any] | None:
    """The journal, or None if there is none, it is of other data, or the files do not hold what it promises."""
    try:
        meta: dict[str, Any] = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        if meta["identity"] != identity:
            return None
        for name, size in _sizes(meta).items():
            actual = (folder / name).stat().st_size
            if actual < size or (meta["finished"] and actual != size):
                return None
    except (OSError, ValueError, KeyError):
        return None
    return meta


def _remove(folder: Path) -> None:
    """Remove an old store; a process that still reads it keeps its files."""
    for name in ("meta.json", *(name for name, _ in _files("uint16", SIDES, labelled=True))):
        (folder / name).unlink(missing_ok=True)


def _sizes(meta: dict[str, Any]) -> dict[str, int]:
    """Bytes of each file that count."""
    counts = {f"{side}.tokens": count for side, count in zip(SIDES, meta["tokens"])}
    files = _files(meta["dtype"], SIDES[: len(meta["tokens"])], "labels" in meta)
    return {name: counts.get(name, meta["pairs"]) * dtype.itemsize for name, dtype in files}


class _Writer:
    """Appends encoded chunks to the files of a store."""

    def __init__(self, folder: Path, meta: dict[str, Any]) -> None:
        self.folder, self.meta = folder, meta
        self.over_long = Skips(**meta["skips"])

    def write(
        self,
        corpus: CorpusConfig,
        split: Split,
        tokenizers: TokenizerPair,
        data: DataConfig,
        progress: Progress | None,
    ) -> None:
        total = count_rows(corpus)
        self._save()
        unread = Skips()
        rows = islice(read_rows(corpus, split, unread), self.meta["read"], None)
        with ExitStack() as stack:
            files = {name: stack.enter_context(open(self.folder / name, "ab")) for name in _sizes(self.meta)}
            for name, size in _sizes(self.meta).items():
                files[name].truncate(size)
            tag = tokens_in_front(data, tokenizers.source, corpus.key)
            for chunk in encode_all(rows, tokenizers, data, self.meta["dtype"], tag):
                self._append(files, chunk)
                if progress:
                    progress(self.meta["read"] + unread.total, total)
        skips = unread + self.over_long
        if not self.meta["pairs"]:
            raise UserError(f"{name_of(corpus)}: no usable line; {skips.summary() or 'there are no lines'}")
        self.meta |= {"skips": asdict(skips), "finished": True}
        self._save()

    def _append(self, files: Mapping[str, BinaryIO], chunk: Encoded) -> None:
        for number, (side, lengths) in enumerate(zip(SIDES, chunk.lengths)):
            ends = self.meta["tokens"][number] + np.cumsum(lengths, dtype=np.int64)
            files[f"{side}.tokens"].write(chunk.ids[number].tobytes())
            files[f"{side}.lengths"].write(lengths.tobytes())
            files[f"{side}.offsets"].write((ends - lengths).tobytes())
            self.meta["tokens"][number] += int(lengths.sum())
            self.meta["longest"][number] = max(self.meta["longest"][number], int(lengths.max(initial=0)))
        if chunk.labels:
            numbers = {name: number for number, name in enumerate(self.meta["labels"])}
            labels = [numbers.setdefault(label, len(numbers)) for label in chunk.labels]
            files["labels"].write(np.array(labels, dtype=np.int32).tobytes())
            self.meta["labels"] = list(numbers)
        for place in chunk.over_long:
            self.over_long.add(OVER_LONG, place)
        self.meta["read"] += chunk.read
        self.meta["cut"] = self.meta.get("cut", 0) + chunk.cut
        self.meta["pairs"] += len(chunk.lengths[0])
        for file in files.values():
            file.flush()
        self.meta["skips"] = asdict(self.over_long)
        self._save()

    def _save(self) -> None:
        scratch = self.folder / "meta.json.new"
        scratch.write_text(json.dumps(self.meta, indent=1), encoding="utf-8")
        scratch.replace(self.folder / "meta.json")
