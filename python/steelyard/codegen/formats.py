"""Element and scale formats: float32 values to codes and back, by hardware conversions where the target has them."""

from torch_mlir import ir

from steelyard.codegen.memory import extract
from steelyard.codegen.values import (
    Value,
    absolute,
    bitcast,
    compare,
    constant,
    convert,
    integer,
    is_nan,
    join_halves,
    maximum_unsigned,
    minimum_number,
    operation,
    select,
)
from steelyard.targets.architectures import Target

CANONICAL_NAN = 0x7FC00000
_E2M1_DOUBLED = 0xC8643210  # twice the value of each code, a nibble each


def encode_words(values: list[Value], element: str, target: Target) -> list[Value]:
    """The codes of neighbouring values, packed into 32-bit words, the first in the lowest bits."""
    if element != "f4E2M1FN":
        return [join_halves(low, high) for low, high in _pairs([encode_pair(a, b, element) for a, b in _pairs(values)])]
    encode = _encode_eight_e2m1 if target.has_block_formats else _compute_eight_e2m1
    return [encode(values[begin : begin + 8]) for begin in range(0, len(values), 8)]


def encode_e4m3(value: Value) -> Value:
    """The E4M3 code of one value, as i8."""
    return convert(encode_pair(value, value, "f8E4M3FN"), "i8")


def decode_words(words: list[Value], element: str, target: Target) -> list[Value]:
    """The float32 values of packed codes."""
    if element != "f4E2M1FN":
        return [value for word in words for half in (word, word >> 16) for value in _decode_fp8_pair(half, element)]
    if not target.has_block_formats:
        return [_decode_e2m1((word >> (4 * index)) & 15) for word in words for index in range(8)]
    return [value for word in words for index in range(4) for value in _decode_e2m1_pair(word >> (8 * index))]


def decode_e4m3(code: Value) -> Value:
    """The float32 value of one E4M3 code, an i8."""
    return _decode_fp8_pair(convert(code, "i32"), "f8E4M3FN")[0]


def decode_e8m0(byte: Value) -> Value:
    """2^(byte - 127), for a byte as i32; 255 is NaN."""
    normal = byte << 23
    bits = select(byte.equals(0), constant(0x00400000, "i32"), normal)
    return bitcast(select(byte.equals(255), constant(CANONICAL_NAN, "i32"), bits), "f32")


def encode_e8m0_up(value: Value, target: Target) -> Value:
    """The smallest power of two that is at least a value that is not negative, as i32: NaN is 255, the largest 254."""
    if target.has_block_formats:
        return convert(_convert_pair("f32x2.to.f8x2", value, value, "f8E8M0FNU", "rp", 16), "i32") & 0xFF
    bits = bitcast(value, "i32")
    exponent, mantissa = bits >> 23, bits & 0x7FFFFF
    # Half of the smallest normal is 2^-127, which byte 0 stands for.
    above = select(exponent.equals(0), compare(mantissa, ">", 0x400000), compare(mantissa, ">", 0))
    rounded = exponent + convert(above & compare(exponent, "<", 254), "i32")
    finite = select(compare(exponent, ">=", 255), constant(254, "i32"), rounded)
    return select(is_nan(value), constant(255, "i32"), finite)


def round_to_bf16(value: Value) -> Value:
    """Rounded to bfloat16, kept as float32."""
    return convert(convert(value, "bf16"), "f32")


def canonical(value: Value) -> Value:
    """Every NaN made the one that is stored."""
    return select(is_nan(value), bitcast(constant(CANONICAL_NAN, "i32"), "f32"), value)


def encode_pair(low: Value, high: Value, element: str) -> Value:
    """The FP8 codes of two values, as i16, the first in its lower half."""
    return _convert_pair("f32x2.to.f8x2", high, low, element, "rn", 16)


def _encode_eight_e2m1(values: list[Value]) -> Value:
    """A word of codes. MLIR's conversion gives bytes, each in a register of its own; the assembler joins those of this
    text while it converts."""
    names = ("%codes_a", "%codes_b", "%codes_c", "%codes_d")
    lines = [f".reg .b8 {name};" for name in names]
    for index, name in enumerate(names):
        lines.append(f"cvt.rn.satfinite.e2m1x2.f32 {name}, ${2 * index + 2}, ${2 * index + 1};")
    lines.append(f"mov.b32 $0, {{{', '.join(names)}}};")
    text = "{\n\t" + "\n\t".join(lines) + "\n\t}"
    constraints = ir.StringAttr.get(",".join(["=r", *(["f"] * 8)]))
    return operation(
        "llvm.inline_asm", values, integer(32), asm_string=ir.StringAttr.get(text), constraints=constraints
    )


def _compute_eight_e2m1(values: list[Value]) -> Value:
    word = _encode_e2m1(values[0])
    for index, value in enumerate(values[1:], 1):
        word = word | (_encode_e2m1(value) << (4 * index))
    return word


def _convert_pair(name: str, high: Value, low: Value, element: str, rounding: str, width: int) -> Value:
    attributes = {
        "dstTy": _type_attribute(element),
        "relu": ir.BoolAttr.get(False),
        "rnd": ir.Attribute.parse(f"#nvvm.fp_rnd_mode<{rounding}>"),
        "sat": ir.Attribute.parse("#nvvm.sat_mode<satfinite>"),
    }
    return operation(f"nvvm.convert.{name}", [high, low], integer(width), **attributes)


def _encode_e2m1(value: Value) -> Value:
    """The code of what arithmetic made, whose NaN is positive, as i32.

    A number with as many steps of E2M1 as float32 has integers is added, so that the sum is rounded to them: its bits
    then count the steps. From 1 on, steps double with the exponent, and two codes lie below each.
    """
    magnitude = minimum_number(absolute(value), 6.0)
    power = maximum_unsigned(bitcast(magnitude, "i32") & 0x7F800000, 0x3F800000)
    offset = power + (22 << 23)
    steps = bitcast(magnitude + bitcast(offset, "f32"), "i32") - offset
    code = steps + ((power >> 22) - 254)
    return code | ((bitcast(value, "i32") >> 28) & 8)


def _decode_fp8_pair(half: Value, element: str) -> list[Value]:
    pair_type = ir.VectorType.get([2], integer(8))
    pair = operation("llvm.bitcast", [convert(half, "i16")], pair_type)
    return _decode_pair("f8x2", pair, element)


def _decode_e2m1_pair(byte: Value) -> list[Value]:
    return _decode_pair("f4x2", convert(byte, "i8"), "f4E2M1FN")


def _decode_pair(name: str, codes: Value, element: str) -> list[Value]:
    halves = ir.VectorType.get([2], ir.F16Type.get())
    attributes = {"srcType": _type_attribute(element), "relu": ir.BoolAttr.get(False)}
    values = operation(f"nvvm.convert.{name}.to.f16x2", [codes], halves, **attributes)
    return [convert(extract(values, index, "f16"), "f32") for index in range(2)]


def _decode_e2m1(code: Value) -> Value:
    doubled = (constant(_E2M1_DOUBLED, "i32") >> ((code & 7) << 2)) & 15
    magnitude = bitcast(convert(doubled, "f32") * 0.5, "i32")
    return bitcast(magnitude | ((code & 8) << 28), "f32")


def _type_attribute(element: str) -> ir.Attribute:
    return ir.TypeAttr.get(ir.Type.parse(element))


def _pairs(values: list[Value]) -> list[tuple[Value, Value]]:
    return list(zip(values[::2], values[1::2], strict=True))
