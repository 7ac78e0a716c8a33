"""Tapes: the steps of a function that run without Python, as data that prints, and as the native list that runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch_mlir import ir

from steelyard.dialect.memory import FreeOp
from steelyard.dialect.types import tensor_info
from steelyard.ir.attributes import ELSEWHERE, OFFSETS, TAPE
from steelyard.ir.kernel_calls import KernelCall, callee_of
from steelyard.ir.locations import layer_of
from steelyard.ir.native_steps import VIEWS, Size, result_sizes, view_numbers
from steelyard.ir.torch_ops import op_name
from steelyard.runtime import _cpu
from steelyard.runtime.cpu.arguments import ITEM_TYPES
from steelyard.runtime.cpu.tensor_reader import TENSORS
from steelyard.runtime.dtypes import result_dtype
from steelyard.runtime.kernels import BoundKernel
from steelyard.runtime.results import result_maker

_VIEW_NUMBERS = {name: number for number, name in enumerate(_cpu.view_names())}
_NUMBER_KINDS = {"constant": 0, "number": 1, "dim": 2, "rows": 3, "sum": 4, "columns": 5, "grouped": 6}
_OF_TENSORS = ("dim", "rows", "columns", "grouped")
_TENSOR, _PART, _NUMBER = range(3)
_ARENA, _HEAP, _CALLER = range(3)
_HOMES = ("arena", "heap", "caller")


@dataclass(frozen=True)
class Result:
    """A tensor that a kernel writes."""

    register: int
    dtype: torch.dtype
    sizes: list[Size]
    """Of registers, where a size is known only at run time."""
    home: int
    place: int
    """An offset in the arena, or a position among the tensors that the tape returns."""
    order: tuple[int, ...] = ()
    """Of its dims in memory."""

    @property
    def is_returned(self) -> bool:
        """Whether it is a tensor of Python's, which a call of the tape returns."""
        return self.home == _CALLER

    @property
    def known_sizes(self) -> list[int] | None:
        """Its sizes; None if one is known only at run time."""
        return [size.value for size in self.sizes] if all(size.kind == "constant" for size in self.sizes) else None

    def __str__(self) -> str:
        sizes = "x".join(map(_spelled, self.sizes)) or "scalar"
        dtype = str(self.dtype).removeprefix("torch.")
        place = f" {self.place}" if self.home != _HEAP else ""
        return f"t{self.register}: {sizes} {dtype} in {_HOMES[self.home]}{place}"


@dataclass(frozen=True)
class KernelStep:
    """A call of a kernel."""

    symbol: str
    kernel: Any
    values: list[int]
    """Registers of its operands, then of its results."""
    results: list[Result]
    layer: str

    @property
    def registers(self) -> Sequence[int]:
        """What it reads and writes; a number may be in a register of the same name."""
        return self.values

    def __str__(self) -> str:
        operands = ", ".join(f"t{register}" for register in self.values[: len(self.values) - len(self.results)])
        layer = f"  // {self.layer}" if self.layer else ""
        return f"{self.symbol}({operands}) -> {', '.join(map(str, self.results))}{layer}"


@dataclass(frozen=True)
class ViewStep:
    """A view of a tensor."""

    view: str
    source: int
    register: int
    numbers: list[Size]

    @property
    def registers(self) -> Sequence[int]:
        """What it reads, and what it makes."""
        return self.source, self.register

    def __str__(self) -> str:
        return f"t{self.register} = {self.view} t{self.source} [{', '.join(map(_spelled, self.numbers))}]"


@dataclass(frozen=True)
class FreeStep:
    """The memory of a tensor is given back, or an argument is not read any more."""

    register: int

    @property
    def registers(self) -> Sequence[int]:
        """None that it reads."""
        return ()

    def __str__(self) -> str:
        return f"free t{self.register}"


Step = KernelStep | ViewStep | FreeStep


@dataclass
class Tape:
    """A list of steps on registers."""

    arguments: list[ir.Value] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    registers: list[int] = field(default_factory=list)
    """Of each argument: what is read of it, and where that goes."""
    results: list[ir.Value] = field(default_factory=list)
    """What a call returns."""
    steps: list[Step] = field(default_factory=list)
    tensors: int = 0
    numbers: int = 0

    def make(self) -> Any:
        """The native tape."""
        returned = [result for step in self.kernels for result in step.results if result.is_returned]
        makers = [result_maker(result.dtype, result.known_sizes) for result in sorted(returned, key=lambda r: r.place)]
        arguments = list(zip(self.kinds, self.registers, strict=True))
        native = _cpu.Tape(TENSORS, arguments, self.tensors, self.numbers, makers)
        for step in self.steps:
            match step:
                case KernelStep():
                    native.add_kernel(step.kernel, step.values, [_native(result) for result in step.results])
                case ViewStep():
                    numbers = list(map(_coded, step.numbers))
                    native.add_view(_VIEW_NUMBERS[step.view], step.source, step.register, numbers)
                case FreeStep():
                    native.add_free(step.register)
        return native

    @property
    def kernels(self) -> list[KernelStep]:
        """The steps that run kernels."""
        return [step for step in self.steps if isinstance(step, KernelStep)]

    def __str__(self) -> str:
        names = ("tensor t", "part t", "number n")
        taken = [f"{names[kind]}{register}" for kind, register in zip(self.kinds, self.registers, strict=True)]
        width = len(str(len(self.steps)))
        lines = [f"  {number:{width}} {step}" for number, step in enumerate(self.steps)]
        return "\n".join([f"{len(self.steps)} steps; takes {', '.join(taken) or 'nothing'}", *lines])


@dataclass
class TapeSteps:
    """The ops of a tape in a function."""

    ops: list[ir.Operation]
    """In their order; the last is a step, and frees stand among them."""
    returned: set[ir.Value] = field(default_factory=set)
    """Results that others read, from memory of their own."""
    shared: list[tuple[ir.Value, int]] = field(default_factory=list)
    """Results that others read from the arena, and where in it they lie."""
    written: list[tuple[ir.Value, ir.Value]] = field(default_factory=list)
    """Results that others read, and the operands that they are."""
    seen: set[ir.Operation] = field(default_factory=set)
    """Views that others read, too."""
    dying: list[ir.Value] = field(default_factory=list)
    """Values from outside whose last use it is."""


def steps_of_tapes(ops: Sequence[ir.Operation], calls: Mapping[str, KernelCall]) -> dict[ir.Operation, TapeSteps]:
    """The tape of each op of a function that is a step of one, and of each free among those."""
    numbers = {op: ir.IntegerAttr(op.attributes[TAPE]).value for op in ops if TAPE in op.attributes}
    last = {number: op for op, number in numbers.items()}
    tapes: dict[int, TapeSteps] = {number: TapeSteps([]) for number in last}
    found: dict[ir.Operation, TapeSteps] = {}
    current: int | None = None
    for op in ops:
        current = numbers.get(op, current)
        if current is None:
            continue
        tape = tapes[current]
        if op in numbers:
            found[op] = tape
            tape.ops.append(op)
        elif isinstance(op.opview, FreeOp) and found.get(op.operands[0].owner) is tape:
            tape.ops.append(op)
        elif isinstance(op.opview, FreeOp):
            tape.dying.append(op.operands[0])
        if op == last[current]:
            current = None
    for tape in tapes.values():
        _find_readers(tape, calls)
        _keep_what_is_read(tape)
    return found


def _keep_what_is_read(tape: TapeSteps) -> None:
    """Of the values that die where the tape is, others may read some after it."""
    own, written = set(tape.ops), {operand for _, operand in tape.written}
    first = tape.ops[0]

    def is_read_later(value: ir.Value) -> bool:
        readers = [use.owner.operation for use in value.uses]
        return any(_is_other(reader, own) and first.is_before_in_block(reader) for reader in readers)

    tape.dying = [value for value in tape.dying if value not in written and not is_read_later(value)]


def _find_readers(tape: TapeSteps, calls: Mapping[str, KernelCall]) -> None:
    """Find what others read of a tape, the last results first."""
    own = set(tape.ops)
    for op in reversed(tape.ops):
        symbol = callee_of(op)
        is_view, written = symbol is None, None if symbol is None else calls[symbol].written
        offsets = list(ir.DenseI64ArrayAttr(op.attributes[OFFSETS])) if OFFSETS in op.attributes else []
        for number, value in enumerate(op.results):
            readers = [use.owner.operation for use in value.uses]
            if not any(reader in tape.seen or _is_other(reader, own) for reader in readers):
                continue
            if is_view:
                tape.seen.add(op)
            elif written is not None:
                tape.written.append((value, op.operands[written]))
            elif offsets and offsets[number] != ELSEWHERE:
                tape.shared.append((value, offsets[number]))
            else:
                tape.returned.add(value)


def _is_other(reader: ir.Operation, own: set[ir.Operation]) -> bool:
    return reader not in own and not isinstance(reader.opview, FreeOp)


def read_tape(
    ops: Sequence[ir.Operation],
    calls: Mapping[str, KernelCall],
    bound: Mapping[str, BoundKernel],
    returned: set[ir.Value],
    dying: Sequence[ir.Value] = (),
) -> Tape:
    """The tape of some ops of a function, which run in their order; `returned` are the values that others read.

    It tells its caller after which steps it no longer reads the values from outside that are `dying`.
    """
    reader = _Reader(calls, bound, returned)
    for op in ops:
        reader.read(op, layer_of(op.location))
    reader.release(dying)
    reader.tape.kinds = reader.kinds()
    return reader.tape


class _Reader:
    def __init__(self, calls: Mapping[str, KernelCall], bound: Mapping[str, BoundKernel], returned: set[ir.Value]):
        self.tape = Tape()
        self._calls = calls
        self._bound = bound
        self._returned = returned
        self._tensors: dict[ir.Value, int] = {}
        self._numbers: dict[ir.Value, int] = {}
        self._read_whole: set[ir.Value] = set()
        """Arguments of which more than the address is read."""
        self._on_heap: set[int] = set()
        """Registers of tensors that may have memory of the heap."""

    def read(self, op: ir.Operation, layer: str) -> None:
        """Add the step of an op."""
        if isinstance(op.opview, FreeOp):
            register = self._tensors.get(op.operands[0])
            self.tape.steps += [FreeStep(register)] if register is not None and register in self._on_heap else []
        elif (symbol := callee_of(op)) is not None:
            self.tape.steps.append(self._kernel(op, symbol, layer))
        else:
            self._view(op)

    def release(self, dying: Sequence[ir.Value]) -> None:
        """Add steps that release arguments, each after the last step that reads it, or a view of it."""
        registers = {self._tensors[value] for value in dying if value in self._tensors}
        roots = {register: register for register in registers}
        last: dict[int, int] = {}
        for position, step in enumerate(self.tape.steps):
            for register in step.registers:
                if register in roots:
                    last[roots[register]] = position
            if isinstance(step, ViewStep) and step.source in roots:
                roots[step.register] = roots[step.source]
        for register, position in sorted(last.items(), key=lambda pair: -pair[1]):
            self.tape.steps.insert(position + 1, FreeStep(register))

    def kinds(self) -> list[int]:
        """What is read of each argument."""
        return [
            _NUMBER if value in self._numbers else _TENSOR if value in self._read_whole else _PART
            for value in self.tape.arguments
        ]

    def _view(self, op: ir.Operation) -> None:
        source, view = op.operands[0], VIEWS[op_name(op)]
        register = self._tensor(source)
        self._read_whole.add(source)
        if view == "same":
            self._tensors[op.result] = register
            return
        numbers = [
            Size("constant", number) if isinstance(number, int) else Size("number", self._number(number))
            for number in view_numbers(op)
        ]
        made = self._new(op.result)
        # A reshape may have to copy.
        self._on_heap |= {made} if view == "reshape" or register in self._on_heap else set()
        self.tape.steps.append(ViewStep(view, register, made, numbers))

    def _kernel(self, op: ir.Operation, symbol: str, layer: str) -> KernelStep:
        call = self._calls[symbol]
        for position, value in enumerate(op.operands):
            if position not in call.part_positions:
                self._read_whole.add(value)
        values = [self._tensor(value) if _is_tensor(value) else self._number(value) for value in op.operands]
        offsets = list(ir.DenseI64ArrayAttr(op.attributes[OFFSETS])) if OFFSETS in op.attributes else []
        if call.written is not None:
            # What is written is the result.
            self._tensors[op.results[0]] = values[call.written]
            return KernelStep(symbol, self._bound[symbol].run, [*values, values[call.written]], [], layer)
        sizes = result_sizes(call)
        assert sizes is not None, "a pass has looked at the sizes"
        results = []
        for number, value in enumerate(op.results):
            self._read_whole |= {op.operands[size.value] for size in sizes[number] if size.kind in _OF_TENSORS}
            own = [self._in_registers(size, values) for size in sizes[number]]
            offset = offsets[number] if offsets else ELSEWHERE
            results.append(self._result(value, own, offset, call.result_order(number)))
        values += [result.register for result in results]
        return KernelStep(symbol, self._bound[symbol].run, values, results, layer)

    def _result(self, value: ir.Value, sizes: list[Size], offset: int, order: tuple[int, ...]) -> Result:
        dtype = result_dtype(value.type)
        home, place = (_HEAP, 0) if offset == ELSEWHERE else (_ARENA, offset)
        if home == _HEAP and value in self._returned:
            home, place = _CALLER, len(self.tape.results)
            self.tape.results.append(value)
        register = self._new(value)
        self._on_heap |= {register} if home == _HEAP else set()
        return Result(register, dtype, sizes, home, place, order)

    def _in_registers(self, size: Size, values: Sequence[int]) -> Size:
        if size.kind == "sum":
            return size._replace(value=len(values))
        return size if size.kind == "constant" else size._replace(value=values[size.value])

    def _tensor(self, value: ir.Value) -> int:
        if value not in self._tensors:
            self._take(value, self._new(value))
        return self._tensors[value]

    def _new(self, value: ir.Value) -> int:
        self._tensors[value] = self.tape.tensors
        self.tape.tensors += 1
        return self._tensors[value]

    def _number(self, value: ir.Value) -> int:
        if value not in self._numbers:
            self._numbers[value] = self.tape.numbers
            self.tape.numbers += 1
            self._take(value, self._numbers[value])
        return self._numbers[value]

    def _take(self, value: ir.Value, register: int) -> None:
        self.tape.arguments.append(value)
        self.tape.registers.append(register)


def _is_tensor(value: ir.Value) -> bool:
    return tensor_info(value.type) is not None


def _native(result: Result) -> tuple:
    sizes = list(map(_coded, result.sizes))
    return result.register, ITEM_TYPES[result.dtype], sizes, list(result.order), result.home, result.place


def _coded(size: Size) -> tuple[int, ...]:
    return _NUMBER_KINDS[size.kind], *size[1:]


def _spelled(size: Size) -> str:
    match size.kind:
        case "constant":
            return str(size.value)
        case "number":
            return f"n{size.value}"
        case "dim":
            return f"t{size.value}.size({size.detail})"
        case "sum":
            return f"sum(size({size.detail}))"
        case "rows" | "columns":
            factor = f"{size.factor}*" if size.factor > 1 else ""
            return f"{factor}{size.kind}(t{size.value})" + (f"/{size.detail}" if size.detail > 1 else "")
        case "grouped":
            return f"{size.factor}*rows(t{size.value})/{size.detail} in {size.groups} groups"
