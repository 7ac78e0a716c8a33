"""What is launched: a kernel, the tensors and numbers it is given, and how many blocks."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import torch

from steelyard.codegen.kernel import POINTER, Kernel
from steelyard.errors import ConstraintError
from steelyard.targets.architectures import Target

_SIZES = {POINTER: 8, "i64": 8, "i32": 4}
LARGEST = 2**31 - 1 - 128
"""The most rows or columns: kernels round them up to whole tiles, in 32 bits."""


@dataclass(frozen=True)
class Launch:
    """A kernel with its arguments in the order of its parameters."""

    kernel: Kernel
    arguments: tuple[torch.Tensor | int, ...]
    blocks: int

    def words(self) -> list[tuple[int, int]]:
        """Each argument as a number and its bytes."""
        pairs = zip(self.arguments, _signature(self.kernel), strict=True)
        words = [(a.data_ptr() if isinstance(a, torch.Tensor) else a, size) for a, (_, size) in pairs]
        if any(size == 4 and word > LARGEST for word, size in words):
            named = zip(self.arguments, _signature(self.kernel), strict=True)
            name, value = next((name, a) for a, (name, size) in named if size == 4 and a > LARGEST)
            raise ConstraintError(
                "launch_size", f"{name} of {self.kernel.name} must be at most {LARGEST}, got {value}; split the tensor"
            )
        return words


@cache
def _signature(kernel: Kernel) -> tuple[tuple[str, int], ...]:
    """Name and bytes of each parameter."""
    return tuple((parameter.name, _SIZES[parameter.type]) for parameter in kernel.parameters)


class Launcher(Protocol):
    """What makes launches happen, for a target."""

    target: Target

    def __call__(self, launch: Launch, /) -> None: ...

    def load(self, kernels: Iterable[Kernel], /) -> None:
        """Have kernels ready, so that launching them loads nothing."""
        ...
