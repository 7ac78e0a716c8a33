"""Whatever text `steelyard-opt` gets, it answers: no signal, no traceback, no hang."""

import subprocess
import sys
from pathlib import Path

import pytest


def check_mutants(seed: int, count: int) -> None:
    script = Path(__file__).with_name("run_mutants.py")
    run = subprocess.run([sys.executable, script, str(seed), str(count)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_some_mutants():
    check_mutants(seed=1, count=150)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_mutants(seed):
    check_mutants(seed, count=2000)


def test_a_worker_that_dies_is_a_bad_answer():
    script = (
        "import os, signal, run_mutants\n"
        "run_mutants.driver.run = lambda *_: os.kill(os.getpid(), signal.SIGSEGV)\n"
        "print(run_mutants.run_worker([(b'', '')]))\n"
    )
    folder = Path(__file__).parent
    run = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=True)
    assert run.stdout == "[(70, 'died of signal 11')]\n"
