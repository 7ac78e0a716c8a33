"""The element and scale formats of schemes as JAX dtypes, and their casts on float32 bits."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from steelyard.formats.schemes import Scheme
from steelyard.jax import softfloat

DTYPES = {
    "f8E4M3FN": jnp.float8_e4m3fn,
    "f8E5M2": jnp.float8_e5m2,
    "f4E2M1FN": jnp.float4_e2m1fn,
    "f8E8M0FNU": jnp.float8_e8m0fnu,
    "f32": jnp.float32,
}
HIGH_PRECISION = (jnp.float32, jnp.bfloat16, jnp.float16)


@dataclass(frozen=True)
class Format:
    """A small float format: sign, exponent with `bias`, mantissa; saturating at `max`."""

    dtype: type
    mantissa_bits: int
    bias: int
    max: float
    emax: int
    sign_bit: int
    nan_code: int

    def encode(self, bits: jax.Array) -> jax.Array:
        """Codes as uint8: nearest, ties to even, saturating; NaN stays NaN, zero keeps its sign."""
        magnitude = jnp.minimum(bits & softfloat.MAGNITUDE, softfloat.constant(self.max))
        code = softfloat.round_magnitude(magnitude, self.mantissa_bits, self.bias)
        code = code | jnp.where(bits >> 31 == 1, np.uint32(self.sign_bit), np.uint32(0))
        return jnp.where(softfloat.is_nan(bits), np.uint32(self.nan_code), code).astype(jnp.uint8)

    def decode(self, codes: jax.Array) -> jax.Array:
        """The float32 bits of codes."""
        values = np.arange(2 * self.sign_bit, dtype=np.uint8).view(self.dtype).astype(np.float32)
        table = np.where(np.isnan(values), softfloat.NAN, values.view(np.uint32))
        return jnp.asarray(table)[codes]


E4M3 = Format(ml_dtypes.float8_e4m3fn, 3, 7, 448.0, 8, 0x80, 0x7F)
E5M2 = Format(ml_dtypes.float8_e5m2, 2, 15, 57344.0, 15, 0x80, 0x7F)
E2M1 = Format(ml_dtypes.float4_e2m1fn, 1, 1, 6.0, 2, 8, 7)
FORMATS = {"f8E4M3FN": E4M3, "f8E5M2": E5M2, "f4E2M1FN": E2M1}


def codes_dtype(scheme: Scheme):
    """The dtype of stored codes. FP4 is stored as bytes of two codes, which JAX's FP4 dtype does not guarantee."""
    return jnp.uint8 if scheme.element == "f4E2M1FN" else DTYPES[scheme.element]


def scales_dtype(scheme: Scheme):
    return DTYPES[scheme.scale]


def encode_e2m1_stochastic(bits: jax.Array, random_bytes: jax.Array) -> jax.Array:
    """E2M1 codes, rounded up with a probability equal to the distance from below, by one random byte per element."""
    magnitude = bits & softfloat.MAGNITUDE
    steps = [softfloat.constant(step / 256) for step in (0.5, 1.0, 2.0)]
    two, four = softfloat.constant(2.0), softfloat.constant(4.0)
    step = jnp.where(magnitude < two, steps[0], jnp.where(magnitude < four, steps[1], steps[2]))
    # A byte times a power of two is exact, so only the sum is rounded, as in a fused multiply-add.
    draw = softfloat.multiply(softfloat.bits_of(random_bytes.astype(jnp.float32)), step)
    dithered = softfloat.add(magnitude, draw)
    reached = [dithered >= softfloat.constant(value) for value in (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)]
    code = sum(each.astype(jnp.uint8) for each in reached)
    code = code | jnp.where(bits >> 31 == 1, np.uint8(8), np.uint8(0))
    return jnp.where(softfloat.is_nan(bits), np.uint8(7), code)


def decode_e8m0(codes: jax.Array) -> jax.Array:
    """The float32 bits of 2^(byte - 127); 255 is NaN."""
    wide = codes.astype(jnp.uint32)
    return jnp.where(codes == 255, softfloat.NAN, jnp.where(codes == 0, np.uint32(0x400000), wide << 23))


def pack_nibbles(codes: jax.Array) -> jax.Array:
    """Two 4-bit codes per byte along the last dim, the first in the low nibble; an odd last code is paired with 0."""
    even = jnp.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, codes.shape[-1] % 2)])
    return even[..., 0::2] | even[..., 1::2] << 4


def unpack_nibbles(packed: jax.Array, columns: int) -> jax.Array:
    """The 4-bit codes of `pack_nibbles`, one per byte."""
    pairs = jnp.stack((packed & 0xF, packed >> 4), axis=-1)
    return pairs.reshape(*packed.shape[:-1], 2 * packed.shape[-1])[..., :columns]


def as_bytes(array: jax.Array) -> jax.Array:
    """The bytes of an array of one-byte elements."""
    return array if array.dtype == jnp.uint8 else lax.bitcast_convert_type(array, jnp.uint8)


def from_bytes(codes: jax.Array, dtype) -> jax.Array:
    """An array of one-byte elements from its bytes."""
    return codes if dtype == jnp.uint8 else lax.bitcast_convert_type(codes, dtype)
