"""Forked processes, such as the workers of a DataLoader: nets run there too, or say why they cannot.

A child has only the thread that forked. Whatever the others held, or would have done, it would wait for forever.
"""

import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

from steelyard.errors import SteelyardError

_PAUSE_SOFT = 1
"""`omp_pause_soft`: gives the threads up, and keeps what was set."""

_LONGEST_WAIT = 0.25
"""Seconds to wait for other threads: these may sleep, or wait for the one that forks."""

_LONG_INTERVAL = 0.5
_usual_interval = sys.getswitchinterval()
_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def make_lock(*, is_reentrant: bool = False) -> Any:
    """A lock that is free in a forked child, whoever held it; what it guards must be whole at any moment."""
    lock = threading.RLock() if is_reentrant else threading.Lock()
    _locks.add(lock)
    return lock


def _give_up_openmp_threads() -> None:
    """End the OpenMP threads that compute for this thread: in a child, torch would wait for their next answer.

    Both processes start new ones when they next compute.
    """
    if "torch" in sys.modules:
        import ctypes

        # An OpenMP without this function comes from a compiler older than torch's.
        with suppress(AttributeError):
            ctypes.CDLL(None).omp_pause_resource_all(_PAUSE_SOFT)


def _wait_for_guards() -> None:
    """Let other threads leave the guards of compiled code: torch holds a lock there while it waits to run Python."""
    global _usual_interval
    if not any(_is_at_guards(frame) for top in _other_threads() for frame in _stack(top)):
        return
    if sys.getswitchinterval() != _LONG_INTERVAL:
        _usual_interval = sys.getswitchinterval()
        # From the last look to the fork, no thread may ask this one to let it run; some have asked before.
        sys.setswitchinterval(_LONG_INTERVAL)
    start = time.monotonic()
    while (waited := time.monotonic() - start) < _LONGEST_WAIT:
        if waited > _usual_interval and not any(map(_is_at_guards, _other_threads())):
            return
        time.sleep(0.0002)


def _restore_interval() -> None:
    if sys.getswitchinterval() == _LONG_INTERVAL:
        sys.setswitchinterval(_usual_interval)


def _other_threads() -> list[FrameType]:
    """The innermost frame of every other thread."""
    return [frame for thread, frame in sys._current_frames().items() if thread != threading.get_ident()]


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_at_guards(frame: FrameType) -> bool:
    """Whether a frame calls compiled code; where it is the innermost one, the compiled code has not begun."""
    code = frame.f_code
    is_entry = code.co_name == "compile_wrapper" and code.co_filename.endswith("eval_frame.py")
    return is_entry or any(name.startswith("__resume_at") for name in code.co_names)


class _LeftLocked:
    """Stands for a lock of torch that a thread held which a child does not have."""

    def __enter__(self) -> NoReturn:
        raise SteelyardError(
            "this process was forked while another thread compiled, so torch cannot compile in it any more; fork when "
            'no thread compiles, or start processes by "spawn", as in multiprocessing.get_context("spawn")'
        )

    def __exit__(self, *_) -> None:
        """Never reached."""


def _free_locks() -> None:
    for lock in _locks:
        lock._at_fork_reinit()
    convert_frame: Any = sys.modules.get("torch._dynamo.convert_frame")
    if convert_frame is None or isinstance(convert_frame.compile_lock, _LeftLocked):
        return
    # Not freed: the thread may have left what the lock guards half done.
    if convert_frame.compile_lock.acquire(blocking=False):
        convert_frame.compile_lock.release()
    else:
        convert_frame.compile_lock = _LeftLocked()


# What is registered last runs first before a fork.
os.register_at_fork(before=_wait_for_guards, after_in_parent=_restore_interval, after_in_child=_restore_interval)
os.register_at_fork(before=_give_up_openmp_threads, after_in_child=_free_locks)
