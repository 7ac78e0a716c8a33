"""The four bytes from which a GEMM of torch reads the second-level scale of FP4 operands.

torch copies that scale there, in the order of the current stream, just before the GEMM. There is one such place in a
process. So two streams that multiply at once may read each other's scale, and it lies on the GPU that multiplied first:
other GPUs cannot read it. This module orders the streams, and says who cannot use it.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from steelyard import knobs
from steelyard.errors import TargetError, shown
from steelyard.forks import make_lock
from steelyard.runtime.cuda.streams import has_streams, is_capturing


class ScaleBuffer:
    """Whose turn it is. Nobody waits on the host, and nothing is done while one stream is all there is."""

    def __init__(self) -> None:
        self._lock = make_lock()
        self._device: torch.device | None = None
        self._last: torch.cuda.Stream | None = None
        """The stream that was given a product last."""

    @contextmanager
    def turn(self, device: torch.device) -> Iterator[bool]:
        """Whether the current stream of a device may use the place, which no other thread does within this context."""
        if not has_streams(device):
            yield True
            return
        with self._lock:
            yield self._take(device)

    def _take(self, device: torch.device) -> bool:
        if _are_own() or self._device not in (None, device):
            return False
        if is_capturing(device):
            # Making the place is forbidden in a capture. Waiting would be, too: what replays run beside is up to users.
            return self._device is not None
        self._device = device
        current = torch.cuda.current_stream(device)
        if self._last is not None and current != self._last:
            current.wait_stream(self._last)
        self._last = current
        return True


def _are_own() -> bool:
    """Whether the user asked to do without the place."""
    chosen = knobs.fp4_scales()
    if chosen not in ("torch", "own"):
        raise TargetError(f"STEELYARD_FP4_SCALES must be torch or own, got {shown(chosen)}")
    return chosen == "own"
