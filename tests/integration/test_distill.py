"""A teacher's translations of a corpus: each line once and in its place, whatever is killed or shared."""

import gzip
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from random_runs import write_random_run

import anydepth
from anydepth.cli import main
from anydepth.data import distilled_parts
from anydepth.data.distillation import distill
from anydepth.errors import UserError
from anydepth.run import Run

WORDS = ["one", "two", "three", "one two", "two two three", "three one"]
TEXTS = [f"{WORDS[i % 6]} {WORDS[i // 6 % 6]} {WORDS[i * i % 5]}" for i in range(23)]
BLOCK = 4  # the 23 lines make 6 blocks, the last of 3 lines


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write_random_run(folder)
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return anydepth.load(folder, device="cpu")


@pytest.fixture(scope="module")
def expected(run: Run) -> bytes:
    """What all the ways to get there must give, at beam 2."""
    lines = [text.replace("\r", " ").replace("\n", " ") for text in run.translate(TEXTS, beam=2)]
    assert len(set(lines)) > 6
    return "".join(f"{line}\n" for line in lines).encode()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "train.source"
    path.write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    return path


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def parts(out: Path) -> list[str]:
    return sorted(path.name for path in (out.parent / f"{out.name}.parts").glob("0*.json"))


def count_decoded(run: Run, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list in which every text that gets decoded from now on will stand."""
    decoded: list[str] = []
    translate = run.translate

    def counted(texts: list[str], *arguments: Any, **settings: Any) -> list[str]:
        decoded.extend(texts)
        return translate(texts, *arguments, **settings)

    monkeypatch.setattr(run, "translate", counted)
    return decoded


# ---- one process


def test_lines_are_those_of_translate(run: Run, source: Path, expected: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    out, seen = source.with_name("train.target"), []
    made = distill(run, source, out, beam=2, block=BLOCK, progress=lambda *counts: seen.append(counts))
    assert out.read_bytes() == expected
    assert (made.lines, made.missing, made.made_before) == (23, 0, False)
    assert names(source.parent) == {"train.source", "train.target", "train.target.json"}
    report = json.loads((source.parent / "train.target.json").read_text())
    assert report["made_from"]["weights"] == run.weights_hash
    assert (report["made_from"]["depth"], report["made_from"]["beam"]) == ("2-2", 2)
    assert (report["lines"], report["empty"]) == (23, made.skips.total)
    assert (seen[0], seen[-1]) == ((0, 23), (23, 23))
    assert seen == sorted(seen)

    decoded = count_decoded(run, monkeypatch)
    again = distill(run, source, out, depth="2-2", beam=2, batch=3, block=BLOCK)  # a batch size changes nothing
    assert again == made._replace(made_before=True)
    assert (decoded, out.read_bytes()) == ([], expected)


def test_depth_and_block_size(run: Run, source: Path, expected: bytes) -> None:
    assert distill(run, source, source.with_name("one"), beam=2, batch=5).lines == 23  # a single block
    assert source.with_name("one").read_bytes() == expected
    distill(run, source, source.with_name("shallow"), depth="1-1", beam=2)
    assert source.with_name("shallow").read_bytes() != expected


def test_every_setting_that_changes_translations_is_recorded(run: Run, source: Path) -> None:
    """Also those that only the run's own file sets."""
    out = source.with_name("out")
    distill(run, source, out, beam=1)
    for changes in ({"precision": "bfloat16"}, {"block_ngrams": 2}, {"min_length": 4}, {"max_length": 6}):
        decoding = replace(run.config.decoding, **changes)
        other = Run(replace(run.config, decoding=decoding), run.model, run.tokenizers, run.folder, run.weights)
        with pytest.raises(UserError, match=f"made otherwise: {next(iter(changes))} was"):
            distill(other, source, out, beam=1)


def test_gzip_in_and_out(run: Run, source: Path, expected: bytes) -> None:
    packed, out = source.with_name("train.gz"), source.with_name("out.gz")
    packed.write_bytes(gzip.compress(source.read_bytes()))
    distill(run, packed, out, beam=2, block=BLOCK)
    assert gzip.decompress(out.read_bytes()) == expected
    distill(run, packed, source.with_name("other.gz"), beam=2, block=BLOCK)
    assert source.with_name("other.gz").read_bytes() == out.read_bytes()


def test_lines_that_cannot_be_translated_stay_empty_and_are_counted(run: Run, tmp_path: Path) -> None:
    source, out = tmp_path / "odd", tmp_path / "out"
    source.write_bytes(
        b"one two\n\n" + b"!" * 60 + b"\nbro\xffken\n  \r\n\xe2\x80\xa8three\r\nthree one\n" + b"\n" * 3 + b"one two"
    )
    made = distill(run, source, out, block=3)
    lines = out.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    texts = ["one two", "", "", "", "", "\u2028three", "three one", "", "", "", "one two"]
    assert [line.strip() for line in lines] == [text.strip() for text in run.translate(texts)]
    assert [bool(line) for line in lines] == [bool(text) for text in texts]
    assert made.skips.counts == {"empty line": 5, "over-long": 1, "invalid UTF-8": 1}
    assert made.skips.examples["over-long"] == [f"{source}:3"]
    assert made.skips.examples["empty line"] == [f"{source}:{line}" for line in (2, 5, 8)]
    assert json.loads((tmp_path / "out.json").read_text())["empty"] == made.skips.total == 7


def test_line_breaks_in_outputs_do_not_shift_lines(run: Run, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "translate", lambda texts, *_, **__: [f"{text}\r\nmore\n" for text in texts[1:]] + [" "])
    made = distill(run, source, source.with_name("out"), block=23)
    lines = source.with_name("out").read_bytes().split(b"\n")
    assert lines == [*(f"{text}  more ".encode() for text in TEXTS[1:]), b" ", b""]
    assert made.skips.examples == {"empty translation": [f"{source}:23"]}


# ---- kills

KILLED_IN_THE_THIRD_BLOCK = """
import os, signal, sys
import anydepth
from anydepth.data import distillation, distilled_parts

def put_in_place(part, path, put=distilled_parts.put_in_place):
    if path.name == "000002.json":
        os.kill(os.getpid(), signal.SIGKILL)
    put(part, path)

distilled_parts.put_in_place = put_in_place
run, source, out, block = sys.argv[1:]
distillation.distill(anydepth.load(run, "cpu"), source, out, beam=2, block=int(block))
"""


def test_a_kill_loses_and_repeats_no_line(
    run: Run, folder: Path, source: Path, expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = source.with_name("out")
    command = [sys.executable, "-c", KILLED_IN_THE_THIRD_BLOCK, folder, source, out, str(BLOCK)]
    killed = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert not out.exists()
    assert parts(out) == ["000000.json", "000001.json"]
    assert len(names(source.with_name("out.parts"))) == 4  # the journal, and the block that was being written

    decoded, seen = count_decoded(run, monkeypatch), []
    distill(run, source, out, beam=2, block=BLOCK, progress=lambda *counts: seen.append(counts))
    assert decoded == TEXTS[2 * BLOCK :]
    assert (seen[0], seen[-1]) == ((8, 23), (23, 23))
    assert out.read_bytes() == expected
    assert names(source.parent) == {"train.source", "out", "out.json"}


@pytest.mark.parametrize("name", ["out.json", "out", "out.parts"])
def test_a_kill_while_the_parts_are_put_together(
    run: Run, source: Path, expected: bytes, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Just before a file gets its name, or the parts are taken away."""
    out = source.with_name("out")

    def stop_at(part: Path, path: Path) -> None:
        if Path(part if name == "out.parts" else path).name == name:
            raise KeyboardInterrupt
        replace(part, path)

    function = "rename" if name == "out.parts" else "replace"
    replace = getattr(os, function)
    with monkeypatch.context() as patch:
        patch.setattr(os, function, stop_at)
        with pytest.raises(KeyboardInterrupt):
            distill(run, source, out, beam=2, block=BLOCK)
    assert out.exists() == (name == "out.parts")
    decoded = count_decoded(run, monkeypatch)
    distill(run, source, out, beam=2, block=BLOCK)
    assert (decoded, out.read_bytes()) == ([], expected)
    assert names(source.parent) == {"train.source", "out", "out.json"}


def interrupted(run: Run, source: Path, out: Path, monkeypatch: pytest.MonkeyPatch, after: int = 2) -> None:
    """A distillation that stopped after some blocks."""
    translate, blocks = run.translate, iter(range(after))

    def stops(*arguments: Any, **settings: Any) -> list[str]:
        if next(blocks, None) is None:
            raise KeyboardInterrupt
        return translate(*arguments, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(run, "translate", stops)
        with pytest.raises(KeyboardInterrupt):
            distill(run, source, out, beam=2, block=BLOCK)


def test_other_settings_do_not_mix_with_what_is_there(
    run: Run, folder: Path, source: Path, expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = source.with_name("out")
    other = anydepth.load(folder, device="cpu", checkpoint="last")
    changes: list[tuple[Run, dict[str, Any], str]] = [
        (run, {"depth": "1-2"}, "depth was 2-2 and is 1-2;"),
        (run, {"beam": 1, "length_penalty": 0.5}, "beam was 2 and is 1, length_penalty was 1.0 and is 0.5;"),
        (run, {"block": 3}, "block was 4 and is 3;"),
        (other, {}, f"weights was {str(run.weights_hash)[:8]}… and is {str(other.weights_hash)[:8]}…;"),
    ]

    def refused(path: str) -> None:
        for teacher, change, message in changes:
            with pytest.raises(UserError, match=rf"{path} was made otherwise: {message} remove it, or choose another"):
                distill(teacher, source, out, **{"beam": 2, "block": BLOCK, **change})
        source.write_text("\n".join(reversed(TEXTS)))
        with pytest.raises(UserError, match=rf"{path} was made otherwise: source was .*… and is .*…;"):
            distill(run, source, out, beam=2, block=BLOCK)
        source.write_text("".join(f"{text}\n" for text in TEXTS))

    interrupted(run, source, out, monkeypatch)
    refused(r"out\.parts")
    assert parts(out) == ["000000.json", "000001.json"]
    distill(run, source, out, beam=2, block=BLOCK)
    refused("out")
    assert out.read_bytes() == expected


def test_a_damaged_part_is_named(run: Run, source: Path, expected: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    out = source.with_name("out")
    interrupted(run, source, out, monkeypatch)
    damaged = source.with_name("out.parts") / "000001.json"
    for content in (damaged.read_bytes()[:-9], json.dumps({"translations": ["a"], "skips": {}}).encode()):
        damaged.write_bytes(content)
        with pytest.raises(UserError, match=r"000001\.json is damaged: remove this file and run again"):
            distill(run, source, out, beam=2, block=BLOCK)
    assert not out.exists()
    damaged.unlink()
    distill(run, source, out, beam=2, block=BLOCK)
    assert out.read_bytes() == expected


# ---- several processes


def test_shards(run: Run, source: Path, expected: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    out, decoded = source.with_name("out"), count_decoded(run, monkeypatch)
    for shard, missing in ((3, 5), (1, 3), (4, 2)):  # of six blocks, the first two shares have two
        made = distill(run, source, out, beam=2, block=BLOCK, shard=(shard, 4))
        assert (made.missing, out.exists()) == (missing, False)
    assert distill(run, source, out, beam=2, block=BLOCK, shard=(2, 4)).missing == 0
    assert out.read_bytes() == expected
    assert sorted(decoded) == sorted(TEXTS)
    assert distill(run, source, out, beam=2, block=BLOCK, shard=(3, 4)).made_before


def test_of_two_that_do_the_same_the_slower_one_is_content(
    run: Run, source: Path, expected: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = source.with_name("out")
    translate, work = run.translate, {"beam": 2, "block": BLOCK}

    def overtaken(*arguments: Any, **settings: Any) -> list[str]:
        monkeypatch.setattr(run, "translate", translate)
        distill(run, source, out, **work)
        return translate(*arguments, **settings)

    monkeypatch.setattr(run, "translate", overtaken)
    assert distill(run, source, out, **work).lines == 23
    assert out.read_bytes() == expected

    out, read_part = source.with_name("other"), distilled_parts.read_part

    def overtaken_reading(path: Path) -> Any:
        monkeypatch.setattr(distilled_parts, "read_part", read_part)
        distill(run, source, out, **work)
        return read_part(path)

    monkeypatch.setattr(distilled_parts, "read_part", overtaken_reading)
    assert distill(run, source, out, **work).lines == 23
    assert out.read_bytes() == expected
    assert names(source.parent) == {"train.source", "out", "out.json", "other", "other.json"}


def test_torchrun(run: Run, folder: Path, source: Path, expected: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes finish what one began; then there is nothing to do."""
    out = source.with_name("out")
    interrupted(run, source, out, monkeypatch, after=1)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "anydepth", "distill"]
    given = [folder, "--source", source, "--out", out, "--beam", 2, "--block", BLOCK, "--device", "cpu"]
    result = subprocess.run(
        [sys.executable, *launcher, *map(str, given)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        text=True,
        capture_output=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{out} has 23 lines.\n"
    assert out.read_bytes() == expected
    assert names(source.parent) == {"train.source", "out", "out.json"}


# ---- the command line


def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *given: object) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["anydepth", "distill", *map(str, given)])
    with pytest.raises(SystemExit) as exit:
        main()
    out, err = capfd.readouterr()
    return int(exit.value.code or 0), out, err


def test_command(
    folder: Path, source: Path, expected: bytes, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    source.write_text("\n".join([*TEXTS, "", "!" * 60]))
    out = source.with_name("out")
    given = [folder, "--source", source, "--out", out, "--beam", 2, "--depth", "2-2", "--device", "cpu", "--block", 20]
    share = f"This share is done. Other shares miss 1 blocks; the last one to end writes {out}.\n"
    assert command(monkeypatch, capfd, *given, "--shard", "2/2") == (0, share, "")
    empty = f"anydepth: 2 of its lines are empty: 1 empty line ({source}:24); 1 over-long ({source}:25)\n"
    assert command(monkeypatch, capfd, *given, "--shard", "1/2") == (0, f"{out} has 25 lines.\n", empty)
    assert out.read_bytes() == expected + b"\n\n"
    nothing = f"{out} was finished before: nothing to do.\n"
    assert command(monkeypatch, capfd, *given) == (0, nothing, empty)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--source": "missing"}, "missing: no such file"),
        ({"--source": "empty"}, "empty: there is no line to translate"),
        ({"--source": "fake.gz"}, "fake.gz ends in .gz but is not a gzip file"),
        ({"--out": "nowhere/out"}, "nowhere/out: there is no folder nowhere"),
        ({"--out": "."}, ". is a folder; the name of a file was expected"),
        ({"--out": "train.source"}, "train.source exists and is not the result of a distillation: choose another"),
        ({"--out": "notes"}, "notes.json exists and is not the result of a distillation: choose another output"),
        ({"--out": "odd"}, "odd.parts has no journal.json that can be read: remove it, or choose another output"),
        ({"--shard": "2"}, "shard '2': expected two numbers such as 2/8"),
        ({"--shard": "3/2"}, "shard 3/2: expected the first number between 1 and the second"),
        ({"--block": "0"}, "block must be at least 1, not 0"),
        ({"--depth": "3-1"}, "depth 3-1: this run has encoder depths 1, 2"),
        ({"--beam": "0"}, "beam must be at least 1"),
        ({"--device": "toaster"}, "device 'toaster': not on this machine"),
    ],
)
def test_mistakes(
    folder: Path,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    change: dict[str, str],
    message: str,
) -> None:
    monkeypatch.chdir(source.parent)
    Path("empty").touch()
    Path("fake.gz").write_text("text")
    Path("notes.json").write_text("{}")
    Path("odd.parts").mkdir()
    Path("odd.parts/mine").touch()
    before = names(source.parent)
    flags = {"--source": "train.source", "--out": "out", "--device": "cpu"} | change
    code, out, err = command(monkeypatch, capfd, folder, *(word for flag in flags.items() for word in flag))
    assert (code, out) == (2, "")
    assert err.startswith(f"anydepth: {message}")
    assert err.count("\n") == 1
    assert names(source.parent) == before
    assert Path("notes.json").read_text() == "{}"
