"""Runs `steelyard-opt` on the mutants of a seed: `python run_mutants.py SEED COUNT` fails at the first bad answer.

This runs in its own process, without torch: each mutant costs two forks, which are cheap in a small process.
"""

import sys

import mutate

# Loaded before the forks, so that each mutant costs milliseconds.
import steelyard.tools.opt.driver  # noqa: F401


def check_mutants(seed: int, count: int) -> None:
    exit_codes = dict.fromkeys((0, 1, 2), 0)
    for text, pipeline in mutate.mutants(seed, count):
        outcome = mutate.run(text, pipeline)
        if not outcome.is_graceful:
            sys.exit(f"{outcome.how} with pipeline {pipeline!r} on {text!r}\n{outcome.stderr}")
        exit_codes[outcome.exit_code] += 1
    # Right texts test the passes, wrong ones the diagnostics: both must be there.
    if exit_codes[0] <= count / 8 or exit_codes[1] <= count / 4:
        sys.exit(f"too few mutants are right, or too few are wrong: {exit_codes}")


if __name__ == "__main__":
    check_mutants(int(sys.argv[1]), int(sys.argv[2]))
