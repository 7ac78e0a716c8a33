"""The command `steelyard` where something is wrong: one line says what, and there is no traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from steelyard.tools import cli, targets

COMMANDS = [["steelyard.tools.cli", "targets"], ["steelyard.tools.cli", "--version"], ["steelyard.tools.cli", "--help"]]


def run(command: list[str], **keywords) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", *command], stderr=subprocess.PIPE, text=True, check=False, **keywords)


@pytest.mark.parametrize("command", [*COMMANDS, ["steelyard.tools.opt", "--version"]])
def test_a_full_disk(command):
    with Path("/dev/full").open("w") as full:
        ended = run(command, stdout=full)
    assert ended.returncode == (1 if "opt" in command[0] else 2)
    (line,) = ended.stderr.splitlines()
    assert line.endswith("error: cannot write standard output: No space left on device")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_closed_pipe(command):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        ended = run(command, stdout=closed)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.endswith("error: cannot write standard output: Broken pipe")


@pytest.mark.parametrize("variable", ["TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"])
def test_torch_that_must_not_compile(variable, tmp_path):
    Path(tmp_path, "tiny.py").write_text("import torch\n\n\ndef make():\n    return torch.nn.Linear(32, 16)\n")
    command = ["steelyard.tools.cli", "inspect", "tiny:make", "--input", "4x32"]
    environment = {**os.environ, variable: "1", "PYTHONPATH": str(tmp_path)}
    ended = run(command, stdout=subprocess.PIPE, env=environment, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("steelyard inspect: error: torch.compile must be enabled, and")


def test_an_interrupt_gets_one_line(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(targets, "table", interrupted)
    assert cli.main(["targets"]) == 130
    assert capsys.readouterr().err == "steelyard: interrupted\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["targets", "--recipe", "fp9"], "steelyard targets: error: recipe must be"),
        (["targets", "--target", "sm_70"], "steelyard targets: error: a CUDA target must be one of"),
    ],
)
def test_mistakes_get_one_line(arguments, words, capsys):
    assert cli.main(arguments) == 1
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
