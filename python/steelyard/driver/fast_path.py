"""Torch's own fused encoder layer, for inference, which hides the products in it: turned off in calls of a net."""

import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from steelyard.forks import make_lock

_lock = make_lock()
_calls: Counter[int] = Counter()
"""Calls in progress, by thread."""
_was_enabled = True


def has_fast_path(model: torch.nn.Module) -> bool:
    """Whether a model has layers that torch may fuse."""
    kinds = torch.nn.TransformerEncoder | torch.nn.TransformerEncoderLayer | torch.nn.MultiheadAttention
    return any(isinstance(module, kinds) for module in model.modules())


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Run layers op by op. The switch is one for all threads, so the last one out restores it."""
    global _was_enabled
    thread = threading.get_ident()
    with _lock:
        is_first = not _calls
        if is_first:
            _was_enabled = torch.backends.mha.get_fastpath_enabled()
        # Counted before it is turned off: a process that is forked between the two turns it on again.
        _calls[thread] += 1
        if is_first:
            torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        with _lock:
            _leave(thread, 1)


def _leave(thread: int, calls: int) -> None:
    _calls[thread] -= calls
    if not _calls[thread]:
        del _calls[thread]
    if not _calls:
        torch.backends.mha.set_fastpath_enabled(_was_enabled)


def _leave_other_threads() -> None:
    """In a forked child, end the calls of the threads that it does not have."""
    for thread in set(_calls) - {threading.get_ident()}:
        _leave(thread, _calls[thread])


os.register_at_fork(after_in_child=_leave_other_threads)
