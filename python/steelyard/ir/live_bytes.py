"""How much memory the values of a lowered function take while it runs: an analysis, no pass."""

from collections.abc import Set
from dataclasses import dataclass

from torch_mlir import ir

from steelyard.dialect.memory import FreeOp
from steelyard.ir.functions import kept_arguments
from steelyard.ir.kernel_calls import callee_of
from steelyard.ir.layers import layer_name
from steelyard.ir.saved import byte_size, memory_of
from steelyard.ir.torch_ops import op_name


@dataclass(frozen=True)
class Step:
    """An op that takes memory for its results, and the bytes of all values that live while it runs."""

    op: str
    layer: str
    live_bytes: int


def live_steps(function: ir.Operation) -> list[Step]:
    """The steps of a function whose memory is planned; what the caller keeps, such as parameters, does not count.

    Views take no memory of their own, and keep alive what they are views of. A size known only at run time counts as
    one.
    """
    block = function.regions[0].blocks[0]
    live = _Live(kept_arguments(function))
    for argument in block.arguments:
        live.add(argument)
    steps: list[Step] = []
    for op in (each.operation for each in block.operations):
        if isinstance(op.opview, FreeOp):
            live.free(op.operands[0])
            continue
        made = [value for value in op.results if byte_size(value.type)]
        for value in made:
            live.add(value)
        if any(memory_of(value) == value for value in made):
            steps.append(Step(callee_of(op) or op_name(op), layer_name(op), live.bytes))
    return steps


class _Live:
    """The values that live, by the memory that they lie in."""

    def __init__(self, kept: Set[ir.Value]):
        self.bytes = 0
        self._kept = kept
        self._values: dict[ir.Value, set[ir.Value]] = {}

    def add(self, value: ir.Value) -> None:
        memory = memory_of(value)
        if memory in self._kept:
            return
        if memory not in self._values:
            self._values[memory] = set()
            self.bytes += byte_size(memory.type)
        self._values[memory].add(value)

    def free(self, value: ir.Value) -> None:
        memory = memory_of(value)
        if memory not in self._values:
            return
        values = self._values[memory]
        values.discard(value)
        if not values:
            del self._values[memory]
            self.bytes -= byte_size(memory.type)
