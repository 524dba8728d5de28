"""Which words are hidden, behind what, and where the slots are."""

import gzip
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from masked_models import limits, text_store, tokenizer

from anydepth.data.batching import Batches
from anydepth.data.collate import stream, tensors_of
from anydepth.data.corpora import Text, TextCorpus
from anydepth.data.cutting import BatchingConfig
from anydepth.data.masking import MaskedBatch, Masker, MaskingConfig
from anydepth.data.reading import Skips, read_pairs, read_rows
from anydepth.data.store import Store
from anydepth.data.tokenizer import Tokenizer
from anydepth.errors import UserError
from anydepth.plan import Noise
from anydepth.training.graphs import copied


@pytest.fixture(scope="module")
def tokens() -> Tokenizer:
    return tokenizer()


@pytest.fixture(scope="module")
def store(tokens: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return text_store(tmp_path_factory.mktemp("text"), tokens)


def batches(store: Store, layout: str, seed: int = 1, rank: int = 0, world: int = 1) -> Batches:
    settings = BatchingConfig(tokens=512, layout=layout)  # type: ignore[arg-type]
    return Batches([store], settings, seed=seed, rank=rank, world=world)


def some(
    store: Store, masker: Masker, layout: str, count: int = 40, rank: int = 0, world: int = 1
) -> list[MaskedBatch]:
    taken = batches(store, layout, rank=rank, world=world)
    return [batch for batch, _ in itertools.islice(stream(taken, make=masker.training), count)]


def originals(store: Store, layout: str, count: int = 40) -> list[np.ndarray]:
    """The words of the same batches, with nothing hidden."""
    return [store.target(taken.pairs)[0] for taken in itertools.islice(batches(store, layout), count)]


# ---- training


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_slots_say_what_was_there_and_all_else_is_unchanged(store: Store, tokens: Tokenizer, layout: str) -> None:
    for batch, words in zip(some(store, Masker(MaskingConfig(), tokens, 1), layout), originals(store, layout)):
        restored = batch.source.flatten().clone()
        real = batch.target_out != tokens.pad
        assert int(real.sum()) == batch.predictions
        restored[batch.slots[real]] = batch.target_out[real]
        assert restored[restored != tokens.pad].tolist() == words.tolist()
        assert tokens.eos not in batch.target_out
        assert batch.tokens == len(words)


def test_of_all_words_15_percent_are_chosen_and_80_10_10_become_something(store: Store, tokens: Tokenizer) -> None:
    chosen = words = 0
    fates = {"masked": 0, "kept": 0, "random": 0}
    drawn: set[int] = set()
    for batch in some(store, Masker(MaskingConfig(), tokens, 1), "packed", 400):
        words += batch.tokens - batch.sentences
        chosen += batch.predictions
        real = batch.target_out != tokens.pad
        for now, before in zip(batch.source.flatten()[batch.slots[real]].tolist(), batch.target_out[real].tolist()):
            fate = "masked" if now == tokens.mask else "kept" if now == before else "random"
            fates[fate] += 1
            drawn |= {now} if fate == "random" else set()
    assert chosen / words == pytest.approx(0.15, abs=0.002)
    assert fates["masked"] / chosen == pytest.approx(0.8, abs=0.01)
    assert fates["random"] / chosen == pytest.approx(0.1, abs=0.01)
    assert fates["kept"] / chosen == pytest.approx(0.1, abs=0.01)
    assert not drawn & {tokens.pad, tokens.bos, tokens.eos, tokens.unk, tokens.mask}
    assert len(drawn) > 200  # of the whole vocabulary, not of the words at hand


def test_every_word_is_as_likely_as_any_other(store: Store, tokens: Tokenizer) -> None:
    masker, random = Masker(MaskingConfig(share=0.25), tokens, 1), np.random.default_rng(1)
    counts = np.zeros(40)
    for _ in range(4000):
        counts[masker.hide(np.full(40, 9), np.arange(40), 10, random)] += 1
    assert np.abs(counts / 4000 - 0.25).max() < 0.03


def test_packed_batches_have_one_shape(store: Store, tokens: Tokenizer) -> None:
    found = some(store, Masker(MaskingConfig(), tokens, 1), "packed")
    shapes = {(batch.source.shape, batch.slots.shape, batch.target_out.shape) for batch in found}
    assert shapes == {((1, 512), (80,), (80,))}
    assert {batch.packing.starts.shape for batch in found if batch.packing} == {found[0].packing.starts.shape}


def test_draws_are_those_of_seed_batch_and_rank(store: Store, tokens: Tokenizer) -> None:
    def slots(seed: int, rank: int = 0) -> list[list[int]]:
        masker = Masker(MaskingConfig(), tokens, seed)
        return [batch.slots.tolist() for batch in some(store, masker, "packed", 5, rank, 2)]

    assert slots(1) == slots(1)
    assert slots(1) != slots(2)
    assert slots(1) != slots(1, rank=1)
    assert len({tuple(places) for places in slots(1)}) == 5


def test_a_resumed_stream_hides_the_same_words(store: Store, tokens: Tokenizer) -> None:
    masker = Masker(MaskingConfig(), tokens, 1)
    pairs = list(itertools.islice(stream(batches(store, "padded"), make=masker.training), 30))
    resumed = batches(store, "padded")
    resumed.seek(pairs[11][1])
    for (batch, _), (before, _) in zip(stream(resumed, make=masker.training), pairs[12:]):
        assert torch.equal(batch.source, before.source)
        assert torch.equal(batch.slots, before.slots)


def test_another_epoch_hides_other_words(store: Store, tokens: Tokenizer) -> None:
    taken = batches(store, "padded")
    masker, seen = Masker(MaskingConfig(), tokens, 1), set()
    for batch, position in stream(taken, make=masker.training):
        seen.add(tuple(batch.source[0].tolist()))
        if position["epoch"] >= 2:
            break
    assert len(seen) == taken.step  # no first row twice


def test_a_recorded_pass_is_given_another_batch_in_its_own_tensors(store: Store, tokens: Tokenizer) -> None:
    first, second = some(store, Masker(MaskingConfig(), tokens, 1), "packed", 2)
    noise = [(Noise(*(torch.tensor(float(step)) for _ in range(3))), None) for step in (1, 2)]
    read = copied(second._replace(noise=noise[1]), first._replace(noise=noise[0]))
    for mine, theirs, place in zip(tensors_of(read), tensors_of(second), tensors_of(first)):
        assert torch.equal(mine, theirs)
        assert mine is place
    assert read.noise[0] is not None
    assert float(read.noise[0].temperature) == 2
    assert (read.tokens, read.predictions) == (second.tokens, second.predictions)


# ---- held-out text


def test_held_out_masks_depend_on_the_sentence_alone(store: Store, tokens: Tokenizer) -> None:
    bounds = limits(store, "padded")
    one, other = Masker(MaskingConfig(), tokens, 1), Masker(MaskingConfig(), tokens, 99)
    numbers = np.array([7, 3, 250])
    together = other.held_out(store, numbers, bounds)
    for row in range(len(numbers)):
        alone = one.held_out(store, numbers[row : row + 1], bounds)
        length = int((alone.source != tokens.pad).sum())
        assert torch.equal(alone.source[0, :length], together.source[row, :length])


def test_held_out_text_has_the_right_share_hidden(store: Store, tokens: Tokenizer) -> None:
    batch = Masker(MaskingConfig(), tokens, 1).held_out(store, np.arange(len(store)), limits(store, "padded"))
    assert batch.predictions / (batch.tokens - batch.sentences) == pytest.approx(0.15, abs=0.01)
    per_row = torch.bincount(batch.slots[: batch.predictions] // batch.source.shape[1], minlength=len(store))
    words = torch.from_numpy(np.array(store.target_lengths)) - 1
    assert bool(((per_row - 0.15 * words).abs() < 1).all())  # rounded up or down
    assert tokens.eos not in batch.target_out


# ---- settings and corpora


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"share": 0.0}, "share must"), ({"masked": 1.5}, "masked must"), ({"masked": 0.95, "random": 0.1}, "random: ")],
)
def test_impossible_shares_are_refused(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MaskingConfig(**settings)


def test_text_comes_from_lines_columns_and_fields(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    with gzip.open(tmp_path / "a.txt.gz", "wt") as file:
        file.write("one\ntwo\n")
    (tmp_path / "a.tsv").write_text("x\tone\nshort\ny\ttwo\n")
    records = ['{"text": "one"}', "no json", '{"text": "two"}', json.dumps({"text": "\ud800"})]
    (tmp_path / "a.jsonl").write_text("\n".join(records))
    corpora = {
        "a.txt": (Text(path=str(tmp_path / "a.txt")), {"empty line": 1}),
        "gz": (Text(path=str(tmp_path / "a.txt.gz")), {}),
        "tsv": (Text(path=str(tmp_path / "a.tsv"), column=1), {"with too few columns": 1}),
        "jsonl": (Text(path=str(tmp_path / "a.jsonl"), field="text"), {"not JSON": 1, "invalid UTF-8": 1}),
    }
    for corpus, skipped in corpora.values():
        skips = Skips()
        assert isinstance(corpus, TextCorpus)
        assert list(read_pairs(corpus, "train", skips)) == [("one", ""), ("two", "")]
        assert skips.counts == skipped
    (row, *_) = read_rows(corpora["tsv"][0], "train", Skips())
    assert row.place == f"{tmp_path / 'a.tsv'}:1"
    with pytest.raises(UserError, match="no field 'body'"):
        list(read_rows(Text(path=str(tmp_path / "a.jsonl"), field="body"), "train", Skips()))


def test_text_is_stored_once(store: Store) -> None:
    assert sorted(path.name for path in store.folder.iterdir() if path.name != "lock") == [
        "meta.json",
        "source.lengths",
        "source.offsets",
        "source.tokens",
    ]
    numbers = np.array([4, 2])
    for one, other in zip(store.source(numbers), store.target(numbers)):
        assert one.tolist() == other.tolist()
