"""Whatever is wrong with a checkpoint, it is refused with an error that says so, or loads to what its files mean."""

import subprocess
import sys
from pathlib import Path

import pytest


def check_mutants(seed: int, count: int) -> None:
    script = Path(__file__).with_name("fuzz_checkpoints.py")
    run = subprocess.run([sys.executable, script, str(seed), str(count)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_some_mutants():
    check_mutants(seed=1, count=25)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
def test_many_mutants(seed):
    check_mutants(seed, count=500)
