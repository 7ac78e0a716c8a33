"""The command `steelyard` where something is wrong: one line says what, and there is no traceback."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from steelyard.tools import cli, targets

COMMANDS = [["steelyard.tools.cli", "targets"], ["steelyard.tools.cli", "--version"], ["steelyard.tools.cli", "--help"]]


def run(command: list[str], program: str = "", **keywords) -> subprocess.CompletedProcess:
    start = [program] if program else [sys.executable, "-m"]
    return subprocess.run([*start, *command], stderr=subprocess.PIPE, text=True, check=False, **keywords)


@pytest.fixture
def inspect_tiny(tmp_path):
    """Runs `steelyard inspect` on a small model in a process of its own, with these flags and variables."""
    Path(tmp_path, "tiny.py").write_text("import torch\n\n\ndef make():\n    return torch.nn.Linear(32, 16)\n")

    def inspect(*flags: str, **variables: str) -> subprocess.CompletedProcess:
        command = ["steelyard.tools.cli", "inspect", "tiny:make", "--input", "4x32", *flags]
        return run(command, stdout=subprocess.PIPE, env=os.environ | variables, cwd=tmp_path)

    return inspect


@pytest.mark.parametrize("command", [*COMMANDS, ["steelyard.tools.opt", "--version"]])
def test_a_full_disk(command):
    with Path("/dev/full").open("w") as full:
        ended = run(command, stdout=full)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert "error: cannot write standard output: No space left on device; free some space" in line


@pytest.mark.parametrize("command", COMMANDS)
def test_a_closed_pipe(command):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        ended = run(command, stdout=closed)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert "error: cannot write standard output: Broken pipe; let the program that reads it" in line


@pytest.mark.parametrize("command", [*COMMANDS, ["steelyard.tools.opt", "--version"]])
def test_a_closed_output(command):
    ended = run(["-c", 'exec "$@" >&-', "bash", sys.executable, "-m", *command], program="bash")
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert "error: cannot write standard output: it is closed; open it" in line


@pytest.mark.every(2)
@pytest.mark.parametrize("variable", ["TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"])
def test_torch_that_must_not_compile(variable, inspect_tiny):
    ended = inspect_tiny(**{variable: "1"})
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("steelyard inspect: error: torch.compile must be enabled, and")


@pytest.mark.slow
def test_a_demo_that_must_not_compile():
    environment = os.environ | {"TORCHDYNAMO_DISABLE": "1"}
    ended = run(["steelyard.tools.cli", "demo", "--small"], stdout=subprocess.DEVNULL, env=environment)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith("steelyard demo: error: torch.compile must be enabled, and")


def test_a_cache_folder_that_cannot_be_made(inspect_tiny, tmp_path):
    ended = inspect_tiny(TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "tiny.py" / "cache"))
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("steelyard inspect: error: torch cannot make its cache folder: ")
    assert line.endswith("; set TORCHINDUCTOR_CACHE_DIR to a folder that can be written")


def test_a_current_folder_that_is_gone(tmp_path):
    script = 'cd "$0" && rmdir "$0" && exec "$1" -m steelyard.tools.cli demo'
    (tmp_path / "gone").mkdir()
    ended = run(["-c", script, str(tmp_path / "gone"), sys.executable], program="bash", stdout=subprocess.PIPE)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("steelyard demo: error: the current folder must exist, and is gone")


def test_a_file_of_torch_gets_one_line(monkeypatch, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "/cache/kernel")

    monkeypatch.setattr(targets, "table", full)
    assert cli.main(["targets"]) == 2
    expected = "cannot use '/cache/kernel': No space left on device; free some space, or choose a path on another disk"
    assert capsys.readouterr().err == f"steelyard targets: error: {expected}\n"


def test_an_interrupt_gets_one_line(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(targets, "table", interrupted)
    assert cli.main(["targets"]) == 130
    assert capsys.readouterr().err == "steelyard targets: interrupted\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["targets", "--recipe", "fp9"], "steelyard targets: error: recipe must be"),
        (["targets", "--target", "sm_70"], "steelyard targets: error: a CUDA target must be one of"),
    ],
)
def test_mistakes_get_one_line(arguments, words, capsys):
    assert cli.main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(words)
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["weigh"], ["demo", "more"], ["verify-gpu", "--device"]], ids=" ".join)
def test_wrong_usage_ends_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as exit_info:
        cli.main(arguments)
    assert exit_info.value.code == 2
    assert "Traceback" not in capsys.readouterr().err
