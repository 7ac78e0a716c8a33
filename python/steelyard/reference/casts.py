"""Element and scale formats: float32 arrays to codes and back, bit by bit."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from steelyard.formats.schemes import ELEMENT_MAX

NAN_CODE = 0x7F  # in both FP8 formats; hardware conversions turn every NaN into it


@dataclass(frozen=True)
class Format:
    """A small float format: a sign, `exponent_bits` and `mantissa_bits`, subnormals, saturating."""

    name: str
    exponent_bits: int
    mantissa_bits: int

    @property
    def max(self) -> np.float32:
        return np.float32(ELEMENT_MAX[self.name])

    @property
    def bias(self) -> int:
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def emax(self) -> int:
        """Exponent of the largest finite value."""
        return int(np.frexp(self.max)[1]) - 1

    @property
    def sign_bit(self) -> int:
        return 1 << (self.exponent_bits + self.mantissa_bits)

    @property
    def nan_code(self) -> int:
        """The code that NaN becomes. E2M1 has no NaN, so it becomes the largest value."""
        return NAN_CODE if self.sign_bit == 0x80 else self.sign_bit - 1

    @cached_property
    def values(self) -> np.ndarray:
        """The value of every code, as float32."""
        codes = np.arange(2 * self.sign_bit)
        exponent = (codes & (self.sign_bit - 1)) >> self.mantissa_bits
        mantissa = codes & ((1 << self.mantissa_bits) - 1)
        significand = np.where(exponent > 0, mantissa + (1 << self.mantissa_bits), mantissa)
        values = np.ldexp(significand.astype(np.float32), np.maximum(exponent, 1) - self.bias - self.mantissa_bits)
        if self.name == "f8E4M3FN":
            values[codes & 0x7F == 0x7F] = np.nan
        if self.name == "f8E5M2":
            values[codes & 0x7F == 0x7C] = np.inf
            values[codes & 0x7F > 0x7C] = np.nan
        return np.where(codes & self.sign_bit, -values, values)


E4M3 = Format("f8E4M3FN", 4, 3)
E5M2 = Format("f8E5M2", 5, 2)
E2M1 = Format("f4E2M1FN", 2, 1)
FORMATS = {fmt.name: fmt for fmt in (E4M3, E5M2, E2M1)}


def encode(x: np.ndarray, fmt: Format) -> np.ndarray:
    """`cast_rne_sat`: nearest, ties to even, saturating; NaN stays NaN, zero keeps its sign."""
    bits = x.view(np.uint32)
    magnitude = np.minimum(np.abs(x), fmt.max)
    dropped = 23 - fmt.mantissa_bits
    absolute = magnitude.view(np.uint32)
    rounded = absolute + np.uint32((1 << (dropped - 1)) - 1) + (absolute >> np.uint32(dropped) & np.uint32(1))
    normal = (rounded >> np.uint32(dropped)).astype(np.int64) - ((127 - fmt.bias) << fmt.mantissa_bits)
    # Below the smallest normal the format is fixed point: scaling by a power of two is exact, and rint ties to even.
    with np.errstate(invalid="ignore", over="ignore"):
        subnormal = np.rint(magnitude * np.float32(2.0 ** (fmt.bias - 1 + fmt.mantissa_bits))).astype(np.int64)
    codes = np.where(magnitude < np.float32(2.0 ** (1 - fmt.bias)), subnormal, normal)
    codes = codes | np.where(bits >> np.uint32(31), fmt.sign_bit, 0)
    return np.where(np.isnan(x), fmt.nan_code, codes).astype(np.uint8)


def decode(codes: np.ndarray, fmt: Format) -> np.ndarray:
    """The float32 values of codes."""
    return fmt.values[codes]


def encode_e2m1_stochastic(x: np.ndarray, random_bytes: np.ndarray) -> np.ndarray:
    """E2M1 codes, rounded up with a probability equal to the distance from below, by one random byte per element."""
    magnitude = np.abs(x)
    # float64 holds byte/256 * step + |x| exactly where it matters, so it is rounded once, as in a fused multiply-add.
    sum_exact = random_bytes / 256.0 * _e2m1_step(magnitude) + magnitude.astype(np.float64)
    dithered = sum_exact.astype(np.float32)
    step = _e2m1_step(dithered)
    rounded = np.minimum(np.floor(dithered / step) * step, E2M1.max)
    return encode(np.where(np.isnan(x), x, np.copysign(rounded, x)), E2M1)


def _e2m1_step(magnitude: np.ndarray) -> np.ndarray:
    return np.where(magnitude < 2, 0.5, np.where(magnitude < 4, 1.0, 2.0)).astype(np.float32)


def decode_e8m0(codes: np.ndarray) -> np.ndarray:
    """2^(byte - 127) as float32; 255 is NaN."""
    with np.errstate(over="ignore"):
        values = np.ldexp(np.float32(1), codes.astype(np.int32) - 127)
    return np.where(codes == 255, np.float32(np.nan), values)
