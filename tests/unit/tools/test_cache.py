"""`steelyard cache`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from steelyard.cache_folder import CacheFolder
from steelyard.tools import cli

KEYS = [digit * 64 for digit in "ab"]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("STEELYARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("STEELYARD_CACHE_SIZE", "1M")
    return tmp_path / "cache"


@pytest.fixture
def filled(folder, monkeypatch) -> Path:
    """Two programs of 974 and 2998 bytes, with the signature of 50 bytes each 1024 and 3048."""
    cache = CacheFolder(folder, 2**20)
    for key, size, used in zip(KEYS, (974, 2998), (86_400, 1_000_000_000), strict=True):
        cache.write(key, bytes(size))
        os.utime(folder / f"{key}.program", (used, used))
    monkeypatch.setenv("TZ", "UTC")
    return folder


def run(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "steelyard.tools.cli", "cache", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [(), ("show",)])
def test_show(arguments, filled):
    ended = run(*arguments)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == [
        f"folder    {filled}",
        "programs  2",
        "size      4.0 KiB of 1.0 MiB",
        "used      from 1970-01-02 00:00:00+00:00 to 2001-09-09 01:46:40+00:00",
    ]


def test_show_as_json(filled):
    assert json.loads(run("--json").stdout) == {
        "folder": str(filled),
        "programs": 2,
        "bytes": 1024 + 3048,
        "limit": 2**20,
        "oldest_use": "1970-01-02 00:00:00+00:00",
        "newest_use": "2001-09-09 01:46:40+00:00",
        "problem": None,
    }


def test_clear(filled, capsys):
    (filled / "of another").write_text("")
    assert cli.main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == f"removed 2 programs, 4.0 KiB, from {filled}\n"
    assert [path.name for path in filled.iterdir()] == ["of another"]
    assert cli.main(["cache", "clear", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"folder": str(filled), "programs": 0, "bytes": 0}


def test_one_program(filled, capsys):
    (filled / f"{KEYS[1]}.program").unlink()
    assert cli.main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == f"removed 1 program, 1.0 KiB, from {filled}\n"


def test_a_folder_that_is_not_there(folder, capsys):
    assert cli.main(["cache"]) == 0
    assert capsys.readouterr().out == f"folder    {folder}\nprograms  0\nsize      0 bytes of 1.0 MiB\n"
    assert cli.main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == f"removed 0 programs, 0 bytes, from {folder}\n"
    assert not folder.exists()


def test_a_folder_that_is_not_used(filled, capsys):
    filled.chmod(0o777)
    assert cli.main(["cache"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(f"problem   the cache folder '{filled}' is not used, because only its owner may write it")


def test_a_cache_that_is_off(monkeypatch, capsys):
    monkeypatch.setenv("STEELYARD_CACHE", "off")
    for action in ("show", "clear"):
        assert cli.main(["cache", action]) == 0
        assert capsys.readouterr().out == "the disk cache is off: STEELYARD_CACHE says so\n"
        assert cli.main(["cache", action, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"folder": None}


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        (
            {"STEELYARD_CACHE_SIZE": "big"},
            "STEELYARD_CACHE_SIZE must be a number of bytes, as in 512M or 2G, got 'big'",
        ),
        ({"STEELYARD_CACHE": os.devnull}, "cannot use '/dev/null': Not a directory; "),
    ],
)
def test_mistakes_get_one_line(variables, words, folder, monkeypatch, capsys):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["cache"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"steelyard cache: error: {words}")


def test_torch_is_not_imported(filled):
    script = "import sys; from steelyard.tools import cli; cli.main(['cache', 'clear']); print('torch' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "False"
