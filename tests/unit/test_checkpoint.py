"""Checkpoints: whole or recognised as damaged, however a save ended."""

import ast
import json
import resource
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import anydepth
from anydepth.errors import UserError
from anydepth.files import checksum, write_durably
from anydepth.training import checkpoint


def write(folder: Path, step: int, keep: int = 9, every: int = 1) -> Path:
    """A checkpoint whose numbers tell its step."""
    tensors = {
        "model": {"a": torch.full((40,), float(step)), "b": torch.full((2, 3), -float(step))},
        "optimizer": {"step.a": torch.tensor(float(step))},
    }
    return checkpoint.save(folder, step, tensors, {"where": [step, None]}, keep, {"tokenizer": "abc"}, every)


def kept(folder: Path) -> list[int]:
    return [checkpoint.step_of(path) for path in checkpoint.steps(folder)]


def newest_step(folder: Path) -> int | None:
    found = checkpoint.newest(folder)
    return found and found.step


# ---- whole ones


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    path = write(tmp_path / "deep" / "checkpoints", 7)
    found = checkpoint.newest(path.parent)
    assert found is not None
    assert (found.step, found.state) == (7, {"where": [7, None]})
    assert found.tensors.keys() == {"model", "optimizer"}
    assert torch.equal(found.tensors["model"]["b"], torch.full((2, 3), -7.0))
    assert found.tensors["optimizer"]["step.a"].item() == 7.0


def test_the_manifest_has_the_checksum_of_every_file(tmp_path: Path) -> None:
    path = write(tmp_path, 7)
    manifest = json.loads((path / "manifest.json").read_text())
    files = {file.name for file in path.iterdir()} - {"manifest.json"}
    assert manifest["step"] == 7
    assert files == {"model.safetensors", "optimizer.safetensors", "state.json"}
    assert manifest["sha256"] == {name: checksum(path / name) for name in files}
    assert checkpoint.damage(path) is None


def test_shared_and_sliced_tensors_can_be_saved(tmp_path: Path) -> None:
    square = torch.arange(9.0).view(3, 3)
    checkpoint.save(tmp_path, 1, {"model": {"t": square.t(), "row": square[1]}}, {}, keep=1)
    found = load_file(tmp_path / "step-00000001" / "model.safetensors")
    assert torch.equal(found["t"], square.t())
    assert torch.equal(found["row"], square[1])


def test_no_checkpoint_is_no_error(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path / "missing") is None
    assert checkpoint.steps(tmp_path) == []


def test_only_checkpoints_count_as_such_and_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    write(tmp_path, 100_000_000)
    shutil.copytree(tmp_path / "step-100000000", tmp_path / "step-99999999")
    shutil.copytree(tmp_path / "step-100000000", tmp_path / "step-100000000.bak")
    (tmp_path / "step-by-step").mkdir()
    assert kept(tmp_path) == [99_999_999, 100_000_000]


# ---- damaged ones


def truncate(path: Path) -> None:
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def flip_a_bit(path: Path) -> None:
    file = path / "optimizer.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def write_nonsense(content: str) -> Callable[[Path], None]:
    return lambda path: (path / "manifest.json").write_text(content) and None


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (truncate, "model.safetensors does not match"),
    "emptied": (lambda path: (path / "model.safetensors").write_bytes(b""), "model.safetensors does not match"),
    "flipped": (flip_a_bit, "optimizer.safetensors does not match"),
    "state": (lambda path: (path / "state.json").write_text("{}"), "state.json does not match"),
    "file gone": (lambda path: (path / "optimizer.safetensors").unlink(), "optimizer.safetensors is missing"),
    "file added": (lambda path: (path / "other.safetensors").write_bytes(b"?"), "other.safetensors does not match"),
    "manifest gone": (lambda path: (path / "manifest.json").unlink(), "manifest is missing"),
    "manifest cut": (write_nonsense('{"step": 2, "sha'), "manifest is missing or unreadable"),
    "manifest empty": (write_nonsense(""), "manifest is missing or unreadable"),
    "manifest list": (write_nonsense("[]"), "manifest is missing or unreadable"),
    "manifest null": (write_nonsense('{"sha256": null}'), "manifest is missing or unreadable"),
    "manifest without sums": (write_nonsense('{"sha256": {}}'), "does not match"),
    "manifest binary": (lambda path: (path / "manifest.json").write_bytes(b"\xff\0"), "manifest is missing"),
    "folder empty": (lambda path: [file.unlink() for file in path.iterdir()], "manifest is missing"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_newest_checkpoint_is_passed_over(tmp_path: Path, name: str) -> None:
    harm, expected = DAMAGES[name]
    write(tmp_path, 1)
    path = write(tmp_path, 2)
    harm(path)
    with pytest.warns(UserWarning, match=expected) as caught:
        assert newest_step(tmp_path) == 1
    assert str(path) in str(caught[0].message)


def test_several_damaged_ones_are_passed_over_and_in_the_end_there_is_none(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        write(tmp_path, step)
    truncate(tmp_path / "step-00000003")
    flip_a_bit(tmp_path / "step-00000002")
    with pytest.warns(UserWarning, match="falling back") as caught:
        assert newest_step(tmp_path) == 1
    assert len(caught) == 2
    truncate(tmp_path / "step-00000001")
    with pytest.warns(UserWarning, match="falling back") as caught:
        assert newest_step(tmp_path) is None
    assert len(caught) == 3


def test_a_damaged_one_is_replaced(tmp_path: Path) -> None:
    write(tmp_path, 1)
    truncate(write(tmp_path, 2))
    write(tmp_path, 2)
    assert newest_step(tmp_path) == 2


def test_damaged_ones_from_later_do_not_push_out_a_good_one(tmp_path: Path) -> None:
    truncate(write(tmp_path, 30, keep=1))
    write(tmp_path, 10, keep=1)  # the training began again
    assert kept(tmp_path) == [10]
    assert newest_step(tmp_path) == 10


# ---- interrupted saves


def test_leftovers_are_ignored_and_removed_by_the_next_save(tmp_path: Path) -> None:
    shutil.copytree(write(tmp_path, 1), tmp_path / ".part-00000002")
    (tmp_path / ".part-00000003").mkdir()
    assert newest_step(tmp_path) == 1
    write(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]


def test_a_save_killed_anywhere_leaves_a_whole_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stops at every operation on the disk in turn, until a save comes through."""
    moments = 0
    for name in ("mkdir", "replace", "open", "fsync", "rmdir", "unlink"):
        real = getattr(checkpoint.os, name)

        def counted(*given: object, _real: Callable[..., object] = real, **more: object) -> object:
            nonlocal moments
            moments -= 1
            if moments == 0:
                raise KeyboardInterrupt
            return _real(*given, **more)

        monkeypatch.setattr(checkpoint.os, name, counted)
    for tried in range(1, 100):
        folder = tmp_path / str(tried)
        moments = 0
        for step in (1, 2):
            write(folder, step, keep=2)
        moments = tried
        try:
            write(folder, 3, keep=2)
        except KeyboardInterrupt:
            moments = 0
        else:
            break
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # nothing under a checkpoint's name is ever half there
            assert newest_step(folder) in (2, 3)
        write(folder, 3, keep=2)
        assert sorted(path.name for path in folder.iterdir()) == ["step-00000002", "step-00000003"]
    assert 10 < tried < 99


def test_a_full_disk_is_told_and_leaves_earlier_checkpoints(tmp_path: Path) -> None:
    write(tmp_path, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(UserError, match=r"\.part-00000002: cannot save a checkpoint: .*earlier ones are kept"):
            write(tmp_path, 2)
        with pytest.raises(UserError, match=r"model\.safetensors: cannot be written"):
            checkpoint.write_weights({"a": torch.zeros(99)}, tmp_path / "model.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_weights_and_texts_are_replaced_in_one_step(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    checkpoint.write_weights({"a": torch.zeros(3)}, file, {"tokenizer": "abc"})
    before = file.stat().st_ino
    checkpoint.write_weights({"a": torch.ones(3)}, file)
    assert torch.equal(load_file(file)["a"], torch.ones(3))
    write_durably(tmp_path / "config.toml", "größer\n")
    assert (tmp_path / "config.toml").read_text(encoding="utf-8") == "größer\n"
    assert file.stat().st_ino != before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.toml", "model.safetensors"]


# ---- how many are kept


@pytest.mark.parametrize(("keep", "expected"), [(1, [5]), (2, [4, 5]), (4, [2, 3, 4, 5]), (9, [1, 2, 3, 4, 5])])
def test_the_newest_are_kept(tmp_path: Path, keep: int, expected: list[int]) -> None:
    for step in range(1, 6):
        write(tmp_path, step, keep)
    assert kept(tmp_path) == expected


def test_an_interruption_does_not_change_what_is_kept_later(tmp_path: Path) -> None:
    for step in (10, 20, 23, 27):  # interrupted after 23 and 27
        write(tmp_path, step, keep=2, every=10)
    assert kept(tmp_path) == [20, 27]
    write(tmp_path, 30, keep=2, every=10)
    assert kept(tmp_path) == [20, 30]
    write(tmp_path, 34, keep=2, every=10)  # the end
    assert kept(tmp_path) == [30, 34]


# ---- weights


def test_the_mean_of_several(tmp_path: Path) -> None:
    values = [torch.tensor([1.0, 2.0, 1e8]), torch.tensor([2.0, 4.0, 1.0]), torch.tensor([6.0, 6.0, -1e8])]
    for step, value in enumerate(values, start=1):
        checkpoint.save(tmp_path, step, {"model": {"w": value}}, {}, keep=9)
    mean = checkpoint.average(checkpoint.steps(tmp_path))["w"]
    # the last needs double precision: in single, 1e8 + 1 is 1e8
    assert torch.equal(mean, torch.tensor([3.0, 4.0, 1 / 3]))
    assert torch.equal(checkpoint.average(checkpoint.steps(tmp_path)[:2])["w"][:2], torch.tensor([1.5, 3.0]))


def test_weights_go_into_a_model_of_the_same_shape(tmp_path: Path) -> None:
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    checkpoint.write_weights(checkpoint.weights(model), tmp_path / "w")
    checkpoint.load_weights(other, load_file(tmp_path / "w"))
    assert torch.equal(other.weight, model.weight)
    assert torch.equal(other.bias, model.bias)


def changed(**changes: Tensor | None) -> dict[str, Tensor]:
    all_of_them = checkpoint.weights(nn.Linear(3, 2)) | changes
    return {name: value for name, value in all_of_them.items() if value is not None}


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (changed(bias=None), "bias is missing"),
        (changed(gate=torch.ones(1)), "gate is unknown"),
        (changed(weight=torch.ones(2, 4)), r"weight is \(2, 4\), the model has \(2, 3\)"),
    ],
)
def test_weights_that_do_not_fit_name_the_parameter(weights: dict[str, Tensor], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        checkpoint.load_weights(nn.Linear(3, 2), weights)


def test_no_pickle_is_ever_loaded() -> None:
    """Nothing in the library imports a module that runs code it reads, or calls `torch.load` or numpy's pickles."""
    files = sorted(Path(anydepth.__file__).parent.rglob("*.py"))
    assert len(files) > 50
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Import(names=names):
                    imported = {name.name.split(".")[0] for name in names}
                case ast.ImportFrom(module=str(module), names=names):
                    imported = {module.split(".")[0], *(f"{module}.{name.name}" for name in names)}
                case ast.Attribute(value=ast.Name(id=str(owner)), attr=str(name)):
                    imported = {f"{owner}.{name}"}
                case ast.keyword(arg="allow_pickle"):
                    imported = {"allow_pickle"}
                case _:
                    continue
            unsafe = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "allow_pickle"}
            assert not imported & (unsafe | {"torch.load", "torch.serialization", "torch.jit"}), file
