"""Folders that are whole or not there."""

import errno
from pathlib import Path

import pytest

from anydepth.errors import UserError
from anydepth.files import new_folder, write_atomically


def cut_off(out: Path, error: BaseException) -> None:
    with new_folder(out) as folder:
        (folder / "half").write_text("1")
        assert not (out / "half").exists()
        raise error


@pytest.mark.parametrize("there", [False, True], ids=["new", "empty"])
def test_a_folder_is_whole_or_not_there(tmp_path: Path, there: bool) -> None:
    out = tmp_path / "runs" / "out"
    if there:
        out.mkdir(parents=True)
    for error in (KeyboardInterrupt(), ValueError("half-way")):
        with pytest.raises(type(error)):
            cut_off(out, error)
        assert out.exists() is there
        assert not any((out if there else out.parent).iterdir())
    inode = out.stat().st_ino if there else None
    with new_folder(out) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "file").write_text("1")
    assert [path.name for path in out.rglob("*")] == ["inner", "file"]
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    assert inode in (None, out.stat().st_ino)  # it may be a mount


def test_what_is_there_is_kept(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    for path in (tmp_path, tmp_path / "file"):
        with pytest.raises(UserError, match=f"{path} is not empty: give another --out"), new_folder(path):
            pytest.fail("was to be filled")
    assert (tmp_path / "file").read_text() == "old"


def test_a_full_disk_names_the_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(UserError, match=f"{out} cannot be written: No space left on device"), new_folder(out) as folder:
        raise OSError(errno.ENOSPC, "No space left on device", str(folder / "file"))
    with pytest.raises(UserError, match=f"^{out}/file is too large$"), new_folder(out) as folder:
        raise UserError(f"{folder / 'file'} is too large")
    assert not any(tmp_path.iterdir())


def test_where_nothing_can_be_written_the_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On such a file system removing a file fails as well, even one that is not there."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", "a hidden name")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(UserError, match=f"^{tmp_path}/page.html cannot be written: Read-only file system$"):
        write_atomically(tmp_path / "page.html", "text")
