"""Files are written whole or not at all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from steelyard.errors import FileError, SteelyardError
from steelyard.files import check_writable, write_file, write_folder


def test_files_are_written(tmp_path):
    (tmp_path / "old").write_text("old")
    write_file(tmp_path / "old", b"new")
    assert write_folder(tmp_path / "a" / "b", {"x": "1", "y": "2"}) == [tmp_path / "a/b/x", tmp_path / "a/b/y"]
    found = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {"old": "new", "a/b/x": "1", "a/b/y": "2"}


def test_a_written_file_has_the_usual_permissions(tmp_path):
    previous = os.umask(0o027)
    try:
        write_file(tmp_path / "file", b"")
    finally:
        os.umask(previous)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_a_file_that_is_written_again_keeps_its_permissions_and_its_links(tmp_path):
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"old")
    path.chmod(0o600)
    link.symlink_to(path)
    write_file(link, b"new")
    assert link.is_symlink()
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_folder_is_checked_without_a_trace(tmp_path):
    write_folder(tmp_path / "a" / "b", {})
    assert list(tmp_path.iterdir()) == []


def test_a_device_is_not_replaced():
    write_file(Path(os.devnull), b"text")
    assert not Path(os.devnull).is_file()
    with pytest.raises(FileError, match="cannot write '/dev/full': No space left on device; free some space"):
        write_file(Path("/dev/full"), b"text")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("file/under", "Not a directory; choose another path: a part of this one is a file"),
        ("n" * 300, "File name too long; choose a shorter path"),
    ],
    ids=["under a file", "long"],
)
def test_a_path_that_cannot_be(name, words, tmp_path):
    (tmp_path / "file").write_text("kept")
    for write in (check_writable, lambda path: write_file(path, b""), lambda path: write_folder(path, {"x": ""})):
        with pytest.raises(FileError, match=words):
            write(tmp_path / name)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["kept"]


def test_errors_are_those_of_files_too():
    with pytest.raises(OSError, match="choose a path that is not a folder") as caught:
        check_writable(Path("/"))
    assert isinstance(caught.value, SteelyardError)


_FULL = """
import resource, sys
from pathlib import Path
from steelyard.errors import FileError
from steelyard.files import write_file, write_folder

resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
folder = Path(sys.argv[1])
for write in (
    lambda: write_file(folder / "old", b"x" * 200),
    lambda: write_folder(folder, {"old": "short", "new": "x" * 200}),
    lambda: write_folder(folder / "a" / "b", {"old": "short", "new": "x" * 200}),
):
    try:
        write()
    except FileError as error:
        print(error)
"""


def test_what_was_there_stays_where_there_is_no_room(tmp_path):
    """A limit on the size of files stands for a full disk."""
    (tmp_path / "old").write_text("old")
    run = subprocess.run([sys.executable, "-c", _FULL, tmp_path], capture_output=True, text=True, check=True)
    assert [line.count("File too large") for line in run.stdout.splitlines()] == [1, 1, 1]
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"old": "old"}
