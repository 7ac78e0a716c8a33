"""Declarations of kernels in a module, and the calls that name them."""

from collections import Counter
from collections.abc import Sequence

from torch_mlir import ir

from steelyard.ir.attributes import KERNEL
from steelyard.ir.kernel_calls.base import KernelCall, operation_of
from steelyard.ir.torch_ops import walk_ops


class Declarations:
    """The declarations of a module, made as they are needed."""

    def __init__(self, module: ir.Operation):
        self._module = module
        self._first: ir.InsertionPoint | None = None
        self._known: dict[KernelCall, str] = {}
        self._counts: Counter[str] = Counter()
        for symbol in declarations_of(module):
            operation, _, number = symbol.rpartition("_")
            if number.isdigit():
                self._counts[operation] = max(self._counts[operation], int(number) + 1)

    def call(self, call: KernelCall, operands: Sequence[ir.Value]) -> list[ir.Value]:
        """Call a kernel on these operands at the current place; raises `ConstraintError` where they do not fit."""
        if call not in self._known:
            call.check()
            self._known[call] = f"{call.OPERATION}_{self._counts[call.OPERATION]}"
            self._counts[call.OPERATION] += 1
            self._declare(self._known[call], call)
        callee = ir.FlatSymbolRefAttr.get(self._known[call])
        types = [slot.type for slot in call.results]
        made = ir.Operation.create("func.call", results=types, operands=operands, attributes={"callee": callee})
        return list(made.results)

    def _declare(self, symbol: str, call: KernelCall) -> None:
        ir.Operation.create(
            "func.func",
            regions=1,
            attributes={
                "sym_name": ir.StringAttr.get(symbol),
                "sym_visibility": ir.StringAttr.get("private"),
                "function_type": ir.TypeAttr.get(call.function_type),
                **call.to_attributes(),
            },
            loc=ir.Location.unknown(),
            ip=self._place(),
        )

    def _place(self) -> ir.InsertionPoint:
        """Before what the module had first: an empty one has nothing to call from, and needs no declaration."""
        if self._first is None:
            self._first = ir.InsertionPoint(self._module.regions[0].blocks[0].operations[0])
        return self._first


def declarations_of(module: ir.Operation) -> dict[str, ir.Operation]:
    """The declarations of kernels in a module, by symbol."""
    operations = [op.operation for op in module.regions[0].blocks[0].operations]
    return {ir.StringAttr(op.attributes["sym_name"]).value: op for op in operations if is_declaration(op)}


def erase_uncalled(module: ir.Operation) -> None:
    """Erase the declarations of kernels that nothing calls any more."""
    called = {callee_of(op) for op in walk_ops(module)}
    for symbol, declaration in declarations_of(module).items():
        if symbol not in called:
            declaration.erase()


def is_declaration(op: ir.Operation) -> bool:
    """Whether an op declares a kernel."""
    return op.name == "func.func" and KERNEL in op.attributes and len(op.regions[0].blocks) == 0


def read_call(declaration: ir.Operation) -> KernelCall:
    """The call that a declaration describes; raises `ConstraintError`."""
    return operation_of(declaration.attributes).from_attributes(declaration.attributes)


def calls_of(module: ir.Operation) -> dict[str, KernelCall]:
    """The kernels that a module declares, by symbol; raises `ConstraintError`."""
    return {symbol: read_call(declaration) for symbol, declaration in declarations_of(module).items()}


def callee_of(op: ir.Operation) -> str | None:
    """The symbol that a call names; None for any other op."""
    return ir.FlatSymbolRefAttr(op.attributes["callee"]).value if op.name == "func.call" else None
