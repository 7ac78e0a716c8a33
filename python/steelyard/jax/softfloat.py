"""IEEE float32 arithmetic on bits, with integer operations only.

XLA flushes subnormals on some platforms and may rewrite divisions, either of which changes bytes. Every value here is
a uint32 array that holds the bits of float32 values; NaN results are the canonical one.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

SIGN = np.uint32(0x80000000)
MAGNITUDE = np.uint32(0x7FFFFFFF)
INFINITY = np.uint32(0x7F800000)
NAN = np.uint32(0x7FC00000)
LARGEST = np.uint32(0x7F7FFFFF)

_ONE = np.uint32(1)
_MANTISSA = np.uint32(0x7FFFFF)
_HIDDEN = np.uint32(0x800000)


def constant(value: float) -> np.uint32:
    """The bits of a float32 constant."""
    return np.float32(value).view(np.uint32)


def bits_of(x: jax.Array) -> jax.Array:
    """The bits of float32, bfloat16 or float16 values, widened exactly."""
    if x.dtype == jnp.float32:
        return lax.bitcast_convert_type(x, jnp.uint32)
    half = lax.bitcast_convert_type(x, jnp.uint16).astype(jnp.uint32)
    if x.dtype == jnp.bfloat16:
        return half << 16
    magnitude = (half & np.uint32(0x7FFF)) << 13
    finite = multiply(magnitude, constant(2.0**112))
    special = magnitude >= np.uint32(0x0F800000)
    return jnp.where(special, magnitude | INFINITY, finite) | (half & np.uint32(0x8000)) << 16


def floats_of(bits: jax.Array) -> jax.Array:
    """The float32 array that has these bits."""
    return lax.bitcast_convert_type(bits, jnp.float32)


def rounded_to(bits: jax.Array, dtype) -> jax.Array:
    """The values rounded to float32, bfloat16 or float16, nearest even."""
    if dtype == jnp.float32:
        return floats_of(bits)
    if dtype == jnp.bfloat16:
        return lax.bitcast_convert_type((round_to_bf16(bits) >> 16).astype(jnp.uint16), jnp.bfloat16)
    code = round_magnitude(bits & MAGNITUDE, 10, 15)
    code = jnp.where(is_nan(bits), np.uint32(0x7E00), jnp.minimum(code, np.uint32(0x7C00)))
    return lax.bitcast_convert_type((code | (bits & SIGN) >> 16).astype(jnp.uint16), jnp.float16)


def is_nan(bits: jax.Array) -> jax.Array:
    return (bits & MAGNITUDE) > INFINITY


def is_finite(bits: jax.Array) -> jax.Array:
    return (bits & MAGNITUDE) < INFINITY


def round_to_bf16(bits: jax.Array) -> jax.Array:
    """Rounded to bfloat16, kept as float32 bits."""
    rounded = (bits + np.uint32(0x7FFF) + (bits >> 16 & _ONE)) & np.uint32(0xFFFF0000)
    return jnp.where(is_nan(bits), NAN, rounded)


def round_magnitude(magnitude: jax.Array, mantissa_bits: int, bias: int) -> jax.Array:
    """Magnitudes rounded to codes of a smaller format. Values that are too large give codes beyond its range."""
    dropped = 23 - mantissa_bits
    exponent = (magnitude >> 23).astype(jnp.int32)
    significand = jnp.where(exponent > 0, magnitude & _MANTISSA | _HIDDEN, magnitude & _MANTISSA)
    below = jnp.maximum(127 - bias + 1 - jnp.maximum(exponent, 1), 0)
    kept = _round_shift(significand, (dropped + jnp.minimum(below, 31 - dropped)).astype(jnp.uint32))
    base = jnp.maximum(exponent - (127 - bias) - 1, 0).astype(jnp.uint32) << mantissa_bits
    return base + kept


def multiply(a, b) -> jax.Array:
    """`a * b`."""
    a, b = jnp.broadcast_arrays(jnp.asarray(a, jnp.uint32), jnp.asarray(b, jnp.uint32))
    sign = (a ^ b) & SIGN
    (a_exponent, a_mantissa), (b_exponent, b_mantissa) = _normalized(a), _normalized(b)
    high, low = _wide_product(a_mantissa, b_mantissa)
    product = high << 16 | low >> 16 | ((low & np.uint32(0xFFFF)) != 0).astype(jnp.uint32)
    short = (product >> 31) == 0
    product = jnp.where(short, product << 1, product)
    exponent = a_exponent + b_exponent - 126 - short.astype(jnp.int32)
    finite = _rounded(exponent, product)
    zero = ((a & MAGNITUDE) == 0) | ((b & MAGNITUDE) == 0)
    infinite = ~is_finite(a) | ~is_finite(b)
    result = jnp.where(zero, np.uint32(0), jnp.where(infinite, INFINITY, finite)) | sign
    return jnp.where(is_nan(a) | is_nan(b) | zero & infinite, NAN, result)


def divide(a, b) -> jax.Array:
    """`a / b`."""
    a, b = jnp.broadcast_arrays(jnp.asarray(a, jnp.uint32), jnp.asarray(b, jnp.uint32))
    sign = (a ^ b) & SIGN
    (a_exponent, a_mantissa), (b_exponent, b_mantissa) = _normalized(a), _normalized(b)
    small = a_mantissa < b_mantissa
    dividend = jnp.where(small, a_mantissa << 1, a_mantissa)

    # 26 bits: 24 to keep, one to round by, one more for the remainder. The float quotient may be slightly off: the
    # remainder, which always fits 32 bits, tells by how much.
    estimate = dividend.astype(jnp.float32) / b_mantissa.astype(jnp.float32) * np.float32(2.0**25)
    quotient = estimate.astype(jnp.uint32)
    rest = ((dividend << 25) - quotient * b_mantissa).astype(jnp.int32)
    divisor = b_mantissa.astype(jnp.int32)
    correction = jnp.floor_divide(rest, divisor)
    quotient = quotient + correction.astype(jnp.uint32)
    rest = rest - correction * divisor
    quotient = quotient << 6 | (rest != 0).astype(jnp.uint32)
    exponent = a_exponent - b_exponent + 127 - small.astype(jnp.int32)
    a_zero, b_zero = (a & MAGNITUDE) == 0, (b & MAGNITUDE) == 0
    a_infinite, b_infinite = ~is_finite(a), ~is_finite(b)
    result = jnp.where(a_zero | b_infinite, np.uint32(0), _rounded(exponent, quotient))
    result = jnp.where(a_infinite | b_zero, INFINITY, result) | sign
    undefined = is_nan(a) | is_nan(b) | a_zero & b_zero | a_infinite & b_infinite
    return jnp.where(undefined, NAN, result)


def add(a, b) -> jax.Array:
    """`a + b`."""
    a, b = jnp.broadcast_arrays(jnp.asarray(a, jnp.uint32), jnp.asarray(b, jnp.uint32))
    a, b = jnp.where((a & MAGNITUDE) >= (b & MAGNITUDE), a, b), jnp.where((a & MAGNITUDE) >= (b & MAGNITUDE), b, a)
    exponent, larger = _unpacked(a)
    b_exponent, smaller = _unpacked(b)
    distance = jnp.minimum(exponent - b_exponent, 31).astype(jnp.uint32)
    larger, smaller = larger << 6, smaller << 6
    lost = (smaller & ((_ONE << distance) - 1)) != 0
    smaller = smaller >> distance | lost.astype(jnp.uint32)
    total = jnp.where(((a ^ b) & SIGN) != 0, larger - smaller, larger + smaller)
    shift = lax.clz(total)
    finite = _rounded(exponent + 2 - shift.astype(jnp.int32), total << jnp.minimum(shift, 31))
    # Opposite values cancel to +0; two zeros of one sign keep it.
    zero = total == 0
    sign = jnp.where(zero, a & b, a) & SIGN
    result = jnp.where(zero, np.uint32(0), jnp.where(is_finite(a), finite, INFINITY)) | sign
    opposite = ~is_finite(a) & ~is_finite(b) & (((a ^ b) & SIGN) != 0)
    return jnp.where(is_nan(a) | is_nan(b) | opposite, NAN, result)


def subtract(a, b) -> jax.Array:
    """`a - b`."""
    return add(a, jnp.asarray(b, jnp.uint32) ^ SIGN)


def _unpacked(bits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Biased exponent and 24-bit significand, subnormals as they are."""
    exponent = (bits >> 23 & np.uint32(0xFF)).astype(jnp.int32)
    mantissa = bits & _MANTISSA
    return jnp.maximum(exponent, 1), jnp.where(exponent > 0, mantissa | _HIDDEN, mantissa)


def _normalized(bits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The same with bit 23 set, so the exponent may be below 1. The result for zeros is meaningless."""
    exponent, mantissa = _unpacked(bits)
    shift = jnp.clip(lax.clz(mantissa), 8, 31) - 8
    return exponent - shift.astype(jnp.int32), mantissa << shift


def _wide_product(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The product of two 24-bit numbers as a high and a low word."""
    low_mask = np.uint32(0xFFFF)
    a_high, a_low, b_high, b_low = a >> 16, a & low_mask, b >> 16, b & low_mask
    lowest, middle = a_low * b_low, a_high * b_low + a_low * b_high
    low = lowest + (middle << 16)
    return a_high * b_high + (middle >> 16) + (low < lowest).astype(jnp.uint32), low


def _round_shift(value: jax.Array, shift: jax.Array) -> jax.Array:
    """`value >> shift` to nearest, ties to even; shift is 1 to 31."""
    kept = value >> shift
    rest = value & ((_ONE << shift) - 1)
    half = _ONE << (shift - 1)
    up = (rest > half) | ((rest == half) & ((kept & _ONE) == 1))
    return kept + up.astype(jnp.uint32)


def _rounded(exponent: jax.Array, significand: jax.Array) -> jax.Array:
    """The float of a significand whose bit 31 is set and has weight 2^(exponent - 127); its last bit may be sticky."""
    below = 1 - exponent
    # A shift by 32 is done as 1 (keeping the lost bit) plus 31; larger shifts leave less than half a step.
    halved = significand >> 1 | significand & _ONE
    significand = jnp.where(below > 24, _ONE, jnp.where(below == 24, halved, significand))
    kept = _round_shift(significand, (8 + jnp.clip(below, 0, 23)).astype(jnp.uint32))
    base = jnp.clip(exponent - 1, 0, 254).astype(jnp.uint32) << 23
    return jnp.minimum(base + kept, INFINITY)
