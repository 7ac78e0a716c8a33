"""`scaled-plan-memory`."""

from bisect import insort
from collections.abc import Collection, Iterable
from math import prod

from torch_mlir import ir

from steelyard.dialect.memory import FreeOp, free
from steelyard.dialect.types import TensorType, tensor_info
from steelyard.formats.dtypes import ITEM_SIZES
from steelyard.ir.attributes import ARENA, ELSEWHERE, OFFSETS
from steelyard.ir.functions import functions_of, kept_arguments
from steelyard.ir.kernel_calls import callee_of
from steelyard.ir.native_steps import VIEWS, is_view_step
from steelyard.ir.view_ops import HOLDS_OPERANDS
from steelyard.passes.pipeline.registry import fail, register_pass
from steelyard.passes.support.declared import declared_calls

_ALIGNMENT = 64


@register_pass
def plan_memory(module: ir.Operation) -> None:
    """Give the results of kernels their places in one block of memory, and free values after their last use.

    Takes calls of kernels that write their results into memory they are given. Leaves an offset (`scaled.offsets` of
    the call) for each result of known size that only kernels read, also through views, in memory that the function's
    calls share (`scaled.arena`, in bytes). Places are used again once their values and all views of them are dead.
    Everything else has memory of its own.
    So has everything in a private function: such a function makes a weight, once, and would keep its block for nothing.
    Leaves a `scaled.free` after the last use of each tensor that is neither returned nor, like a parameter, kept by
    others.
    """
    calls = declared_calls(module)
    writers = {symbol for symbol, call in calls.items() if call.has_destinations}
    in_place = {symbol for symbol, call in calls.items() if call.written is not None}
    for function in functions_of(module):
        _plan(function, writers, in_place)


def _plan(function: ir.Operation, writers: set[str], in_place: set[str]) -> None:
    """Plan one function; `writers` are the kernels that write where they are told, or into an operand, `in_place`."""
    block = function.regions[0].blocks[0]
    operations = [op.operation for op in block.operations]
    planned = next((op for op in operations if isinstance(op.opview, FreeOp)), None)
    if planned is not None:
        fail(planned, "is there already: the memory of a module is planned once")
    dying = _last_uses(block, operations, HOLDS_OPERANDS)
    unread = _last_uses(block, operations, HOLDS_OPERANDS | VIEWS.keys())
    kept = kept_arguments(function)
    arena = _Arena()
    shares = "sym_visibility" not in function.attributes
    for position, op in enumerate(operations):
        if shares:
            _place_results(op, writers, in_place, arena)
        if op.name == "func.return":
            break
        for value in unread.get(position, ()):
            arena.release(value)
        dead = [value for value in dying.get(position, ()) if _is_tensor(value) and value not in kept]
        _free_after(operations[position + 1], dead)
    if arena.size:
        function.attributes[ARENA] = _integer(arena.size)


def _place_results(op: ir.Operation, writers: set[str], in_place: set[str], arena: "_Arena") -> None:
    symbol = callee_of(op)
    if symbol not in writers or symbol in in_place:
        return
    offsets: list[int] = []
    for value in op.results:
        size = _byte_size(value)
        if size is None or not _is_read_by(value, writers):
            offsets.append(ELSEWHERE)
        else:
            offsets.append(arena.place(value, size))
    op.attributes[OFFSETS] = ir.DenseI64ArrayAttr.get(offsets)


def _is_read_by(value: ir.Value, writers: set[str]) -> bool:
    """Whether these kernels, and nothing else, read a value or views of it."""
    users = [use.owner.operation for use in value.uses]
    return bool(users) and all(
        _is_read_by(user.result, writers) if is_view_step(user) else callee_of(user) in writers for user in users
    )


def _free_after(next_op: ir.Operation, dead: Iterable[ir.Value]) -> None:
    with ir.InsertionPoint(next_op):
        for value in dead:
            free(value, loc=ir.Location.unknown())


def _last_uses(block: ir.Block, operations: list[ir.Operation], holding: Collection[str]) -> dict[int, list[ir.Value]]:
    """Position of an op -> the values whose last use it is. What the results of holding ops hold lives as long."""
    last: dict[ir.Value, int] = dict.fromkeys(block.arguments, 0)
    holds: dict[ir.Value, list[ir.Value]] = {}

    def use(value: ir.Value, position: int) -> None:
        last[value] = position
        for held in holds.get(value, ()):
            use(held, position)

    for position, op in enumerate(operations):
        for value in op.results:
            last[value] = position
        for value in op.operands:
            use(value, position)
        if op.name in holding:
            holds[op.result] = list(op.operands)
    positions: dict[int, list[ir.Value]] = {}
    for value, position in last.items():
        positions.setdefault(position, []).append(value)
    return positions


class _Arena:
    """Gaps between places, as an allocator keeps them: the smallest that fits is used, and neighbours are joined."""

    def __init__(self):
        self.size = 0
        self._places: dict[ir.Value, tuple[int, int]] = {}
        self._gaps: list[tuple[int, int]] = []
        """(begin, end) in order."""

    def place(self, value: ir.Value, size: int) -> int:
        """The offset of a place for a value."""
        size = -(-size // _ALIGNMENT) * _ALIGNMENT
        fitting = [gap for gap in self._gaps if gap[1] - gap[0] >= size]
        if fitting:
            begin, end = min(fitting, key=lambda gap: gap[1] - gap[0])
            self._gaps.remove((begin, end))
            if begin + size < end:
                insort(self._gaps, (begin + size, end))
        else:
            begin = self._end_to_grow()
            self.size = max(self.size, begin + size)
        self._places[value] = begin, begin + size
        return begin

    def _end_to_grow(self) -> int:
        """Where memory is added: at the end, or where a gap at the end begins."""
        if self._gaps and self._gaps[-1][1] == self.size:
            return self._gaps.pop()[0]
        return self.size

    def release(self, value: ir.Value) -> None:
        """Make the place of a dead value a gap; values that live elsewhere have none."""
        if value not in self._places:
            return
        begin, end = self._places.pop(value)
        for gap in list(self._gaps):
            if gap[1] == begin or gap[0] == end:
                self._gaps.remove(gap)
                begin, end = min(begin, gap[0]), max(end, gap[1])
        insort(self._gaps, (begin, end))


def _byte_size(value: ir.Value) -> int | None:
    info = tensor_info(value.type)
    if info is None or None in info.shape or info.dtype not in ITEM_SIZES:
        return None
    return prod(size for size in info.shape if size is not None) * ITEM_SIZES[info.dtype]


def _is_tensor(value: ir.Value) -> bool:
    return isinstance(value.type, TensorType) or tensor_info(value.type) is not None


def _integer(value: int) -> ir.Attribute:
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
