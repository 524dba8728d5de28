"""Tokenized corpora on disk: complete, resumable, made again when they must be, and small in memory."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from word_corpora import word_store, word_tokenizer, write_corpus

from anydepth.data import encoding
from anydepth.data import store as store_module
from anydepth.data.builtin_corpora import Builtin
from anydepth.data.corpora import DataConfig, ParallelText
from anydepth.data.reading import Row
from anydepth.data.store import Store, tokenize, tokenize_all
from anydepth.errors import UserError

FILES = [f"{side}.{kind}" for side in ("source", "target") for kind in ("tokens", "lengths", "offsets")]


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in FILES}


def sentences(store: Store, side: str) -> Iterator[list[int]]:
    flat, lengths = getattr(store, side)(np.arange(len(store)))
    for part in np.split(flat, np.cumsum(lengths)[:-1]):
        yield part.tolist()


def test_every_sentence_is_there_with_eos(tmp_path: Path) -> None:
    store = word_store(tmp_path, 5000)
    tokenizer = word_tokenizer().source
    for side in ("source", "target"):
        texts = (tmp_path / side).read_text(encoding="utf-8").splitlines()
        assert list(sentences(store, side)) == [[*ids, tokenizer.eos] for ids in tokenizer.encode(texts)]
    assert store.source_lengths.dtype == store.target_lengths.dtype == np.int32
    assert (store.source_tokens, store.longest_source) == (store.source_lengths.sum(), store.source_lengths.max())
    assert (store.source_pad, store.target_pad, store.target_bos) == (0, 0, 1)


def test_gather_in_any_order(tmp_path: Path) -> None:
    store = word_store(tmp_path, 300)
    everything = list(sentences(store, "target"))
    pairs = np.array([17, 3, 299, 3, 0])
    flat, lengths = store.target(pairs)
    assert flat.tolist() == [token for pair in pairs for token in everything[pair]]
    assert lengths.tolist() == [len(everything[pair]) for pair in pairs]
    assert store.source(np.array([], dtype=np.int64))[0].size == 0


def test_large_vocabularies_take_32_bits(tmp_path: Path) -> None:
    words = [f"w{number}" for number in range(70_000)]
    (tmp_path / "text").write_text("w0 w69999\n", encoding="utf-8")
    corpus = ParallelText(source=str(tmp_path / "text"), target=str(tmp_path / "text"))
    store = tokenize(corpus, "train", word_tokenizer(words), tmp_path / "store", DataConfig(train=(corpus,)))
    assert store.source(np.array([0]))[0].tolist() == [4, 70_003, 2]


def test_over_long_pairs_are_left_out_and_counted(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("aa\naa ab ac ad\naa ab ac\n\naa\n", encoding="utf-8")
    (tmp_path / "b").write_text("aa\naa\nab ab\naa\nba ba ba ba\n", encoding="utf-8")
    corpus = ParallelText(source=str(tmp_path / "a"), target=str(tmp_path / "b"), key="a-b")
    data = DataConfig(train=(corpus,), max_length=3)
    for _ in range(2):  # the second time from the finished store
        store = tokenize(corpus, "train", word_tokenizer(), tmp_path / "store", data)
        assert len(store) == 2
        assert store.key == "a-b"
        assert store.source_lengths.tolist() == [2, 4]
        assert store.skips.counts == {"empty line": 1, "over-long": 2}
        assert store.skips.examples["over-long"] == [f"{tmp_path}/a:2", f"{tmp_path}/a:5"]


def test_a_finished_store_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    word_store(tmp_path, 100)
    before = {name: (tmp_path / "store" / name).stat().st_mtime_ns for name in [*FILES, "meta.json"]}
    corpus = ParallelText(source=str(tmp_path / "source"), target=str(tmp_path / "target"))
    (tmp_path / "store" / "lock").unlink()
    (tmp_path / "store").chmod(0o500)  # a shared cache may be read-only
    tokenize(corpus, "train", word_tokenizer(), tmp_path / "store", DataConfig(train=(corpus,), max_length=30))
    (tmp_path / "store").chmod(0o700)
    assert {name: (tmp_path / "store" / name).stat().st_mtime_ns for name in before} == before
    assert not (tmp_path / "store" / "lock").exists()


def test_a_store_is_made_again_when_something_changed(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path, 100)
    data = DataConfig(train=(corpus,), max_length=30)
    folder = tmp_path / "store"
    first = tokenize(corpus, "train", word_tokenizer(), folder, data)
    other_words = word_tokenizer([chr(ord("a") + n // 26) + chr(ord("a") + n % 26) for n in range(199, -1, -1)])
    second = tokenize(corpus, "train", other_words, folder, data)
    assert list(sentences(first, "source")) != list(sentences(second, "source"))
    with open(corpus.source, "a") as source, open(corpus.target, "a") as target:
        source.write("aa\n")
        target.write("aa\n")
    assert len(tokenize(corpus, "train", other_words, folder, data)) == 101
    shorter = DataConfig(train=(corpus,), max_length=10)
    assert 1 < tokenize(corpus, "train", other_words, folder, shorter).longest_source <= 11
    with open(folder / "target.tokens", "r+b") as file:  # damaged behind our back
        file.truncate(10)
    assert len(list(sentences(tokenize(corpus, "train", other_words, folder, shorter), "target"))) > 1


@pytest.mark.parametrize("workers", [1, 3])
def test_an_interrupted_tokenization_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    monkeypatch.setattr(encoding, "CHUNK", 64)
    corpus = write_corpus(tmp_path, 1000)
    lines = Path(corpus.source).read_text(encoding="utf-8").splitlines(keepends=True)
    lines[5::97] = ["\n"] * len(lines[5::97])  # pairs that are skipped must not shift the rest
    Path(corpus.source).write_text("".join(lines), encoding="utf-8")
    data = DataConfig(train=(corpus,), max_length=25, workers=workers)
    whole = tokenize(corpus, "train", word_tokenizer(), tmp_path / "whole", data)

    class Interrupted(Exception):
        pass

    read_rows = store_module.read_rows

    def until(stop: int) -> Any:
        def interrupted_rows(*arguments: Any) -> Iterator[Row]:
            yield from islice(read_rows(*arguments), stop)
            raise Interrupted

        return interrupted_rows

    for stop in (200, 500, 650):
        monkeypatch.setattr(store_module, "read_rows", until(stop))
        with pytest.raises(Interrupted):
            tokenize(corpus, "train", word_tokenizer(), tmp_path / "parts", data)
        with open(tmp_path / "parts" / "source.tokens", "ab") as file:
            file.write(b"written but not in the journal")
    written = json.loads((tmp_path / "parts" / "meta.json").read_text())["read"]
    assert 0 < written <= 650
    taken: list[int] = []
    monkeypatch.setattr(store_module, "read_rows", read_rows)
    encode = encoding._encode
    monkeypatch.setattr(encoding, "_encode", lambda rows, *rest: (taken.append(len(rows)), encode(rows, *rest))[1])
    parts = tokenize(corpus, "train", word_tokenizer(), tmp_path / "parts", data)
    assert sum(taken) == 989 - written  # nothing is encoded twice
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")
    assert parts.skips == whole.skips


KILLED = """
import sys
from pathlib import Path
from word_corpora import word_tokenizer
from anydepth.data.corpora import DataConfig, ParallelText
from anydepth.data import encoding, store
encoding.CHUNK = 100
folder = Path(sys.argv[1])
corpus = ParallelText(source=str(folder / "source"), target=str(folder / "target"))
store.tokenize(corpus, "train", word_tokenizer(), folder / "killed", DataConfig(train=(corpus,), workers=2))
"""


def test_a_killed_tokenization_goes_on(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path, 20_000)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    journal = tmp_path / "killed" / "meta.json"
    process = subprocess.Popen(command, env=environment)
    while not (journal.exists() and json.loads(journal.read_text())["read"] > 1000):
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not json.loads(journal.read_text())["finished"]
    subprocess.run(command, env=environment, check=True)
    whole = tmp_path / "whole"
    tokenize(corpus, "train", word_tokenizer(), whole, DataConfig(train=(corpus,), workers=1))
    assert contents(tmp_path / "killed") == contents(whole)


def test_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "CHUNK", 40)
    corpus = write_corpus(tmp_path, 100)
    calls: list[tuple[str, int, int]] = []
    data = DataConfig(train=(corpus,), dev=(Builtin(size=10),), workers=1)
    train = tokenize_all(data, "train", word_tokenizer(), tmp_path / "data", lambda *call: calls.append(call))
    name = f"{corpus.source} and {corpus.target}"
    assert calls == [(name, 40, 100), (name, 80, 100), (name, 100, 100)]
    assert [len(store) for store in train] == [100]
    assert [len(store) for store in tokenize_all(data, "dev", word_tokenizer(), tmp_path / "data")] == [10]
    assert tokenize_all(data, "test", word_tokenizer(), tmp_path / "data") == []
    assert len(list((tmp_path / "data").iterdir())) == 2


def test_runs_share_a_cache(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path, 100)
    data = DataConfig(train=(corpus,), cache=str(tmp_path / "cache"), workers=1)
    (one,) = tokenize_all(data, "train", word_tokenizer(), tmp_path / "one")
    (two,) = tokenize_all(data, "train", word_tokenizer(), tmp_path / "two")
    (three,) = tokenize_all(data, "train", word_tokenizer(["aa"]), tmp_path / "three")
    assert one.folder == two.folder != three.folder
    assert one.folder.parent == tmp_path / "cache"


def test_errors(tmp_path: Path) -> None:
    data = DataConfig(train=(Builtin(),))
    missing = ParallelText(source=str(tmp_path / "missing"), target=str(tmp_path / "missing"))
    with pytest.raises(UserError, match="missing: No such file"):
        tokenize(missing, "train", word_tokenizer(), tmp_path / "store", data)
    (tmp_path / "one").write_text("aa\n" * 3000)
    (tmp_path / "two").write_text("aa\n" * 2999)
    unequal = ParallelText(source=str(tmp_path / "one"), target=str(tmp_path / "two"))
    with pytest.raises(UserError, match=r"one has 3000 lines but .*two has 2999"):
        tokenize(unequal, "train", word_tokenizer(), tmp_path / "store", data)
    (tmp_path / "empty").write_text("\n\n")
    empty = ParallelText(source=str(tmp_path / "empty"), target=str(tmp_path / "empty"))
    with pytest.raises(UserError, match="no usable line; skipped 2 lines: 2 empty line"):
        tokenize(empty, "train", word_tokenizer(), tmp_path / "store", data)
    with pytest.raises(UserError, match="two/store: cannot keep tokenized data there: Not a directory"):
        tokenize(Builtin(size=3), "train", word_tokenizer(), tmp_path / "two" / "store", data)


MEASURED = """
import sys, threading
from pathlib import Path
from anydepth.data.batching import Batches
from anydepth.data.cutting import BatchingConfig
from anydepth.data.corpora import DataConfig, ParallelText
from anydepth.data.store import tokenize
from anydepth.data.tokenizer import TokenizerPair

peak, done = 0, threading.Event()
def watch():
    global peak
    while not done.wait(0.005):
        status = Path("/proc/self/status").read_text()
        peak = max(peak, int(status.split("RssAnon:")[1].split()[0]) * 1024)
watcher = threading.Thread(target=watch)
watcher.start()

folder = Path(sys.argv[1])
corpus = ParallelText(source=str(folder / "source"), target=str(folder / "target"))
data = DataConfig(train=(corpus,), workers=2)
store = tokenize(corpus, "train", TokenizerPair.load(folder), folder / "store", data)
batches = Batches([store], BatchingConfig(tokens=4096, window=100_000), seed=1)
tokens = 0
while batches.epoch < 1:
    _, pairs = next(batches)
    tokens += len(store.source(pairs)[0]) + len(store.target(pairs)[0])
done.set()
watcher.join()
assert tokens == store.source_tokens + store.target_tokens
assert "torch" not in sys.modules
print(peak, len(store))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_stays_below_a_quarter_of_the_corpus(tmp_path: Path) -> None:
    """Anonymous memory, interpreter and libraries included; memory-mapped pages can be dropped at any time."""
    random = np.random.default_rng(1)
    words = ["".join(letters) for letters in random.choice(list("abcdefghijklmnop"), (300, 14))]
    word_tokenizer(words).save(tmp_path)
    block = "".join(f"{' '.join(random.choice(words, 25))}\n" for _ in range(4000))
    for side in ("source", "target"):
        with open(tmp_path / side, "w") as file:
            for _ in range(60):
                file.write(block)
    size = 2 * (tmp_path / "source").stat().st_size
    assert size > 170e6
    result = subprocess.run([sys.executable, "-c", MEASURED, str(tmp_path)], capture_output=True, text=True, check=True)
    peak, pairs = map(int, result.stdout.split())
    assert pairs == 60 * 4000
    assert peak < size / 4
