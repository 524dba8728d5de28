"""Reading pairs: every format, every way a file can be wrong."""

import gzip
import json
from pathlib import Path

import pytest

from anydepth.data import corpora, lines
from anydepth.data.builtin_corpora import Builtin
from anydepth.data.corpora import DataConfig, Jsonl, ParallelText, Text, Tsv
from anydepth.data.reading import Skips, count_rows, read_pairs
from anydepth.errors import UserError
from anydepth.evaluation.texts import read_texts


def parallel(folder: Path, source: bytes, target: bytes) -> ParallelText:
    (folder / "source").write_bytes(source)
    (folder / "target").write_bytes(target)
    return ParallelText(source=str(folder / "source"), target=str(folder / "target"))


def read(corpus: corpora.CorpusConfig) -> tuple[list[tuple[str, str]], Skips]:
    skips = Skips()
    return list(read_pairs(corpus, "train", skips)), skips


def test_parallel_text_plain_and_gz(tmp_path: Path) -> None:
    (tmp_path / "de.gz").write_bytes(gzip.compress("Haus\nBäume\n".encode()))
    (tmp_path / "en").write_text("house\ntrees\n", encoding="utf-8")
    corpus = ParallelText(source=str(tmp_path / "de.gz"), target=str(tmp_path / "en"))
    pairs, skips = read(corpus)
    assert pairs == [("Haus", "house"), ("Bäume", "trees")]
    assert skips.summary() == ""
    assert count_rows(corpus) == 2


def test_byte_order_mark_line_ends_and_missing_last_newline(tmp_path: Path) -> None:
    corpus = parallel(tmp_path, b"\xef\xbb\xbfa\r\n b \r\nc", "x\u2028y\ny\x0by\nz\r".encode())
    pairs, _ = read(corpus)
    # only LF and CRLF end lines; what stands inside them is left alone
    assert pairs == [("a", "x\u2028y"), (" b ", "y\x0by"), ("c", "z")]
    assert count_rows(corpus) == 3


@pytest.mark.parametrize("zipped", [False, True])
def test_utf_16_is_refused_not_read_as_a_part_of_its_lines(tmp_path: Path, zipped: bool) -> None:
    """Without its mark, a line of ASCII in UTF-16 is valid UTF-8 with NULs in it."""
    file = tmp_path / ("text.gz" if zipped else "text")
    text = "one\ntwo\n".encode("utf-16")
    file.write_bytes(gzip.compress(text) if zipped else text)
    for look in (read, count_rows):
        with pytest.raises(UserError, match=f"{file} is UTF-16; expected UTF-8"):
            look(Text(path=str(file)))
    with pytest.raises(UserError, match=f"{file} is UTF-16; expected UTF-8"):
        read_texts(file)


def test_unusable_lines_are_counted_with_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LONGEST_LINE", 20)
    source = [b"one", b"", b"three", b"four", b"f\xffve", b"six" * 30, b"x" * 19, b"   "]
    target = [b"1", b"2", b"\xff", b" ", b"5", b"6", b"7", b"8"]
    pairs, skips = read(parallel(tmp_path, b"\n".join(source), b"\n".join(target)))
    assert pairs == [("one", "1"), ("x" * 19, "7")]
    assert skips.counts == {"empty line": 3, "invalid UTF-8": 2, "over-long": 1}
    assert skips.examples["invalid UTF-8"] == [f"{tmp_path}/target:3", f"{tmp_path}/source:5"]
    assert skips.examples["over-long"] == [f"{tmp_path}/source:6"]
    assert skips.summary() == (
        f"skipped 6 lines: 3 empty line ({tmp_path}/source:2, {tmp_path}/target:4, {tmp_path}/source:8); "
        f"2 invalid UTF-8 ({tmp_path}/target:3, {tmp_path}/source:5); 1 over-long ({tmp_path}/source:6)"
    )


def test_only_the_first_few_places_are_kept(tmp_path: Path) -> None:
    _, skips = read(parallel(tmp_path, b"\n" * 9 + b"a\n", b"b\n" * 10))
    assert skips.counts == {"empty line": 9}
    assert skips.summary().endswith("source:3, ...)")


@pytest.mark.parametrize(("source", "target"), [(2, 5), (5, 2), (0, 1)])
def test_unequal_line_counts_name_both_files(tmp_path: Path, source: int, target: int) -> None:
    corpus = parallel(tmp_path, b"a\n" * source, b"b\n" * target)
    message = f"{tmp_path}/source has {source} lines but {tmp_path}/target has {target}"
    with pytest.raises(UserError, match=message):
        read(corpus)
    with pytest.raises(UserError, match=message):
        count_rows(corpus)


def test_tsv(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('1\tHaus\thouse\n2\tBaum\n\n4\t\tempty\n5\t"Zitat\tquote"\n', encoding="utf-8")
    corpus = Tsv(path=str(tmp_path / "a.tsv"), source_column=1, target_column=2)
    pairs, skips = read(corpus)
    assert pairs == [("Haus", "house"), ('"Zitat', 'quote"')]
    assert skips.counts == {"with too few columns": 1, "empty line": 2}
    assert skips.examples == {
        "with too few columns": [f"{corpus.path}:2"],
        "empty line": [f"{corpus.path}:3", f"{corpus.path}:4"],
    }


def test_jsonl(tmp_path: Path) -> None:
    lines = [
        json.dumps({"de": "Häuser", "en": "houses", "id": 1}),
        '{"de": "kaputt", ',
        json.dumps({"de": "leer", "en": " "}),
        '{"de": "\\ud800", "en": "half a surrogate pair"}',
        json.dumps({"de": "zwei\nZeilen", "en": "two lines"}),
    ]
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    pairs, skips = read(Jsonl(path=str(path), source_field="de", target_field="en"))
    assert pairs == [("Häuser", "houses"), ("zwei Zeilen", "two lines")]
    assert skips.counts == {"not JSON": 1, "empty line": 1, "invalid UTF-8": 1}
    assert skips.examples["not JSON"] == [f"{path}:2"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"source": "a", "text": "b"}', r"a.jsonl:2: no field 'target' \(found: source, text\)"),
        ('{"source": "a", "target": 3}', "a.jsonl:2: field 'target' must be a string, not int"),
        ('["a", "b"]', r"a.jsonl:2: no field 'source' \(found: list\)"),
    ],
)
def test_jsonl_without_the_field(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "a.jsonl").write_text('{"source": "a", "target": "b"}\n' + line, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        read(Jsonl(path=str(tmp_path / "a.jsonl")))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "plain.gz").write_bytes(b"not compressed\n")
    (tmp_path / "short.gz").write_bytes(gzip.compress(bytes(range(256)) * 100)[:-20])
    for name, message in {
        "missing": "missing: no such file",
        ".": "is a folder; a file was expected",
        "plain.gz": "plain.gz ends in .gz but is not a gzip file",
        "short.gz": "short.gz is damaged or cut short",
    }.items():
        with pytest.raises(UserError, match=message):
            read(Tsv(path=str(tmp_path / name)))


def test_the_built_in_corpus() -> None:
    train, skips = read(Builtin(size=20))
    test = list(read_pairs(Builtin(size=20), "test", skips))
    assert len(train) == len(test) == 20
    assert not set(train) & set(test)
    assert count_rows(Builtin(size=20)) == 20


def test_skips_add_up() -> None:
    one, two = Skips(), Skips()
    one.add("empty line", "a:1")
    for line in range(5):
        two.add("empty line", f"b:{line}")
    two.add("over-long", "b:9")
    both = one + two
    assert both.counts == {"empty line": 6, "over-long": 1}
    assert both.examples == {"empty line": ["a:1", "b:0", "b:1"], "over-long": ["b:9"]}
    assert one.counts == {"empty line": 1}


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"train": ()}, "train"), ({"temperature": 0.0}, "temperature"), ({"max_length": 0}, "max_length")],
)
def test_settings_out_of_range(settings: dict[str, object], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        DataConfig(**{"train": (Builtin(),), **settings})
