"""Forked processes, such as the workers of a DataLoader: nets run there too, or say why they cannot.

A child has only the thread that forked. Whatever the others held, or would have done, it would wait for forever.
"""

import os
import sys
import threading
import weakref
from contextlib import suppress
from typing import Any, NoReturn

from steelyard.errors import SteelyardError

_PAUSE_SOFT = 1
"""`omp_pause_soft`: gives the threads up, and keeps what was set."""

_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def make_lock() -> threading.Lock:
    """A lock that is free in a forked child, whoever held it; what it guards must be whole at any moment."""
    lock = threading.Lock()
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


os.register_at_fork(before=_give_up_openmp_threads, after_in_child=_free_locks)
