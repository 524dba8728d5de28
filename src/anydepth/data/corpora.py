"""What a recipe can say about its data: the corpora, and what is done with them. reading.py reads them; texts with
labels are in labelled.py, the built-in corpora in builtin_corpora.py."""

from typing import Literal

from anydepth.config_class import config
from anydepth.data.builtin_corpora import Builtin, BuiltinLabelled, BuiltinNotices, BuiltinText
from anydepth.data.labelled import Labelled

Split = Literal["train", "dev", "test"]


@config
class ParallelText:
    """Two files, one sentence a line; line n of one translates line n of the other."""

    type: Literal["parallel"] = "parallel"
    source: str
    """Path of the source sentences, plain or .gz."""
    target: str
    """Path of the target sentences, plain or .gz."""
    key: str = ""
    """Language pair or task, for methods whose depth depends on it."""


@config
class Tsv:
    """One file with a pair in each row, columns separated by tabs (no quoting)."""

    type: Literal["tsv"] = "tsv"
    path: str
    """Path of the file, plain or .gz."""
    source_column: int = 0
    """Column of the source sentence, counted from 0."""
    target_column: int = 1
    """Column of the target sentence, counted from 0."""
    key: str = ""
    """Language pair or task, for methods whose depth depends on it."""

    def __post_init__(self) -> None:
        for name in ("source_column", "target_column"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")


@config
class Jsonl:
    """One file with a JSON object in each line."""

    type: Literal["jsonl"] = "jsonl"
    path: str
    """Path of the file, plain or .gz."""
    source_field: str = "source"
    """Name of the source sentence in each object."""
    target_field: str = "target"
    """Name of the target sentence in each object."""
    key: str = ""
    """Language pair or task, for methods whose depth depends on it."""


@config
class Text:
    """One file in one language, one sentence a line; or one of the columns of a TSV file, or of the fields of JSONL."""

    type: Literal["text"] = "text"
    path: str
    """Path of the file, plain or .gz."""
    column: int | None = None
    """Of a file with columns separated by tabs: that of the text, counted from 0."""
    field: str = ""
    """Of a file with a JSON object in each line: the name of the text."""
    key: str = ""
    """Language, for methods whose depth depends on it."""

    def __post_init__(self) -> None:
        if self.column is not None and self.column < 0:
            raise ValueError(f"column must be 0 or more, not {self.column}")
        if self.column is not None and self.field:
            raise ValueError("field: the file has columns or JSON objects, not both")


PairCorpus = ParallelText | Tsv | Jsonl | Builtin | BuiltinNotices
"""Of sentences and their translations, or documents and their summaries."""
TextCorpus = Text | BuiltinText
"""Of sentences alone."""
LabelledCorpus = Labelled | BuiltinLabelled
"""Of texts with labels."""
CorpusConfig = PairCorpus | TextCorpus | LabelledCorpus


@config
class DataConfig:
    train: tuple[CorpusConfig, ...]
    """The training corpora."""
    dev: tuple[CorpusConfig, ...] = ()
    """Pairs for validation during training: one corpus, or a list of them, each validated by itself."""
    test: tuple[CorpusConfig, ...] = ()
    """Pairs for the final evaluation: one corpus, or a list of one for each language."""
    pairs: Literal["translations", "summaries"] = "translations"
    """What the second side of a pair is to the first, which decides how a model is scored: by BLEU and chrF, or by
    ROUGE."""
    tags: Literal["none", "target", "begin"] = "none"
    """What stands in front of every source text: nothing; a token such as <2de> that names the target language, the
    last part of the corpus's key, which one-to-many and many-to-many translation need; or the token that begins a text
    (`begin`, in BERT [CLS])."""
    mixing: Literal["temperature", "turns"] = "temperature"
    """With several corpora: each batch is from one drawn by `temperature`; or the keys take turns, batch by batch, so
    that with training.accumulate = the number of keys an update adds up one batch of each (latent depth,
    Algorithm 2)."""
    temperature: float = 1.0
    """With several corpora a batch comes from one of them with probability ∝ size^(1/temperature): 1 takes
    them as they are, a large number evenly."""
    max_length: int = 256
    """Tokens a side, the end of sentence not counted; longer pairs are skipped and counted."""
    max_source: int = 0
    """Tokens of a source; the rest of longer ones is cut off, and these are counted. Then max_length holds for targets
    alone. 0 cuts nothing."""
    sentences: bool = False
    """Whether an end mark follows every sentence of a source, as model.sentence_layers needs."""
    workers: int = 0
    """Threads that tokenize; 0 is one per core."""
    cache: str = ""
    """Folder for tokenized data, to be shared by runs; empty keeps them inside the run."""

    def __post_init__(self) -> None:
        if not self.train:
            raise ValueError("train must name at least one corpus")
        for split in ("train", "dev", "test") if self.tags == "target" else ():
            for number, corpus in enumerate(getattr(self, split)):
                if not corpus.key:
                    raise ValueError(f"{split}.{number}.key: tags need a key that ends with the target language: en-de")
        if self.temperature <= 0:
            raise ValueError(f"temperature must be above 0, not {self.temperature}")
        if self.max_length < 1:
            raise ValueError(f"max_length must be at least 1, not {self.max_length}")
        if self.max_source < 0:
            raise ValueError(f"max_source must be 0 or more, not {self.max_source}")
        if self.workers < 0:
            raise ValueError(f"workers must be 0 or more, not {self.workers}")


def target_language(key: str) -> str:
    """en-de → de; a key of one language is that language."""
    return key.rpartition("-")[2]
