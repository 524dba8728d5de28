"""Tokenizers: BPE or unigram trained on the data, or existing `tokenizer.json` files.

Ours keep every character: text is brought to Unicode NFC, spaces become `▁` at the front of words,
punctuation and digits stand alone, and a character outside the vocabulary becomes its UTF-8 bytes. Decoding
an encoded NFC text gives it back, except for a space at its very start and for the character `▁` itself,
which comes back as a space.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from anydepth.config_class import config
from anydepth.data.corpora import DataConfig, target_language
from anydepth.data.reading import Skips, count_rows, name_of, read_pairs
from anydepth.errors import UserError

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
USUAL_NAMES = {
    "<pad>": ("<pad>", "[PAD]"),
    "<bos>": ("<s>", "<bos>", "[CLS]"),
    "<eos>": ("</s>", "<eos>", "[SEP]"),
    "<unk>": ("<unk>", "[UNK]"),
}
MASK = "<mask>"
BERT_MASK = "[MASK]"
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
END = "\1"
COVERAGE = 0.9999  # share of the text whose characters get tokens of their own; the rest become bytes


@config
class TokenizerConfig:
    type: Literal["bpe", "unigram"] = "bpe"
    """Kind of tokenizer to train."""
    vocabulary: int = 10_000
    """Number of tokens, the 4 special and 256 byte tokens and the language tags included (a side, if separate)."""
    joint: bool = True
    """One tokenizer for both sides, so that embeddings can be shared; otherwise one each."""
    target_vocabulary: int = 0
    """Number of tokens on the target side, if separate; 0 means as many as on the source side."""
    lowercase: bool = False
    """Turn all text to lower case."""
    sample: int = 2_000_000
    """Pairs to train on at most, spread evenly over the corpora."""
    path: str = ""
    """An existing tokenizer.json for both sides, instead of training."""
    source_path: str = ""
    """An existing tokenizer.json for the source side; goes with target_path."""
    target_path: str = ""
    """An existing tokenizer.json for the target side; goes with source_path."""

    def __post_init__(self) -> None:
        smallest = len(SPECIAL) + len(BYTES) + 1
        if self.vocabulary < smallest:
            raise ValueError(f"vocabulary must be at least {smallest}, not {self.vocabulary}")
        if self.target_vocabulary and (self.joint or self.target_vocabulary < smallest):
            raise ValueError(f"target_vocabulary needs joint = false and at least {smallest} tokens")
        if self.sample < 1:
            raise ValueError(f"sample must be at least 1, not {self.sample}")
        if bool(self.source_path) != bool(self.target_path):
            raise ValueError("source_path and target_path go together")
        if self.path and self.source_path:
            raise ValueError("give either path or source_path and target_path, not both")


class Tokenizer:
    """Texts to token ids and back; `pad`, `bos`, `eos` and `unk` are ids. `json` is the text of its file,
    kept as it was read, so that the hash does not depend on the version of the library."""

    def __init__(self, text: str) -> None:
        self._inner = tokenizers.Tokenizer.from_str(text)
        before = self._inner.to_str()
        names = {special: _name_in(self._inner, special) for special in SPECIAL}
        self._inner.add_special_tokens(list(names.values()))
        self.json: str = text if self._inner.to_str() == before else self._inner.to_str(pretty=True)
        self.hash = hashlib.sha256(self.json.encode()).hexdigest()
        self.pad, self.bos, self.eos, self.unk = map(self._id, names.values())
        self._inner.no_padding()
        self._inner.no_truncation()
        self._inner.encode_special_tokens = True  # "<eos>" written in a text is text

    def _id(self, token: str) -> int:
        number = self._inner.token_to_id(token)
        assert number is not None, token
        return number

    def __len__(self) -> int:
        return self._inner.get_vocab_size(with_added_tokens=True)

    @cached_property
    def tokens(self) -> list[str]:
        """The name of every token, by id."""
        return [str(self._inner.id_to_token(number)) for number in range(len(self))]

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of every token, by name."""
        return {name: number for number, name in enumerate(self.tokens)}

    @property
    def mask(self) -> int:
        """The token that stands where a word is hidden."""
        for name in (MASK, BERT_MASK):
            if (number := self._inner.token_to_id(name)) is not None:
                return number
        raise UserError(f"the tokenizer has no token {MASK}: it is not that of a masked language model")

    @property
    def special(self) -> set[int]:
        """Tokens that are no part of any text."""
        named = (self._inner.token_to_id(name) for name in (MASK, BERT_MASK))
        return {self.pad, self.bos, self.eos, *(number for number in named if number is not None)}

    def tag(self, language: str) -> int:
        """The token that asks for a translation into this language."""
        number = self._inner.token_to_id(tag_name(language))
        if number is None:
            raise UserError(f"language {language!r}: the tokenizer has no token {tag_name(language)}")
        return number

    def with_tokens(self, names: Iterable[str]) -> "Tokenizer":
        """The same with further special tokens."""
        inner = tokenizers.Tokenizer.from_str(self.json)
        added = inner.add_special_tokens(list(names))
        return Tokenizer(inner.to_str(pretty=True)) if added else self

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each text, without special tokens."""
        return [encoding.ids for encoding in self._inner.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, sequences: list[list[int]]) -> list[str]:
        """The text of each sequence; special tokens are left out."""
        return self._inner.decode_batch(sequences, skip_special_tokens=True)

    def save(self, path: str | Path) -> None:
        Path(path).write_bytes(self.json.encode())

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        try:
            text = Path(path).read_bytes().decode()
        except OSError as error:
            raise UserError(f"{path}: {error.strerror}; a tokenizer.json was expected") from None
        except UnicodeDecodeError:
            raise UserError(f"{path} is not a tokenizer.json: it is not UTF-8 text") from None
        try:
            return cls(text)
        except Exception as error:  # the library raises nothing more specific
            raise UserError(f"{path} is not a tokenizer.json of the `tokenizers` library: {error}") from None

    @classmethod
    def train(cls, texts: Iterable[str], config: TokenizerConfig) -> "Tokenizer":
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
        return cls(json.dumps(trained, ensure_ascii=False, indent=1))


def tag_name(language: str) -> str:
    return f"<2{language}>"


def _name_in(inner: tokenizers.Tokenizer, special: str) -> str:
    known = (name for name in USUAL_NAMES[special] if inner.token_to_id(name) is not None)
    return next(known, special)


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
        raise UserError("there is no text to train a tokenizer on: the training corpora have no usable pair")
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


class TokenizerPair:
    """The tokenizers of the two sides; the same object twice if joint."""

    def __init__(self, source: Tokenizer, target: Tokenizer) -> None:
        self.source, self.target = source, target

    @property
    def joint(self) -> bool:
        return self.source is self.target

    @property
    def hash(self) -> str:
        if self.joint:
            return self.source.hash
        return hashlib.sha256(f"{self.source.hash} {self.target.hash}".encode()).hexdigest()

    def save(self, folder: str | Path) -> None:
        if self.joint:
            self.source.save(Path(folder) / "tokenizer.json")
        else:
            self.source.save(Path(folder) / "tokenizer.source.json")
            self.target.save(Path(folder) / "tokenizer.target.json")

    @classmethod
    def load(cls, folder: str | Path, expected_hash: str | None = None) -> "TokenizerPair":
        """The tokenizers of a run; refused if they are not those it was trained with."""
        folder = Path(folder)
        if (folder / "tokenizer.source.json").exists():
            files = [folder / "tokenizer.source.json", folder / "tokenizer.target.json"]
            pair = cls(Tokenizer.load(files[0]), Tokenizer.load(files[1]))
        else:
            files = [folder / "tokenizer.json"]
            tokenizer = Tokenizer.load(files[0])
            pair = cls(tokenizer, tokenizer)
        if expected_hash is not None and pair.hash != expected_hash:
            names = " and ".join(str(file) for file in files)
            raise UserError(
                f"{names}: not the tokenizer of this run "
                f"(its hash is {pair.hash[:12]}..., the run recorded {expected_hash[:12]}...)"
            )
        return pair


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
        raise UserError(f"{names}: no usable pair; {skips.summary() or 'there are no lines'}")


def _quotas(data: DataConfig, size: int) -> tuple[tuple[int, int], ...]:
    lines = [count_rows(corpus) for corpus in data.train]
    weights = [1.0 if data.mixing == "turns" else count ** (1 / data.temperature) for count in lines]
    shares = [size * weight / max(1.0, sum(weights)) for weight in weights]
    return tuple((min(count, max(1, round(share))), count) for count, share in zip(lines, shares))


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
    pairs = sum(wanted for wanted, _ in quotas)
    report(f"training {kind} {config.type} tokenizer, {config.vocabulary} tokens, on up to {pairs} pairs")
    untagged = replace(config, vocabulary=config.vocabulary - len(added))
    if config.joint:
        tokenizer = Tokenizer.train(_Sample(data, (0, 1), quotas), untagged).with_tokens(added)
        return TokenizerPair(tokenizer, tokenizer)
    target_config = replace(config, vocabulary=config.target_vocabulary or config.vocabulary)
    source, target = (
        Tokenizer.train(_Sample(data, (side,), quotas), side_config)
        for side, side_config in enumerate((untagged, target_config))
    )
    return TokenizerPair(source.with_tokens(added), target)


def tags_of(data: DataConfig) -> list[str]:
    """The tokens that name languages."""
    languages = {target_language(corpus.key) for corpus in data.train} if data.tags == "target" else set()
    return [tag_name(language) for language in sorted(languages)]


def tokens_in_front(data: DataConfig, tokenizer: Tokenizer, key: str) -> list[int]:
    """What `data.tags` puts in front of every source text."""
    match data.tags:
        case "target":
            return [tokenizer.tag(target_language(key))]
        case "begin":
            return [tokenizer.bos]
        case "none":
            return []
