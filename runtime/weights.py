"""Quantized weights, kept until their parameters change."""

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim.optimizer import register_optimizer_step_post_hook

from steelyard.runtime import _cpu

Make = Callable[..., tuple]
"""From a parameter, and its scale where that is state, to the parts of the quantized weight."""

_optimizer_steps = 0


def _count_step(*_) -> None:
    global _optimizer_steps
    _optimizer_steps += 1


# Fused optimizers write parameters without moving their version, so a step of any optimizer counts as a write of all
# parameters that are not frozen.
register_optimizer_step_post_hook(_count_step)


@dataclass
class WeightArgument:
    """Arguments of a program that are made from others and kept."""

    function: str
    """The IR of the function that makes them."""
    make: Make
    sources: list[int]
    """Which arguments they are made from: the parameter, and its scale where that is state."""


@dataclass
class _Kept:
    parts: tuple
    stamp: tuple | None
    parameter: weakref.ref
    storages: list[StorageWeakRef]
    """While these live, no other storage has the address that the stamp holds."""


class Weights:
    """The quantized weights of a net, for all its programs: each parameter is quantized once a way and a write."""

    def __init__(self):
        self._kept: dict[tuple[str, int], _Kept] = {}
        self._lock = threading.Lock()

    def get(self, weight: WeightArgument, sources: Sequence[Any]) -> tuple:
        """The parts of a weight, made anew if its parameter was written since."""
        parameter = sources[0]
        key = weight.function, id(parameter)
        # A scale that has moved on waits for the next write: a weight is quantized once for all steps in between.
        steps = _optimizer_steps if parameter.requires_grad else None
        stamp = (steps, *_stamp(parameter))
        kept = self._kept.get(key)
        if kept is not None and kept.stamp == stamp and kept.parameter() is parameter:
            return kept.parts
        # Two threads must not quantize one weight at once.
        with self._lock:
            kept = self._kept.get(key)
            if kept is None or kept.stamp != stamp or kept.parameter() is not parameter:
                storages = [StorageWeakRef(source.untyped_storage()) for source in sources]
                parts = weight.make(*sources)
                reference = weakref.ref(parameter, lambda gone: self._drop(key, gone))
                kept = self._kept[key] = _Kept(parts, stamp, reference, storages)
        return kept.parts

    def _drop(self, key: tuple[str, int], gone: weakref.ref) -> None:
        """Let go of a parameter's weight when it dies, unless another has its id by now."""
        kept = self._kept.get(key)
        if kept is not None and kept.parameter is gone:
            self._kept.pop(key, None)

    def forget(self) -> None:
        """Quantize every weight anew at the next call."""
        with self._lock:
            self._kept.clear()

    def nbytes(self) -> int:
        """Bytes that the kept weights take."""
        parts = [part for kept in list(self._kept.values()) for part in kept.parts]
        tensors = [t for part in parts for t in ([part] if isinstance(part, torch.Tensor) else part.tensors())]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _stamp(tensor: torch.Tensor) -> tuple:
    """What differs once a tensor was written: its version, its memory, or some words of it.

    Nothing counts writes through `.data`: a few sampled words show most of them, but not all.
    """
    # Writes to an inference tensor are not counted: its stamp equals no other, so that it is quantized at every call.
    version = object() if tensor.is_inference() else tensor._version
    storage = tensor.untyped_storage()
    address = storage.data_ptr()
    words = _cpu.fingerprint(address, storage.nbytes()) if address else 0
    return version, storage._cdata, tensor.data_ptr(), tensor.dtype, words
