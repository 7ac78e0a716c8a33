"""`scaled-build-tape`."""

from collections.abc import Mapping

from torch_mlir import ir

from steelyard.dialect.memory import FreeOp
from steelyard.ir.attributes import TAPE
from steelyard.ir.functions import functions_of
from steelyard.ir.kernel_calls import KernelCall, callee_of
from steelyard.ir.native_steps import is_kernel_step, is_view_step
from steelyard.ir.torch_ops import op_name
from steelyard.passes.pipeline.registry import register_pass
from steelyard.passes.support.declared import declared_calls

_RETURN = "func.return"
_FEWEST_KERNELS = 2
"""One kernel between ops of torch runs as fast without a tape."""


@register_pass
def build_tape(module: ir.Operation) -> None:
    """Mark the ops that run as steps of a tape, without Python between them.

    Takes calls of kernels whose memory is planned. Leaves the number of a tape (`scaled.tape`) on calls of the CPU's
    own kernels and on the views that they read. The steps of a tape run in their order, all together where the last
    of them stands. Ops of torch that read a result of a tape, and kernels of others, end it; other ops of torch that
    stand among its steps run before it. One kernel by itself is a tape where nothing ends it, such as the norm before a
    head, which is compiled alone: another program runs it as a step. Private functions, which make weights, have no
    tapes.
    """
    calls = declared_calls(module)
    steps = {symbol for symbol, call in calls.items() if is_kernel_step(call)}
    for function in functions_of(module):
        if "sym_visibility" not in function.attributes:
            _build(function, calls, steps)


def _build(function: ir.Operation, calls: Mapping[str, KernelCall], steps: set[str]) -> None:
    tapes: list[_Tape] = [_Tape()]
    for op in function.regions[0].blocks[0].operations:
        operation = op.operation
        tape = tapes[-1]
        if callee_of(operation) in steps:
            tape.add(operation)
            tape.kernels.append(operation)
        elif is_view_step(operation):
            tape.add(operation)
        elif callee_of(operation) in calls or (operation.name != _RETURN and tape.is_read_by(operation)):
            tapes.append(_Tape())
    fewest = 1 if len(tapes) == 1 else _FEWEST_KERNELS
    number = 0
    for tape in tapes:
        if len(tape.kernels) >= fewest:
            tape.mark(number)
            number += 1


class _Tape:
    def __init__(self):
        self.kernels: list[ir.Operation] = []
        self._steps: set[ir.Operation] = set()
        self._made: set[ir.Value] = set()

    def add(self, op: ir.Operation) -> None:
        self._steps.add(op)
        # A view of what was there before the tape is there before it, too.
        if callee_of(op) is not None or op.operands[0] in self._made:
            self._made.update(op.results)

    def is_read_by(self, op: ir.Operation) -> bool:
        """Whether an op needs the results of this tape; one that writes in place waits for it, too."""
        if isinstance(op.opview, FreeOp):
            return False
        writes_in_place = any(word.endswith("_") for word in op_name(op).split("."))
        return writes_in_place or any(value in self._made for value in op.operands)

    def mark(self, number: int) -> None:
        """Give the kernels the number of their tape, and the views that they read."""
        attribute = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)
        needed = list(self.kernels)
        while needed:
            op = needed.pop()
            op.attributes[TAPE] = attribute
            owners = (value.owner for value in op.operands)
            made_by = (owner.operation for owner in owners if not isinstance(owner, ir.Block))
            needed += [maker for maker in made_by if maker in self._steps and TAPE not in maker.attributes]
