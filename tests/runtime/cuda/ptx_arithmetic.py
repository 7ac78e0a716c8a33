"""The arithmetic of each computing instruction on the lanes of a launch, after the PTX manual: exact opcodes only.

Registers hold unsigned integers; floats are their bits. A NaN that arithmetic makes is the canonical one.
"""

import ml_dtypes
import numpy as np

CANONICAL_F32, CANONICAL_F64 = 0x7FFFFFFF, 0x7FF8000000000000
_UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
_SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
_FLOAT = {32: np.float32, 64: np.float64}


def as_float(bits, width):
    return bits.astype(_UNSIGNED[width], copy=False).view(_FLOAT[width])


def as_signed(bits, width):
    return bits.astype(_UNSIGNED[width], copy=False).view(_SIGNED[width])


def from_float(values, width):
    canonical = CANONICAL_F32 if width == 32 else CANONICAL_F64
    bits = np.ascontiguousarray(values.astype(_FLOAT[width])).view(_UNSIGNED[width])
    return np.where(np.isnan(values), _UNSIGNED[width](canonical), bits)


def _float_operation(function, width):
    def run(*operands):
        with np.errstate(all="ignore"):
            return from_float(function(*(as_float(operand, width) for operand in operands)), width)

    return run


def _pair_operation(function):
    single = _float_operation(function, 32)

    def run(*operands):
        words = [np.ascontiguousarray(operand.astype(np.uint64)).view(np.uint32) for operand in operands]
        return np.ascontiguousarray(single(*words)).view(np.uint64)

    return run


def _integer_operation(function, width):
    def run(*operands):
        result = function(*[operand.astype(_UNSIGNED[width], copy=False) for operand in operands])
        return result.astype(_UNSIGNED[width], copy=False)

    return run


def _signed_operation(function, width):
    def run(*operands):
        return (
            function(*(as_signed(operand, width) for operand in operands)).astype(_SIGNED[width]).view(_UNSIGNED[width])
        )

    return run


def _widened(bits):
    """Float32 as float64, without warnings about signalling NaNs."""
    with np.errstate(invalid="ignore"):
        return as_float(bits, 32).astype(np.float64)


def fma_f32(a, b, c):
    """One rounding: the product is exact in float64, the sum is rounded to odd there and then to float32."""
    wide_a, wide_b, wide_c = (_widened(x) for x in (a, b, c))
    with np.errstate(all="ignore"):
        product = wide_a * wide_b
        total = product + wide_c
        rest = total - product
        error = (product - (total - rest)) + (wide_c - rest)
        inexact = np.isfinite(total) & (error != 0) & (total.view(np.uint64) & np.uint64(1) == 0)
        odd = np.where(inexact, np.nextafter(total, np.where(error > 0, np.inf, -np.inf)), total)
        return from_float(odd.astype(np.float32), 32)


def _shift_left(width):
    def run(value, amount):
        amount = amount.astype(np.uint32)
        kept = value.astype(np.uint64) << np.minimum(amount, width - 1).astype(np.uint64)
        return np.where(amount >= width, 0, kept).astype(_UNSIGNED[width])

    return run


def _shift_right(width, signed=False):
    def run(value, amount):
        amount = np.minimum(amount.astype(np.uint32), width - 1 if signed else width)
        if signed:
            return (as_signed(value, width) >> amount.astype(_SIGNED[width])).view(_UNSIGNED[width])
        kept = value.astype(np.uint64) >> np.minimum(amount, width - 1).astype(np.uint64)
        return np.where(amount >= width, 0, kept).astype(_UNSIGNED[width])

    return run


def _with_sign(sign, magnitude):
    return (sign & np.uint32(0x80000000) | magnitude & np.uint32(0x7FFFFFFF)).astype(np.uint32)


def _larger_magnitudes(infinity):
    def run(*operands):
        left, right = (np.ascontiguousarray(operand.astype(np.uint32)).view(np.uint16) for operand in operands)
        largest = np.maximum(left & np.uint16(0x7FFF), right & np.uint16(0x7FFF))
        signed = largest | (left ^ right) & np.uint16(0x8000)
        return np.where(largest > infinity, np.uint16(0x7FFF), signed).astype(np.uint16).view(np.uint32)

    return run


def _wide_unsigned(a, b):
    return a.astype(np.uint32).astype(np.uint64) * b.astype(np.uint32).astype(np.uint64)


def _wide_signed(a, b):
    return (as_signed(a, 32).astype(np.int64) * as_signed(b, 32).astype(np.int64)).view(np.uint64)


def _divide(a, b):
    if np.any(b == 0):
        raise ZeroDivisionError("div by 0")
    return a // b


def _remainder(a, b):
    if np.any(b == 0):
        raise ZeroDivisionError("rem by 0")
    return a % b


def _saturated(bits, limit):
    """Float32 clipped to the format, and which values are NaN."""
    values = as_float(bits, 32)
    return np.clip(np.nan_to_num(values, nan=0.0, posinf=np.inf, neginf=-np.inf), -limit, limit), np.isnan(values)


def _to_fp8_pair(dtype, limit):
    def half(bits):
        values, nan = _saturated(bits, np.float32(limit))
        return np.where(nan, 0x7F, values.astype(dtype).view(np.uint8)).astype(np.uint16)

    return lambda high, low: (half(high) << np.uint16(8) | half(low)).astype(np.uint16)


def _e2m1(bits):
    values, nan = _saturated(bits, np.float32(6.0))
    return np.where(nan, 7, values.astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 15).astype(np.uint8)


def _to_e2m1_pair(high, low):
    return (_e2m1(high) << np.uint8(4) | _e2m1(low)).astype(np.uint8)


def _ue8m0_up(bits):
    """The smallest power of two that is not smaller, from 2^-127 to 2^127."""
    values = _widened(bits)
    if np.any(values < 0):
        raise ValueError("cvt to ue8m0 of a negative value")
    mantissa, exponent = np.frexp(np.where(np.isfinite(values) & (values > 0), values, 1.0))
    power = np.clip(np.where(mantissa == 0.5, exponent - 1, exponent), -127, 127)
    byte = np.where(values == 0, 0, np.where(np.isinf(values), 254, power + 127))
    return np.where(np.isnan(values), 255, byte).astype(np.uint16)


def _from_fp8_pair(dtype):
    def run(pair):
        codes = pair.astype(np.uint16).view(np.uint8).reshape(-1, 2)
        return _f16_pair(codes.view(dtype).astype(np.float32))

    return run


def _from_e2m1_pair(byte):
    codes = np.stack((byte & 15, (byte >> 4) & 15), axis=1).astype(np.uint8)
    return _f16_pair(codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32))


def _f16_pair(values):
    halves = values.astype(np.float16).view(np.uint16)
    halves = np.where(np.isnan(values), np.uint16(0x7FFF), halves)
    return np.ascontiguousarray(halves).view(np.uint32).reshape(-1)


def _narrow(dtype):
    def run(bits):
        values = as_float(bits, 32)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.where(np.isnan(values), np.uint16(0x7FFF), values.astype(dtype).view(np.uint16))

    return run


def _narrow_pair(dtype):
    half = _narrow(dtype)
    return lambda high, low: half(high).astype(np.uint32) << np.uint32(16) | half(low)


def _widen(dtype):
    return lambda bits: from_float(bits.astype(np.uint16).view(dtype).astype(np.float32), 32)


def _extreme(function):
    """min and max of PTX order -0 below +0; numpy keeps either."""
    smallest = function in (np.minimum, np.fmin)

    def run(a, b):
        result = function(a, b)
        zeros = (a == 0) & (b == 0)
        sign = np.signbit(a) | np.signbit(b) if smallest else np.signbit(a) & np.signbit(b)
        return np.where(zeros, np.where(sign, -0.0, 0.0).astype(a.dtype), result)

    return run


def _same(width):
    return lambda value: value.astype(_UNSIGNED[width], copy=False)


def _extend_signed(source, target):
    return lambda value: as_signed(value, source).astype(_SIGNED[target]).view(_UNSIGNED[target])


def _extend(source, target):
    return lambda value: value.astype(_UNSIGNED[source]).astype(_UNSIGNED[target])


def _half_absolute(largest):
    """abs of a 16-bit float; bits above infinity are NaN."""

    def run(bits):
        magnitude = bits.astype(np.uint16) & np.uint16(0x7FFF)
        return np.where(magnitude > largest, np.uint16(0x7FFF), magnitude)

    return run


def _low_half(value):
    return value.astype(np.uint16).astype(np.uint32)


def _mixed(function, dtype):
    """The first operand is narrow and widened exactly; one rounding, to float32."""

    def run(narrow, wide):
        with np.errstate(all="ignore"):
            widened = narrow.astype(np.uint16).view(dtype).astype(np.float32)
            return from_float(function(widened, as_float(wide, 32)), 32)

    return run


def _half_operation(function, dtype):
    """Float32 is precise enough for two halves that rounding twice equals rounding once."""

    def run(a, b):
        with np.errstate(all="ignore"):
            wide = function(*(x.astype(np.uint16).view(dtype).astype(np.float32) for x in (a, b)))
            return np.where(np.isnan(wide), np.uint16(0x7FFF), wide.astype(dtype).view(np.uint16))

    return run


def _bit_field(value, position, length):
    """bfe.u32: `length` bits from `position` on, both taken modulo 256."""
    position, length = (np.minimum(x.astype(np.uint32) & 255, 32).astype(np.uint64) for x in (position, length))
    return ((value.astype(np.uint64) >> position) & ((np.uint64(1) << length) - np.uint64(1))).astype(np.uint32)


def _byte_permute(a, b, selector):
    """prmt.b32 without modes: each nibble of the selector picks one of eight bytes."""
    joined = np.stack([(word >> np.uint32(8 * i)) & np.uint32(255) for word in (a, b) for i in range(4)])
    result = np.zeros_like(a, np.uint32)
    for position in range(4):
        nibble = selector.astype(np.uint32) >> np.uint32(4 * position) & np.uint32(15)
        if np.any(nibble > 7):
            raise ValueError("prmt with replicated signs")
        picked = np.take_along_axis(joined, nibble[None].astype(np.int64), 0)[0]
        result |= picked.astype(np.uint32) << np.uint32(8 * position)
    return result


def _table():
    table = {
        "fma.rn.f32": fma_f32,
        "mul.wide.u32": _wide_unsigned,
        "mul.wide.s32": _wide_signed,
        "mad.wide.u32": lambda a, b, c: _wide_unsigned(a, b) + c,
        "mad.wide.s32": lambda a, b, c: _wide_signed(a, b) + c,
        "mul.hi.u32": lambda a, b: (_wide_unsigned(a, b) >> np.uint64(32)).astype(np.uint32),
        "div.u32": _integer_operation(_divide, 32),
        "rem.u32": _integer_operation(_remainder, 32),
        "div.u64": _integer_operation(_divide, 64),
        "rem.u64": _integer_operation(_remainder, 64),
        "mad.lo.s32": _integer_operation(lambda a, b, c: a * b + c, 32),
        "mad.lo.s64": _integer_operation(lambda a, b, c: a * b + c, 64),
        "prmt.b32": _byte_permute,
        "bfe.u32": _bit_field,
        "cvt.f64.f16": lambda a: from_float(a.astype(np.uint16).view(np.float16).astype(np.float64), 64),
        "abs.bf16": _half_absolute(0x7F80),
        "abs.f16": _half_absolute(0x7C00),
        "cvt.rn.satfinite.e4m3x2.f32": _to_fp8_pair(ml_dtypes.float8_e4m3fn, 448.0),
        "cvt.rn.satfinite.e5m2x2.f32": _to_fp8_pair(ml_dtypes.float8_e5m2, 57344.0),
        "cvt.rn.satfinite.e2m1x2.f32": _to_e2m1_pair,
        "cvt.rp.satfinite.ue8m0x2.f32": lambda high, low: _ue8m0_up(high) << np.uint16(8) | _ue8m0_up(low),
        "cvt.rn.f16x2.e4m3x2": _from_fp8_pair(ml_dtypes.float8_e4m3fn),
        "cvt.rn.f16x2.e5m2x2": _from_fp8_pair(ml_dtypes.float8_e5m2),
        "cvt.rn.f16x2.e2m1x2": _from_e2m1_pair,
        "cvt.rn.bf16.f32": _narrow(ml_dtypes.bfloat16),
        "cvt.rn.f16.f32": _narrow(np.float16),
        "cvt.rn.bf16x2.f32": _narrow_pair(ml_dtypes.bfloat16),
        "cvt.rn.f16x2.f32": _narrow_pair(np.float16),
        "cvt.f32.f16": _widen(np.float16),
        "cvt.f32.bf16": _widen(ml_dtypes.bfloat16),
        "cvt.rmi.f32.f32": _float_operation(np.floor, 32),
        "cvt.f64.f32": lambda a: from_float(_widened(a), 64),
        "cvt.rn.f32.f64": lambda a: from_float(_silently(as_float(a, 64)), 32),
        "cvt.rn.f32.u32": lambda a: from_float(a.astype(np.uint32).astype(np.float32), 32),
        "cvt.rn.f64.u32": lambda a: from_float(a.astype(np.uint32).astype(np.float64), 64),
        "cvt.rn.f32.u16": lambda a: from_float(a.astype(np.uint16).astype(np.float32), 32),
        "cvt.rn.f64.s32": lambda a: from_float(as_signed(a, 32).astype(np.float64), 64),
        "cvt.s64.s32": _extend_signed(32, 64),
        "cvt.s32.s16": _extend_signed(16, 32),
    }
    for width in (32, 64):
        operations = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "sqrt": np.sqrt}
        table |= {f"{name}.rn.f{width}": _float_operation(run, width) for name, run in operations.items()}
        table |= {f"{name}.rn.f32x2": _pair_operation(operations[name]) for name in ("add", "sub", "mul")}
        table[f"neg.f{width}"] = _float_operation(np.negative, width)
        table[f"abs.f{width}"] = _float_operation(np.abs, width)
        table[f"mul.lo.s{width}"] = _integer_operation(np.multiply, width)
        table[f"add.s{width}"] = _integer_operation(np.add, width)
        table[f"sub.s{width}"] = _integer_operation(np.subtract, width)
        table[f"neg.s{width}"] = _integer_operation(np.negative, width)
        table[f"shr.s{width}"] = _shift_right(width, signed=True)
        table[f"min.u{width}"] = _integer_operation(np.minimum, width)
        table[f"max.u{width}"] = _integer_operation(np.maximum, width)
        table[f"min.s{width}"] = _signed_operation(np.minimum, width)
        table[f"max.s{width}"] = _signed_operation(np.maximum, width)
        table[f"rcp.rn.f{width}"] = _float_operation(np.reciprocal, width)
    for name, dtype in (("bf16", ml_dtypes.bfloat16), ("f16", np.float16)):
        table[f"add.rn.f32.{name}"] = _mixed(np.add, dtype)
        table[f"sub.rn.f32.{name}"] = _mixed(np.subtract, dtype)
        table[f"add.rn.{name}"] = _half_operation(np.add, dtype)
        table[f"mul.rn.{name}"] = _half_operation(np.multiply, dtype)
    table["mul.hi.u16"] = lambda a, b: ((_low_half(a) * _low_half(b)) >> np.uint32(16)).astype(np.uint16)
    table["mul.wide.u16"] = lambda a, b: _low_half(a) * _low_half(b)
    table["copysign.f32"] = _with_sign
    table["max.NaN.xorsign.abs.bf16x2"] = _larger_magnitudes(0x7F80)
    table["max.NaN.xorsign.abs.f16x2"] = _larger_magnitudes(0x7C00)
    table["add.s16"] = _integer_operation(np.add, 16)
    table["sub.s16"] = _integer_operation(np.subtract, 16)
    table["mul.lo.s16"] = _integer_operation(np.multiply, 16)
    table["min.f32"] = _float_operation(_extreme(np.fmin), 32)
    table["min.NaN.f32"] = _float_operation(_extreme(np.minimum), 32)
    table["max.NaN.f32"] = _float_operation(_extreme(np.maximum), 32)
    for width in (16, 32, 64):
        for name, run in (("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor)):
            table[f"{name}.b{width}"] = _integer_operation(run, width)
        table[f"not.b{width}"] = _integer_operation(np.invert, width)
        table[f"shl.b{width}"] = _shift_left(width)
        table[f"shr.u{width}"] = _shift_right(width)
        table[f"mov.b{width}"] = table[f"mov.u{width}"] = _same(width)
    for source, target in ((8, 16), (8, 32), (16, 32), (8, 64), (16, 64), (32, 64)):
        table[f"cvt.u{target}.u{source}"] = _extend(source, target)
        table[f"cvt.u{source}.u{target}"] = _extend(target, source)
    return table


def _silently(values):
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


ARITHMETIC = _table()

_RELATIONS = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def _float_relation(relation, width):
    """A name with `u` is true for unordered operands; without it false, `ne` included."""

    def run(a, b):
        a, b = as_float(a, width), as_float(b, width)
        unordered = np.isnan(a) | np.isnan(b)
        if relation in ("nan", "num"):
            return unordered if relation == "nan" else ~unordered
        if relation in _RELATIONS:
            return _RELATIONS[relation](a, b) & ~unordered
        return _RELATIONS[relation[:-1]](a, b) | unordered

    return run


def _half_relation(relation, dtype):
    wide = _float_relation(relation, 32)
    widened = _widen(dtype)
    return lambda a, b: wide(widened(a), widened(b))


def _integer_relation(relation, width, signed):
    view = as_signed if signed else lambda bits, width: bits.astype(_UNSIGNED[width], copy=False)
    return lambda a, b: _RELATIONS[relation](view(a, width), view(b, width))


def _comparisons():
    table = {}
    for relation in _RELATIONS:
        for width in (16, 32, 64):
            table[f"setp.{relation}.s{width}"] = _integer_relation(relation, width, True)
            table[f"setp.{relation}.u{width}"] = _integer_relation(relation, width, False)
            if relation in ("eq", "ne"):
                table[f"setp.{relation}.b{width}"] = _integer_relation(relation, width, False)
    for relation in (*_RELATIONS, *(name + "u" for name in _RELATIONS), "nan", "num"):
        for width in (32, 64):
            table[f"setp.{relation}.f{width}"] = _float_relation(relation, width)
        table[f"setp.{relation}.f16"] = _half_relation(relation, np.float16)
        table[f"setp.{relation}.bf16"] = _half_relation(relation, ml_dtypes.bfloat16)
    return table


COMPARISONS = _comparisons()
PREDICATES = {
    "and.pred": np.logical_and,
    "or.pred": np.logical_or,
    "xor.pred": np.logical_xor,
    "not.pred": np.logical_not,
    "mov.pred": lambda a: a.astype(bool),
}

_SELECTED = (("b", 16), ("b", 32), ("b", 64), ("f", 32), ("f", 64))


def _selection(dtype):
    return lambda chosen, otherwise, predicate: np.where(predicate, chosen, otherwise).astype(dtype, copy=False)


SELECTIONS = {f"selp.{kind}{width}": _selection(_UNSIGNED[width]) for kind, width in _SELECTED}
COMPUTING = ARITHMETIC | COMPARISONS | PREDICATES | SELECTIONS
