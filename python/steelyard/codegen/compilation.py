"""Kernels, compiled once per process: PTX text and what a launch must know about it."""

from dataclasses import dataclass
from functools import cache

from steelyard.codegen import ptx
from steelyard.codegen.kernel import Kernel, build_module
from steelyard.targets.architectures import Target


@dataclass(frozen=True)
class CompiledKernel:
    """A kernel for a target."""

    kernel: Kernel
    target: Target
    ptx: str
    shared_bytes: int


@cache
def compile_kernel(kernel: Kernel, target: Target) -> CompiledKernel:
    """The PTX of a kernel."""
    module, shared_bytes = build_module(kernel, target)
    ptx.lower_to_nvvm(module)
    return CompiledKernel(kernel, target, ptx.emit_ptx(module, target), shared_bytes)


def kernel_text(kernel: Kernel, target: Target, stage: str) -> str:
    """A kernel as text: `gpu` (as it was built), `nvvm` or `ptx`."""
    if stage == "ptx":
        return compile_kernel(kernel, target).ptx
    module, _ = build_module(kernel, target)
    if stage == "nvvm":
        ptx.lower_to_nvvm(module)
    return str(module)
