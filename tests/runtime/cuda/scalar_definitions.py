"""Each PTX instruction on single numbers, in Python's exact integers and fractions, after the PTX manual."""

import math
import operator
import struct
from fractions import Fraction

NAN, INF = math.nan, math.inf
# Bits after the leading one, exponent of the smallest normal number, and of the largest.
FORMATS = {
    "f64": (52, -1022, 1023),
    "f32": (23, -126, 127),
    "f16": (10, -14, 15),
    "bf16": (7, -126, 127),
    "e5m2": (2, -14, 15),
    "e4m3": (3, -6, 8),
    "e2m1": (1, 0, 2),
}
_LARGEST = {"e4m3": 448, "e5m2": 57344, "e2m1": 6}
_PACKING = {"f64": "<d", "f32": "<f", "f16": "<e"}
WIDTHS = {"f64": 64, "f32": 32, "f16": 16, "bf16": 16, "e5m2": 8, "e4m3": 8, "e2m1": 4}
_CANONICAL = {"f64": 0x7FF8 << 48, "f32": 0x7FFFFFFF, "f16": 0x7FFF, "bf16": 0x7FFF}


def decode(bits: int, name: str) -> float:
    """The number that the bits encode, exact as a Python float."""
    mantissa, lowest, _ = FORMATS[name]
    width = WIDTHS[name]
    sign = -1.0 if bits >> (width - 1) & 1 else 1.0
    fraction = bits & ((1 << mantissa) - 1)
    exponent = bits >> mantissa & ((1 << (width - 1 - mantissa)) - 1)
    has_infinity = name not in ("e4m3", "e2m1")
    if has_infinity and exponent == (1 << (width - 1 - mantissa)) - 1:
        return NAN if fraction else sign * INF
    if name == "e4m3" and bits & 0x7F == 0x7F:
        return NAN
    if exponent == 0:
        return sign * math.ldexp(fraction, lowest - mantissa)
    return sign * math.ldexp((1 << mantissa) + fraction, exponent - 1 + lowest - mantissa)


def encode(value: Fraction | float, name: str, negative_zero: bool = False) -> int:
    """The bits of the nearest number, ties to even; too large ones become infinite, or the largest if there is no
    infinity."""
    mantissa, lowest, highest = FORMATS[name]
    width = WIDTHS[name]
    if value != value:
        return _CANONICAL[name]
    sign = 1 << (width - 1) if value < 0 or (value == 0 and negative_zero) else 0
    infinite = ((1 << (width - 1 - mantissa)) - 1) << mantissa
    if abs(value) == INF:
        return sign | infinite
    nearest = round_nearest(abs(Fraction(value)), mantissa, lowest)
    if name in _LARGEST:
        nearest = min(nearest, Fraction(_LARGEST[name]))
    elif nearest >= Fraction(2) ** (highest + 1):
        return sign | infinite
    if nearest == 0:
        return sign
    exponent = max(_exponent(nearest), lowest)
    significand = int(nearest / Fraction(2) ** (exponent - mantissa))
    if significand < 1 << mantissa:
        return sign | significand
    return sign | (exponent - lowest + 1) << mantissa | (significand - (1 << mantissa))


def _exponent(value: Fraction) -> int:
    guess = value.numerator.bit_length() - value.denominator.bit_length()
    return guess if Fraction(2) ** guess <= value else guess - 1


def round_nearest(value: Fraction, mantissa: int, lowest: int) -> Fraction:
    if value == 0:
        return value
    unit = Fraction(2) ** (max(_exponent(value), lowest) - mantissa)
    return round(value / unit) * unit


def _signed(value: int, width: int) -> int:
    value %= 1 << width
    return value - (1 << width) if value >> (width - 1) else value


def _is_negative(value: float) -> bool:
    return math.copysign(1.0, value) < 0


def add(a: float, b: float, name: str) -> int:
    if a != a or b != b or (abs(a) == INF and b == -a):
        return encode(NAN, name)
    if INF in (abs(a), abs(b)):
        return encode(a if abs(a) == INF else b, name)
    both_negative = _is_negative(a) and _is_negative(b)
    return encode(Fraction(a) + Fraction(b), name, negative_zero=both_negative)


def multiply(a: float, b: float, name: str) -> int:
    negative = _is_negative(a) != _is_negative(b)
    if a != a or b != b or (INF in (abs(a), abs(b)) and 0 in (a, b)):
        return encode(NAN, name)
    if INF in (abs(a), abs(b)):
        return encode(-INF if negative else INF, name)
    return encode(Fraction(a) * Fraction(b), name, negative_zero=negative)


def divide(a: float, b: float, name: str) -> int:
    negative = _is_negative(a) != _is_negative(b)
    if a != a or b != b or (abs(a) == INF and abs(b) == INF) or (a == 0 and b == 0):
        return encode(NAN, name)
    if abs(a) == INF or b == 0:
        return encode(-INF if negative else INF, name)
    quotient = Fraction(0) if abs(b) == INF else Fraction(a) / Fraction(b)
    return encode(quotient, name, negative_zero=negative)


def fused(a: float, b: float, c: float, name: str) -> int:
    if any(not math.isfinite(x) for x in (a, b, c)):
        product = decode(multiply(a, b, "f64"), "f64")
        return encode(decode(add(product, c, "f64"), "f64"), name)
    product = Fraction(a) * Fraction(b)
    negative = (_is_negative(a) != _is_negative(b)) and _is_negative(c)
    return encode(product + Fraction(c), name, negative_zero=negative and product == 0 and c == 0)


def square_root(a: float, name: str) -> int:
    """By integer square roots: scaling by 4^k gives as many digits as rounding needs."""
    if a == 0 or a != a or a < 0 or a == INF:
        return encode(a if a == a and (a >= 0 or a == 0) else NAN, name, negative_zero=_is_negative(a))
    value = Fraction(a)
    root = Fraction(math.isqrt(int(value * 4**1200)), 2**1200)
    inexact = root * root != value
    return encode(root + (Fraction(1, 2**1300) if inexact else 0), name)


def extreme(a: float, b: float, name: str, largest: bool) -> int:
    if a != a or b != b:
        return encode(NAN, name)
    key = lambda x: (x, 0 if _is_negative(x) else 1)  # noqa: E731
    chosen = (max if largest else min)(a, b, key=key)
    return encode(chosen, name, negative_zero=_is_negative(chosen))


def smaller_number(a: float, b: float, name: str) -> int:
    """NaN only if both are."""
    return extreme(b if a != a else a, a if b != b else b, name, largest=False)


def narrow(value: float, name: str) -> int:
    """satfinite: NaN is the positive NaN, or the largest value if the format has none."""
    if value != value:
        return 7 if name == "e2m1" else 0x7F
    clipped = max(-_LARGEST[name], min(_LARGEST[name], value))
    return encode(clipped, name, negative_zero=_is_negative(value))


def power_up(value: float) -> int:
    """The biased exponent of the smallest power of two from 2^-127 to 2^127 that is not smaller."""
    if value != value:
        return 255
    if value == INF:
        return 254
    return next((byte for byte in range(255) if Fraction(2) ** (byte - 127) >= Fraction(value)), 254)


def _relation(name: str, a, b) -> bool:
    return getattr(operator, name)(a, b)


def _float_relation(relation: str, a: float, b: float) -> bool:
    unordered = a != a or b != b
    if relation in ("nan", "num"):
        return unordered == (relation == "nan")
    if relation.endswith("u") and relation != "u":
        return unordered or _relation(relation[:-1], a, b)
    return not unordered and _relation(relation, a, b)


def _definitions() -> dict:
    """Opcode -> kinds of the operands, and its function of them: bits, or a truth value for predicates."""
    table = _integer_definitions() | _float_definitions() | _conversions() | _choices()
    relations = ("eq", "ne", "lt", "le", "gt", "ge")
    for relation in relations:
        for width in (16, 32, 64):
            kinds = (f"b{width}",) * 2
            table[f"setp.{relation}.s{width}"] = (
                kinds,
                lambda a, b, r=relation, w=width: _relation(r, _signed(a, w), _signed(b, w)),
            )
            table[f"setp.{relation}.u{width}"] = (kinds, lambda a, b, r=relation: _relation(r, a, b))
            if relation in ("eq", "ne"):
                table[f"setp.{relation}.b{width}"] = table[f"setp.{relation}.u{width}"]
    for relation in (*relations, *(r + "u" for r in relations), "nan", "num"):
        for name in ("f16", "bf16", "f32", "f64"):
            table[f"setp.{relation}.{name}"] = (
                (name, name),
                lambda a, b, r=relation, n=name: _float_relation(r, decode(a, n), decode(b, n)),
            )
    return table


def _integer_definitions() -> dict:
    table = {
        "mul.hi.u16": (("b16", "b16"), lambda a, b: a * b >> 16),
        "mul.hi.u32": (("b32", "b32"), lambda a, b: a * b >> 32),
        "mul.wide.u16": (("b16", "b16"), lambda a, b: a * b),
        "mul.wide.u32": (("b32", "b32"), lambda a, b: a * b),
        "mul.wide.s32": (("b32", "b32"), lambda a, b: _signed(a, 32) * _signed(b, 32) % 2**64),
        "mad.wide.u32": (("b32", "b32", "b64"), lambda a, b, c: (a * b + c) % 2**64),
        "mad.wide.s32": (("b32", "b32", "b64"), lambda a, b, c: (_signed(a, 32) * _signed(b, 32) + c) % 2**64),
        "bfe.u32": (("b32", "position", "position"), lambda a, p, n: a >> min(p, 32) & ((1 << min(n, 32)) - 1)),
        "prmt.b32": (("b32", "b32", "selector"), _permuted),
        "copysign.f32": (("b32", "b32"), lambda a, b: (a >> 31) * 2**31 + b % 2**31),
    }
    for width in (32, 64):
        modulus, two = 1 << width, (f"b{width}",) * 2
        table[f"div.u{width}"] = ((f"b{width}", f"nonzero{width}"), lambda a, b: a // b)
        table[f"rem.u{width}"] = ((f"b{width}", f"nonzero{width}"), lambda a, b: a % b)
        table[f"mad.lo.s{width}"] = ((f"b{width}",) * 3, lambda a, b, c, m=modulus: (a * b + c) % m)
        table[f"neg.s{width}"] = ((f"b{width}",), lambda a, m=modulus: -a % m)
        table[f"min.u{width}"], table[f"max.u{width}"] = (two, min), (two, max)
        for name, choose in (("min", min), ("max", max)):
            table[f"{name}.s{width}"] = (
                two,
                lambda a, b, c=choose, w=width, m=modulus: c(_signed(a, w), _signed(b, w)) % m,
            )
        table[f"shr.s{width}"] = (
            (f"b{width}", "amount"),
            lambda a, n, w=width, m=modulus: (_signed(a, w) >> min(n, w - 1)) % m,
        )
    for width in (16, 32, 64):
        modulus, two = 1 << width, (f"b{width}",) * 2
        for name, run in (("add.s", operator.add), ("sub.s", operator.sub), ("mul.lo.s", operator.mul)):
            table[f"{name}{width}"] = (two, lambda a, b, r=run, m=modulus: r(a, b) % m)
        for name, run in (("and", operator.and_), ("or", operator.or_), ("xor", operator.xor)):
            table[f"{name}.b{width}"] = (two, lambda a, b, r=run: r(a, b))
        table[f"not.b{width}"] = ((f"b{width}",), lambda a, m=modulus: m - 1 - a)
        table[f"shl.b{width}"] = ((f"b{width}", "amount"), lambda a, n, m=modulus: (a << n) % m)
        table[f"shr.u{width}"] = ((f"b{width}", "amount"), lambda a, n: a >> n)
        table[f"mov.b{width}"] = table[f"mov.u{width}"] = ((f"b{width}",), lambda a: a)
    return table


def _permuted(a: int, b: int, selector: int) -> int:
    source = a | b << 32
    picked = [source >> 8 * (selector >> 4 * index & 15) & 255 for index in range(4)]
    return sum(byte << 8 * index for index, byte in enumerate(picked))


def _float_definitions() -> dict:
    table = {}
    for name in ("f32", "f64"):
        one, two = (name,), (name, name)

        def of(function, kinds, name=name):
            return kinds, lambda *bits: function(*(decode(b, name) for b in bits), name)

        table[f"add.rn.{name}"] = of(add, two)
        table[f"sub.rn.{name}"] = of(lambda a, b, n: add(a, -b, n), two)
        table[f"mul.rn.{name}"] = of(multiply, two)
        table[f"div.rn.{name}"] = of(divide, two)
        table[f"rcp.rn.{name}"] = of(lambda a, n: divide(1.0, a, n), one)
        table[f"sqrt.rn.{name}"] = of(square_root, one)
        table[f"neg.{name}"] = of(lambda a, n: encode(-a, n, negative_zero=_is_negative(-a)), one)
        table[f"abs.{name}"] = of(lambda a, n: encode(abs(a), n), one)
    for opcode in ("add.rn.f32", "sub.rn.f32", "mul.rn.f32"):
        table[f"{opcode}x2"] = (
            ("f32x2", "f32x2"),
            lambda a, b, f=table[opcode][1]: f(a >> 32, b >> 32) << 32 | f(a % 2**32, b % 2**32),
        )
    for name in ("f16", "bf16"):

        def of_half(function, kinds, name=name):
            return kinds, lambda *bits: function(*(decode(b, name) for b in bits), name)

        table[f"add.rn.{name}"] = of_half(add, (name, name))
        table[f"mul.rn.{name}"] = of_half(multiply, (name, name))
        table[f"abs.{name}"] = of_half(lambda a, n: encode(abs(a), n), (name,))
        for opcode, sign in (("add", 1), ("sub", -1)):
            table[f"{opcode}.rn.f32.{name}"] = (
                (name, "f32"),
                lambda a, b, n=name, s=sign: add(decode(a, n), s * decode(b, "f32"), "f32"),
            )
    three = ("f32",) * 3
    table["fma.rn.f32"] = (three, lambda *bits: fused(*(decode(b, "f32") for b in bits), "f32"))
    table["min.f32"] = (("f32", "f32"), lambda a, b: smaller_number(decode(a, "f32"), decode(b, "f32"), "f32"))
    for opcode, largest in (("min", False), ("max", True)):
        table[f"{opcode}.NaN.f32"] = (
            ("f32", "f32"),
            lambda a, b, m=largest: extreme(decode(a, "f32"), decode(b, "f32"), "f32", m),
        )
    return table


def _conversions() -> dict:
    two = ("f32", "f32")
    table = {
        "cvt.rn.satfinite.e2m1x2.f32": (two, lambda a, b: _pair(a, b, lambda x: narrow(x, "e2m1"), 4)),
        "cvt.rp.satfinite.ue8m0x2.f32": (("positive", "positive"), lambda a, b: _pair(a, b, power_up, 8)),
        "cvt.rn.f16x2.e2m1x2": (("b8",), lambda a: _f16_pair(a, "e2m1")),
        "cvt.rmi.f32.f32": (("f32",), _floored),
        "cvt.f64.f16": (("f16",), lambda a: _recoded(a, "f16", "f64")),
        "cvt.f64.f32": (("f32",), lambda a: _recoded(a, "f32", "f64")),
        "cvt.rn.f32.f64": (("f64",), lambda a: _recoded(a, "f64", "f32")),
        "cvt.f32.f16": (("f16",), lambda a: _recoded(a, "f16", "f32")),
        "cvt.f32.bf16": (("bf16",), lambda a: _recoded(a, "bf16", "f32")),
        "cvt.rn.f16.f32": (("f32",), lambda a: _recoded(a, "f32", "f16")),
        "cvt.rn.bf16.f32": (("f32",), lambda a: _recoded(a, "f32", "bf16")),
        "cvt.rn.f16x2.f32": (two, lambda a, b: _recoded(a, "f32", "f16") << 16 | _recoded(b, "f32", "f16")),
        "cvt.rn.bf16x2.f32": (two, lambda a, b: _recoded(a, "f32", "bf16") << 16 | _recoded(b, "f32", "bf16")),
        "cvt.rn.f32.u16": (("b16",), lambda a: encode(Fraction(a), "f32")),
        "cvt.rn.f32.u32": (("b32",), lambda a: encode(Fraction(a), "f32")),
        "cvt.rn.f64.u32": (("b32",), lambda a: encode(Fraction(a), "f64")),
        "cvt.rn.f64.s32": (("b32",), lambda a: encode(Fraction(_signed(a, 32)), "f64")),
        "cvt.s64.s32": (("b32",), lambda a: _signed(a, 32) % 2**64),
        "cvt.s32.s16": (("b16",), lambda a: _signed(a, 16) % 2**32),
    }
    for name in ("f16", "bf16"):
        table[f"max.NaN.xorsign.abs.{name}x2"] = (
            ("b32", "b32"),
            lambda a, b, n=name: _larger(a >> 16, b >> 16, n) << 16 | _larger(a % 2**16, b % 2**16, n),
        )
    for name in ("e4m3", "e5m2"):
        table[f"cvt.rn.satfinite.{name}x2.f32"] = (two, lambda a, b, n=name: _pair(a, b, lambda x: narrow(x, n), 8))
        table[f"cvt.rn.f16x2.{name}x2"] = (("b16",), lambda a, n=name: _f16_pair(a, n))
    for source, target in ((8, 16), (8, 32), (16, 32), (8, 64), (16, 64), (32, 64)):
        table[f"cvt.u{target}.u{source}"] = ((f"b{source}",), lambda a: a)
        table[f"cvt.u{source}.u{target}"] = ((f"b{target}",), lambda a, s=source: a % (1 << s))
    return table


def _choices() -> dict:
    """Operations on predicates, which are 0 or 1, and selections by them."""
    both = ("pred", "pred")
    table = {
        "and.pred": (both, lambda a, b: a & b),
        "or.pred": (both, lambda a, b: a | b),
        "xor.pred": (both, lambda a, b: a ^ b),
        "not.pred": (("pred",), lambda a: 1 - a),
        "mov.pred": (("pred",), lambda a: a),
    }
    for name in ("b16", "b32", "b64", "f32", "f64"):
        table[f"selp.{name}"] = ((name, name, "pred"), lambda a, b, chosen: a if chosen else b)
    return table


def _pair(high: int, low: int, function, width: int) -> int:
    return function(decode(high, "f32")) << width | function(decode(low, "f32"))


def _larger(left: int, right: int, name: str) -> int:
    """The larger magnitude, with the sign of the product; NaN if there is one."""
    values = [decode(bits, name) for bits in (left, right)]
    if any(value != value for value in values):
        return _CANONICAL[name]
    magnitudes = [bits % 2**15 for bits in (left, right)]
    largest = max(magnitudes, key=lambda bits: decode(bits, name))
    return (left >> 15 ^ right >> 15) << 15 | largest


def _f16_pair(codes: int, name: str) -> int:
    width = WIDTHS[name]
    values = [decode(codes >> width * index & ((1 << width) - 1), name) for index in range(2)]
    low, high = (encode(value, "f16", negative_zero=_is_negative(value)) for value in values)
    return high << 16 | low


def _recoded(bits: int, source: str, target: str) -> int:
    value = decode(bits, source)
    return encode(value, target, negative_zero=_is_negative(value))


def _floored(bits: int) -> int:
    value = decode(bits, "f32")
    if not math.isfinite(value):
        return encode(value, "f32")
    return encode(Fraction(math.floor(Fraction(value))), "f32", negative_zero=_is_negative(value) and value == 0)


DEFINITIONS = _definitions()


def packed(value: float) -> int:
    """The bits of a float32."""
    return struct.unpack("<I", struct.pack("<f", value))[0]
