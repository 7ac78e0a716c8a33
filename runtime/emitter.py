"""A function of the lowered IR as one straight-line Python function.

Kernels, ATen overloads and constants are bound when it is made: a call runs no interpreter loop and looks nothing up.
"""

import builtins
import functools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch_mlir import ir
from torch_mlir.extras import fx_importer

from steelyard import knobs
from steelyard.dialect.launch import ContiguousOp
from steelyard.dialect.memory import FreeOp
from steelyard.dialect.types import tensor_info
from steelyard.errors import UnsupportedModelError
from steelyard.ir.attributes import ARENA, ELSEWHERE, OFFSETS
from steelyard.ir.kernel_calls import KernelCall, QuantizingCall, callee_of, calls_of
from steelyard.ir.locations import layer_of
from steelyard.ir.torch_ops import PYTHON, constant_int, op_name
from steelyard.runtime.arena import Arenas, Place, empty_in_order
from steelyard.runtime.cuda.planned import contiguous
from steelyard.runtime.dtypes import result_dtype, shape_of
from steelyard.runtime.emitted import LAYERS, Code, Emitted
from steelyard.runtime.entry import BlockStep, Entry, find_entry
from steelyard.runtime.kernels import BoundKernel, bind_all
from steelyard.runtime.literals import read_literal, unsupported_op
from steelyard.runtime.profiling import KERNELS, RECORD, CallLine, ConsumingLine, KernelLine, TapeLine, kernel_name
from steelyard.runtime.quantizers import Quantizers
from steelyard.runtime.tape import Tape, TapeSteps, read_tape, steps_of_tapes

_BACKWARD = "backward"
_CONSTANTS = {"torch.constant.int", "torch.constant.float", "torch.constant.bool", "torch.constant.str"}
_PYTHON_MODULES = {"operator": operator, "math": math, "builtins": builtins, "torch": torch}
_ENUMERATIONS = {
    "ScalarType": {number: dtype for dtype, number in fx_importer.TORCH_DTYPE_TO_INT.items()},
    "MemoryFormat": {number: layout for layout, number in fx_importer.TORCH_MEMORY_FORMAT_TO_INT.items()},
    "Layout": {number: layout for layout, number in fx_importer.TORCH_LAYOUT_TO_INT.items()},
}


class Emitter:
    """Emits the functions of a module."""

    def __init__(
        self,
        module: ir.Operation,
        quantizers: Quantizers,
        check_finite: Callable | None = None,
        *,
        takes_device: bool = False,
        blocks: Sequence[BlockStep] = (),
    ):
        self._calls = calls_of(module)
        self._check_finite = check_finite
        self._takes_device = takes_device
        self._bound = bind_all(module, self._calls, quantizers, blocks)

    def kernel_texts(self) -> list[str]:
        """The Python of the kernels that were made for this module."""
        return [bound.text for bound in self._bound.values() if bound.text]

    def emit(self, function: ir.Operation) -> Emitted:
        """The Python function of an IR function: it takes the arguments and returns a tuple of results.

        A backward takes them in a list, which it empties: what a forward saved is freed as the backward goes.
        Functions that run elsewhere than on the CPU take the device, which their memory is on, before their arguments.
        """
        body = _Body(function, self._calls, self._bound, self._check_finite, self._takes_device)
        lines = body.lines()
        code = Code(body.name, lines, body.namespace, body.names_layers, body.tapes, body.entry)
        layers = list(body.layers)
        return Emitted(code, layers, code.run(layers))


_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)
# torch's own functions with the arguments of these overloads: they cost less a call.
_FUNCTIONS = {
    torch.ops.aten.reshape.default: torch.reshape,
    torch.ops.aten.transpose.int: torch.transpose,
    torch.ops.aten.permute.default: torch.permute,
    torch.ops.aten.select.int: torch.select,
    torch.ops.aten.cat.default: torch.cat,
    torch.ops.aten.mean.dim: torch.mean,
    torch.ops.aten.add.Tensor: torch.add,
    torch.ops.aten.sub.Tensor: torch.sub,
    torch.ops.aten.mul.Tensor: torch.mul,
}


class _Body:
    def __init__(
        self,
        function: ir.Operation,
        calls: Mapping[str, KernelCall],
        bound: Mapping[str, BoundKernel],
        check_finite: Callable | None,
        takes_device: bool,
    ):
        self._calls = calls
        self._takes_device = takes_device
        self._check_finite = check_finite
        # Values are looked at, where the user asked for it, between kernels.
        self._has_tapes = check_finite is None and knobs.tape()
        self._bound_kernels = bound
        self._function = function
        self.name = ir.StringAttr(function.attributes["sym_name"]).value
        # Python spells infinities and NaN as names.
        self.namespace: dict[str, Any] = {"torch": torch, "inf": math.inf, "nan": math.nan}
        self.namespace |= {LAYERS: (), KERNELS: (), RECORD: None}
        self.layers: dict[str, int] = {}
        """The layers whose kernels are called, by name: their numbers."""
        self.names_layers = False
        self._bound_names: dict[int, str] = {}
        self._names: dict[ir.Value, str] = {}
        self._variables: set[str] = set()
        self._places: list[Place] = []
        self._placed: dict[ir.Value, int] = {}
        self.tapes: list[str] = []
        """The text of each tape."""
        self._native_tapes: list[Any] = []
        self._read_tapes: list[tuple[TapeSteps, Tape, Any]] = []
        self.entry: Entry | None = None
        """How another program runs the function."""

    def lines(self) -> list[str]:
        """The lines of the Python function."""
        block = self._function.regions[0].blocks[0]
        arguments = [self._new_variable(value, f"a{i}") for i, value in enumerate(block.arguments)]
        ops = [op.operation for op in block.operations]
        body = self._emit_all(ops)
        attributes = self._function.attributes
        size = ir.IntegerAttr(attributes[ARENA]).value if ARENA in attributes else 0
        self.namespace["arenas"] = Arenas(size, self._places, self._native_tapes)
        self.entry = find_entry(ops, block.arguments, self._read_tapes, size)
        taken = []
        if self.name == _BACKWARD:
            taken = [f"[{', '.join(arguments)}] = values", "values.clear()"]
            arguments = ["values"]
        if self._takes_device:
            arguments.insert(0, "device")
        if self._places and self._takes_device:
            body.insert(0, "tensors = arenas.make(device).tensors")
        elif self._places or self.tapes:
            found = ["tensors, addresses = arena.tensors, arena.addresses"] if self._places else []
            body = ["arena = arenas.take()", *found, *body[:-1], "arenas.give(arena)", body[-1]]
        return [f"def {self.name}({', '.join(arguments)}):", *taken, *body]

    def _emit_all(self, ops: list[ir.Operation]) -> list[str]:
        """The lines of all ops. A tape runs where its last step stands, and what needs its results follows it."""
        tapes = steps_of_tapes(ops, self._calls) if self._has_tapes else {}
        lines: list[str] = []
        waiting: list[ir.Operation] = []
        is_open = False
        for op in ops:
            steps = tapes.get(op)
            if steps is None or op in steps.seen:
                # What is free to go may be read by the tape.
                waits = is_open and (isinstance(op.opview, FreeOp) or any(v not in self._names for v in op.operands))
                waiting += [op] if waits else []
                lines += [] if waits else self._emit(op)
            if steps is not None:
                is_open = op != steps.ops[-1]
            if steps is not None and not is_open:
                lines += self._emit_tape(steps)
                lines += [line for later in waiting for line in self._emit(later)]
                waiting = []
        return lines

    def _emit_tape(self, steps: TapeSteps) -> list[str]:
        # Of a backward, which owns what it was given, each value goes after its last use, also within a tape.
        dying = [value for value in steps.dying if self.name == _BACKWARD and self._is_variable(value)]
        tape = read_tape(steps.ops, self._calls, self._bound_kernels, steps.returned, dying)
        self.tapes.append(str(tape))
        native = tape.make()
        self._native_tapes.append(native)
        self._read_tapes.append((steps, tape, native))
        called = self._bind("tape", native)
        kernels = [
            (kernel_name(self._calls[step.symbol]), self.layers.setdefault(step.layer, len(self.layers)))
            for step in tape.kernels
        ]
        arguments = ", ".join(["arena.address", *(self._names[value] for value in tape.arguments)])
        for value, offset in steps.shared:
            self._place(value, offset)
        results = "".join(f"{self._new_variable(value)}, " for value in tape.results)
        results = f"{results}= " if results else ""
        lines = [TapeLine(results, called, arguments, kernels)]
        if given := [self._names[value] for value in dying]:
            lines = [f"given = [{arguments}]", f"{' = '.join(given)} = None", ConsumingLine(results, called, kernels)]
        return [*lines, *(self._emit_written(value, operand) for value, operand in steps.written)]

    def _emit_written(self, value: ir.Value, operand: ir.Value) -> str:
        """A name of its own for a result that is the operand which was written."""
        source = self._names[operand]
        return f"{self._new_variable(value)} = {source}"

    def _emit(self, op: ir.Operation) -> list[str]:
        name = op.name
        expression = self._expression(op)
        if expression is not None:
            self._names[op.result] = expression
            return []
        if name == "torch.prim.ListUnpack":
            return [f"{self._results(op)}, = {self._operands(op)[0]}"]
        if name == "torch.aten.size.int" and constant_int(op.operands[1]) is not None:
            return [f"{self._results(op)} = {self._names[op.operands[0]]}.size({constant_int(op.operands[1])})"]
        if name == "torch.vtensor.literal":
            return self._emit_literal(op)
        if op_name(op).startswith(PYTHON):
            called = self._bind("python", _find_function(op))
            return [f"{self._results(op)} = {called}({', '.join(self._operands(op))})"]
        if name == "func.return":
            return [f"return ({''.join(operand + ', ' for operand in self._operands(op))})"]
        if isinstance(op.opview, ContiguousOp):
            called = self._bind("contiguous", contiguous)
            return [f"{self._new_variable(op.result)} = {called}({self._operands(op)[0]})"]
        if isinstance(op.opview, FreeOp):
            return self._emit_free(op.operands[0])
        if callee_of(op) is not None:
            return self._emit_kernel(op)
        return [self._emit_aten(op)]

    def _expression(self, op: ir.Operation) -> str | None:
        """What is written for the result of an op that takes no line of its own."""
        name = op.name
        if name in _CONSTANTS:
            return repr(_constant(op))
        if name == "torch.constant.none":
            return "None"
        if name == "torch.constant.device":
            return self._bind("place", torch.device(ir.StringAttr(op.attributes["value"]).value))
        if name in ("torch.prim.ListConstruct", "torch.prim.TupleConstruct"):
            return f"[{', '.join(self._operands(op))}]"
        if name == "torch.tensor_static_info_cast":
            return self._operands(op)[0]
        return None

    def _emit_literal(self, op: ir.Operation) -> list[str]:
        # A copy: a later op, or the caller, may write into it.
        literal = self._bind("literal", read_literal(op))
        copied = f"{literal}.to(device, copy=True)" if self._takes_device else f"{literal}.clone()"
        return [f"{self._results(op)} = {copied}"]

    def _emit_free(self, value: ir.Value) -> list[str]:
        return [f"{self._names[value]} = None"] if self._is_variable(value) else []

    def _is_variable(self, value: ir.Value) -> bool:
        return self._names.get(value) in self._variables and value not in self._placed

    def _emit_kernel(self, op: ir.Operation) -> list[str]:
        symbol = callee_of(op) or ""
        if symbol not in self._calls:
            raise UnsupportedModelError(f"{op.location}: '{symbol}' is no kernel that the program declares")
        call, bound = self._calls[symbol], self._bound_kernels[symbol]
        run = self._bind(symbol, bound.run)
        layer = self.layers.setdefault(layer_of(op.location), len(self.layers))
        lines = self._emit_check(op, call, layer)
        if bound.allocate is None:
            tensors = self._tensors(op.operands)
            made = f"{run}({', '.join(self._operands(op))})"
            # A user's own quantizer makes one value, every other kernel a tuple.
            line = f"{self._results(op)}{'' if call.is_custom else ','} = {made}"
            return [*lines, KernelLine(line, kernel_name(call), layer, tensors)]
        lines += self._emit_allocation(op, symbol, bound)
        parts = call.part_positions if bound.takes_addresses else frozenset()
        values = enumerate((*op.operands, *op.results))
        words = [self._address(value) if position in parts else self._names[value] for position, value in values]
        tensors = self._tensors((*op.operands, *op.results))
        return [*lines, KernelLine(f"{run}({', '.join(words)})", kernel_name(call), layer, tensors)]

    def _tensors(self, values: Iterable[ir.Value]) -> list[str]:
        """Those values that are plain tensors: a user's own quantizer may make others."""
        return [self._names[value] for value in values if tensor_info(value.type) is not None]

    def _emit_check(self, op: ir.Operation, call: KernelCall, layer: int) -> list[str]:
        """A look at what a call quantizes, where the user asked for it."""
        if self._check_finite is None or not isinstance(call, QuantizingCall):
            return []
        check = self._bind("check_finite", self._check_finite)
        self.names_layers = True
        sources = [op.operands[position] for position in call.checked_operands]
        return [f"{check}({self._names[value]}, {LAYERS}[{layer}], {call.role!r})" for value in sources]

    def _emit_allocation(self, op: ir.Operation, symbol: str, bound: BoundKernel) -> list[str]:
        """Memory for the results of a kernel that writes where it is told."""
        written = self._calls[symbol].written
        if written is not None:
            return [self._emit_written(op.results[0], op.operands[written])]
        offsets = list(ir.DenseI64ArrayAttr(op.attributes[OFFSETS])) if OFFSETS in op.attributes else []
        if any(None in shape_of(value.type) for value in op.results):
            allocate = self._bind(f"{symbol}_results", bound.allocate)
            operands = ", ".join(self._operands(op))
            return [f"{self._results(op)}, = {allocate}({operands})"]
        lines = []
        for value, offset in zip(op.results, offsets or [ELSEWHERE] * len(op.results), strict=True):
            shape, dtype = shape_of(value.type), result_dtype(value.type)
            if offset != ELSEWHERE:
                self._place(value, offset)
                continue
            sizes, order = tuple(size or 0 for size in shape), self._order(value)
            make = functools.partial(empty_in_order, sizes, order) if order else functools.partial(torch.empty, sizes)
            empty = self._bind("empty", functools.partial(make, dtype=dtype))
            lines.append(f"{self._new_variable(value)} = {empty}({'device=device' if self._takes_device else ''})")
        return lines

    def _place(self, value: ir.Value, offset: int) -> None:
        """Name a value that lies in the arena."""
        self._placed[value] = len(self._places)
        self._names[value] = f"tensors[{len(self._places)}]"
        shape = tuple(size or 0 for size in shape_of(value.type))
        self._places.append(Place(offset, shape, result_dtype(value.type), self._order(value)))

    def _order(self, value: ir.Value) -> tuple[int, ...]:
        """The order in memory of the dims of what a kernel makes."""
        result = ir.OpResult(value)
        return self._calls[callee_of(result.owner) or ""].result_order(result.result_number)

    def _address(self, value: ir.Value) -> str:
        """The address of a part of a quantized tensor."""
        if value in self._placed:
            return f"addresses[{self._placed[value]}]"
        return f"{self._names[value]}.data_ptr()"

    def _emit_aten(self, op: ir.Operation) -> str:
        overload = _find_overload(op)
        if overload in _VIEWS:
            # Values have no strides in the IR: what was a view of a copy in another layout may have lost the copy.
            overload = torch.ops.aten.reshape.default
        # Past the Python of the overload's own call.
        called = self._bind(str(overload).replace(".", "_"), _FUNCTIONS.get(overload, overload._op))
        layer = self.layers.setdefault(layer_of(op.location), len(self.layers))
        text = f"{self._results(op)} = {called}({self._aten_arguments(overload, op)})"
        return CallLine(text, f"torch {overload}", layer)

    def _aten_arguments(self, overload: torch._ops.OpOverload, op: ir.Operation) -> str:
        """Operands in the order of the schema; enumerations that the IR spells as integers become themselves."""
        words = []
        for argument, value in zip(overload._schema.arguments, op.operands, strict=True):
            text = self._names[value]
            kind = next((kind for kind in _ENUMERATIONS if kind in str(argument.real_type)), None)
            if kind is not None and text.lstrip("-").isdigit():
                text = self._bind(kind, _ENUMERATIONS[kind][int(text)])
            words.append(f"{argument.name}={text}" if argument.kwarg_only else text)
        return ", ".join(words)

    def _operands(self, op: ir.Operation) -> list[str]:
        return [self._names[value] for value in op.operands]

    def _results(self, op: ir.Operation) -> str:
        return ", ".join(self._new_variable(value) for value in op.results)

    def _new_variable(self, value: ir.Value, name: str = "") -> str:
        name = name or f"v{len(self._variables)}"
        self._names[value] = name
        self._variables.add(name)
        return name

    def _bind(self, stem: str, value: Any) -> str:
        """A name for an object in the function's namespace."""
        if id(value) not in self._bound_names:
            name = stem if stem not in self.namespace else f"{stem}_{len(self.namespace)}"
            self._bound_names[id(value)] = name
            self.namespace[name] = value
        return self._bound_names[id(value)]


def _constant(op: ir.Operation) -> int | float | bool | str:
    value = op.attributes["value"]
    if isinstance(value, ir.IntegerAttr | ir.FloatAttr | ir.BoolAttr | ir.StringAttr):
        return value.value
    raise UnsupportedModelError(f"{op.location}: '{op.name}' must have a number or a string, got {value}")


def _find_function(op: ir.Operation) -> Callable:
    """The Python function of numbers that an op names."""
    name = op_name(op)
    module, _, function = name.removeprefix(PYTHON).partition(".")
    found = getattr(_PYTHON_MODULES.get(module), function, None)
    if found is None:
        raise unsupported_op(op, "no such function is known")
    # It takes its numbers as a list.
    return (lambda *numbers: torch.sym_sum(numbers)) if found is torch.sym_sum else found


def _find_overload(op: ir.Operation) -> torch._ops.OpOverload:
    """The ATen op that an op of the `torch` dialect names."""
    name = op_name(op)
    dialect, namespace, packet, *overload = name.split(".")
    found = getattr(getattr(torch.ops, namespace, None), packet, None) if dialect == "torch" else None
    found = getattr(found, overload[0] if overload else "default", None)
    if not isinstance(found, torch._ops.OpOverload):
        raise unsupported_op(op, "it is no operator that torch can run")
    return found
