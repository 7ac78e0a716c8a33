"""Which kernels run where: a type of device has a function that makes the kernels of one of its devices."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import torch

from steelyard.codegen.kernel import Kernel
from steelyard.errors import TargetError
from steelyard.runtime.cuda.driver import CudaLauncher
from steelyard.runtime.cuda.kernels import Kernels
from steelyard.runtime.cuda.libraries import cublaslt_version, has_mslk
from steelyard.targets import spelled
from steelyard.targets.architectures import Target

Maker = Callable[[torch.device], Kernels]


def _make_cuda_kernels(device: torch.device) -> Kernels:
    index = torch.cuda.current_device() if device.index is None else device.index

    def stream() -> int:
        return torch.cuda.current_stream(index).cuda_stream

    return Kernels(CudaLauncher(index, stream, cublaslt_version(), has_mslk=has_mslk()))


MAKERS: dict[str, Maker] = {"cuda": _make_cuda_kernels}
"""Type of device, as torch names it -> what makes the kernels of a device."""


def kernels_on(device: torch.device) -> Kernels:
    """The kernels of a device; they run on torch's current stream of it."""
    if device.type not in MAKERS:
        raise TargetError(f"CUDA kernels need a CUDA device, got {device}; move the tensors to one")
    return _make(MAKERS[device.type], device)


@cache
def _make(maker: Maker, device: torch.device) -> Kernels:
    return maker(device)


def device_among(values: Iterable[Any]) -> torch.device | None:
    """The device with kernels that tensors among these are on; None if there is none."""
    found = {value.device for value in values if isinstance(value, torch.Tensor) and value.device.type in MAKERS}
    if len(found) > 1:
        names = " and ".join(sorted(map(str, found)))
        raise TargetError(f"a graph must be on one GPU, got tensors on {names}; compile the part on each by itself")
    return next(iter(found), None)


def target_among(values: Iterable[Any]) -> Target:
    """The architecture of the GPU that tensors among these are on, or of the one that torch uses."""
    device = device_among(values)
    if device is None and not torch.cuda.is_available():
        raise TargetError(
            'there must be a CUDA device for target="cuda", got none that torch can use; compile for an architecture, '
            'as in target="cuda:sm_90a", to look at the code'
        )
    return kernels_on(device or torch.device("cuda")).launch.target


class Devices:
    """The devices that a program runs on: GPUs of its target, with its kernels loaded."""

    def __init__(self, target: Target, kernels: Sequence[Kernel]):
        self._target, self._kernels = target, kernels
        self._fitting: set[tuple[Maker, torch.device]] = set()

    def find(self, values: Iterable[Any]) -> torch.device:
        """The device that a call's arguments are on."""
        found = None
        for value in values:
            if not isinstance(value, torch.Tensor):
                continue
            found = value.device
            maker = MAKERS.get(found.type)
            if maker is None:
                continue  # torch lets a number be on the CPU
            if (maker, found) not in self._fitting:
                self._check(found)
                kernels_on(found).launch.load(self._kernels)
                self._fitting.add((maker, found))
            return found
        if found is None:
            return torch.device("cpu")  # no tensor at all, so that no kernel is called
        raise TargetError(
            f"a net compiled for {spelled(self._target)} must be given CUDA tensors, got {found}; move the model and "
            'its arguments by .to("cuda"), or look at the code by net.lower(...) and net.ir("ptx")'
        )

    def _check(self, device: torch.device) -> None:
        target = kernels_on(device).launch.target
        if target != self._target:
            raise TargetError(
                f"a net compiled for {spelled(self._target)} must run on such a GPU, got {target.spelling} ({device}); "
                'compile for target="cuda", which asks the GPU and its libraries'
            )
