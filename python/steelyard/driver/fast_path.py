"""Torch's own fused encoder layer, for inference, which hides the products in it: turned off in calls of a net."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_lock = threading.Lock()
_running = 0
_was_enabled = True


def has_fast_path(model: torch.nn.Module) -> bool:
    """Whether a model has layers that torch may fuse."""
    kinds = torch.nn.TransformerEncoder | torch.nn.TransformerEncoderLayer | torch.nn.MultiheadAttention
    return any(isinstance(module, kinds) for module in model.modules())


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Run layers op by op. The switch is one for all threads, so the last one out restores it."""
    global _running, _was_enabled
    with _lock:
        if _running == 0:
            _was_enabled = torch.backends.mha.get_fastpath_enabled()
            torch.backends.mha.set_fastpath_enabled(False)
        _running += 1
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if _running == 0:
                torch.backends.mha.set_fastpath_enabled(_was_enabled)
