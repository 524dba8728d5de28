"""New tokenizers: BPE or unigram, trained on a sample of the training corpora."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from anydepth.data.corpora import DataConfig
from anydepth.data.reading import Skips, count_rows, name_of, read_pairs
from anydepth.data.tokenizer import BYTES, SPECIAL, Tokenizer, TokenizerConfig, TokenizerPair, tags_of
from anydepth.errors import UserError

COVERAGE = 0.9999
"""Share of the text whose characters get tokens of their own; the rest become bytes."""
END = "\1"
"""Ends the words that unigram is shown a second time."""


def build(
    config: TokenizerConfig, data: DataConfig, report: Callable[[str], None], further: Sequence[str] = ()
) -> TokenizerPair:
    """The tokenizers a configuration asks for: existing files, or trained on the training corpora; the source's with
    the language tags and what `further` special tokens its task needs."""
    added = [*tags_of(data), *further]
    if config.path:
        tokenizer = Tokenizer.load(config.path).with_tokens(added)
        return TokenizerPair(tokenizer, tokenizer)
    if config.source_path:
        return TokenizerPair(Tokenizer.load(config.source_path).with_tokens(added), Tokenizer.load(config.target_path))
    _check_usable(data)
    quotas = _quotas(data, config.sample)
    kind = "joint" if config.joint else "separate"
    lines = sum(wanted for wanted, _ in quotas)
    report(f"training {kind} {config.type} tokenizer, {config.vocabulary} tokens, on up to {lines} lines")
    untagged = replace(config, vocabulary=config.vocabulary - len(added))
    if config.joint:
        tokenizer = train_tokenizer(_Sample(data, (0, 1), quotas), untagged).with_tokens(added)
        return TokenizerPair(tokenizer, tokenizer)
    target_config = replace(config, vocabulary=config.target_vocabulary or config.vocabulary)
    source, target = (
        train_tokenizer(_Sample(data, (side,), quotas), side_config)
        for side, side_config in enumerate((untagged, target_config))
    )
    return TokenizerPair(source.with_tokens(added), target)


@dataclass(frozen=True)
class _Sample:
    """Texts of the training corpora, at most `size` pairs, shared between the corpora as batches will be. It
    can be read again and again; nothing is kept in memory."""

    data: DataConfig
    sides: tuple[int, ...]
    quotas: tuple[tuple[int, int], ...]  # a corpus: (pairs to take, lines it has)

    def __iter__(self) -> Iterator[str]:
        for corpus, (wanted, lines) in zip(self.data.train, self.quotas):
            for number, pair in enumerate(read_pairs(corpus, "train", Skips())):
                if (number + 1) * wanted // lines > number * wanted // lines:
                    yield from (pair[side] for side in self.sides if pair[side])


def _check_usable(data: DataConfig) -> None:
    """Refuses corpora that are empty, or of which every line is skipped."""
    skips = Skips()
    if not any(True for corpus in data.train for _ in read_pairs(corpus, "train", skips)):
        names = ", ".join(name_of(corpus) for corpus in data.train)
        raise UserError(f"{names}: no usable line; {skips.summary() or 'there are no lines'}")


def _quotas(data: DataConfig, size: int) -> tuple[tuple[int, int], ...]:
    lines = [count_rows(corpus) for corpus in data.train]
    weights = [1.0 if data.mixing == "turns" else count ** (1 / data.temperature) for count in lines]
    shares = [size * weight / max(1.0, sum(weights)) for weight in weights]
    return tuple((min(count, max(1, round(share))), count) for count, share in zip(lines, shares))


def train_tokenizer(texts: Iterable[str], config: TokenizerConfig) -> Tokenizer:
    """A new tokenizer. `texts` is read twice. The same texts in the same order give the same tokenizer: always
    with BPE; with unigram unless rounding decides between two pieces that are equally good."""
    unigram = config.type == "unigram"
    inner = tokenizers.Tokenizer(models.Unigram() if unigram else models.BPE())
    inner.normalizer = normalizers.NFC()
    if config.lowercase:
        inner.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase(), normalizers.NFC()])
    isolate = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Punctuation("isolated")]
    inner.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), *isolate])
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    size = config.vocabulary - len(BYTES)
    options: dict[str, Any] = {
        "vocab_size": size,
        "special_tokens": list(SPECIAL),
        "show_progress": False,
    }
    trainer: Any = trainers.BpeTrainer(**options)
    if unigram:
        options |= {"vocab_size": size + len(END), "unk_token": "<unk>", "n_sub_iterations": 4}
        trainer = trainers.UnigramTrainer(**options)
    inner.train_from_iterator(_training_texts(texts, inner.normalizer, size, unigram), trainer)
    trained = json.loads(inner.to_str())
    (_finish_unigram if unigram else _finish_bpe)(trained["model"])
    return Tokenizer(json.dumps(trained, ensure_ascii=False, indent=1))


def _training_texts(texts: Iterable[str], normalizer: Any, size: int, unigram: bool) -> Iterator[str]:
    """The texts with a space for each character too rare for a token of its own, and what unigram needs besides."""
    words: Counter[str] = Counter()
    for text in texts:
        words.update(normalizer.normalize_str(text).split(" "))
    rare = re.compile(f"[^{re.escape(_alphabet(words, size // 2))}]")
    for text in texts:
        yield rare.sub(" ", normalizer.normalize_str(text))
    if unigram:
        # The trainer only considers pieces that occur in two different words, so that "▁The" is lost unless there is
        # a "▁There" too: show it each word a second time, as part of a word that does not exist.
        letters = re.compile(r"[^\W\d_]+")
        repeated = (rare.sub(" ", word) for word, count in words.items() if count > 1)
        yield from sorted({f"{part}{END}" for word in repeated for part in letters.findall(word)})


def _alphabet(words: Counter[str], most: int) -> str:
    """The most frequent characters."""
    counts: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            counts[character] += count
    del counts[END]
    missing = counts.total()
    if not missing:
        raise UserError("there is no text to train a tokenizer on: the training corpora have no usable line")
    enough = (1 - COVERAGE) * missing
    kept: list[str] = []
    for character, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if missing <= enough or len(kept) == most:
            break
        kept.append(character)
        missing -= count
    return "".join(kept)


def _finish_bpe(model: dict[str, Any]) -> None:
    """Add the byte tokens. They are no special tokens: "<0x41>" written in a text is text."""
    model["vocab"] |= {byte: len(model["vocab"]) + number for number, byte in enumerate(BYTES)}
    model |= {"byte_fallback": True, "unk_token": "<unk>"}


def _finish_unigram(model: dict[str, Any]) -> None:
    """Add the byte tokens and remove what differs from training to training: the trainer goes through hash
    tables in an order that changes, so sums differ in their last digits, and single characters that no longer
    occur as pieces get the lowest score plus 0, 1, 2 ... times 0.0001 in any order."""
    special = model["vocab"][: len(SPECIAL)]
    pieces = [piece for piece in model["vocab"][len(SPECIAL) :] if END not in piece[0]]
    lowest = min(score for _, score in pieces)
    characters = sum(len(piece) == 1 for piece, _ in pieces)
    steps_end = lowest + 0.0001 * characters
    pieces = [[piece, round(lowest if len(piece) == 1 and score <= steps_end else score, 4)] for piece, score in pieces]
    pieces.sort(key=lambda piece: (-piece[1], piece[0]))
    model["vocab"] = special + pieces + [[byte, round(lowest, 4)] for byte in BYTES]
    model["byte_fallback"] = True
