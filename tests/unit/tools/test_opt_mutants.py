"""Whatever text `steelyard-opt` gets, it answers: no signal, no traceback, no hang."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import mutate

# Loaded before the forks, so that each mutant costs milliseconds.
import steelyard.tools.opt.driver  # noqa: F401


def check_mutants(seed: int, count: int) -> None:
    exit_codes = dict.fromkeys((0, 1, 2), 0)
    for text, pipeline in mutate.mutants(seed, count):
        outcome = mutate.run(text, pipeline)
        assert outcome.is_graceful, f"{outcome.how} with pipeline {pipeline!r} on {text!r}\n{outcome.stderr}"
        exit_codes[outcome.exit_code] += 1
    # Passes run only on what parses and verifies, and only what does not tests the diagnostics.
    assert exit_codes[0] > count / 8
    assert exit_codes[1] > count / 4


def test_some_mutants():
    check_mutants(seed=1, count=150)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 10))
def test_many_mutants(seed):
    check_mutants(seed, count=400)
