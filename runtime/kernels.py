"""From a kernel that a program declares to the function that runs it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from steelyard.errors import UnsupportedModelError
from steelyard.ir.kernel_calls import Kernel
from steelyard.recipes import AMAX_ALGORITHM
from steelyard.runtime import custom
from steelyard.runtime.cpu import bound
from steelyard.runtime.cuda import bound as cuda_bound
from steelyard.runtime.cuda.devices import kernels_on
from steelyard.runtime.custom import Quantizers


@dataclass(frozen=True)
class BoundKernel:
    """A kernel with what is known of it when a program is compiled.

    With `allocate`, which makes the results of a call's operands, `run` takes the operands and then the results, all
    as tensors, or the parts of quantized tensors as addresses. Without, `run` takes the operands as they are and
    returns the results.
    """

    run: Callable
    allocate: Callable | None = None
    takes_addresses: bool = True


def bind(kernel: Kernel, quantizers: Quantizers) -> BoundKernel:
    """The function of a kernel."""
    target, _, operation = kernel.name.partition(".")
    operation = operation.partition(".")[0]
    if target == "custom":
        return BoundKernel(custom.BINDINGS[operation](kernel, quantizers))
    bindings = {"cpu": bound.BINDINGS, "cuda": cuda_bound.BINDINGS}.get(target, {})
    if operation not in bindings:
        raise UnsupportedModelError(f"there is no kernel '{kernel.name}' here; run scaled-select-kernels first")
    if operation == "update_scale" and kernel.config["algorithm"] == "custom":
        own = quantizers[str(kernel.config["layer"]), AMAX_ALGORITHM]
        kernel = replace(kernel, config={**kernel.config, "algorithm": own})  # pyright: ignore[reportArgumentType]
    if target == "cpu":
        run, allocate = bound.BINDINGS[operation](kernel)
        return BoundKernel(run, allocate if kernel.has_destinations else None)
    run, allocate = cuda_bound.BINDINGS[operation](kernel, kernels_on)
    if allocate is not None and not kernel.has_destinations:
        return BoundKernel(_allocating(run, allocate), takes_addresses=False)
    return BoundKernel(run, allocate, takes_addresses=False)


def _allocating(run: Callable, allocate: Callable) -> Callable:
    """A kernel that makes its results itself, where nobody planned their memory."""

    def run_and_return(*operands: Any) -> tuple:
        results = allocate(*operands)
        run(*operands, *results)
        return results

    return run_and_return
