"""The disk cache's folder: what is not this user's is never read, and nothing that can go wrong is an error."""

import hashlib
import hmac
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from steelyard import cache_folder, knobs
from steelyard.cache_folder import CacheFolder, find_cache, parse_size
from steelyard.errors import FileError, SteelyardError

KEY, OTHER = "a" * 64, "b" * 64
MAGIC = b"steelyard cache 1\n"
LARGE = 2**20


@pytest.fixture
def folder(tmp_path):
    return CacheFolder(tmp_path / "deep" / "cache", LARGE)


def path_of(folder: CacheFolder, key: str = KEY) -> Path:
    return folder.path / f"{key}.program"


def names(folder: CacheFolder) -> set[str]:
    return {path.name for path in folder.path.iterdir()}


def test_what_is_written_is_read(folder):
    assert folder.read(KEY) is None
    folder.write(KEY, b"data")
    folder.write(OTHER, b"")
    assert (folder.read(KEY), folder.read(OTHER), folder.read("c" * 64)) == (b"data", b"", None)
    folder.write(KEY, b"new")
    assert folder.read(KEY) == b"new"


def test_a_file_is_signed_with_its_name_and_only_the_user_may_read_it(folder):
    previous = os.umask(0o002)
    try:
        folder.write(KEY, b"data")
    finally:
        os.umask(previous)
    assert names(folder) == {f"{KEY}.program", "steelyard-secret"}
    assert {oct(path.stat().st_mode & 0o777) for path in folder.path.iterdir()} == {"0o600"}
    assert folder.path.stat().st_mode & 0o777 == 0o700
    secret = (folder.path / "steelyard-secret").read_bytes()
    signature = hmac.new(secret, MAGIC + KEY.encode() + b"data", hashlib.sha256).digest()
    assert path_of(folder).read_bytes() == MAGIC + signature + b"data"
    assert len(secret) == 32


def test_every_folder_has_a_secret_of_its_own(tmp_path):
    folders = [CacheFolder(tmp_path / name, LARGE) for name in "ab"]
    for folder in folders:
        folder.write(KEY, b"data")
    path_of(folders[0]).replace(path_of(folders[1]))
    with pytest.raises(FileError, match="it is damaged, or no process of this user wrote it here"):
        folders[1].read(KEY)


def test_no_changed_byte_goes_unnoticed(folder):
    folder.write(KEY, b"data")
    whole = path_of(folder).read_bytes()
    damaged = [whole[:i] for i in range(len(whole))]
    damaged += [whole[:i] + bytes([whole[i] ^ 1 << i % 8]) + whole[i + 1 :] for i in range(len(whole))]
    damaged += [whole + b"\0", os.urandom(100)]
    for data in damaged:
        path_of(folder).write_bytes(data)
        with pytest.raises(FileError, match=f"{KEY}.program' of the cache is ignored, because it is damaged") as caught:
            folder.read(KEY)
        assert str(caught.value).endswith("; `steelyard cache clear` removes it")
    # Writing mends it.
    folder.write(KEY, b"data")
    assert folder.read(KEY) == b"data"


def test_a_file_under_another_name_is_refused(folder):
    folder.write(KEY, b"data")
    path_of(folder).replace(path_of(folder, OTHER))
    with pytest.raises(FileError, match="it is damaged, or no process"):
        folder.read(OTHER)


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (replace_by_folder, "it is not a file"),
        (replace_by_link, "it cannot be read: Too many levels of symbolic links"),
        (replace_by_pipe, "it is not a file"),
        (lambda path: path.chmod(0o620), "only its owner may write it, and its mode is 0620"),
        (lambda path: path.chmod(0o602), "only its owner may write it, and its mode is 0602"),
    ],
    ids=["folder", "link", "pipe", "group writes", "all write"],
)
def test_what_others_may_have_written_is_refused(folder, spoil, why):
    folder.write(KEY, b"data")
    spoil(path_of(folder))
    with pytest.raises(FileError, match=why):
        folder.read(KEY)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_or_folder_of_another_user_is_refused(folder):
    folder.write(KEY, b"data")
    os.chown(path_of(folder), 12345, -1)
    with pytest.raises(FileError, match="its owner must be user 0, and is user 12345; `steelyard cache clear`"):
        folder.read(KEY)
    os.chown(folder.path, 12345, -1)
    for use in (lambda: folder.read(KEY), lambda: folder.write(KEY, b"data")):
        with pytest.raises(FileError, match=r"is not used, because its owner must be user 0, and is .*; set "):
            use()


def test_a_folder_that_others_write_is_refused(folder):
    folder.write(KEY, b"data")
    folder.path.chmod(0o777)
    for use in (lambda: folder.read(KEY), lambda: folder.write(KEY, b"data")):
        with pytest.raises(FileError, match=r"is not used, because only its owner may write it, and .* 0777; set"):
            use()
    folder.path.chmod(0o755)
    assert folder.read(KEY) == b"data"


def test_a_link_to_the_folder_is_followed(folder, tmp_path):
    folder.write(KEY, b"data")
    (tmp_path / "link").symlink_to(folder.path)
    assert CacheFolder(tmp_path / "link", LARGE).read(KEY) == b"data"


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: path.unlink(), "the file 'steelyard-secret' that it was signed with is gone"),
        (lambda path: path.write_bytes(b""), "steelyard-secret' of the cache is ignored, because it is damaged"),
        (lambda path: path.write_bytes(b"\0" * 32), "it is damaged, or no process of this user"),
        (lambda path: path.chmod(0o640), "only its owner may read or write it, and its mode is 0640"),
    ],
    ids=["gone", "empty", "other", "readable"],
)
def test_without_its_secret_a_folder_is_unreadable_until_it_is_cleared(folder, spoil, why):
    folder.write(KEY, b"data")
    spoil(folder.path / "steelyard-secret")
    with pytest.raises(FileError, match=why):
        folder.read(KEY)
    folder.clear()
    folder.write(KEY, b"data")
    assert folder.read(KEY) == b"data"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("file", "is not used, because it is not a folder; set STEELYARD_CACHE to another folder, or to off"),
        ("file/cache", "Not a directory; set STEELYARD_CACHE to another folder, or to off"),
        ("n" * 300, "File name too long; set STEELYARD_CACHE"),
        ("/proc/cache", "No such file or directory; set STEELYARD_CACHE"),
    ],
    ids=["file", "below a file", "long", "not a disk"],
)
def test_a_folder_that_cannot_be_written(tmp_path, path, why):
    (tmp_path / "file").write_text("")
    folder = CacheFolder(tmp_path / path, LARGE)
    if path != "file":
        assert folder.read(KEY) is None
    with pytest.raises(FileError, match=why):
        folder.write(KEY, b"data")


_READ_ONLY = """
import os, sys
from pathlib import Path
from steelyard.cache_folder import CacheFolder

folder = CacheFolder(Path(sys.argv[1]), 2**20)
# Root writes everywhere.
if os.geteuid() == 0:
    os.setuid(65534)
folder.write("a" * 64, b"data")
folder.path.chmod(0o555)
print(folder.read("a" * 64))
folder.write("b" * 64, b"data")
"""


def test_a_folder_that_is_only_read():
    with tempfile.TemporaryDirectory() as parent:
        Path(parent).chmod(0o777)
        command = [sys.executable, "-c", _READ_ONLY, f"{parent}/cache"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.stdout == "b'data'\n"
        last = ran.stderr.splitlines()[-1]
        assert f"programs cannot be kept in the cache folder '{parent}/cache': Permission denied; set" in last
        Path(parent, "cache").chmod(0o700)


def test_a_full_disk_leaves_nothing_behind(folder):
    folder.write(KEY, b"old")
    script = "import resource, sys\nfrom pathlib import Path\nfrom steelyard.cache_folder import CacheFolder\n"
    # No file of this process may become larger than this, which is how a quota is felt.
    script += "import signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    script += "resource.setrlimit(resource.RLIMIT_FSIZE, (10000, 10000))\n"
    script += f"CacheFolder(Path(sys.argv[1]), {LARGE}).write('{KEY}', b'data' * 10000)"
    ran = subprocess.run([sys.executable, "-c", script, folder.path], capture_output=True, text=True, check=False)
    assert f"programs cannot be kept in the cache folder '{folder.path}': File too large; set" in ran.stderr
    assert names(folder) == {f"{KEY}.program", "steelyard-secret"}
    assert folder.read(KEY) == b"old"


def use_at(folder: CacheFolder, key: str, seconds: int) -> None:
    os.utime(path_of(folder, key), (seconds, seconds))


def test_what_was_not_used_for_longest_is_removed(tmp_path):
    # Each file has 50 bytes of signature.
    folder = CacheFolder(tmp_path, 4000)
    keys = [digit * 64 for digit in "01234567"]
    for second, key in enumerate(keys[:3]):
        folder.write(key, bytes(950))
        use_at(folder, key, second)
    assert len(folder.files()) == 3
    # Reading is a use.
    assert folder.read(keys[0]) is not None
    folder.write(keys[3], bytes(950))
    use_at(folder, keys[3], 3)
    (tmp_path / "of another").write_bytes(bytes(5000))
    folder.write(keys[4], bytes(950))
    # Down to three quarters, so that the next write does not remove again.
    assert {file.path.name[0] for file in folder.files()} == {"0", "3", "4"}
    assert (tmp_path / "of another").exists()


def test_files_are_not_counted_at_every_write(folder, monkeypatch):
    counts = []
    files = CacheFolder.files
    monkeypatch.setattr(CacheFolder, "files", lambda self: counts.append(1) or files(self))
    for i in range(100):
        folder.write(f"{i:064x}", bytes(100))
    assert len(counts) == 1
    for i in range(100, 150):
        folder.write(f"{i:064x}", bytes(LARGE // 20))
    assert len(counts) > 1
    assert sum(file.size for file in files(folder)) <= LARGE


def test_a_program_larger_than_the_cache(tmp_path):
    folder = CacheFolder(tmp_path, 100)
    with pytest.raises(FileError, match="a program has more than the 100 bytes of STEELYARD_CACHE_SIZE; raise it"):
        folder.write(KEY, bytes(100))
    assert folder.files() == []


def test_clear_removes_its_own_files_only(folder):
    folder.write(KEY, b"data")
    folder.write(OTHER, b"more data")
    abandoned = folder.path / ".steelyard-abc_1234"
    abandoned.write_bytes(b"left by a process that was killed")
    os.utime(abandoned, (0, 0))
    # The last but one is just being written by another process.
    others = ["notes.program", f"{KEY}.program.txt", "A" * 64 + ".program", ".steelyard", ".steelyard-xyz_5678", "deep"]
    for name in others[:-1]:
        (folder.path / name).write_text("")
    (folder.path / "deep").mkdir()
    (folder.path / "deep" / f"{KEY}.program").write_text("")
    (folder.path / f"{'c' * 64}.program").mkdir()
    removed = folder.clear()
    assert {file.path.name for file in removed} == {f"{KEY}.program", f"{OTHER}.program", ".steelyard-abc_1234"}
    assert sum(file.size for file in removed if file.is_program) == 50 + 4 + 50 + 9
    assert names(folder) == {*others, f"{'c' * 64}.program"}
    assert (folder.path / "deep" / f"{KEY}.program").exists()
    assert folder.clear() == []


def test_a_folder_that_is_not_there_is_empty(folder):
    assert (folder.files(), folder.clear()) == ([], [])
    assert not folder.path.exists()


_STORM = """
import random, sys
from pathlib import Path
from steelyard.cache_folder import CacheFolder

folder, chance = CacheFolder(Path(sys.argv[1]), 30_000), random.Random(sys.argv[2])
found = 0
for _ in range(1500):
    number = chance.randrange(40)
    key = f"{number:064x}"
    if chance.random() < 0.4:
        folder.write(key, bytes([number]) * 1500)
    else:
        data = folder.read(key)
        assert data in (None, bytes([number]) * 1500)
        found += data is not None
print(found)
"""


def test_processes_that_write_read_and_remove_at_once(folder):
    command = [sys.executable, "-c", _STORM, str(folder.path)]
    running = [subprocess.Popen([*command, str(i)], stdout=-1, stderr=-1, text=True) for i in range(3)]
    for process in running:
        out, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (0, "")
        assert int(out) > 100
    assert all(file.is_program for file in folder.files())


def test_a_forked_child_does_not_wait_for_a_thread_that_it_does_not_have(folder):
    with cache_folder._lock:
        child = os.fork()
        if child == 0:
            try:
                folder.write(KEY, b"data")
            finally:
                os._exit(0)
        os.waitpid(child, 0)
    assert folder.read(KEY) == b"data"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "/home/me/.cache/steelyard"),
        ({"XDG_CACHE_HOME": "/caches"}, "/caches/steelyard"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/steelyard"),
        ({"XDG_CACHE_HOME": "/caches", "STEELYARD_CACHE": "~/mine"}, "/home/me/mine"),
        ({"STEELYARD_CACHE": "on"}, "/home/me/.cache/steelyard"),
        ({"STEELYARD_CACHE": "1"}, "/home/me/.cache/steelyard"),
        ({"STEELYARD_CACHE": ""}, "/home/me/.cache/steelyard"),
        ({"STEELYARD_CACHE": "here"}, str(Path.cwd() / "here")),
        ({"STEELYARD_CACHE": "0"}, None),
        ({"STEELYARD_CACHE": "off"}, None),
        ({"STEELYARD_CACHE": "OFF"}, None),
    ],
)
def test_where_the_cache_is(variables, expected, monkeypatch):
    for name in ("XDG_CACHE_HOME", "STEELYARD_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"HOME": "/home/me"} | variables).items():
        monkeypatch.setenv(name, value)
    found = find_cache()
    assert (found and str(found.path)) == expected


def test_a_user_without_a_home(monkeypatch):
    monkeypatch.delenv("STEELYARD_CACHE")
    monkeypatch.setattr(knobs, "user_cache", lambda: "~nobody-of-this-name/.cache")
    with pytest.raises(FileError, match=r"the cache folder cannot be found: .*; set STEELYARD_CACHE to another folder"):
        find_cache()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("512M", 512 * 2**20), ("2g", 2 * 2**30), ("1.5K", 1536), ("100", 100), ("3MiB", 3 * 2**20), ("1TB", 2**40)],
)
def test_sizes(text, expected):
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["much", "-1", "1X", "M", "1e9", "nan", "1 2", "9" * 400])
def test_wrong_sizes(text):
    with pytest.raises(SteelyardError, match="STEELYARD_CACHE_SIZE must be a number of bytes, as in 512M or 2G, got "):
        parse_size(text)
