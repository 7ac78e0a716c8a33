"""Quantize, dequantize and GEMM in plain jnp, for platforms without native kernels: the same bytes, more slowly.

Matrices are 2D here, and values are float32 bits (`softfloat`), because XLA's own float arithmetic may flush subnormals
and round twice.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from steelyard.formats.schemes import Scheme
from steelyard.jax import softfloat
from steelyard.jax.copies import CopySpec, Parts
from steelyard.jax.formats import (
    E2M1,
    E4M3,
    FORMATS,
    Format,
    as_bytes,
    codes_dtype,
    decode_e8m0,
    encode_e2m1_stochastic,
    from_bytes,
    pack_nibbles,
    scales_dtype,
    unpack_nibbles,
)
from steelyard.jax.philox import rounding_bytes

_ONE = softfloat.constant(1.0)
_SIXTH = softfloat.constant(1 / 6)
_SIGNS = np.array([1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1])


class Request(NamedTuple):
    """What one copy is made from: the bits of the logical matrix, and the caller's other arguments."""

    matrix: jax.Array
    limit: float
    scale: jax.Array | None
    amax: jax.Array | None
    rng: jax.Array | None


def quantize(x: jax.Array, spec: CopySpec, *, scale=None, amax=None, rng=None) -> Parts:
    """A copy of a matrix; `scale`, `amax`: bits or None as in `steelyard.reference.quantize`; `rng`: four words."""
    scale_bits, amax_bits = (None if each is None else softfloat.bits_of(each) for each in (scale, amax))
    request = Request(softfloat.bits_of(x), float(jnp.finfo(x.dtype).max), scale_bits, amax_bits, rng)
    codes, scales, kept = _quantize(request, spec)
    scheme = spec.scheme
    scales = softfloat.floats_of(scales) if scheme.scale == "f32" else from_bytes(scales, scales_dtype(scheme))
    return Parts(from_bytes(codes, codes_dtype(scheme)), scales, None if kept is None else softfloat.floats_of(kept))


def _quantize(request: Request, spec: CopySpec) -> tuple:
    scheme = spec.scheme
    if spec.columnwise and scheme.is_transposable and scheme.rounding == "nearest":
        rowwise = replace(spec, columnwise=False)
        codes, scales, amax = _quantize(request, rowwise)
        return *_transposed(codes, scales, rowwise), amax
    stored = request.matrix.T if spec.is_stored_transposed else request.matrix
    if scheme.rht:
        stored = _hadamard(stored)
    by_family = {"tensor": _per_tensor, "block": _per_block, "mx": _mx, "nvfp4": _nvfp4}
    return by_family[scheme.family](stored, spec, request)


def _transposed(codes, scales, spec: CopySpec) -> tuple[jax.Array, jax.Array]:
    """Codes and scales of the columnwise copy, from those of the rowwise one."""
    family = spec.scheme.family
    columns = spec.shape[1]
    if family == "tensor":
        return codes.T, scales
    if family == "block":
        return codes.T, scales.T
    if family == "mx":
        return codes, jnp.repeat(scales[::32], 32, axis=1)[:, :columns]
    return pack_nibbles(unpack_nibbles(codes, columns).T), jnp.repeat(scales[::16].T, 16, axis=0)[:columns]


def amax_of(bits: jax.Array, axis=None, keepdims: bool = False) -> jax.Array:
    """Bits of the largest magnitude; one canonical NaN if there is any."""
    largest = jnp.max(bits & softfloat.MAGNITUDE, axis=axis, keepdims=keepdims, initial=np.uint32(0))
    return jnp.where(softfloat.is_nan(largest), softfloat.NAN, largest)


def scale_from_amax(
    amax,
    element_max: float,
    *,
    epsilon=0.0,
    power_of_two=False,
    limit=None,
    fallback: Any = _ONE,
    divide: Callable = softfloat.divide,
):
    """Rule 1 of the numerics: `element_max / amax`, at most `limit`; `fallback` where the amax is 0, inf or NaN."""
    amax = jnp.maximum(amax, softfloat.constant(epsilon))
    usable = (amax > 0) & softfloat.is_finite(amax)
    scale = divide(softfloat.constant(element_max), jnp.where(usable, amax, _ONE))
    largest = softfloat.LARGEST if limit is None else softfloat.constant(limit)
    scale = jnp.where(softfloat.is_finite(scale), scale, largest)
    if power_of_two:
        scale = scale & np.uint32(0xFF800000)
    return jnp.where(usable, scale, fallback)


def _to_blocks(stored: jax.Array, block: tuple[int, int]) -> jax.Array:
    """(row blocks, rows, column blocks, columns), zero-padded to whole blocks."""
    rows, columns = block
    padded = jnp.pad(stored, ((0, -stored.shape[0] % rows), (0, -stored.shape[1] % columns)))
    return padded.reshape(padded.shape[0] // rows, rows, padded.shape[1] // columns, columns)


def _from_blocks(blocks: jax.Array, shape: tuple[int, int]) -> jax.Array:
    whole = blocks.reshape(blocks.shape[0] * blocks.shape[1], blocks.shape[2] * blocks.shape[3])
    return whole[: shape[0], : shape[1]]


def _per_tensor(stored, spec: CopySpec, request: Request) -> tuple:
    scheme = spec.scheme
    amax = amax_of(stored) if request.amax is None else request.amax
    scale = request.scale
    if scale is None:
        scale = scale_from_amax(amax, scheme.element_max, epsilon=scheme.epsilon, power_of_two=scheme.power_of_two)
    codes = FORMATS[scheme.element].encode(softfloat.multiply(stored, scale))
    return codes, softfloat.divide(_ONE, scale), amax


def _per_block(stored, spec: CopySpec, request: Request) -> tuple:
    scheme = spec.scheme
    blocks = _to_blocks(stored, scheme.block_sizes)
    scale = scale_from_amax(
        amax_of(blocks, (1, 3), True),
        scheme.element_max,
        epsilon=scheme.epsilon,
        power_of_two=scheme.power_of_two,
        limit=request.limit,
    )
    codes = FORMATS[scheme.element].encode(softfloat.multiply(blocks, scale))
    return _from_blocks(codes, stored.shape), softfloat.divide(_ONE, scale)[:, 0, :, 0], None


def _mx(stored, spec: CopySpec, request: Request) -> tuple:
    scheme, fmt = spec.scheme, FORMATS[spec.scheme.element]
    blocks = _to_blocks(stored, scheme.block_sizes)
    scale_bytes = _e8m0_from_amax(amax_of(blocks, (1, 3), True), fmt, scheme.rule)
    codes = fmt.encode(softfloat.multiply(blocks, _e8m0_encode_factor(scale_bytes)))
    scales = scale_bytes[:, 0, :, 0]
    if scheme.is_tiled:
        scales = jnp.repeat(scales, 32, axis=0)[: stored.shape[0]]
    return _from_blocks(codes, stored.shape), scales, None


def _e8m0_from_amax(amax, fmt: Format, rule: str) -> jax.Array:
    if rule == "rceil":
        value = softfloat.multiply(amax, softfloat.constant(1 / fmt.max))
        exponent, mantissa = value >> 23, value & np.uint32(0x7FFFFF)
        at_most_smallest = (exponent == 0) & (mantissa <= 0x400000)
        up = (mantissa > 0) & (exponent != 254) & ~at_most_smallest
        exponent = (exponent + up).astype(jnp.int32)
    else:
        value = amax + np.uint32(1 << (22 - fmt.mantissa_bits)) if rule == "even" else amax
        up = (rule == "ceil") & ((value & np.uint32(0x7FFFFF)) > 0)
        exponent = (value >> 23).astype(jnp.int32) - fmt.emax + up
    exponent = jnp.where(amax == softfloat.INFINITY, 254, jnp.clip(exponent, 0, 254))
    return jnp.where(softfloat.is_nan(amax), 255, exponent).astype(jnp.uint8)


def _e8m0_encode_factor(scale_bytes) -> jax.Array:
    """Bits of 2^(127 - byte)."""
    wide = scale_bytes.astype(jnp.uint32)
    factor = jnp.where(wide >= 254, np.uint32(0x400000), (np.uint32(254) - jnp.minimum(wide, 254)) << 23)
    return jnp.where(scale_bytes == 255, softfloat.NAN, factor)


def nvfp4_range(scheme: Scheme) -> float:
    """The largest code times the largest block scale: what the amax is mapped to."""
    return 6 * (448.0 if scheme.four_over_six == "none" else 256.0)


def _nvfp4(stored, spec: CopySpec, request: Request) -> tuple:
    scheme = spec.scheme
    per_row = scheme.second_level == "row"
    amax = amax_of(stored, 1 if per_row else None) if request.amax is None else request.amax
    over_blocks = amax.reshape(-1, 1, 1, 1)
    encode_scale = scale_from_amax(over_blocks, nvfp4_range(scheme))
    decode_scale = softfloat.divide(_ONE, encode_scale)
    blocks = _to_blocks(stored, scheme.block_sizes)
    block_amax = amax_of(blocks, (1, 3), True)
    if scheme.four_over_six != "none":
        codes, scale_bytes = _four_over_six(blocks, block_amax, over_blocks, encode_scale, decode_scale, scheme)
    else:
        wanted = softfloat.multiply(block_amax, softfloat.multiply(encode_scale, _SIXTH))
        scale_bytes = E4M3.encode(_at_most(wanted, softfloat.LARGEST))
        scaled = softfloat.multiply(blocks, _nvfp4_encode_factor(scale_bytes, decode_scale))
        codes = _encode_e2m1(scaled, spec, stored.shape, request)
    scales = jnp.repeat(scale_bytes[:, 0, :, 0], scheme.block_sizes[0], axis=0)[: stored.shape[0]]
    return pack_nibbles(_from_blocks(codes, stored.shape)), scales, amax


def _at_most(bits, largest) -> jax.Array:
    """The smaller of two non-negative values; NaN stays NaN."""
    return jnp.where(softfloat.is_nan(bits), softfloat.NAN, jnp.minimum(bits, largest))


def _nvfp4_encode_factor(scale_bytes, decode_scale) -> jax.Array:
    factor = softfloat.divide(_ONE, softfloat.multiply(E4M3.decode(scale_bytes), decode_scale))
    return _at_most(factor, softfloat.LARGEST)


def _encode_e2m1(blocks, spec: CopySpec, stored_shape, request: Request) -> jax.Array:
    if spec.scheme.rounding == "nearest" or request.rng is None:
        return E2M1.encode(blocks)
    logical = stored_shape[::-1] if spec.columnwise else stored_shape
    draws = rounding_bytes(logical, spec.columnwise, request.rng)
    draws = draws.T if spec.columnwise else draws
    return encode_e2m1_stochastic(blocks, _to_blocks(draws, spec.scheme.block_sizes))


def _four_over_six(blocks, block_amax, amax, encode_scale, decode_scale, scheme: Scheme) -> tuple:
    base = softfloat.multiply(softfloat.divide(block_amax, softfloat.constant(6.0)), encode_scale)
    larger = softfloat.multiply(base, softfloat.constant(1.5))
    candidates = []
    for scale in (base, larger):
        scale_bytes = E4M3.encode(_at_most(scale, softfloat.constant(448.0)))
        codes = E2M1.encode(softfloat.multiply(blocks, _nvfp4_encode_factor(scale_bytes, decode_scale)))
        decoded = softfloat.multiply(softfloat.multiply(E2M1.decode(codes), E4M3.decode(scale_bytes)), amax)
        error = softfloat.subtract(softfloat.divide(decoded, softfloat.constant(nvfp4_range(scheme))), blocks)
        absolute = error & softfloat.MAGNITUDE
        error = absolute if scheme.four_over_six == "mae" else softfloat.multiply(error, error)
        candidates.append((codes, scale_bytes, _block_sum(error)))
    (codes_6, bytes_6, error_6), (codes_4, bytes_4, error_4) = candidates
    keep_4 = (error_4 < error_6) & ~softfloat.is_nan(error_4) & ~softfloat.is_nan(error_6)
    return jnp.where(keep_4, codes_4, codes_6), jnp.where(keep_4, bytes_4, bytes_6)


def _block_sum(errors: jax.Array) -> jax.Array:
    """Float32 sums in a fixed order: one by one along a row, then the rows of a tile as a tree."""
    columns = jnp.moveaxis(errors, -1, 0)
    total, _ = jax.lax.scan(lambda sum_, column: (softfloat.add(sum_, column), None), columns[0], columns[1:])
    while total.shape[1] > 1:
        half = total.shape[1] // 2
        total = softfloat.add(total[:, :half], total[:, half:])
    return total[..., None]


def _hadamard(stored: jax.Array) -> jax.Array:
    """The transform along the last dim (zero-padded to 16), from bf16-rounded values to bf16-rounded values."""
    padded = jnp.pad(softfloat.round_to_bf16(stored), ((0, 0), (0, -stored.shape[1] % 16)))
    groups = padded.reshape(padded.shape[0], padded.shape[1] // 16, 16)
    return softfloat.round_to_bf16(_butterflies(_with_signs(groups))).reshape(padded.shape)


def _inverse_hadamard(stored: jax.Array) -> jax.Array:
    groups = stored.reshape(stored.shape[0], stored.shape[1] // 16, 16)
    return _with_signs(_butterflies(groups)).reshape(stored.shape)


def _with_signs(groups: jax.Array) -> jax.Array:
    flip = np.where(_SIGNS < 0, softfloat.SIGN, np.uint32(0))
    return jnp.where(softfloat.is_nan(groups), softfloat.NAN, groups ^ flip)


def _butterflies(groups: jax.Array) -> jax.Array:
    for stride in (1, 2, 4, 8):
        pairs = groups.reshape(*groups.shape[:2], 16 // (2 * stride), 2, stride)
        low, high = pairs[..., 0, :], pairs[..., 1, :]
        # One addition of doubled operands instead of two: an addition is the largest piece of code here.
        both = softfloat.add(low[..., None, :], jnp.stack((high, high ^ softfloat.SIGN), axis=-2))
        groups = both.reshape(groups.shape)
    return softfloat.multiply(groups, softfloat.constant(0.25))


def dequantize(parts: Parts, spec: CopySpec, dtype) -> jax.Array:
    """The values of a copy as a logical (M, N) matrix; the random Hadamard transform is undone."""
    scheme = spec.scheme
    decoded = softfloat.multiply(element_bits(parts, spec), spread_scales(parts, spec))
    if parts.amax is not None and scheme.family == "nvfp4":
        amax = softfloat.bits_of(parts.amax)
        decoded = softfloat.multiply(decoded, amax[:, None] if scheme.second_level == "row" else amax)
        decoded = softfloat.multiply(decoded, softfloat.constant(1 / nvfp4_range(scheme)))
    if scheme.rht:
        decoded = _inverse_hadamard(decoded)
    matrix = decoded.T if spec.is_stored_transposed else decoded
    return softfloat.rounded_to(matrix[: spec.shape[0], : spec.shape[1]], dtype)


def element_bits(parts: Parts, spec: CopySpec) -> jax.Array:
    """Float32 bits of the codes alone."""
    codes = as_bytes(parts.codes)
    if spec.scheme.element == "f4E2M1FN":
        codes = unpack_nibbles(codes, spec.stored[1])
    return FORMATS[spec.scheme.element].decode(codes)


def spread_scales(parts: Parts, spec: CopySpec) -> jax.Array:
    """Float32 bits of the block scales, repeated for each element of the stored array (0-d for a per-tensor scale)."""
    scheme = spec.scheme
    if scheme.family == "tensor":
        return softfloat.bits_of(parts.scales)
    if scheme.family == "block":
        values = softfloat.bits_of(parts.scales)
    else:
        decode = decode_e8m0 if scheme.family == "mx" else E4M3.decode
        values = decode(as_bytes(parts.scales))
    return _spread(values, spec)


def _spread(values: jax.Array, spec: CopySpec) -> jax.Array:
    """A compact array of one value per block, repeated for each element of the stored array."""
    block_rows, block_columns = spec.scheme.block_sizes
    if spec.scheme.block == "32x32":
        block_rows, block_columns = (32, 1) if spec.columnwise else (1, 32)
    elif spec.scheme.block == "16x16":
        block_rows = 1
    rows, columns = spec.stored
    return jnp.repeat(jnp.repeat(values, block_rows, axis=0)[:rows], block_columns, axis=1)[:, :columns]


def gemm(a: Parts, a_spec: CopySpec, b: Parts, b_spec: CopySpec, bias, out_dtype) -> jax.Array:
    """`a b^T (+ bias)`: a float32 product of decoded operands, each in units that float32 holds."""
    (left, left_factors), (right, right_factors) = _operand(a, a_spec), _operand(b, b_spec)
    product = jnp.dot(left, right.T, precision=jax.lax.Precision.HIGHEST)
    for factor in left_factors:
        product = product * (factor[:, None] if factor.ndim else factor)
    for factor in right_factors:
        product = product * factor
    if bias is not None:
        product = product + bias.astype(jnp.float32)
    return product.astype(out_dtype)


def _operand(parts: Parts, spec: CopySpec) -> tuple[jax.Array, list[jax.Array]]:
    """Values with the reduction last, and the factors that remain for the product."""
    family = spec.scheme.family
    elements = element_bits(parts, spec)
    if family == "tensor":
        values, factors = elements, [parts.scales]
    elif family == "nvfp4":
        values = softfloat.multiply(elements, spread_scales(parts, spec))
        factors = [parts.amax, jnp.float32(1 / nvfp4_range(spec.scheme))]
    else:
        scales = spread_scales(parts, spec)
        unit, factors = _unit(scales)
        values = softfloat.multiply(elements, softfloat.multiply(scales, unit))
    values = softfloat.floats_of(values)
    return (values if spec.is_stored_transposed or not spec.columnwise else values.T), factors


def _unit(scales: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
    """Bits of a power of two that scales the largest scale to about 1, and its inverse as two factors."""
    largest = jnp.max(jnp.where(softfloat.is_finite(scales), scales & softfloat.MAGNITUDE, 0), initial=np.uint32(0))
    exponent = jnp.clip((largest >> 23).astype(jnp.int32) - 127, -126, 126)
    half = exponent // 2
    powers = [((127 + each).astype(jnp.uint32) << 23) for each in (-exponent, half, exponent - half)]
    return powers[0], [softfloat.floats_of(power) for power in powers[1:]]
