"""Float32 products without TF32, whatever a user chose elsewhere.

torch has no switch of a single product or thread, so that the one of the process is turned for as long as any thread
needs it. torch has that switch twice: the older functions raise where the newer ones were used, and the other way
round. It is turned by those that the user used.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from steelyard.forks import make_lock

_MATMUL, _ABOVE = ("cuda", "matmul"), ("cuda", "all")
_MKLDNN = ("mkldnn", "matmul")
_TF32, _EXACT, _INHERITED = "tf32", "ieee", "none"
_get, _set = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter


class _Switch:
    """How many are inside, and how the last one to leave turns the switch back."""

    def __init__(self) -> None:
        self._lock = make_lock()
        self._inside = 0
        self._turn_back: Callable[[], object] = lambda: None

    def enter(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._turn_back = _turn_off()
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._turn_back()


_switch = _Switch()


@contextmanager
def exact_products() -> Iterator[None]:
    """Within this context, float32 products on CUDA are exact to float32."""
    _switch.enter()
    try:
        yield
    finally:
        _switch.leave()


def _turn_off() -> Callable[[], object]:
    """Turn TF32 off; returns what turns it back to what it was."""
    if _get(*_MATMUL) != _TF32:
        return lambda: None
    try:
        chosen = torch.get_float32_matmul_precision()
    except RuntimeError:
        # What says the same as the switch above it counts as following it: it still will, if that one is changed.
        before = _INHERITED if _get(*_ABOVE) == _TF32 else _TF32
        _set(*_MATMUL, _EXACT)
        return partial(_set, *_MATMUL, before)
    on_the_cpu = _get(*_MKLDNN)
    torch.set_float32_matmul_precision("highest")

    def turn_back() -> None:
        torch.set_float32_matmul_precision(chosen)
        _set(*_MKLDNN, on_the_cpu)  # which the line above sets, too

    return turn_back
