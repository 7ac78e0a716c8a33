"""Kernels that write one wrong byte, so that what compares their results must notice."""

from collections.abc import Callable
from typing import Any

import torch

from steelyard.codegen.kernel import Kernel
from steelyard.runtime.cuda.launches import Launch


def corrupting(launcher: Any, concerns: Callable[[Kernel], bool] = lambda _: True) -> Any:
    """A launcher after whose launches a byte that they wrote is another one."""

    class Corrupting:
        target, load = launcher.target, launcher.load

        def __call__(self, launch: Launch) -> None:
            tensors = [_bytes_of(a) for a in launch.arguments if isinstance(a, torch.Tensor) and a.numel()]
            before = [tensor.clone() for tensor in tensors]
            launcher(launch)
            if not concerns(launch.kernel):
                return
            for tensor, old in zip(tensors, before, strict=True):
                written = (tensor != old).nonzero()
                if len(written):
                    # Of a float, the byte with the sign: a low one of a NaN would leave a NaN.
                    tensor[written[-1]] ^= 0x81

    return Corrupting()


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    size = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((size,), (1,)).view(torch.uint8)
