"""A function of the IR as one straight-line Python function.

Kernels, ATen overloads and constants are bound when it is made: a call runs no interpreter loop and looks nothing up.
Values are let go after their last use.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch_mlir import ir
from torch_mlir.extras import fx_importer

from steelyard.dialect.matmul import GemmOp, MatmulOp
from steelyard.dialect.produce import ProduceQuantizeOp
from steelyard.dialect.quantize import QuantizeOp
from steelyard.errors import UnsupportedModelError
from steelyard.runtime.steps import Quantizers, bind_gemm, bind_matmul, bind_produce_quantize, bind_quantize

_KERNELS: dict[type, Callable[[Any, Quantizers], Callable]] = {
    QuantizeOp: bind_quantize,
    ProduceQuantizeOp: bind_produce_quantize,
    GemmOp: bind_gemm,
    MatmulOp: bind_matmul,
}
_CONSTANTS = {"torch.constant.int", "torch.constant.float", "torch.constant.bool", "torch.constant.str"}
_ENUMERATIONS = {
    "ScalarType": {number: dtype for dtype, number in fx_importer.TORCH_DTYPE_TO_INT.items()},
    "MemoryFormat": {number: layout for layout, number in fx_importer.TORCH_MEMORY_FORMAT_TO_INT.items()},
    "Layout": {number: layout for layout, number in fx_importer.TORCH_LAYOUT_TO_INT.items()},
}


def emit(function: ir.Operation, quantizers: Quantizers) -> tuple[Callable[..., tuple], str]:
    """The Python function of an IR function, and its text. It takes the arguments and returns a tuple of results."""
    emitter = _Emitter(function, quantizers)
    text = emitter.text()
    namespace = dict(emitter.namespace)
    exec(compile(text, f"<steelyard {emitter.name}>", "exec"), namespace)
    return namespace[emitter.name], text


class _Emitter:
    def __init__(self, function: ir.Operation, quantizers: Quantizers):
        self._quantizers = quantizers
        self.name = ir.StringAttr(function.attributes["sym_name"]).value
        # Python spells infinities and NaN as names.
        self.namespace: dict[str, Any] = {"torch": torch, "inf": math.inf, "nan": math.nan}
        self._block = function.regions[0].blocks[0]
        self._names: dict[ir.Value, str] = {}
        self._variables: set[str] = set()
        self._last_use = _last_uses(self._block)

    def text(self) -> str:
        """The source of the Python function."""
        arguments = [self._new_variable(value, f"a{i}") for i, value in enumerate(self._block.arguments)]
        lines = [f"def {self.name}({', '.join(arguments)}):"]
        for position, op in enumerate(self._block.operations):
            lines += [f"    {line}" for line in self._emit(op.operation)]
            dead = sorted(self._names[value] for value in self._last_use.get(position, ()) if self._is_variable(value))
            if dead and op.operation.name != "func.return":
                lines.append(f"    {' = '.join(dead)} = None")
        return "\n".join(lines) + "\n"

    def _emit(self, op: ir.Operation) -> list[str]:
        name = op.name
        if name in _CONSTANTS:
            return self._alias(op.result, repr(op.attributes["value"].value))
        if name == "torch.constant.none":
            return self._alias(op.result, "None")
        if name == "torch.constant.device":
            return self._alias(op.result, self._bind("device", torch.device(op.attributes["value"].value)))
        if name in ("torch.prim.ListConstruct", "torch.prim.TupleConstruct"):
            return self._alias(op.result, f"[{', '.join(self._operands(op))}]")
        if name == "torch.prim.ListUnpack":
            return [f"{self._results(op)}, = {self._operands(op)[0]}"]
        if name == "torch.tensor_static_info_cast":
            return self._alias(op.result, self._operands(op)[0])
        if name == "func.return":
            return [f"return ({''.join(operand + ', ' for operand in self._operands(op))})"]
        return [self._call(op)]

    def _call(self, op: ir.Operation) -> str:
        view = op.opview
        arguments = self._operands(op)
        bind = _KERNELS.get(type(view))
        if bind is not None:
            kernel = self._bind(op.name.removeprefix("scaled."), bind(view, self._quantizers))
            return f"{self._results(op)} = {kernel}({', '.join(arguments)})"
        overload = _find_overload(op)
        called = self._bind(str(overload).replace(".", "_"), overload)
        return f"{self._results(op)} = {called}({self._arguments(overload, op)})"

    def _arguments(self, overload: torch._ops.OpOverload, op: ir.Operation) -> str:
        """Operands in the order of the schema; enumerations that the IR spells as integers become themselves."""
        words = []
        for argument, value in zip(overload._schema.arguments, op.operands, strict=True):
            text = self._names[value]
            kind = next((kind for kind in _ENUMERATIONS if kind in str(argument.real_type)), None)
            if kind is not None and text.lstrip("-").isdigit():
                text = self._bind(kind, _ENUMERATIONS[kind][int(text)])
            words.append(f"{argument.name}={text}" if argument.kwarg_only else text)
        return ", ".join(words)

    def _alias(self, value: ir.Value, text: str) -> list[str]:
        self._names[value] = text
        return []

    def _operands(self, op: ir.Operation) -> list[str]:
        return [self._names[value] for value in op.operands]

    def _results(self, op: ir.Operation) -> str:
        return ", ".join(self._new_variable(value, f"v{len(self._variables)}") for value in op.results)

    def _new_variable(self, value: ir.Value, name: str) -> str:
        self._names[value] = name
        self._variables.add(name)
        return name

    def _is_variable(self, value: ir.Value) -> bool:
        return self._names.get(value) in self._variables

    def _bind(self, stem: str, value: Any) -> str:
        """A name for an object in the function's namespace."""
        for name, bound in self.namespace.items():
            if bound is value:
                return name
        name = f"{stem}_{len(self.namespace)}"
        self.namespace[name] = value
        return name


def _last_uses(block: ir.Block) -> dict[int, list[ir.Value]]:
    """Position of an op -> the values whose last use it is. What a list or a cast holds lives as long as that does."""
    last: dict[ir.Value, int] = {}
    holds: dict[ir.Value, list[ir.Value]] = {}

    def use(value: ir.Value, position: int) -> None:
        last[value] = position
        for held in holds.get(value, ()):
            use(held, position)

    for position, op in enumerate(block.operations):
        for value in op.operation.operands:
            use(value, position)
        if op.operation.name in (
            "torch.prim.ListConstruct",
            "torch.prim.TupleConstruct",
            "torch.tensor_static_info_cast",
        ):
            holds[op.operation.result] = list(op.operation.operands)
    positions: dict[int, list[ir.Value]] = {}
    for value, position in last.items():
        positions.setdefault(position, []).append(value)
    return positions


def _find_overload(op: ir.Operation) -> torch._ops.OpOverload:
    """The ATen op that an op of the `torch` dialect names."""
    name = ir.StringAttr(op.attributes["name"]).value if op.name == "torch.operator" else op.name
    dialect, namespace, packet, *overload = name.split(".")
    found = getattr(getattr(torch.ops, namespace, None), packet, None) if dialect == "torch" else None
    found = getattr(found, overload[0] if overload else "default", None)
    if not isinstance(found, torch._ops.OpOverload):
        raise UnsupportedModelError(f"{op.location}: '{name}' is no operator that torch can run")
    return found
