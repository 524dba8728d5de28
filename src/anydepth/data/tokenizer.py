"""Tokenizers: texts to token ids and back, with a `tokenizer.json` of our own (tokenizer_training.py) or of others.

Ours keep every character: text is brought to Unicode NFC, spaces become `▁` at the front of words,
punctuation and digits stand alone, and a character outside the vocabulary becomes its UTF-8 bytes. Decoding
an encoded NFC text gives it back, except for a space at its very start and for the character `▁` itself,
which comes back as a space.
"""

import hashlib
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Literal

import tokenizers

from anydepth.config_class import config
from anydepth.data.corpora import DataConfig, target_language
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


def tag_name(language: str) -> str:
    return f"<2{language}>"


def _name_in(inner: tokenizers.Tokenizer, special: str) -> str:
    known = (name for name in USUAL_NAMES[special] if inner.token_to_id(name) is not None)
    return next(known, special)


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
