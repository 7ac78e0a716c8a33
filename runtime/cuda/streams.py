"""Tensors that one stream makes and others read."""

from collections.abc import Iterable

import torch

DEVICES = ("cuda",)
"""Types of devices that have streams."""


def has_streams(device: torch.device) -> bool:
    """Whether work on a device is done in streams."""
    return device.type in DEVICES


def moment_on(device: torch.device) -> "Moment | None":
    """Now, on a device that has streams."""
    return Moment(device) if has_streams(device) else None


def is_capturing(device: torch.device) -> bool:
    """Whether work on a device's current stream becomes part of a CUDA graph, which runs it when it is replayed."""
    if not has_streams(device):
        return False
    if device.index in (None, torch.cuda.current_device()):
        return torch.cuda.is_current_stream_capturing()
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


class Moment:
    """When what a stream has been given so far is done. Nobody waits on the host."""

    def __init__(self, device: torch.device):
        self._device = device
        self._stream = torch.cuda.current_stream(device)
        self._event = self._stream.record_event()

    def wait(self, tensors: Iterable[torch.Tensor]) -> None:
        """Let the current stream read tensors that the other one made."""
        current = torch.cuda.current_stream(self._device)
        if current == self._stream:
            return
        current.wait_event(self._event)
        for tensor in tensors:
            tensor.record_stream(current)  # their memory is free only after this stream's reads
