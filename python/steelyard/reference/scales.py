"""Scales from amaxes: per tensor and per block in float32, E8M0 for MX, two levels for NVFP4."""

import numpy as np

from steelyard.formats.schemes import Scheme
from steelyard.reference.casts import E4M3, Format, decode, encode

FLT_MAX = np.finfo(np.float32).max
SIXTH = np.float32(1 / 6)
FOUR_OVER_SIX_E4M3_MAX = 256.0  # leaves room for block scales that are 1.5 times larger


def scale_from_amax(
    amax, element_max, *, epsilon=0.0, power_of_two=False, limit: float | np.floating = FLT_MAX, fallback=1.0
) -> np.ndarray:
    """Rule 1: `element_max / amax`, at most `limit`; `fallback` where the amax is 0, inf or NaN."""
    amax = np.maximum(np.asarray(amax, np.float32), np.float32(epsilon))
    usable = (amax > 0) & np.isfinite(amax)
    with np.errstate(over="ignore"):
        scale = np.float32(element_max) / np.where(usable, amax, np.float32(1))
    scale = np.where(np.isinf(scale), np.float32(limit), scale)
    if power_of_two:
        scale = (scale.view(np.uint32) & np.uint32(0xFF800000)).view(np.float32)
    return np.where(usable, scale, np.float32(fallback))


def e8m0_from_amax(amax: np.ndarray, fmt: Format, rule: str) -> np.ndarray:
    """The E8M0 scale byte of each block."""
    exponent = _rceil(amax, fmt) if rule == "rceil" else _from_exponent(amax, fmt, rule)
    exponent = np.where(np.isinf(amax), 254, np.clip(exponent, 0, 254))
    return np.where(np.isnan(amax), 255, exponent).astype(np.uint8)


def _rceil(amax: np.ndarray, fmt: Format) -> np.ndarray:
    exponent, mantissa = _split(amax * np.float32(1 / fmt.max.astype(np.float64)))
    at_most_smallest = (exponent == 0) & (mantissa <= 0x400000)
    return exponent + ((mantissa > 0) & (exponent != 254) & ~at_most_smallest)


def _from_exponent(amax: np.ndarray, fmt: Format, rule: str) -> np.ndarray:
    if rule == "even":
        half = np.uint32(1 << (22 - fmt.mantissa_bits))
        amax = (amax.view(np.uint32) + half).view(np.float32)
    exponent, mantissa = _split(amax)
    return exponent - fmt.emax + ((rule == "ceil") & (mantissa > 0))


def _split(value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    bits = value.view(np.uint32).astype(np.int64)
    return bits >> 23, bits & 0x7FFFFF


def e8m0_encode_factor(byte: np.ndarray) -> np.ndarray:
    """The factor of values before the cast: 2^(127 - byte)."""
    bits = (np.uint32(254) - np.minimum(byte, 254).astype(np.uint32)) << np.uint32(23)
    factor = np.where(byte == 254, np.float32(2.0**-127), bits.view(np.float32))
    return np.where(byte == 255, np.float32(np.nan), factor)


def nvfp4_range(scheme: Scheme) -> float:
    """The largest code times the largest block scale: what the amax is mapped to."""
    return 6 * (448.0 if scheme.four_over_six == "none" else FOUR_OVER_SIX_E4M3_MAX)


def nvfp4_multiplier(amax: np.ndarray, scheme: Scheme) -> np.ndarray:
    """What decoded values are multiplied by, in the dtype of the amax, or of what is kept in its place."""
    if not scheme.is_static:
        return amax / amax.dtype.type(nvfp4_range(scheme))
    with np.errstate(divide="ignore", over="ignore"):
        return amax.dtype.type(1) / amax if scheme.source == "divisor" else amax


def nvfp4_tensor_scale(amax: np.ndarray, largest: float) -> tuple[np.ndarray, np.ndarray]:
    """S_enc and S_dec, the second level. They map the amax to `largest`, a code times a block scale."""
    encode_scale = scale_from_amax(amax, largest)
    return encode_scale, np.float32(1) / encode_scale


def static_encode_factor(given: np.ndarray, scheme: Scheme) -> np.ndarray:
    """The factor of values before the cast, where that of decoded ones is given, or their divisor."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.minimum(given if scheme.source == "divisor" else np.float32(1) / given, FLT_MAX)


def nvfp4_block_scale(block_amax: np.ndarray, encode_scale: np.ndarray) -> np.ndarray:
    """The E4M3 byte of each block. The order of the products matters: another order gives other bytes."""
    with np.errstate(over="ignore"):
        return encode(np.minimum(block_amax * (encode_scale * SIXTH), FLT_MAX), E4M3)


def nvfp4_encode_factor(byte: np.ndarray, decode_scale: np.ndarray) -> np.ndarray:
    """The factor of values before the cast to E2M1; NaN where the byte is NaN."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.minimum(np.float32(1) / (decode(byte, E4M3) * decode_scale), FLT_MAX)
