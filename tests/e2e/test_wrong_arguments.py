"""Random calls of the whole API with wrong arguments: each works, or raises an error that a check raises on purpose."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from steelyard.errors import ConstraintError, InternalError

SCRIPT = Path(__file__).with_name("run_wrong_calls.py")


def _answers(seed: int, count: int, seconds: int) -> str:
    """What the calls of a seed print, in a process of their own: a crash or a hang is a bad answer, too."""
    command = [sys.executable, str(SCRIPT), str(seed), str(count)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment)
    last = "\n".join(line for line in done.stderr.splitlines() if line.startswith("at "))[-300:]
    assert done.returncode == 0, f"exit code {done.returncode} after:\n{last}\n{done.stderr[-2000:]}"
    return done.stdout


def test_wrong_arguments_are_refused_by_checks():
    assert _answers(0, 600, 300) == "0 bad answers of 600\n"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 3))
def test_many_wrong_arguments_are_refused_by_checks(seed):
    assert _answers(seed, 5000, 1800) == "0 bad answers of 5000\n"


def _raised_by(function) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def _check() -> None:
    raise ConstraintError("copy_kind", "x must be a copy, got 3")


@pytest.mark.parametrize(
    ("function", "is_bad"),
    [
        (_check, False),
        (lambda: {}["missing"], True),
        (lambda: [][3], True),
        (lambda: None.shape, True),
        (lambda: len(3), True),
        (partial(_check, 3), False),
        (lambda: exec("raise InternalError('a bug')", {"InternalError": InternalError}), True),
        (lambda: exec("assert False, 'no'"), True),
    ],
)
def test_the_judge_tells_checks_from_accidents(function, is_bad):
    from run_wrong_calls import what_is_wrong

    assert bool(what_is_wrong(_raised_by(function))) == is_bad
