"""Plans in the IR: a module of its own for each, with a step on each line, to and from `LaunchPlan`."""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch_mlir import ir

from steelyard.codegen.kernel import POINTER, Kernel
from steelyard.codegen.kernel_attributes import read_kernel
from steelyard.codegen.launches.plan import (
    OPERAND,
    RESULT,
    TEMPORARY,
    Argument,
    Buffer,
    LaunchPlan,
    Memory,
    PlannedLaunch,
    TorchCall,
    Transposed,
)
from steelyard.codegen.sizes import Extent, IsZero, Product, Quotient, RuntimeSize, Size, Sum, is_zero
from steelyard.dialect.launch import (
    SIZE,
    TORCH_FUNCTIONS,
    AllocateOp,
    LaunchOp,
    TorchCallOp,
    allocate,
    argument_of,
    arguments_of,
    launch,
    torch_call,
)
from steelyard.dialect.types import TensorInfo, tensor_info
from steelyard.errors import IRError
from steelyard.ir.attributes import CODE, PLAN
from steelyard.ir.kernel_calls import KernelCall

_OUT, _TRANSPOSED = "out.", "^T"
_MOST_CHARACTERS = 1000


@dataclass(frozen=True)
class Signature:
    """The operands and results of a kernel, by name; an operand that is no tensor is a size."""

    operands: Sequence[str]
    operand_types: Sequence[TensorInfo | None]
    results: Sequence[str]
    result_types: Sequence[TensorInfo]

    def tensors(self) -> dict[Buffer, str]:
        """What plans call each tensor."""
        names = _told_apart(self.operands)
        found = {Buffer(OPERAND, i): name for i, name in enumerate(names) if self.operand_types[i] is not None}
        return found | {Buffer(RESULT, i): _OUT + name for i, name in enumerate(self.results)}

    def sizes(self) -> dict[str, int]:
        """Operands that are sizes, by name."""
        return {name: i for i, name in enumerate(_told_apart(self.operands)) if self.operand_types[i] is None}


def signature_of(call: KernelCall) -> Signature:
    """The operands and results of a declared call."""
    operands, results = ([slot.name for slot in slots] for slots in (call.operands, call.results))
    types = [tensor_info(slot.type) for slot in call.operands]
    made = [info for slot in call.results if (info := tensor_info(slot.type)) is not None]
    return Signature(operands, types, results, made)


def _told_apart(names: Sequence[str]) -> list[str]:
    """Names that come again with a number behind them."""
    found: list[str] = []
    for name in names:
        found.append(name if name not in found else f"{name}_{list(names[: len(found)]).count(name)}")
    return found


def write_plan(symbol: str, kernel: str, signature: Signature, made: LaunchPlan, symbols: Mapping[Kernel, str]) -> None:
    """Write the plan of a kernel at the current place; `symbols` are those of the generated kernels."""
    names = _Writer(signature)
    attributes = {"sym_name": ir.StringAttr.get(symbol), PLAN: ir.FlatSymbolRefAttr.get(kernel)}
    op = ir.Operation.create("builtin.module", attributes=attributes, regions=1)
    with ir.InsertionPoint(op.regions[0].blocks.append()):
        for index, memory in enumerate(made.results):
            if any(isinstance(size, RuntimeSize) for size in memory.shape):
                element = signature.result_types[index].dtype
                allocate(names.tensor(Buffer(RESULT, index)), [names.size(size) for size in memory.shape], element)
        for index, memory in enumerate(made.temporaries):
            shape = [names.size(size) for size in memory.shape]
            allocate(names.tensor(Buffer(TEMPORARY, index)), shape, memory.dtype)
        for step in made.steps:
            arguments = [names.argument(argument) for argument in step.arguments]
            if isinstance(step, TorchCall):
                torch_call(step.function, arguments)
            else:
                launch(symbols[step.kernel], names.size(step.blocks), arguments)


class _Writer:
    def __init__(self, signature: Signature):
        self._tensors = signature.tensors()
        self._sizes = {index: name for name, index in signature.sizes().items()}

    def tensor(self, buffer: Buffer) -> str:
        return self._tensors.get(buffer) or f"temporary{buffer.index}"

    def argument(self, argument: Argument) -> str | int:
        if isinstance(argument, Buffer):
            return self.tensor(argument)
        if isinstance(argument, Transposed):
            return self.tensor(argument.buffer) + _TRANSPOSED
        return self.size(argument)

    def size(self, size: Size) -> str | int:
        return size if isinstance(size, int) else self._text(size)

    def _text(self, size: Size) -> str:
        if isinstance(size, int):
            return str(size)
        if isinstance(size, Extent):
            if size.dim is None:
                return self._sizes[size.operand]
            return f"{self.tensor(Buffer(OPERAND, size.operand))}[{size.dim}]"
        if isinstance(size, Sum):
            return f"{self._text(size.size)} + {size.constant}"
        if isinstance(size, IsZero):
            return f"{self._text(size.size)} == 0"
        assert isinstance(size, Product | Quotient)
        sign = "*" if isinstance(size, Product) else "//"
        left, right = (size.left, size.right) if isinstance(size, Product) else (size.dividend, size.divisor)
        first = self._grouped(left, (Sum, IsZero))
        return f"{first} {sign} {self._grouped(right, (Sum, IsZero, Product, Quotient))}"

    def _grouped(self, size: Size, kinds: tuple[type, ...]) -> str:
        text = self._text(size)
        return f"({text})" if isinstance(size, kinds) else text


def generated_kernels(module: ir.Operation) -> dict[str, Kernel]:
    """The kernels that a module says it generates, by symbol."""
    found = {}
    for op in module.regions[0].blocks[0].operations:
        if op.operation.name == "gpu.module" and CODE in op.attributes:
            found[ir.StringAttr(op.attributes["sym_name"]).value] = read_kernel(op.attributes[CODE])
    return found


def read_plans(module: ir.Operation, calls: Mapping[str, KernelCall]) -> dict[str, LaunchPlan]:
    """The plans of a module, by the symbol of the declared kernel; raises `IRError`."""
    generated = generated_kernels(module)
    found = {}
    for op in module.regions[0].blocks[0].operations:
        if PLAN in op.attributes:
            kernel = op.attributes[PLAN]
            symbol = kernel.value if isinstance(kernel, ir.FlatSymbolRefAttr) else ""
            if symbol not in calls:
                raise _error(op.operation, f"{PLAN} must be a kernel that the module declares, got {kernel}")
            found[symbol] = _Reader(signature_of(calls[symbol]), generated).read(op.operation)
    return found


class _Reader:
    def __init__(self, signature: Signature, generated: Mapping[str, Kernel]):
        self._generated = generated
        self._tensors = {name: buffer for buffer, name in signature.tensors().items()}
        self._sizes = signature.sizes()
        self._ranks = [0 if info is None else len(info.shape) for info in signature.operand_types]
        self._results = [Memory(info.shape, info.dtype) for info in signature.result_types]  # pyright: ignore
        self._temporaries: list[Memory] = []
        self._steps: list[PlannedLaunch | TorchCall] = []

    def read(self, op: ir.Operation) -> LaunchPlan:
        for step in op.regions[0].blocks[0].operations:
            view = step.opview
            if isinstance(view, AllocateOp):
                self._allocate(view)
            elif isinstance(view, LaunchOp):
                self._steps.append(self._launch(view))
            elif isinstance(view, TorchCallOp):
                self._steps.append(self._call(view))
            else:
                raise _error(step.operation, "must be scaled.allocate, launch or torch_call in a plan")
        return LaunchPlan(tuple(self._results), tuple(self._temporaries), tuple(self._steps))

    def _allocate(self, op: AllocateOp) -> None:
        name = op.tensor.value
        shape = tuple(self._size(op, size) for size in arguments_of(op.attributes["shape"]))
        memory = Memory(shape, op.element.value)
        buffer = self._tensors.get(name)
        if buffer is None:
            self._tensors[name] = Buffer(TEMPORARY, len(self._temporaries))
            self._temporaries.append(memory)
        elif buffer.place == RESULT and len(shape) == len(self._results[buffer.index].shape):
            self._results[buffer.index] = memory
        else:
            raise _error(op.operation, f"tensor must be a result of its rank or a new name, got '{name}'")

    def _launch(self, op: LaunchOp) -> PlannedLaunch:
        symbol = op.symbol
        if symbol not in self._generated:
            raise _error(op.operation, f"kernel must be a gpu.module with {CODE}, got @{symbol}")
        kernel = self._generated[symbol]
        kinds = [parameter.type == POINTER for parameter in kernel.parameters]
        arguments = [self._argument(op, argument) for argument in arguments_of(op.attributes["arguments"])]
        if [isinstance(argument, Buffer) for argument in arguments] != kinds:
            wanted = ", ".join(parameter.name for parameter in kernel.parameters)
            raise _error(op.operation, f"the arguments of @{symbol} must be {wanted}, got {op.attributes['arguments']}")
        return PlannedLaunch(kernel, tuple(arguments), self._size(op, argument_of(op.attributes["blocks"])))

    def _call(self, op: TorchCallOp) -> TorchCall:
        name = op.function.value
        arguments = [self._argument(op, argument) for argument in arguments_of(op.attributes["arguments"])]
        are_tensors = [isinstance(argument, Buffer | Transposed) for argument in arguments]
        if are_tensors != [kind != SIZE for kind in TORCH_FUNCTIONS[name]]:
            wanted = ", ".join(f"a {kind}" for kind in TORCH_FUNCTIONS[name])
            raise _error(op.operation, f"the arguments of {name} must be {wanted}, got {op.attributes['arguments']}")
        return TorchCall(name, tuple(arguments))

    def _argument(self, op: ir.OpView, argument: str | int) -> Argument:
        if isinstance(argument, str):
            buffer = self._tensors.get(argument.removesuffix(_TRANSPOSED))
            if buffer is not None:
                return Transposed(buffer) if argument.endswith(_TRANSPOSED) else buffer
        return self._size(op, argument)

    def _size(self, op: ir.OpView, size: str | int) -> Size:
        if isinstance(size, int):
            return size
        try:
            if len(size) > _MOST_CHARACTERS:
                raise ValueError(f"more than {_MOST_CHARACTERS} characters")
            return self._evaluate(ast.parse(size, mode="eval").body)
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
            known = ", ".join((*self._tensors, *self._sizes))
            raise _error(
                op.operation, f"'{size[:80]}' must be a tensor or a size over those of {known}: {error}"
            ) from None

    def _evaluate(self, node: ast.expr) -> Size:
        """The size that an expression stands for."""
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and type(node.slice.value) is int:
            buffer = self._tensors.get(ast.unparse(node.value))
            if buffer is None or buffer.place != OPERAND:
                raise ValueError(f"there is no operand '{ast.unparse(node.value)}'")
            rank = self._ranks[buffer.index]
            if node.slice.value >= rank:
                raise ValueError(f"'{ast.unparse(node.value)}' has {rank} dims")
            return Extent(buffer.index, node.slice.value)
        if isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in self._sizes:
            return Extent(self._sizes[ast.unparse(node)])
        if isinstance(node, ast.Compare) and ast.unparse(node).endswith(" == 0") and len(node.ops) == 1:
            return is_zero(self._evaluate(node.left))
        if isinstance(node, ast.BinOp):
            return _combined(node.op, self._evaluate(node.left), self._evaluate(node.right))
        raise ValueError(f"'{ast.unparse(node)}' is no size")


def _combined(operator: ast.operator, left: Size, right: Size) -> Size:
    if isinstance(operator, ast.Mult):
        return left * right
    if isinstance(operator, ast.FloorDiv) and right != 0:
        return left // right
    if isinstance(operator, ast.Add) and isinstance(left, RuntimeSize) and isinstance(right, int):
        return Sum(left, right)
    raise ValueError("sizes are multiplied, divided by //, and added to constants")


def _error(op: ir.Operation, message: str) -> IRError:
    return IRError(f"{op.location}: '{op.name}' op {message}")
