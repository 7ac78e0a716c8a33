"""Activations of float32 in float64, step by step those of the CPU kernels: only the result is rounded."""

from steelyard.runtime.cuda.codegen.values import Value, bitcast, constant, convert, select

_EXP_TERMS = (0.499999933712, 0.166665192056, 0.0416684008898, 0.00836889168619, 0.00138144501964)
_GELU_TERMS = (
    0.119686716815,
    0.119571314773,
    0.110239369362,
    0.0783721192592,
    0.0962052188275,
    -0.079509710539,
    0.191883946184,
    -0.228285278032,
    0.112465000994,
    -0.0206286993776,
)
_LOG2_E, _LN_2 = 1.4426950408889634, 0.6931471805599453
_ANCHOR = 1.5 * 2.0**52  # adding it rounds to an integer
_TWICE_SQRT_2_OVER_PI = 1.5957691216057308


def relu(x: Value) -> Value:
    return select(x < 0.0, constant(0.0, "f32"), x)


def silu(x: Value) -> Value:
    wide = convert(x, "f64")
    return _gate(wide, wide)


def gelu_tanh(x: Value) -> Value:
    wide = convert(x, "f64")
    cubic = wide * wide * (_TWICE_SQRT_2_OVER_PI * 0.044715)
    return _gate(wide, wide * (cubic + _TWICE_SQRT_2_OVER_PI))


def gelu(x: Value) -> Value:
    """x times the normal distribution."""
    wide = convert(x, "f64")
    magnitude = _magnitude(wide)
    t = 1.0 / (magnitude * 0.3 + 1.0)
    tail = t * _polynomial(_GELU_TERMS, t) * _exp_of_minus(wide * wide * 0.5)
    return convert(wide * select(wide < 0.0, tail, 1.0 - tail), "f32")


def _gate(x: Value, y: Value) -> Value:
    """x / (1 + e^-y) where y has the sign of x, without overflow."""
    e = _exp_of_minus(_magnitude(y))
    return convert(select(x < 0.0, x * e, x) / (e + 1.0), "f32")


def _magnitude(x: Value) -> Value:
    return select(x < 0.0, -0.0 - x, x)


def _exp_of_minus(y: Value) -> Value:
    """e^-y for y >= 0; exactly 0 where no float32 product could see it."""
    small = y < 700.0
    limited = select(small, -0.0 - y, -700.0)
    shifted = limited * _LOG2_E + _ANCHOR
    r = limited - (shifted - _ANCHOR) * _LN_2
    mantissa = _polynomial(_EXP_TERMS, r) * (r * r) + r + 1.0
    power = bitcast((bitcast(shifted, "i64") + 1023) << 52, "f64")
    return select(small, mantissa * power, 0.0)


def _polynomial(terms: tuple[float, ...], x: Value) -> Value:
    total = constant(terms[-1], "f64")
    for term in reversed(terms[:-1]):
        total = total * x + term
    return total


ACTIVATIONS = {"relu": relu, "gelu": gelu, "gelu_tanh": gelu_tanh, "silu": silu}
