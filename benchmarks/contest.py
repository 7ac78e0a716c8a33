"""Contenders that do the same work, timed in turns in one process."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from machine import pinned
from report import Table, progress

LEAST_CALLS = 3
ONLY: list[str] = []
"""Where not empty: words, one of which the name of a contender must hold; a baseline always runs."""
COLUMNS = ["work", "threads", "contender", "best ms", "median ms", "speed", "speed, best", "error", "held MB"]


@dataclass(frozen=True)
class Contender:
    """Something that does the work, and the bytes of weights that it holds."""

    run: Callable[[], Any]
    held: int = 0


@dataclass(frozen=True)
class Absent:
    """A contender that cannot run here, and why."""

    word: str
    reason: str


Maker = Callable[[], Contender]


def contest_table(title: str, baseline: str) -> Table:
    """A table whose rows `compete` adds; speeds are those of the baseline = 1."""
    table = Table(title, COLUMNS, labels=["work", "threads", "contender"], ratio="speed")
    table.notes = [
        f"speed: time of {baseline} / time, by medians and by the best calls; above 1 is faster than {baseline}.",
        "1 thread: CPU time of the process, which others on the machine do not add to; more threads: time on the wall.",
        f"error: of the output, relative to {baseline}'s. held: weights in memory.",
    ]
    return table


def compete(table: Table, work: str, threads: int, makers: Mapping[str, Maker], calls: int, seconds: float) -> None:
    """A row a contender; the first is the baseline. None is called more than `calls` times or much over `seconds`."""
    baseline_name = next(iter(makers))
    if ONLY:
        makers = {n: make for n, make in makers.items() if n == baseline_name or any(word in n for word in ONLY)}
    with pinned(threads), torch.no_grad():
        contenders: dict[str, Contender | Absent] = {}
        errors: dict[str, float] = {}
        expected = None
        for name, make in makers.items():
            progress(f"{work}, {threads} threads: preparing {name}")
            contenders[name], output = _prepare(make)
            expected = output if expected is None else expected
            if output is not None:
                errors[name] = relative_error(output, expected)
        progress(f"{work}, {threads} threads: timing")
        running = {name: c.run for name, c in contenders.items() if isinstance(c, Contender)}
        times = interleave(running, calls, seconds, clock_of(threads))
    progress("")
    baseline = times[baseline_name]
    for name, contender in contenders.items():
        if isinstance(contender, Absent):
            table.rows.append([work, str(threads), name, contender.word, *[""] * 5])
            note = f"{name} {contender.word}: {contender.reason}"
            table.notes += [] if note in table.notes else [note]
            continue
        best, median = min(times[name]), statistics.median(times[name])
        speeds = [statistics.median(baseline) / median, min(baseline) / best]
        held = contender.held / 1e6 if contender.held else ""
        table.rows.append([work, str(threads), name, best * 1e3, median * 1e3, *speeds, errors[name], held])


def _prepare(make: Maker) -> tuple[Contender | Absent, torch.Tensor | None]:
    """A contender after its first call, which may compile, and what that returned."""
    try:
        contender = make()
        return contender, contender.run()
    except ImportError as error:
        return Absent("missing", f"{error}; pip install 'steelyard[bench]'"), None
    except Exception as error:
        # Peers fail in many ways on a machine that they were not made for: each is a result.
        reason = (str(error).strip().splitlines() or [""])[0]
        return Absent("fails", f"{type(error).__name__}: {reason[:120]}"), None


def clock_of(threads: int) -> Callable[[], float]:
    """For one thread the CPU time of the process, which others on the machine do not add to; for more the wall's."""
    return time.process_time if threads == 1 else time.perf_counter


def interleave(
    works: Mapping[str, Callable[[], Any]], calls: int, seconds: float, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """The times of each, taken in turns so that what disturbs one disturbs all."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(calls):
        for name, work in works.items():
            taken = times[name]
            if len(taken) >= LEAST_CALLS and sum(taken) > seconds:
                continue
            start = clock()
            work()
            taken.append(clock() - start)
    return times


def relative_error(output: torch.Tensor, expected: torch.Tensor) -> float:
    """Of the whole tensor, by the Frobenius norm."""
    difference = output.detach().float().flatten() - expected.detach().float().flatten()
    return (difference.norm() / expected.float().norm()).item()
