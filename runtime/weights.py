"""Quantized weights, kept until their parameters change."""

import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim.optimizer import register_optimizer_step_post_hook

from steelyard.runtime.steps import QuantizedValue

Make = Callable[..., tuple[QuantizedValue]]
"""From a parameter, and its scale where that is state, to the quantized weight."""

_optimizer_steps = 0


def _count_step(*_) -> None:
    global _optimizer_steps
    _optimizer_steps += 1


# Fused optimizers write parameters without moving their version, so a step of any optimizer counts as a write.
register_optimizer_step_post_hook(_count_step)


@dataclass
class _Kept:
    value: QuantizedValue
    stamp: tuple
    parameter: weakref.ref
    storages: list[StorageWeakRef]
    """While these live, no other storage has the address that the stamp holds."""


class Weights:
    """The quantized weights of a net, for all its programs: each parameter is quantized once a way and a write."""

    def __init__(self):
        self._kept: dict[tuple[str, int], _Kept] = {}
        self._lock = threading.Lock()

    def get(self, function: str, make: Make, sources: Sequence[Any]) -> QuantizedValue:
        """What `make` gives, made anew if a source was written since; `function` says what it does, as IR."""
        key = function, id(sources[0])
        stamp = (_optimizer_steps, *(part for source in sources for part in _stamp(source)))
        kept = self._kept.get(key)
        if kept is not None and kept.stamp == stamp and kept.parameter() is sources[0]:
            return kept.value
        # Two threads must not quantize one weight at once.
        with self._lock:
            kept = self._kept.get(key)
            if kept is None or kept.stamp != stamp or kept.parameter() is not sources[0]:
                storages = [StorageWeakRef(source.untyped_storage()) for source in sources]
                (value,) = make(*sources)
                parameter = weakref.ref(sources[0], lambda gone: self._drop(key, gone))
                kept = self._kept[key] = _Kept(value, stamp, parameter, storages)
        return kept.value

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
        parts = [part for kept in list(self._kept.values()) for part in kept.value.tensors()]
        return sum(part.numel() * part.element_size() for part in parts)


def _stamp(tensor: torch.Tensor) -> tuple:
    # Writes to an inference tensor are not counted: its stamp equals no other, so that it is quantized at every call.
    version = object() if tensor.is_inference() else tensor._version
    return version, tensor.untyped_storage()._cdata, tensor.data_ptr(), tensor.dtype
