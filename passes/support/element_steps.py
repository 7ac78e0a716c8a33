"""The torch ops that elementwise programs compute, and the steps that each becomes."""

import struct
from collections.abc import Callable, Sequence

from torch_mlir import ir

from steelyard.formats.elementwise import LOADED_TYPES, VALUE_TYPES, Operand
from steelyard.ir.torch_ops import constant_number, constant_string, defining_op, info_of, is_none, op_name
from steelyard.passes.support.element_places import NotFusedError

Read = Callable[[ir.Value], tuple[Operand, str]]
"""An operand -> its value in the loop, or its number, and its dtype."""
Emit = Callable[..., Operand]
"""An operation, its operands and its dtype -> the value it makes."""

Rule = Callable[[ir.Operation, str, Read, Emit], Operand]
"""An op and the dtype of its result -> its value."""

_UNARY = ("neg", "abs", "sqrt", "rsqrt", "reciprocal", "exp", "tanh", "erf", "sigmoid", "cos", "sin", "relu", "silu")
_BINARY = ("add", "sub", "mul", "div")
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
COPY = "torch.aten.clone"
SCALAR = "torch.aten.scalar_tensor"
CASTS = frozenset(("torch.aten.to.dtype", "torch.aten._to_copy", "torch.prims.convert_element_type"))
_CHEAP = frozenset((*_BINARY[:3], *_COMPARISONS, "neg", "logical_not", "logical_and", "logical_or", "where"))
_FLOATS = ("f32", "bf16", "f16")


def compute(op: ir.Operation, read: Read, emit: Emit) -> Operand:
    """The steps of an op; raises `NotFusedError` where programs do not compute what it does."""
    info = info_of(op.results[0])
    rule = _RULES.get(op_name(op))
    if info is None or rule is None or (info.dtype not in VALUE_TYPES and rule is not _copy):
        raise NotFusedError
    return rule(op, info.dtype, read, emit)


def can_compute(op: ir.Operation) -> bool:
    """Whether an op becomes steps, by its types and its constants."""
    if op_name(op) not in _RULES or len(op.results) != 1:
        return False
    try:
        compute(op, _read_type, _emit_nothing)
    except NotFusedError:
        return False
    return True


def has_torchs_bits(op: ir.Operation) -> bool:
    """Whether an op that becomes steps gives the bits that torch's own gives."""
    name, info = op_name(op), info_of(op.results[0])
    assert info is not None
    is_computed = name in _RULES and name not in _TORCHS_BITS
    return not is_computed or (name == "torch.aten.rsqrt" and info.dtype == "f32")


def is_always_ours(op: ir.Operation) -> bool:
    """Whether an op is a kernel's wherever it stands in training: so a model has one set of bits, however it is cut."""
    return op_name(op) in _ALWAYS_OURS


def _emit_nothing(*_: Operand | str, dtype: str) -> Operand:
    del dtype
    return 0


def _read_type(value: ir.Value) -> tuple[Operand, str]:
    info = info_of(value)
    if info is None:
        raise NotFusedError
    return 0, info.dtype


def is_cheap(op: ir.Operation) -> bool:
    """Whether computing an element again costs about as much as loading it."""
    name = op_name(op).removeprefix("torch.aten.").partition(".")[0]
    return name in _CHEAP or op_name(op) in CASTS | {COPY}


def _floats(values: Sequence[tuple[Operand, str]], dtype: str, emit: Emit) -> list[Operand]:
    """Operands of an operation in floating point, in what its result is."""
    if dtype not in _FLOATS:
        raise NotFusedError
    found: list[Operand] = []
    for value, own in values:
        if isinstance(value, float) or own in (dtype, "i1") or (dtype == "f32" and own in _FLOATS):
            found.append(value)
        elif own in LOADED_TYPES and own not in VALUE_TYPES:
            found.append(emit("cast", value, dtype=dtype))
        else:
            raise NotFusedError
    return found


def _read_scalar(value: ir.Value) -> tuple[Operand, str]:
    number = constant_number(value)
    if number is None:
        raise NotFusedError
    return float(number), ""


def _read_any(value: ir.Value, read: Read) -> tuple[Operand, str]:
    if info_of(value) is None:
        return _read_scalar(value)
    made = defining_op(value)
    # A tensor without dims that is made of a constant, as masks are, is that number.
    if made is not None and op_name(made) == SCALAR and constant_number(made.operands[0]) is not None:
        return _read_scalar(made.operands[0])
    return read(value)


def _unary(operation: str) -> Rule:
    def rule(op: ir.Operation, dtype: str, read: Read, emit: Emit) -> Operand:
        return emit(operation, *_floats([read(op.operands[0])], dtype, emit), dtype=dtype)

    return rule


def _binary(operation: str, *, turned: bool = False) -> Rule:
    def rule(op: ir.Operation, dtype: str, read: Read, emit: Emit) -> Operand:
        operands = list(op.operands)
        # What is added may be multiplied first.
        if len(operands) > 2 and constant_number(operands[2]) != 1:
            raise NotFusedError
        values = [_read_any(operand, read) for operand in operands[:2]]
        _same_rank_dtypes(operands[:2], dtype)
        return emit(operation, *_floats(values[::-1] if turned else values, dtype, emit), dtype=dtype)

    return rule


def _same_rank_dtypes(operands: Sequence[ir.Value], dtype: str) -> None:
    """A tensor without dims of another dtype takes part as a number, whose rounding is torch's affair."""
    for operand in operands:
        info = info_of(operand)
        if info is not None and not info.shape and info.dtype != dtype:
            raise NotFusedError


def _comparison(operation: str) -> Rule:
    def rule(op: ir.Operation, dtype: str, read: Read, emit: Emit) -> Operand:
        values = [_read_any(operand, read) for operand in list(op.operands)[:2]]
        kinds = {own for _, own in values if own}
        if dtype != "i1" or len(kinds) != 1 or not kinds <= set(_FLOATS):
            raise NotFusedError
        (kind,) = kinds
        if any(isinstance(value, float) and not _is_representable(value, kind) for value, _ in values):
            raise NotFusedError
        return emit(operation, *(value for value, _ in values), dtype="i1")

    return rule


def _is_representable(number: float, dtype: str) -> bool:
    """Whether a number is one of bf16 or f16; torch rounds it to float32 as kernels do."""
    if dtype == "f32":
        return True
    try:
        if dtype == "f16":
            return struct.unpack("e", struct.pack("e", number))[0] == number
        bits = struct.unpack("I", struct.pack("f", number))[0]
        return bits & 0xFFFF == 0 and struct.unpack("f", struct.pack("f", number))[0] == number
    except OverflowError:
        return False


def _logical(operation: str) -> Rule:
    def rule(op: ir.Operation, dtype: str, read: Read, emit: Emit) -> Operand:
        values = [read(operand) for operand in op.operands]
        if dtype != "i1" or any(own != "i1" for _, own in values):
            raise NotFusedError
        return emit(operation, *(value for value, _ in values), dtype="i1")

    return rule


def _where(op: ir.Operation, dtype: str, read: Read, emit: Emit) -> Operand:
    condition, kind = read(op.operands[0])
    if kind != "i1":
        raise NotFusedError
    operands = list(op.operands)[1:]
    _same_rank_dtypes(operands, dtype)
    return emit("where", condition, *_floats([_read_any(one, read) for one in operands], dtype, emit), dtype=dtype)


def _masked_fill(op: ir.Operation, dtype: str, read: Read, emit: Emit) -> Operand:
    values, mask, number = list(op.operands)
    condition, kind = read(mask)
    if kind != "i1":
        raise NotFusedError
    return emit("where", condition, *_floats([_read_scalar(number), read(values)], dtype, emit), dtype=dtype)


def _cast(op: ir.Operation, dtype: str, read: Read, emit: Emit) -> Operand:
    value, own = read(op.operands[0])
    if own == dtype:
        return value
    if own not in LOADED_TYPES:
        raise NotFusedError
    return emit("ne", value, 0.0, dtype="i1") if dtype == "i1" else emit("cast", value, dtype=dtype)


def _copy(op: ir.Operation, _dtype: str, read: Read, _emit: Emit) -> Operand:
    return read(op.operands[0])[0]


def _power(op: ir.Operation, dtype: str, read: Read, emit: Emit) -> Operand:
    exponent = constant_number(op.operands[1])
    if exponent == 1:
        return _copy(op, dtype, read, emit)
    if exponent == 2:
        return _square(op, dtype, read, emit)
    # torch rounds powers of half precision once, and kernels each product.
    if exponent != 3 or dtype != "f32":
        raise NotFusedError
    (value,) = _floats([read(op.operands[0])], dtype, emit)
    return emit("mul", emit("mul", value, value, dtype=dtype), value, dtype=dtype)


def _square(op: ir.Operation, dtype: str, read: Read, emit: Emit) -> Operand:
    (value,) = _floats([read(op.operands[0])], dtype, emit)
    return emit("mul", value, value, dtype=dtype)


def _clamp(op: ir.Operation, dtype: str, read: Read, emit: Emit) -> Operand:
    (value,) = _floats([read(op.operands[0])], dtype, emit)
    bounds = dict(zip(_BOUNDS[op_name(op)], list(op.operands)[1:], strict=True))
    for operation, bound in bounds.items():
        if not is_none(bound):
            value = emit(operation, value, _read_scalar(bound)[0], dtype=dtype)
    return value


_BOUNDS = {
    "torch.aten.clamp": ("maximum", "minimum"),
    "torch.aten.clamp_min": ("maximum",),
    "torch.aten.clamp_max": ("minimum",),
}


def _gelu(op: ir.Operation, dtype: str, read: Read, emit: Emit) -> Operand:
    *values, approximate = list(op.operands)
    suffix = {"none": "", "tanh": "_tanh"}.get(constant_string(approximate) or "")
    if suffix is None:
        raise NotFusedError
    operation = f"gelu{suffix}_backward" if len(values) == 2 else f"gelu{suffix}"
    return emit(operation, *_floats([read(value) for value in values], dtype, emit), dtype=dtype)


def _backward(operation: str) -> Rule:
    def rule(op: ir.Operation, dtype: str, read: Read, emit: Emit) -> Operand:
        # torch's sigmoid_backward of f16 rounds between its steps.
        if operation == "sigmoid_backward" and dtype == "f16":
            raise NotFusedError
        return emit(operation, *_floats([read(one) for one in op.operands], dtype, emit), dtype=dtype)

    return rule


def _threshold_backward(op: ir.Operation, dtype: str, read: Read, emit: Emit) -> Operand:
    grad, value, threshold = list(op.operands)
    number, _ = _read_scalar(threshold)
    if not _is_representable(float(number), dtype):
        raise NotFusedError
    gradient, own = _floats([read(grad), read(value)], dtype, emit)
    return emit("where", emit("le", own, number, dtype="i1"), 0.0, gradient, dtype=dtype)


_RULES: dict[str, Rule] = {
    **{f"torch.aten.{name}": _unary(name) for name in _UNARY},
    **{f"torch.aten.{name}.{kind}": _binary(name) for name in _BINARY for kind in ("Tensor", "Scalar")},
    "torch.aten.rsub.Scalar": _binary("sub", turned=True),
    "torch.aten.maximum": _binary("maximum"),
    "torch.aten.minimum": _binary("minimum"),
    **{f"torch.aten.{name}.{kind}": _comparison(name) for name in _COMPARISONS for kind in ("Tensor", "Scalar")},
    "torch.aten.logical_not": _logical("logical_not"),
    "torch.aten.bitwise_not": _logical("logical_not"),
    "torch.aten.logical_and": _logical("logical_and"),
    "torch.aten.bitwise_and.Tensor": _logical("logical_and"),
    "torch.aten.logical_or": _logical("logical_or"),
    "torch.aten.bitwise_or.Tensor": _logical("logical_or"),
    **{f"torch.aten.where.{kind}": _where for kind in ("self", "ScalarSelf", "ScalarOther", "Scalar")},
    "torch.aten.masked_fill.Scalar": _masked_fill,
    **dict.fromkeys(CASTS, _cast),
    COPY: _copy,
    "torch.aten.pow.Tensor_Scalar": _power,
    "torch.aten.square": _square,
    **dict.fromkeys(_BOUNDS, _clamp),
    "torch.aten.gelu": _gelu,
    "torch.aten.gelu_backward": _gelu,
    "torch.aten.silu_backward": _backward("silu_backward"),
    "torch.aten.tanh_backward": _backward("tanh_backward"),
    "torch.aten.sigmoid_backward": _backward("sigmoid_backward"),
    "torch.aten.threshold_backward": _threshold_backward,
}

_EXACT = ("neg", "abs", "reciprocal", "relu", *_BINARY, "rsub", "maximum", "minimum", *_COMPARISONS, "pow", "square")
_TORCHS_BITS = frozenset(
    name
    for name, rule in _RULES.items()
    if rule in (_where, _masked_fill, _cast, _copy, _threshold_backward)
    or name.split(".")[2] in (*_EXACT, "logical_not", "logical_and", "logical_or")
    or name.startswith("torch.aten.bitwise_")
)
"""Moved, or rounded once: torch's square roots and what it computes by series differ in the last bits."""
_ACTIVATIONS = ("gelu", "silu", "tanh", "sigmoid")
_ALWAYS_OURS = frozenset(f"torch.aten.{name}{kind}" for name in _ACTIVATIONS for kind in ("", "_backward"))
