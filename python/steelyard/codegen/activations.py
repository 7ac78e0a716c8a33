"""Activations of float32, step by step those of the CPU kernels, which explain the steps."""

from steelyard.codegen.values import Value, absolute, bitcast, constant, fused_multiply_add, select

_EXP_TERMS = tuple(
    map(float.fromhex, ("0x1.fffffcp-2", "0x1.55549p-3", "0x1.5558f8p-5", "0x1.123b5ap-7", "0x1.6a2334p-10"))
)
_LOG2_E = float.fromhex("0x1.715476p+0")
_LN_2, _LN_2_REST = float.fromhex("0x1.62e4p-1"), float.fromhex("0x1.7f7d1cp-20")
_ANCHOR, _ANCHOR_BITS = 1.5 * 2.0**23, 0x4B400000  # adding it rounds to an integer
_TWICE_BIAS = 254
_EXP_LIMIT, _GELU_LIMIT = 172.0, 32.0

_FIRST, _FIRST_REST = float.fromhex("0x1.988454p+0"), float.fromhex("-0x1.857936p-25")
_THIRD, _THIRD_REST = float.fromhex("0x1.2444f2p-4"), float.fromhex("0x1.49b16ap-29")
_TOP = tuple(map(float.fromhex, ("0x1p-1", "0x1.c04cf8p-2", "0x1.76734p-3", "0x1.4bb448p-5", "0x1.0c3bbep-8")))
_BOTTOM = tuple(
    map(
        float.fromhex,
        ("0x1p+0", "0x1.ac68aap+0", "0x1.336eaep+0", "0x1.dfa79p-2", "0x1.9fc198p-4", "0x1.502d3ep-7"),
    )
)


def relu(x: Value) -> Value:
    return select(x < 0.0, constant(0.0, "f32"), x)


def silu(x: Value) -> Value:
    return _gate(x, absolute(x), constant(0.0, "f32"))


def gelu_tanh(x: Value) -> Value:
    m = _limited(absolute(x), _GELU_LIMIT)
    square = m * m
    square_rest = _fused(m, m, -0.0 - square)
    cubic = square * _THIRD
    cubic_rest = _fused(square, _THIRD, -0.0 - cubic)
    slope = cubic + _FIRST
    added = slope - cubic
    sum_rest = (cubic - (slope - added)) + (_FIRST - added)
    factor_rest = _fused(square_rest, _THIRD, _fused(square, _THIRD_REST, _FIRST_REST))
    slope_rest = sum_rest + (cubic_rest + factor_rest)
    y = m * slope
    return _gate(x, y, _fused(m, slope, -0.0 - y) + m * slope_rest)


def gelu(x: Value) -> Value:
    """x times the normal distribution."""
    m = _limited(absolute(x), _GELU_LIMIT)
    square = m * m
    square_rest = _fused(m, m, -0.0 - square)
    excess, low, high = _exp_of_minus(square * 0.5, square_rest * 0.5)
    over = _fused(square, _TOP[4], _fused(m, _TOP[3], _TOP[2]))
    numerator = _fused(m, _fused(m, over, _TOP[1]), _TOP[0])
    under = _fused(square, _fused(m, _BOTTOM[5], _BOTTOM[4]), _fused(m, _BOTTOM[3], _BOTTOM[2]))
    denominator = _fused(m, _fused(m, under, _BOTTOM[1]), _BOTTOM[0])
    tail = _fused(numerator, excess, numerator) / denominator * low
    return select(x < 0.0, x * tail * high, _fused(-0.0 - m, tail * high, x))


def _gate(x: Value, y: Value, rest: Value) -> Value:
    """x / (1 + e^-(y + rest)) where y has the sign of x, of which it is given without."""
    excess, low, high = _exp_of_minus(y, rest)
    numerator = select(x < 0.0, _fused(x, excess, x) * low, x)
    quotient = numerator / _fused(_fused(excess, low, low), high, 1.0)
    return select(x < 0.0, quotient * high, quotient)


def _exp_of_minus(y: Value, rest: Value) -> tuple[Value, Value, Value]:
    """e^-(y + rest) = (1 + first) * second * third, the last 0 where no product could see it."""
    seen = y < _EXP_LIMIT
    limited = select(seen, y, _EXP_LIMIT)
    shifted = _fused(limited, -_LOG2_E, _ANCHOR)
    powers = shifted - _ANCHOR
    r = _fused(powers, -_LN_2, -0.0 - limited) - _fused(powers, _LN_2_REST, rest)
    total = constant(_EXP_TERMS[-1], "f32")
    for term in reversed(_EXP_TERMS[:-1]):
        total = _fused(total, r, term)
    exponents = bitcast(shifted, "i32") - (_ANCHOR_BITS - _TWICE_BIAS)
    half = exponents >> 1
    low, high = (bitcast(bits << 23, "f32") for bits in (half, exponents - half))
    return _fused(total, r * r, r), low, select(seen, high, 0.0)


def _limited(x: Value, limit: float) -> Value:
    return select(x < limit, x, limit)


def _fused(left: Value, right: Value | float, addend: Value | float) -> Value:
    return fused_multiply_add(left, left.like(right), left.like(addend))


ACTIVATIONS = {"relu": relu, "gelu": gelu, "gelu_tanh": gelu_tanh, "silu": silu}
