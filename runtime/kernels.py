"""From a kernel that a program declares to the function that runs it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch_mlir import ir

from steelyard.codegen.launches.plan import LaunchPlan
from steelyard.codegen.launches.text import read_plans
from steelyard.errors import UnsupportedModelError
from steelyard.ir.kernel_calls import BlockCall, KernelCall, StoredCall
from steelyard.runtime import custom, stored
from steelyard.runtime.cpu import bound
from steelyard.runtime.cuda import bound as cuda_bound
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
    text: str = ""
    """Its Python, where it was made for this program."""


class Block(Protocol):
    """A block that a program runs as one step."""

    def bind(self, call: BlockCall, /) -> BoundKernel: ...


def bind_all(
    module: ir.Operation, calls: Mapping[str, KernelCall], quantizers: Quantizers, blocks: Sequence[Block] = ()
) -> dict[str, BoundKernel]:
    """The functions of the calls that a module declares, by symbol; calls of blocks name these by number."""
    plans = read_plans(module, calls)
    planned = {symbol: _bind_planned(symbol, calls[symbol], plan, quantizers) for symbol, plan in plans.items()}
    return {symbol: planned.get(symbol) or _bind(call, quantizers, blocks) for symbol, call in calls.items()}


def _bind_planned(symbol: str, call: KernelCall, plan: LaunchPlan, quantizers: Quantizers) -> BoundKernel:
    made = cuda_bound.bind_planned(symbol, call, plan, quantizers)
    if call.has_destinations:
        return BoundKernel(made.run, made.allocate, takes_addresses=False, text=made.text)
    return BoundKernel(_allocating(made.run, made.allocate), takes_addresses=False, text=made.text)


def _bind(call: KernelCall, quantizers: Quantizers, blocks: Sequence[Block]) -> BoundKernel:
    if isinstance(call, BlockCall):
        return blocks[call.number].bind(call)
    if isinstance(call, StoredCall):
        return BoundKernel(stored.bind(call))
    match call.device:
        case "custom":
            return BoundKernel(custom.bind(call, quantizers))
        case "cpu":
            run, allocate = bound.bind(call, quantizers)
            return BoundKernel(run, allocate if call.has_destinations else None)
        case "cuda":
            return BoundKernel(cuda_bound.bind(call), takes_addresses=False)
        case None:
            raise UnsupportedModelError(f"no device runs '{call.OPERATION}' yet; run scaled-select-kernels first")


def _allocating(run: Callable, allocate: Callable) -> Callable:
    """A kernel that allocates its results, because their memory was not planned."""

    def run_and_return(*operands: Any) -> tuple:
        results = allocate(*operands)
        run(*operands, *results)
        return results

    return run_and_return
