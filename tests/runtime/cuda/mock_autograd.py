"""The streams of backwards on mock GPUs: as on a GPU, each node of autograd runs on the stream of its forward.

CPU tensors stand in for a GPU's, and autograd runs their backwards on whatever stream its caller uses. So streams ask
here. A stream waits for the one that ran the node before it, and in the end the caller's waits for the last one. Of
gradients that go from stream to stream, torch tells the allocator.
"""

import bisect
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch._C._autograd import _get_sequence_nr  # pyright: ignore[reportMissingModuleSource]

if TYPE_CHECKING:
    from mock_streams import Stream


class Backwards(threading.local):
    """Which streams were current at which node, in a thread, and which one the last node of a backward ran on."""

    def __init__(self, hand_over: Callable[["Stream", "Stream"], None]):
        self._hand_over = hand_over
        """Told that what a stream made in this backward goes on to another."""
        self._starts: list[int] = []
        self._chosen: list[Mapping[int, Stream]] = []
        self._last: dict[int, Stream] = {}

    def note(self, chosen: Mapping[int, "Stream"]) -> None:
        """Other streams become current."""
        self._starts.append(_get_sequence_nr())
        self._chosen.append(chosen)

    def stream_of(self, device: int, callers: "Stream", default: "Stream") -> "Stream":
        """The stream for work on a device now, given the caller's and the one that is current if none was chosen."""
        node = torch._C._current_autograd_node()
        if node is None and device not in self._last:
            return callers
        stream = callers if node is None else self._stream_at(node._sequence_nr(), device, callers, default)
        before = self._last.pop(device, callers)
        if node is not None:
            self._last[device] = stream
        if stream is not before:
            stream.wait_stream(before)
            self._hand_over(before, stream)
        return stream

    def _stream_at(self, node: int, device: int, callers: "Stream", default: "Stream") -> "Stream":
        if node >= _get_sequence_nr():
            return callers  # what adds to a parameter's gradient is behind all nodes that have a number
        position = bisect.bisect(self._starts, node) - 1
        return default if position < 0 else self._chosen[position].get(device, default)
