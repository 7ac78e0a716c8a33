"""Timing in turns, so that what disturbs one piece of work disturbs all."""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

LEAST_CALLS = 3


@dataclass(frozen=True)
class Times:
    """Seconds of one piece of work."""

    best: float
    median: float


def interleave(
    works: Mapping[Any, Callable[[], object]],
    calls: int,
    seconds: float = math.inf,
    clock: Callable[[], float] = time.process_time,
) -> dict[Any, Times]:
    """Time each piece of work in turn, after a first round that is not counted.

    Each is called at most `calls` times. After the first few calls it stops once it has taken `seconds` in total.
    """
    taken: dict[Any, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    for _ in range(calls):
        for name, work in works.items():
            if len(taken[name]) >= LEAST_CALLS and sum(taken[name]) > seconds:
                continue
            start = clock()
            work()
            taken[name].append(clock() - start)
    return {name: Times(min(found), statistics.median(found)) for name, found in taken.items()}


def clock_of(threads: int) -> Callable[[], float]:
    """CPU time of the process for one thread, to which other processes do not add; wall time for more threads."""
    return time.process_time if threads == 1 else time.perf_counter


def median_seconds(work: Callable[[], object], repeats: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """The median time of a few runs."""
    times = []
    for _ in range(repeats):
        start = clock()
        work()
        times.append(clock() - start)
    return statistics.median(times)
