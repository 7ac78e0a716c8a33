"""Which random state the functions of a net read: those of one forward the same, and those of one backward."""

import bisect
import threading

import torch
from torch._C._autograd import _get_sequence_nr  # pyright: ignore[reportMissingModuleSource]

_MOST_CALLS = 4096
"""Calls that are told apart: backwards of older ones count as one."""


class Draws(threading.local):
    """What the functions of one forward, or of one backward, of a net draw their random bits from, in a thread."""

    def __init__(self):
        self._call = 0
        self._starts: list[int] = []
        """The numbers of autograd's nodes at which the calls of this thread began."""
        self._forgotten = 0
        self._moment: tuple[str, int] = "", 0
        self._readers: set[object] = set()
        self._read: torch.Tensor | None = None
        self._left: torch.Tensor | None = None
        """The state that the last of them left behind."""
        self._writes = 0
        """How often that had been written, where it is written in place."""

    def begin(self, call: int) -> None:
        """A call of the net begins."""
        self._call = call
        if not torch.is_grad_enabled():
            return
        if len(self._starts) >= _MOST_CALLS:
            self._forgotten += _MOST_CALLS // 2
            del self._starts[: _MOST_CALLS // 2]
        self._starts.append(_get_sequence_nr())

    def read(self, reader: object, phase: str, present: torch.Tensor, calls: int) -> torch.Tensor:
        """What a function reads: the same as those before it, or what is there at present.

        `calls` is how many calls began so far, in any thread.
        """
        moment = phase, self._call if phase == "forward" else self._call_of_backward(calls)
        is_left = present is self._left and _writes(present) == self._writes
        if self._read is None or moment != self._moment or reader in self._readers or not is_left:
            self._read = present.clone() if _is_written_in_place(present) else present
            self._moment, self._readers = moment, set()
            self.leave(present)
        self._readers.add(reader)
        return self._read

    def leave(self, present: torch.Tensor) -> None:
        """Take note of what a function left."""
        self._left, self._writes = present, _writes(present)

    def _call_of_backward(self, calls: int) -> int:
        """The call of whose graph autograd runs a node now; a thread of autograd's own only knows the last one."""
        node = torch._C._current_autograd_node()
        if node is None or not self._starts:
            return calls
        return self._forgotten + bisect.bisect(self._starts, node._sequence_nr())


def _is_written_in_place(tensor: torch.Tensor) -> bool:
    return not tensor.is_cpu


def _writes(tensor: torch.Tensor) -> int:
    return tensor._version if _is_written_in_place(tensor) else 0
