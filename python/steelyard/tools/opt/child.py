"""Runs a function in a child process, so that its crash is an outcome and does not end this process."""

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """How a child ended: with an exit code, by a signal, or out of time."""

    exit_code: int | None = None
    signal_name: str | None = None
    timed_out: bool = False

    def describe_failure(self, time_limit: float) -> str:
        """What happened to a child that was killed."""
        if self.timed_out:
            return f"did not finish within {time_limit:g} seconds (--time-limit)"
        return f"died of {self.signal_name}"


def run_in_child(work: Callable[[], int], time_limit: float) -> Outcome:
    """Fork, run `work` and exit with what it returns; the parent waits, no longer than the limit."""
    _flush()
    pid = os.fork()
    if pid == 0:
        _run_and_exit(work)
    # A signal that stops the tool stops the child, too.
    previous = signal.signal(signal.SIGTERM, lambda *_: _kill_and_exit(pid))
    try:
        return _wait(pid, time.monotonic() + time_limit)
    except KeyboardInterrupt:
        _kill(pid)
        raise
    finally:
        signal.signal(signal.SIGTERM, previous)


def _run_and_exit(work: Callable[[], int]) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    code = 1
    try:
        code = work()
        _flush()
    finally:
        # Skips interpreter shutdown: it would run the parent's exit handlers a second time.
        os._exit(code)


def _wait(pid: int, deadline: float) -> Outcome:
    pause = 0.002
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline:
            _kill(pid)
            return Outcome(timed_out=True)
        time.sleep(pause)
        pause = min(pause * 1.3, 0.05)
    if os.WIFSIGNALED(status):
        return Outcome(signal_name=signal.Signals(os.WTERMSIG(status)).name)
    return Outcome(exit_code=os.WEXITSTATUS(status))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _kill_and_exit(pid: int) -> None:
    _kill(pid)
    os._exit(128 + signal.SIGTERM)


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
