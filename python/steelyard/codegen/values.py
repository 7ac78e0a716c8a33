"""The scalars of a kernel under construction: Python operators append MLIR operations at the insertion point."""

import struct
from collections.abc import Callable, Sequence
from typing import Any

from torch_mlir import ir

_FLOATS = {"f16": ir.F16Type, "bf16": ir.BF16Type, "f32": ir.F32Type, "f64": ir.F64Type}
_SIGNED = {"<": 2, "<=": 3, ">": 4, ">=": 5, "==": 0, "!=": 1}
_UNSIGNED = {"<": 6, "<=": 7, ">": 8, ">=": 9}
_ORDERED = {"==": 1, ">": 2, ">=": 3, "<": 4, "<=": 5}
_UNORDERED = {">": 9, ">=": 10, "!=": 13}


class Value:
    """A scalar, vector or pointer. Integers compare as signed numbers and shift right as unsigned ones; comparisons of
    floats are false for NaN, except `!=`."""

    __slots__ = ("raw",)

    def __init__(self, raw: ir.Value):
        self.raw = raw

    @property
    def type(self) -> ir.Type:
        return self.raw.type

    @property
    def is_float(self) -> bool:
        """Whether it is a float, or a vector of floats."""
        return isinstance(_scalar_type(self.type), ir.FloatType)

    def _binary(self, other: "Value | float", float_op: str, integer_op: str) -> "Value":
        return operation(float_op if self.is_float else integer_op, [self, self.like(other)], self.type)

    def like(self, other: "Value | float") -> "Value":
        """`other` as a value of this type; of a vector, each of its elements."""
        if isinstance(other, Value):
            return other
        if not isinstance(self.type, ir.VectorType):
            return constant(other, self.type)
        vector = ir.VectorType(self.type)
        return vector_of([constant(other, vector.element_type)] * vector.shape[0])

    def __add__(self, other):
        return self._binary(other, "arith.addf", "arith.addi")

    def __sub__(self, other):
        return self._binary(other, "arith.subf", "arith.subi")

    def __rsub__(self, other):
        return self.like(other) - self

    def __mul__(self, other):
        return self._binary(other, "arith.mulf", "arith.muli")

    def __truediv__(self, other):
        return self._binary(other, "arith.divf", "")

    def __rtruediv__(self, other):
        return self.like(other) / self

    def __floordiv__(self, other):
        return self._binary(other, "", "arith.divui")

    def __mod__(self, other):
        return self._binary(other, "", "arith.remui")

    def __and__(self, other):
        return self._binary(other, "", "arith.andi")

    def __or__(self, other):
        return self._binary(other, "", "arith.ori")

    def __xor__(self, other):
        return self._binary(other, "", "arith.xori")

    def __lshift__(self, other):
        return self._binary(other, "", "arith.shli")

    def __rshift__(self, other):
        return self._binary(other, "", "arith.shrui")

    def __lt__(self, other):
        return compare(self, "<", other)

    def __le__(self, other):
        return compare(self, "<=", other)

    def __gt__(self, other):
        return compare(self, ">", other)

    def __ge__(self, other):
        return compare(self, ">=", other)

    def equals(self, other: "Value | float") -> "Value":
        return compare(self, "==", other)

    def differs(self, other: "Value | float") -> "Value":
        return compare(self, "!=", other)

    __radd__, __rmul__, __rand__, __ror__ = __add__, __mul__, __and__, __or__


def _scalar_type(type_: ir.Type) -> ir.Type:
    return ir.VectorType(type_).element_type if isinstance(type_, ir.VectorType) else type_


def operation(name: str, operands: Sequence[Value], result: ir.Type | None, **attributes: ir.Attribute) -> Value:
    """Append an operation with one result, or none."""
    results = [] if result is None else [result]
    op = ir.Operation.create(name, results, [operand.raw for operand in operands], attributes)
    return Value(op.result) if results else Value(None)  # pyright: ignore[reportArgumentType]


def integer(bits: int) -> ir.Type:
    return ir.IntegerType.get_signless(bits)


def type_of(name: str) -> ir.Type:
    """The type named f32, bf16, i32 and so on."""
    return _FLOATS[name].get() if name in _FLOATS else integer(int(name[1:]))


def constant(value: float, of: ir.Type | str) -> Value:
    type_ = type_of(of) if isinstance(of, str) else of
    if isinstance(type_, ir.IntegerType):
        # Attributes hold signed numbers; masks and hashes are written unsigned.
        width = type_.width
        wrapped = (int(value) + (1 << (width - 1))) % (1 << width) - (1 << (width - 1)) if width > 1 else int(value)
        attribute = ir.IntegerAttr.get(type_, wrapped)
    else:
        attribute = ir.FloatAttr.get(type_, float(value))
    return operation("arith.constant", [], type_, value=attribute)


def i32(value: int) -> Value:
    return constant(value, "i32")


def f32(value: float) -> Value:
    """A float32 constant; the number must be one, so that nothing rounds unseen."""
    if value == value and struct.unpack("f", struct.pack("f", value))[0] != value:
        raise ValueError(f"{value!r} is no float32")
    return constant(value, "f32")


def compare(left: Value, relation: str, right: Value | float, *, unordered: bool = False) -> Value:
    """A comparison; with `unordered`, one that is true where a float is NaN."""
    operands = [left, left.like(right)]
    if left.is_float:
        table = _UNORDERED if unordered or relation == "!=" else _ORDERED
        return operation("arith.cmpf", operands, integer(1), predicate=_predicate(table[relation]))
    return operation("arith.cmpi", operands, integer(1), predicate=_predicate(_SIGNED[relation]))


def compare_unsigned(left: Value, relation: str, right: Value | int) -> Value:
    return operation("arith.cmpi", [left, left.like(right)], integer(1), predicate=_predicate(_UNSIGNED[relation]))


def is_nan(value: Value) -> Value:
    return compare(value, "!=", value)


def negate(condition: Value) -> Value:
    return condition ^ 1


def select(condition: Value, chosen: Value, otherwise: Value | float) -> Value:
    return operation("arith.select", [condition, chosen, chosen.like(otherwise)], chosen.type)


def minimum(left: Value, right: Value | float) -> Value:
    """The smaller float, NaN if there is one."""
    return operation("arith.minimumf", [left, left.like(right)], left.type)


def minimum_number(left: Value, right: Value | float) -> Value:
    """The smaller float, the number if the other is NaN."""
    return _intrinsic("minnum", left, left.like(right))


def maximum(left: Value, right: Value | float) -> Value:
    """The larger float, NaN if there is one."""
    return operation("arith.maximumf", [left, left.like(right)], left.type)


def maximum_unsigned(left: Value, right: Value | int) -> Value:
    return operation("arith.maxui", [left, left.like(right)], left.type)


def minimum_signed(left: Value, right: Value | int) -> Value:
    return operation("arith.minsi", [left, left.like(right)], left.type)


def larger_magnitudes(left: Value, right: Value, dtype: str) -> Value:
    """Of two words of bf16 or f16: the larger magnitude of their lower halves, and of their upper ones.

    NaN is larger than all numbers. The signs of the result mean nothing.
    """
    halves = ir.VectorType.get([2], type_of(dtype))
    operands = [_as_vector(word, halves) for word in (left, right)]
    return _word(_call_intrinsic(f"nvvm.fmax.nan.xorsign.abs.{dtype}x2", operands))


def join_halves(low: Value, high: Value) -> Value:
    """A word of two i16."""
    return _word(vector_of([low, high]))


def round_pair(low: Value, high: Value, dtype: str) -> Value:
    """A word of two float32 values rounded to bf16 or f16."""
    halves = ir.VectorType.get([2], type_of(dtype))
    return _word(operation("arith.truncf", [vector_of([low, high])], halves))


def split_words(value: Value) -> tuple[Value, Value]:
    """The lower and the upper word of an i64."""
    return split_pair(_as_vector(value, ir.VectorType.get([2], integer(32))))


def split_pair(vector: Value) -> tuple[Value, Value]:
    """The elements of a vector of two."""
    scalar = _scalar_type(vector.type)
    low, high = (operation("llvm.extractelement", [vector, i32(index)], scalar) for index in range(2))
    return low, high


def multiply_all(values: Sequence[Value], factor: Value) -> list[Value]:
    """Each of an even number of values times a factor, in pairs: some targets multiply two at once."""
    factors = vector_of([factor, factor])
    pairs = [vector_of([a, b]) * factors for a, b in zip(values[::2], values[1::2], strict=True)]
    return [value for pair in pairs for value in split_pair(pair)]


def vector_of(parts: Sequence[Value]) -> Value:
    """A vector of scalars of one type."""
    vector_type = ir.VectorType.get([len(parts)], parts[0].type)
    vector = operation("llvm.mlir.poison", [], vector_type)
    for index, part in enumerate(parts):
        vector = operation("llvm.insertelement", [vector, part, i32(index)], vector_type)
    return vector


def _as_vector(value: Value, vector_type: ir.Type) -> Value:
    return operation("llvm.bitcast", [value], vector_type)


def _word(vector: Value) -> Value:
    return operation("llvm.bitcast", [vector], integer(32))


def absolute(value: Value) -> Value:
    return _intrinsic("fabs", value)


def square_root(value: Value) -> Value:
    return _intrinsic("sqrt", value)


def fused_multiply_add(left: Value, right: Value, addend: Value) -> Value:
    return _intrinsic("fma", left, right, addend)


def _intrinsic(name: str, *operands: Value) -> Value:
    """By name: MLIR's own operations for these become calls of a CUDA library."""
    return _call_intrinsic(f"{name}.{operands[0].type}", operands)


def _call_intrinsic(name: str, operands: Sequence[Value]) -> Value:
    return operation(
        "llvm.call_intrinsic",
        operands,
        operands[0].type,
        intrin=ir.StringAttr.get(f"llvm.{name}"),
        op_bundle_sizes=ir.DenseI32ArrayAttr.get([]),
        operandSegmentSizes=ir.DenseI32ArrayAttr.get([len(operands), 0]),
    )


def bitcast(value: Value, to: str) -> Value:
    return operation("arith.bitcast", [value], type_of(to))


def convert(value: Value, to: str) -> Value:
    """To another width: integers truncate or extend with zeros, floats round or widen, unsigned integers become
    floats. A float does not become an integer here: out of range that has no value."""
    target = type_of(to)
    if value.type == target:
        return value
    if value.is_float:
        wider = _width(target) > _width(value.type)
        return operation("arith.extf" if wider else "arith.truncf", [value], target)
    if isinstance(target, ir.FloatType):
        return operation("arith.uitofp", [value], target)
    return operation("arith.extui" if _width(target) > _width(value.type) else "arith.trunci", [value], target)


def signed_to(value: Value, to: str) -> Value:
    """A wider integer, extended with the sign."""
    return operation("arith.extsi", [value], type_of(to))


def when(condition: Value, body: Callable[[], Any]) -> None:
    """Run `body` where the condition holds."""
    op = ir.Operation.create("scf.if", [], [condition.raw], regions=2)
    with ir.InsertionPoint(op.regions[0].blocks.append()):
        body()
        ir.Operation.create("scf.yield")


def either(condition: Value, body: Callable[[], Any], otherwise: Callable[[], Any]) -> None:
    """Run `body` where the condition holds, and `otherwise` where it does not."""
    op = ir.Operation.create("scf.if", [], [condition.raw], regions=2)
    for region, part in zip(op.regions, (body, otherwise), strict=True):
        with ir.InsertionPoint(region.blocks.append()):
            part()
            ir.Operation.create("scf.yield")


def repeat(count: int, body: Callable[[Value], Any]) -> None:
    """`body(index)` for each index below a known number; once is no loop."""
    if count == 1:
        body(i32(0))
    else:
        loop(i32(0), count, 1, body)


def loop(start: Value, stop: Value | int, step: int, body: Callable[..., Any], carried: Sequence[Value] = ()) -> list:
    """`body(index, *carried)` for each index, which gives what is carried on; returns what is left."""
    bounds = [start, start.like(stop), start.like(step)]
    types = [value.type for value in carried]
    operands = [value.raw for value in (*bounds, *carried)]
    op = ir.Operation.create("scf.for", types, operands, regions=1)
    block = op.regions[0].blocks.append(start.type, *types)
    with ir.InsertionPoint(block):
        kept = body(*(Value(argument) for argument in block.arguments))
        ir.Operation.create("scf.yield", [], [value.raw for value in kept or ()])
    return [Value(result) for result in op.results]


def _predicate(number: int) -> ir.Attribute:
    return ir.IntegerAttr.get(integer(64), number)


def _width(type_: ir.Type) -> int:
    return type_.width  # pyright: ignore[reportAttributeAccessIssue]
