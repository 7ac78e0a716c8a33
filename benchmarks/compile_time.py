"""How long the first call of a Llama takes, by its depth, and what its repeated blocks cost in later calls.

Each first call runs in a process of its own: with an empty cache of programs, and again with what that left in it.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from contest import is_wanted
from first_call import CONTENDERS, TOKENS, forward, make_model, training_step
from machine import pinned
from report import Table, progress
from timing import Times, interleave

SCRIPT = Path(__file__).parent / "first_call.py"
BLOCKS, WHOLE, EAGER, INDUCTOR = CONTENDERS
FORWARD, TRAINING = "forward", "training step"
EMPTY, FULL, GROWTH = "first call, empty cache", "first call, full cache", "growth per layer"
DEEPEST = 30
SPEEDS = ["speed, blocks=False is 1", "speed, best"]
# Seconds for the deepest model.
AIMS = {(FORWARD, EMPTY): 6.0, (FORWARD, FULL): 3.0, (FORWARD, GROWTH): 0.040, (TRAINING, EMPTY): 12.0}

Measured = dict[tuple[str, str, str, str], Times]
"""By work, what of it, number of layers and contender."""


def measure(quick: bool = False) -> Table:
    """One row per work, depth and contender."""
    depths = (2, 8) if quick else (2, 8, DEEPEST)
    contenders = (BLOCKS, WHOLE, EAGER) if quick else CONTENDERS
    # The two that are compared always run.
    contenders = [name for name in contenders if name in (BLOCKS, WHOLE) or is_wanted(name)]
    measured: Measured = {}
    with pinned(1):
        for depth in depths:
            for contender in contenders:
                repeats = 2 if contender in (BLOCKS, WHOLE) and not quick else 1
                _add_first_calls(measured, depth, contender, repeats)
        _add_growth(measured, *depths[-2:])
        _add_later_calls(measured, quick)
    progress("")
    columns = ["work", "layers", "contender", "best s", "median s", "aim s", *SPEEDS]
    table = Table("The first call of a Llama, and later calls, 1 thread", columns, labels=columns[:3])
    # Python keeps the order of equals: depths and contenders as they were measured.
    for key in sorted(measured, key=lambda key: (key[0] != FORWARD, key[1])):
        table.rows.append(_row(key, measured))
    table.notes = [
        "first call: wall time in a process of its own, with libraries imported and the model built.",
        "empty cache: STEELYARD_CACHE is an empty folder. full cache: it is what a first call left in it.",
        "growth per layer: of the first call with an empty cache.",
        "later calls: CPU time, in turns in one process, by nets that share a model and return equal bits.",
        "speed: time with blocks=False / time, by medians and by the best calls; above 1 is faster.",
        "Later calls aim at a speed of 1.",
        f"steelyard is mxfp8. The Llama is 576 wide, its MLP 1536, with 9 heads, 3 of them for keys; {TOKENS} tokens.",
    ]
    if quick:
        table.notes.append("Quick: without inductor.")
    return table


def _add_first_calls(measured: Measured, depth: int, contender: str, repeats: int) -> None:
    states = (EMPTY, FULL) if contender in (BLOCKS, WHOLE) else (EMPTY,)
    # Inductor takes minutes to compile a deep training step.
    works = (FORWARD,) if contender == INDUCTOR else (FORWARD, TRAINING)
    seconds: dict[tuple[str, str], list[float]] = {(work, state): [] for work in works for state in states}
    for _ in range(repeats):
        for work in works:
            with tempfile.TemporaryDirectory() as cache:
                for state in states:
                    progress(f"{work}, {depth} layers, {contender}: {state}")
                    seconds[work, state].append(_first_call(work, depth, contender, cache))
    for (work, state), found in seconds.items():
        measured[work, state, str(depth), contender] = Times(min(found), statistics.median(found))


def _first_call(work: str, depth: int, contender: str, cache: str) -> float:
    command = [sys.executable, str(SCRIPT), work, str(depth), contender]
    with tempfile.TemporaryDirectory() as folder:
        # Inductor, too, caches on disk what it has compiled.
        caches = {"STEELYARD_CACHE": cache, "TORCHINDUCTOR_CACHE_DIR": folder}
        variables = os.environ | caches | {"OMP_NUM_THREADS": "1", "STEELYARD_PROGRESS": "0"}
        done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout)


def _add_growth(measured: Measured, few: int, many: int) -> None:
    for work, state, layers, contender in list(measured):
        if state != EMPTY or layers != str(many) or contender == EAGER:
            continue
        less, more = (measured[work, state, str(depth), contender] for depth in (few, many))
        growth = Times((more.best - less.best) / (many - few), (more.median - less.median) / (many - few))
        measured[work, GROWTH, f"{few} to {many}", contender] = growth


def _add_later_calls(measured: Measured, quick: bool) -> None:
    layers = 8 if quick else DEEPEST
    shallower = 4 if quick else 12
    _compare(measured, (FORWARD, "later calls, 1 token"), layers, lambda net: forward(net, tokens=1), quick)
    _compare(measured, (FORWARD, f"later calls, {TOKENS} tokens"), layers, forward, quick)
    _compare(measured, (TRAINING, "later calls"), shallower, training_step, quick)


def _compare(
    measured: Measured, work: tuple[str, str], layers: int, call: Callable[[Any], torch.Tensor], quick: bool
) -> None:
    progress(f"{', '.join(work)}, {layers} layers")
    torch._dynamo.reset()
    model = make_model(layers)
    nets = {contender: CONTENDERS[contender](model) for contender in (BLOCKS, WHOLE)}
    results = [call(net).clone() for net in nets.values()]
    if not torch.equal(*results):
        raise AssertionError(f"{', '.join(work)}: blocks changed the result")
    works = {contender: lambda net=net: call(net) for contender, net in nets.items()}
    for contender, times in interleave(works, calls=20 if quick else 100, seconds=2.0 if quick else 15.0).items():
        measured[*work, str(layers), contender] = times


def _row(key: tuple[str, str, str, str], measured: Measured) -> list[str | float]:
    work, part, layers, contender = key
    times, whole = measured[key], measured.get((work, part, layers, WHOLE))
    is_aimed = contender == BLOCKS and layers.endswith(str(DEEPEST))
    aim = AIMS.get((work, part), "") if is_aimed else ""
    speeds = ["", ""] if whole is None else [whole.median / times.median, whole.best / times.best]
    return [f"{work}, {part}", layers, contender, times.best, times.median, aim, *speeds]
