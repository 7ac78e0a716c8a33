"""Contenders that do the same work, timed in turns in one process."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from machine import pinned
from report import SPEED, SPEED_BEST, Table, progress
from timing import clock_of, interleave

ONLY: list[str] = []
"""If not empty, only contenders whose name contains one of these words run; a baseline always runs."""
COLUMNS = ["work", "threads", "contender", "best ms", "median ms", SPEED, SPEED_BEST, "aim", "error", "held MB"]


@dataclass(frozen=True)
class Contender:
    """Something that does the work and returns its result, and the bytes that it holds to do so."""

    run: Callable[[], Any]
    held: int = 0


@dataclass(frozen=True)
class Absent:
    """A contender that cannot run here, and why."""

    word: str
    reason: str


Maker = Callable[[], Contender]


def is_wanted(contender: str) -> bool:
    """Whether a contender runs."""
    return not ONLY or any(word in contender for word in ONLY)


def contest_table(title: str, baseline: str, held: str = "weights in memory") -> Table:
    """A table whose rows `compete` adds; the baseline has speed 1."""
    table = Table(title, COLUMNS, labels=["work", "threads", "contender"], ratio=SPEED)
    table.notes = [
        f"speed: time of {baseline} / time, by medians and by the best calls; above 1 is faster than {baseline}.",
        "1 thread: CPU time of the process, to which other processes do not add. More threads: wall time.",
        f"error: relative error of the output against {baseline}. held: {held}.",
    ]
    return table


def compete(
    table: Table,
    work: str,
    threads: int,
    makers: Mapping[str, Maker],
    *,
    calls: int,
    seconds: float,
    aims: Mapping[str, float] | None = None,
    gradients: bool = False,
) -> None:
    """One row per contender; the first is the baseline. Each is called at most `calls` times, for about `seconds`."""
    baseline_name = next(iter(makers))
    makers = {name: make for name, make in makers.items() if name == baseline_name or is_wanted(name)}
    with pinned(threads), torch.set_grad_enabled(gradients):
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
            table.rows.append([work, str(threads), name, contender.word, *[""] * 6])
            note = f"{name} {contender.word}: {contender.reason}"
            table.notes += [] if note in table.notes else [note]
            continue
        own = times[name]
        speeds = [baseline.median / own.median, baseline.best / own.best]
        held = contender.held / 1e6 if contender.held else ""
        aim = (aims or {}).get(name, "")
        head = [work, str(threads), name, own.best * 1e3, own.median * 1e3]
        table.rows.append([*head, *speeds, aim, errors[name], held])


def _prepare(make: Maker) -> tuple[Contender | Absent, torch.Tensor | None]:
    """A contender after its first call, which may compile, and what that returned."""
    try:
        contender = make()
        return contender, contender.run()
    except ImportError as error:
        return Absent("missing", f"{error}; pip install 'steelyard[bench]'"), None
    except Exception as error:
        # Peers fail in many ways on machines that they were not made for: a failure is a result.
        reason = (str(error).strip().splitlines() or [""])[0]
        return Absent("fails", f"{type(error).__name__}: {reason[:120]}"), None


def relative_error(output: torch.Tensor, expected: torch.Tensor) -> float:
    """The relative error of a whole tensor, by the Frobenius norm."""
    difference = output.detach().float().flatten() - expected.detach().float().flatten()
    return (difference.norm() / expected.float().norm()).item()
