"""Scales from amaxes, as `steelyard.reference.scales` has them."""

import numpy as np

from steelyard.codegen.formats import decode_e4m3, encode_e4m3, encode_e8m0_up
from steelyard.codegen.values import (
    Value,
    bitcast,
    compare,
    constant,
    convert,
    f32,
    is_nan,
    maximum,
    minimum,
    select,
)
from steelyard.formats.schemes import Scheme
from steelyard.targets.architectures import Target

FLT_MAX = float(np.finfo(np.float32).max)
INFINITY = float("inf")
SIXTH = float(np.float32(1 / 6))
# Exponent of the largest value, and mantissa bits.
_ELEMENTS = {"f8E4M3FN": (8, 3), "f8E5M2": (15, 2), "f4E2M1FN": (2, 1)}


def scale_from_amax(
    amax: Value,
    element_max: Value | float,
    *,
    epsilon: float = 0.0,
    power_of_two: bool = False,
    limit: float = FLT_MAX,
    fallback: Value | float = 1.0,
) -> Value:
    """Rule 1: `element_max / amax`, at most `limit`; `fallback` where the amax is 0, inf or NaN."""
    if epsilon:
        amax = maximum(amax, float(np.float32(epsilon)))
    usable = (amax > 0.0) & (amax < INFINITY)
    scale = amax.like(element_max) / select(usable, amax, 1.0)
    scale = select(compare(scale, "==", INFINITY), f32(limit), scale)
    if power_of_two:
        scale = bitcast(bitcast(scale, "i32") & 0xFF800000, "f32")
    return select(usable, scale, fallback)


def e8m0_from_amax(amax: Value, scheme: Scheme, target: Target) -> Value:
    """The E8M0 byte of a block, as i32."""
    if scheme.rule == "rceil":
        return encode_e8m0_up(amax * float(np.float32(1 / scheme.element_max)), target)
    bits = bitcast(amax, "i32")
    largest_exponent, mantissa_bits = _ELEMENTS[scheme.element]
    if scheme.rule == "even":
        bits = bits + (1 << (22 - mantissa_bits))
    exponent = (bits >> 23) - largest_exponent
    if scheme.rule == "ceil":
        exponent = exponent + convert((bits & 0x7FFFFF).differs(0), "i32")
    clipped = select(exponent < 0, constant(0, "i32"), exponent)
    clipped = select(clipped > 254, constant(254, "i32"), clipped)
    clipped = select(amax.equals(INFINITY), constant(254, "i32"), clipped)
    return select(is_nan(amax), constant(255, "i32"), clipped)


def e8m0_encode_factor(byte: Value) -> Value:
    """What values are multiplied by before the cast: 2^(127 - byte)."""
    bits = select(byte.equals(254), constant(0x00400000, "i32"), (254 - byte) << 23)
    return bitcast(select(byte.equals(255), constant(0x7FC00000, "i32"), bits), "f32")


def nvfp4_block_byte(block_amax: Value, encode_scale: Value) -> Value:
    """The E4M3 byte of a block, as i8; the order of the products decides bytes."""
    return encode_e4m3(minimum(block_amax * (encode_scale * SIXTH), FLT_MAX))


def nvfp4_encode_factor(byte: Value, decode_scale: Value) -> Value:
    """What values are multiplied by before the cast to E2M1; NaN where the byte is."""
    return minimum(1.0 / (decode_e4m3(byte) * decode_scale), FLT_MAX)


def static_encode_factor(given: Value, scheme: Scheme) -> Value:
    """What values are multiplied by before the cast, where that of decoded ones is given, or their divisor."""
    return minimum(given if scheme.source == "divisor" else 1.0 / given, FLT_MAX)


def nvfp4_range(scheme: Scheme) -> float:
    """The largest code times the largest block scale: what the amax is mapped to; 1 where the second level is given."""
    if scheme.is_static:
        return 1.0
    return 6.0 * (448.0 if scheme.four_over_six == "none" else 256.0)
