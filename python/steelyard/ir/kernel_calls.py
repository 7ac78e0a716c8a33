"""Calls of kernels: `func.call` of a declaration that says, in its attributes, which kernel it is and how it is set.

    func.func private @gemm_0(...) -> ... attributes {
      scaled.kernel = "gemm", scaled.config = {kind = "fprop", ...},
      scaled.operands = ["lhs.codes", "lhs.scales", ...], scaled.results = ["result"]}

A declaration is shared by all calls that are set alike, so the declarations of a module are the kernels it needs.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch_mlir import ir

from steelyard.dialect.attributes import SchemeAttr
from steelyard.dialect.types import Shape
from steelyard.formats.schemes import Scheme
from steelyard.ir.attributes import CONFIG, DESTINATIONS, KERNEL, OPERANDS, RESULTS

UNKNOWN = -1
"""A size in a config that is known only at run time."""

Setting = str | int | float | bool | Scheme | Shape | None


@dataclass(frozen=True)
class Kernel:
    """What a declaration says."""

    name: str
    config: Mapping[str, Setting]
    operands: tuple[str, ...]
    results: tuple[str, ...]
    types: tuple[ir.Type, ...] = field(repr=False)
    """Of the results."""
    has_destinations: bool


class Kernels:
    """The declarations of a module, made as they are needed."""

    def __init__(self, module: ir.Operation):
        self._first = module.regions[0].blocks[0].operations[0]
        self._known: dict[tuple, str] = {}
        self._counts: Counter[str] = Counter()

    def call(
        self,
        name: str,
        config: Mapping[str, Setting],
        operands: Sequence[tuple[str, ir.Value]],
        results: Sequence[tuple[str, ir.Type]],
    ) -> list[ir.Value]:
        """Call a kernel at the current place."""
        values, types = [value for _, value in operands], [type_ for _, type_ in results]
        attributes = {
            KERNEL: ir.StringAttr.get(name),
            CONFIG: ir.DictAttr.get({key: _attribute(value) for key, value in config.items() if value is not None}),
            OPERANDS: _names(operands),
            RESULTS: _names(results),
        }
        function_type = ir.FunctionType.get([value.type for value in values], types)
        key = (function_type, *attributes.values())
        if key not in self._known:
            self._known[key] = f"{name}_{self._counts[name]}"
            self._counts[name] += 1
            self._declare(self._known[key], function_type, attributes)
        callee = ir.FlatSymbolRefAttr.get(self._known[key])
        call = ir.Operation.create("func.call", results=types, operands=values, attributes={"callee": callee})
        return list(call.results)

    def _declare(self, symbol: str, function_type: ir.FunctionType, attributes: Mapping[str, ir.Attribute]) -> None:
        ir.Operation.create(
            "func.func",
            regions=1,
            attributes={
                "sym_name": ir.StringAttr.get(symbol),
                "sym_visibility": ir.StringAttr.get("private"),
                "function_type": ir.TypeAttr.get(function_type),
                **attributes,
            },
            loc=ir.Location.unknown(),
            ip=ir.InsertionPoint(self._first),
        )


def kernels_of(module: ir.Operation) -> dict[str, Kernel]:
    """The kernels that a module declares, by symbol."""
    return {
        ir.StringAttr(op.attributes["sym_name"]).value: _read(op.operation)
        for op in module.regions[0].blocks[0].operations
        if KERNEL in op.attributes
    }


def callee_of(op: ir.Operation) -> str | None:
    """The symbol that a call names."""
    return ir.FlatSymbolRefAttr(op.attributes["callee"]).value if op.name == "func.call" else None


def _read(declaration: ir.Operation) -> Kernel:
    attributes = declaration.attributes
    config = {entry.name: _setting(entry.attr) for entry in ir.DictAttr(attributes[CONFIG])}
    operands, results = (
        tuple(ir.StringAttr(name).value for name in ir.ArrayAttr(attributes[key])) for key in (OPERANDS, RESULTS)
    )
    types = tuple(ir.FunctionType(ir.TypeAttr(attributes["function_type"]).value).results)
    name = ir.StringAttr(attributes[KERNEL]).value
    return Kernel(name, config, operands, results, types, DESTINATIONS in attributes)


def _names(pairs: Sequence[tuple[str, object]]) -> ir.Attribute:
    return ir.ArrayAttr.get([ir.StringAttr.get(name) for name, _ in pairs])


def _attribute(value: Setting) -> ir.Attribute:
    if isinstance(value, Scheme):
        return SchemeAttr.from_scheme(value)
    if isinstance(value, bool):
        return ir.BoolAttr.get(value)
    if isinstance(value, int):
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
    if isinstance(value, float):
        return ir.FloatAttr.get_f64(value)
    if isinstance(value, tuple):
        return ir.DenseI64ArrayAttr.get([UNKNOWN if size is None else size for size in value])
    return ir.StringAttr.get(value)


def _setting(attribute: ir.Attribute) -> Setting:
    if isinstance(attribute, SchemeAttr):
        return attribute.scheme
    if isinstance(attribute, ir.DenseI64ArrayAttr):
        return tuple(None if size == UNKNOWN else size for size in attribute)
    return attribute.value  # pyright: ignore[reportAttributeAccessIssue]
