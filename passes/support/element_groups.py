"""Which elementwise ops are computed together: inside the program of a value that is kept, or as one of their own."""

from collections.abc import Collection, Iterator
from math import prod

from torch_mlir import ir

from steelyard.dialect.types import TensorInfo
from steelyard.formats.dtypes import ITEM_SIZES
from steelyard.formats.elementwise import MOST_DIMS
from steelyard.ir.attributes import PARAMETER, STATE
from steelyard.ir.functions import argument_attributes
from steelyard.ir.torch_ops import defining_op, info_of, op_name, writes_in_place
from steelyard.ir.view_ops import RESHAPES
from steelyard.passes.support.element_loops import CAT, SELECT_BACKWARD, SLICE_BACKWARD, element_operands, is_element_op
from steelyard.passes.support.element_places import base_of, is_view
from steelyard.passes.support.element_steps import CASTS, has_torchs_bits, is_always_ours, is_cheap

_MOVING = (CAT, SELECT_BACKWARD, SLICE_BACKWARD)
"""Ops whose operands are in other places than their results."""
_FEW_BYTES = 1 << 16
"""What may wait whatever it is computed from: one token's values."""
_FREE = ("torch.constant.", "torch.prim.", "torch.aten.size.")


class Groups:
    """The elementwise ops of a function: those whose values are kept, in order, and those that are `inlined`.

    `roots` are what is written to memory: a value that is kept, or the one view of it that is read, and that value.

    A value is inlined if all who read it are in one program, and read it at the same places, so that nothing is
    computed twice. It is kept if what it is computed from would have to live longer than it takes memory itself, and
    where an op that writes in place stands between.
    """

    def __init__(self, function: ir.Operation, refused: Collection[ir.Value] = (), *, in_training: bool = False):
        """`refused` are values that have no program, and so can hold none inside."""
        self._in_training = in_training
        block = function.regions[0].blocks[0]
        self._ops = [op.operation for op in block.operations]
        self._position = {op: position for position, op in enumerate(self._ops)}
        pairs = zip(block.arguments, argument_attributes(function), strict=True)
        self._kept = {value for value, own in pairs if PARAMETER in own or STATE in own}
        self._segments, self._work = self._walk()
        self.elements = {op.result for op in self._ops if self._is_element(op) and op.result not in refused}
        self.inlined: set[ir.Value] = set()
        self._owner: dict[ir.Value, ir.Value] = {}
        """The root whose program computes a value."""
        self._space: dict[ir.Value, ir.Value] = {}
        """The value at whose places a value is computed."""
        for op in reversed(self._ops):
            if len(op.results) == 1 and op.result in self.elements:
                self._decide(op)
        kept = [value for value in map(_result, self._ops) if value in self.elements - self.inlined]
        self.roots = {self._sunk(value): value for value in kept}

    def _walk(self) -> tuple[list[int], list[int]]:
        """At each op: how many ops before it write in place, and how many do work of another kind than ours."""
        segments, work = [0], [0]
        for op in self._ops:
            segments.append(segments[-1] + writes_in_place(op))
            is_free = op_name(op).startswith(_FREE) or is_view(op) or self._is_element(op)
            work.append(work[-1] + (not is_free))
        return segments, work

    def _is_element(self, op: ir.Operation) -> bool:
        return _is_element(op) and (not self._in_training or has_torchs_bits(op) or is_always_ours(op))

    def _decide(self, op: ir.Operation) -> None:
        value = op.result
        readers = list(self._readers(value))
        owner = self._common_owner(value, readers)
        if owner is None or not self._may_wait(op, owner):
            self._owner[value] = self._space[value] = value
            return
        self.inlined.add(value)
        self._owner[value] = owner
        same_places = all(direct and op_name(reader) not in _MOVING for reader, direct in readers)
        same_places = same_places and all(_shape(reader.result) == _shape(value) for reader, _ in readers)
        self._space[value] = self._space[readers[0][0].result] if same_places else value

    def _readers(self, value: ir.Value) -> Iterator[tuple[ir.Operation, bool]]:
        """The ops that read a value, through views, and whether they read it as it is."""
        for use in value.uses:
            op = use.owner.operation
            if op.name == "torch.prim.ListConstruct":
                yield from ((one.owner.operation, False) for one in op.result.uses)
            elif is_view(op) or op_name(op) in ("torch.aten.split.Tensor", "torch.aten.unbind.int"):
                through = [reader for result in op.results for reader in self._readers(result)]
                yield from ((reader, False) for reader, _ in through or [(op, False)])
            else:
                yield op, True

    def _common_owner(self, value: ir.Value, readers: list[tuple[ir.Operation, bool]]) -> ir.Value | None:
        """The root whose program may compute a value; None where it must be kept."""
        if not readers or any(len(op.results) != 1 or op.result not in self.elements for op, _ in readers):
            return None
        owners = {self._owner[op.result] for op, _ in readers}
        if len(owners) != 1:
            return None
        if len(readers) > 1:
            spaces = {self._space[op.result] for op, _ in readers}
            is_direct = all(direct and op_name(op) not in _MOVING for op, direct in readers)
            if len(spaces) != 1 or not is_direct or any(_shape(op.result) != _shape(value) for op, _ in readers):
                return None
        op = defining_op(value)
        assert op is not None
        if self._is_repeated(value, readers[0][0]) and not is_cheap(op):
            return None
        return owners.pop()

    def _is_repeated(self, value: ir.Value, reader: ir.Operation) -> bool:
        """Whether elements of a value are broadcast on their way to whom reads it."""
        while (view := next((use.owner.operation for use in value.uses), None)) is not None and is_view(view):
            if op_name(view) == "torch.aten.expand":
                return True
            value = view.results[0]
        return op_name(reader) not in _MOVING and _shape(value) != _shape(reader.result)

    def _may_wait(self, op: ir.Operation, owner: ir.Value) -> bool:
        """Whether an op may be computed where its root is: what it reads stays, and takes no more memory till then."""
        root = defining_op(owner)
        assert root is not None
        begin, end = self._position[op], self._position[root]
        if self._segments[begin] != self._segments[end]:
            return False
        if self._work[begin + 1] == self._work[end]:
            return True
        waiting = {base for one in element_operands(op) if (base := base_of(one)) not in self._kept}
        longer = [base for base in waiting if self._last_use(base, op) < end]
        return sum(map(_bytes, longer)) <= max(_bytes(op.result), _FEW_BYTES)

    def _last_use(self, value: ir.Value, but: ir.Operation) -> int:
        """The position of the last op that reads a value or a view of it, but for one."""
        last = -1
        for use in value.uses:
            op = use.owner.operation
            if op != but:
                last = max(last, self._position[op])
            if is_view(op) or op.name in ("torch.prim.ListConstruct", "torch.aten.split.Tensor"):
                last = max([last, *(self._last_use(result, but) for result in op.results)])
        return last

    def _sunk(self, value: ir.Value) -> ir.Value:
        """The reshape of a value that alone is read, in place of the value."""
        found = last = value
        while len(uses := list(last.uses)) == 1:
            op = uses[0].owner.operation
            if not is_view(op) or len(op.results) != 1 or op_name(op) == "torch.aten.expand":
                break
            last = op.result
            info, own = info_of(last), info_of(found)
            if op_name(op) in RESHAPES and info is not None and own is not None and _numel(info) == _numel(own):
                found = last
        return found


def _numel(info: TensorInfo) -> int | None:
    known = [size for size in info.shape if size is not None]
    return prod(known) if len(known) == len(info.shape) else None


def _result(op: ir.Operation) -> ir.Value | None:
    return op.results[0] if len(op.results) == 1 else None


def _is_element(op: ir.Operation) -> bool:
    info = info_of(op.results[0]) if len(op.results) == 1 else None
    if info is None or info.namespace != "torch" or 0 in info.shape or len(info.shape) > MOST_DIMS:
        return False
    # Where it has nothing to cast, torch hands on the tensor itself.
    return is_element_op(op) and not (op_name(op) in CASTS and _dtype(op.operands[0]) == info.dtype)


def _dtype(value: ir.Value) -> str | None:
    info = info_of(value)
    return None if info is None else info.dtype


def _shape(value: ir.Value) -> tuple[int | None, ...] | None:
    info = info_of(value)
    return None if info is None else info.shape


def _bytes(value: ir.Value) -> int:
    info = info_of(value)
    if info is None or info.dtype not in ITEM_SIZES:
        return 0
    # Sizes that are not known count alike wherever they are.
    return prod(1 << 10 if size is None else size for size in info.shape) * ITEM_SIZES[info.dtype]
