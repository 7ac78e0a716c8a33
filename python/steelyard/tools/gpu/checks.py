"""What `steelyard verify-gpu` does with its checks: one after the other, so that none loses the results of the others.

A check may fail, raise, hang or break the GPU's context, and the user may interrupt it. Nothing here knows about GPUs.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"
COMPLETE, INTERRUPTED, HUNG, LOST, UNFINISHED = "complete", "interrupted", "hung", "context lost", "unfinished"
"""How a run ended. Unfinished: its process ended before it did."""
_LONGEST_DETAIL = 500


class CheckFailed(Exception):  # noqa: N818 - a finding, not an error of this program
    """What a check found to be wrong."""


class CheckSkipped(Exception):  # noqa: N818
    """Why a check cannot be made here."""


@dataclass(frozen=True)
class Result:
    """One check or measurement."""

    what: str
    passed: bool | None
    """None if it was not run."""
    detail: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    """What was measured, by names that end with the unit."""
    group: str = ""
    seconds: float = 0.0

    @property
    def status(self) -> str:
        return {True: PASSED, False: FAILED, None: NOT_RUN}[self.passed]


@dataclass(frozen=True)
class Check:
    """A check, which begins when it is called.

    It returns a detail, or raises what is wrong. A measurement returns its results as they come.
    """

    group: str
    name: str
    run: Callable[[], str | Iterable[Result]]


@dataclass(frozen=True)
class Device:
    """Where checks run: the kernels of a device, and the torch device of tensors."""

    kernels: Any
    name: str


def guarded(what: str, check: Callable[[], str | Result]) -> Result:
    """The result of one check or measurement, whatever it raises."""
    try:
        found = check()
    except Exception as error:
        return _unpassed(what, error)
    return Result(what, True, found) if isinstance(found, str) else found


def _unpassed(what: str, error: Exception) -> Result:
    if isinstance(error, CheckSkipped):
        return Result(what, None, str(error))
    if isinstance(error, CheckFailed):
        return Result(what, False, str(error))
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return Result(what, False, text if len(text) <= _LONGEST_DETAIL else f"{text[:_LONGEST_DETAIL]} ...")


class Checking:
    """Makes checks, and keeps their results.

    `settle` waits for the GPU and raises its error, if it has one: an error that it raises again cannot be recovered
    from in this process. `record` is given each result. `give_up` is called by another thread when a check has taken
    longer than `limit` seconds, and need not return: the check may be stuck in the driver.
    """

    def __init__(
        self,
        checks: Iterable[Check],
        settle: Callable[[], object],
        record: Callable[[Result], object],
        give_up: Callable[[], object],
        limit: float,
    ):
        self.checks = list(checks)
        self.ended = UNFINISHED
        self._settle, self._record, self._give_up, self._limit = settle, record, give_up, limit
        self._done = 0
        self._lock = threading.RLock()
        """Held while results are recorded, by whichever thread has them."""

    def run(self, announce: Callable[[str], object] = lambda _: None) -> None:
        """Make every check that can be made; `announce` is told of each before it begins."""
        try:
            while self._done < len(self.checks) and self.ended == UNFINISHED:
                check = self.checks[self._done]
                announce(f"{self._done + 1} of {len(self.checks)}, {check.group}: {check.name}")
                self._make(check)
        except KeyboardInterrupt:
            self._end(INTERRUPTED, "interrupted")
        self._end(COMPLETE, "")

    def _make(self, check: Check) -> None:
        watch = threading.Timer(self._limit, self._find_hanging, (check,))
        watch.daemon = True
        watch.start()
        failed = ""
        try:
            for result in self._results(check):
                self._add(check, result)
                failed = result.what if result.passed is False else failed
        finally:
            watch.cancel()
        with self._lock:
            if self.ended == UNFINISHED:
                self._done += 1
        if failed and self._is_lost():
            self._end(LOST, f"the CUDA context was lost in '{check.group}: {failed}'")

    def _results(self, check: Check) -> Iterator[Result]:
        """The results of a check, each once the GPU is done with what it was given for it."""
        start = time.perf_counter()
        try:
            found = check.run()
            for result in [Result(check.name, True, found)] if isinstance(found, str) else found:
                self._settle()
                yield replace(result, seconds=time.perf_counter() - start)
                start = time.perf_counter()
        except Exception as error:
            yield replace(_unpassed(check.name, error), seconds=time.perf_counter() - start)

    def _is_lost(self) -> bool:
        try:
            self._settle()
        except Exception:
            return True
        return False

    def _find_hanging(self, check: Check) -> None:
        with self._lock:
            if self.ended != UNFINISHED or self.checks[self._done] is not check:
                return
            detail = f"it did not end within {self._limit:g} s"
            self._add(check, Result(check.name, False, detail, seconds=self._limit))
            self._done += 1
            self._end(HUNG, f"'{check.group}: {check.name}' did not end")
            self._give_up()

    def _add(self, check: Check, result: Result) -> None:
        with self._lock:
            if self.ended == UNFINISHED:
                self._record(replace(result, group=check.group))

    def _end(self, how: str, reason: str) -> None:
        """The checks that are left are not run."""
        with self._lock:
            if self.ended != UNFINISHED:
                return
            for check in self.checks[self._done :]:
                self._add(check, Result(check.name, None, reason))
            self.ended = how
