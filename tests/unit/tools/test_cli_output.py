"""The commands where their output cannot be written, or torch must not compile: one line, and no traceback."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
