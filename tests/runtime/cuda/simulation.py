"""The CUDA kernels on the CPU: launches go to the PTX interpreter, with host tensors as device memory."""

import ctypes
from collections.abc import Iterable

import numpy as np
import ptx_interpreter
import torch
from device_memory import DeviceMemory

from steelyard.codegen.compilation import compile_kernel
from steelyard.codegen.kernel import Kernel
from steelyard.runtime.cuda.kernels import Kernels
from steelyard.runtime.cuda.launches import Launch
from steelyard.targets.architectures import TARGETS


class Simulator:
    """Runs launches for a target and records them."""

    def __init__(self, target: str, measured: bool = False):
        self.target, self.measured = TARGETS[target], measured
        self.launches: list[tuple[Launch, ptx_interpreter.Traffic]] = []

    def load(self, kernels: Iterable[Kernel]) -> None:
        for kernel in kernels:
            compile_kernel(kernel, self.target)

    def __call__(self, launch: Launch) -> None:
        compiled = compile_kernel(launch.kernel, self.target)
        memory = memory_of([argument for argument in launch.arguments if isinstance(argument, torch.Tensor)])
        words = [value for value, _ in launch.words()]
        traffic = ptx_interpreter.run(compiled.ptx, words, launch.blocks, memory, compiled.shared_bytes, self.measured)
        self.launches.append((launch, traffic))


def simulated(target: str) -> Kernels:
    return Kernels(Simulator(target))


def memory_of(tensors: list[torch.Tensor]) -> DeviceMemory:
    """The memory of these tensors and nothing else; views of one tensor may overlap."""
    spans: list[list[int]] = []
    for begin, end in sorted(_span(tensor) for tensor in tensors if tensor.numel()):
        if spans and begin < spans[-1][1]:
            spans[-1][1] = max(end, spans[-1][1])
        else:
            spans.append([begin, end])
    memory = DeviceMemory()
    for begin, end in spans:
        memory.register(begin, np.frombuffer((ctypes.c_char * (end - begin)).from_address(begin), np.uint8))
    return memory


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()
