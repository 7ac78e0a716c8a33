"""From a kernel that a program declares to the function that runs it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from steelyard.errors import UnsupportedModelError
from steelyard.ir.kernel_calls import KernelCall
from steelyard.runtime import custom
from steelyard.runtime.cpu import bound
from steelyard.runtime.cuda import bound as cuda_bound
from steelyard.runtime.cuda.devices import kernels_on
from steelyard.runtime.quantizers import Quantizers


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


def bind(call: KernelCall, quantizers: Quantizers) -> BoundKernel:
    """The function of a call."""
    match call.device:
        case "custom":
            return BoundKernel(custom.bind(call, quantizers))
        case "cpu":
            run, allocate = bound.bind(call, quantizers)
            return BoundKernel(run, allocate if call.has_destinations else None)
        case "cuda":
            run, allocate = cuda_bound.bind(call, quantizers, kernels_on)
            if allocate is not None and not call.has_destinations:
                return BoundKernel(_allocating(run, allocate), takes_addresses=False)
            return BoundKernel(run, allocate, takes_addresses=False)
        case None:
            raise UnsupportedModelError(f"no device runs '{call.OPERATION}' yet; run scaled-select-kernels first")


def _allocating(run: Callable, allocate: Callable) -> Callable:
    """A kernel that makes its results itself, where nobody planned their memory."""

    def run_and_return(*operands: Any) -> tuple:
        results = allocate(*operands)
        run(*operands, *results)
        return results

    return run_and_return
