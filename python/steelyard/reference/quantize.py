"""Quantize and amax for every scheme, on the stored array of each copy."""

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from steelyard.errors import ConstraintError
from steelyard.formats.checks import amax_pair, check_amax_options, check_input, check_scheme
from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.parts import is_stored_transposed
from steelyard.formats.schemes import Scheme
from steelyard.reference import four_over_six, hadamard
from steelyard.reference.casts import E2M1, FORMATS, encode, encode_e2m1_stochastic
from steelyard.reference.layouts import from_blocks, pack_nibbles, to_blocks, transpose
from steelyard.reference.random import rounding_bytes
from steelyard.reference.scales import (
    e8m0_encode_factor,
    e8m0_from_amax,
    nvfp4_block_scale,
    nvfp4_encode_factor,
    nvfp4_multiplier,
    nvfp4_range,
    nvfp4_tensor_scale,
    scale_from_amax,
    static_encode_factor,
)


@dataclass(frozen=True)
class _Request:
    """One copy to make: the logical matrix in float32, and the caller's other arguments."""

    matrix: np.ndarray
    input_max: float
    columnwise: bool
    scale: np.ndarray | None
    amax: np.ndarray | None
    rng: tuple[int, int] | None


def quantize(
    x: torch.Tensor,
    row: Scheme | None,
    col: Scheme | None,
    *,
    scale: torch.Tensor | None = None,
    amax: torch.Tensor | tuple | None = None,
    rng: tuple[int, int] | None = None,
) -> tuple[QuantizedCopy | None, QuantizedCopy | None]:
    """The rowwise and the columnwise copy of `x`, its leading dims flattened; None for a copy without a scheme.

    `scale`: the scale of per-tensor copies (required for delayed ones), or what static ones are decoded by; `amax`: an
    amax that is already reduced, for per-tensor and NVFP4 copies, or a pair (row, col); `rng`: (seed, offset) of
    stochastic rounding.
    """
    matrix = _matrix(x)
    input_max = torch.finfo(x.dtype).max
    copies = []
    for scheme, columnwise, own_amax in zip((row, col), (False, True), amax_pair(amax, row, col), strict=True):
        if scheme is None:
            copies.append(None)
            continue
        check_scheme(scheme, columnwise=columnwise, scale=scale, rng=rng)
        request = _Request(matrix, input_max, columnwise, _float32(scale), _float32(own_amax), rng)
        copies.append(_quantize_copy(request, scheme))
    return copies[0], copies[1]


def amax(x: torch.Tensor, *, rht: bool = False, per_row: bool = False) -> torch.Tensor:
    """Largest magnitude of `x`, of each row, or after the transform; 0 if empty, NaN if `x` holds one."""
    check_amax_options(rht=rht, per_row=per_row)
    matrix = _matrix(x)
    stored = hadamard.transform(matrix.T) if rht else matrix
    return torch.from_numpy(_amax(stored, axis=1 if per_row else None))


def _matrix(x: torch.Tensor) -> np.ndarray:
    check_input(x)
    columns = x.shape[-1]
    rows = x.shape[:-1].numel()
    return x.detach().float().resolve_neg().reshape(rows, columns).numpy()


def _float32(value) -> np.ndarray | None:
    return None if value is None else torch.as_tensor(value, dtype=torch.float32).detach().numpy()


def _given(name: str, value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if value.size != math.prod(shape):
        raise ConstraintError(f"quantize_{name}", f"{name} must have shape {shape} here, got {value.shape}")
    return value.reshape(shape)


def _amax(array: np.ndarray, axis=None, keepdims: bool = False) -> np.ndarray:
    """Largest magnitude; one canonical NaN if there is any."""
    largest = np.asarray(np.max(np.abs(array), axis=axis, keepdims=keepdims, initial=np.float32(0)), np.float32)
    return np.where(np.isnan(largest), np.float32(np.nan), largest)


def _quantize_copy(request: _Request, scheme: Scheme) -> QuantizedCopy:
    if request.columnwise and scheme.is_transposable and scheme.rounding == "nearest":
        return transpose(_quantize_copy(replace(request, columnwise=False), scheme))
    stored = request.matrix.T if is_stored_transposed(scheme, request.columnwise) else request.matrix
    if scheme.rht:
        stored = hadamard.transform(stored)
    with np.errstate(over="ignore", invalid="ignore"):
        codes, scales, amax = _BY_FAMILY[scheme.family](np.ascontiguousarray(stored), scheme, request)
    amax = None if amax is None else _tensor(amax)
    rows, columns = request.matrix.shape
    return QuantizedCopy(_tensor(codes), _tensor(scales), amax, scheme, (rows, columns), request.columnwise)


def _tensor(part: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(part, order="C"))


def _per_tensor(stored: np.ndarray, scheme: Scheme, request: _Request) -> tuple:
    amax = _amax(stored) if request.amax is None else _given("amax", request.amax, ())
    scale = None if request.scale is None else _given("scale", request.scale, ())
    if scale is not None and scheme.is_static:
        return encode(stored * static_encode_factor(scale, scheme), FORMATS[scheme.element]), scale, amax
    if scale is None:
        scale = scale_from_amax(amax, scheme.element_max, epsilon=scheme.epsilon, power_of_two=scheme.power_of_two)
    return encode(stored * scale, FORMATS[scheme.element]), np.float32(1) / scale, amax


def _per_row(stored: np.ndarray, scheme: Scheme, request: _Request) -> tuple:
    scale = scale_from_amax(
        _amax(stored, axis=1, keepdims=True),
        scheme.element_max,
        epsilon=scheme.epsilon,
        power_of_two=scheme.power_of_two,
    )
    return encode(stored * scale, FORMATS[scheme.element]), np.float32(1) / scale, None


def _per_block(stored: np.ndarray, scheme: Scheme, request: _Request) -> tuple:
    blocks = to_blocks(stored, scheme.block_sizes)
    scale = scale_from_amax(
        _amax(blocks, axis=(1, 3), keepdims=True),
        scheme.element_max,
        epsilon=scheme.epsilon,
        power_of_two=scheme.power_of_two,
        limit=request.input_max,
    )
    codes = from_blocks(encode(blocks * scale, FORMATS[scheme.element]), stored.shape)
    return codes, (np.float32(1) / scale)[:, 0, :, 0], None


def _mx(stored: np.ndarray, scheme: Scheme, request: _Request) -> tuple:
    blocks = to_blocks(stored, scheme.block_sizes)
    fmt = FORMATS[scheme.element]
    scale_bytes = e8m0_from_amax(_amax(blocks, axis=(1, 3), keepdims=True), fmt, scheme.rule)
    codes = encode(blocks * e8m0_encode_factor(scale_bytes), fmt)
    scales = scale_bytes[:, 0, :, 0]
    if scheme.is_tiled:
        scales = np.repeat(scales, 32, axis=0)[: stored.shape[0]]
    codes = from_blocks(codes, stored.shape)
    return pack_nibbles(codes) if scheme.element == "f4E2M1FN" else codes, scales, None


def _nvfp4(stored: np.ndarray, scheme: Scheme, request: _Request) -> tuple:
    per_row = scheme.second_level == "row"
    if scheme.is_static:
        assert request.scale is not None
        amax = _given("scale", request.scale, ())
    elif request.amax is None:
        amax = _amax(stored, axis=1 if per_row else None)
    else:
        amax = _given("amax", request.amax, stored.shape[:1] if per_row else ())
    over_blocks = amax.reshape(-1, 1, 1, 1)
    if scheme.is_static:
        encode_scale, decode_scale = static_encode_factor(over_blocks, scheme), nvfp4_multiplier(over_blocks, scheme)
    else:
        encode_scale, decode_scale = nvfp4_tensor_scale(over_blocks, nvfp4_range(scheme))
    blocks = to_blocks(stored, scheme.block_sizes)
    block_amax = _amax(blocks, axis=(1, 3), keepdims=True)
    if scheme.four_over_six != "none":
        codes, scale_bytes = four_over_six.choose(
            blocks, block_amax, over_blocks, encode_scale, decode_scale, scheme.four_over_six
        )
    else:
        scale_bytes = nvfp4_block_scale(block_amax, encode_scale)
        codes = _encode_e2m1(blocks * nvfp4_encode_factor(scale_bytes, decode_scale), stored.shape, scheme, request)
    scales = np.repeat(scale_bytes[:, 0, :, 0], scheme.block_sizes[0], axis=0)[: stored.shape[0]]
    return pack_nibbles(from_blocks(codes, stored.shape)), scales, amax


def _encode_e2m1(blocks: np.ndarray, shape: tuple[int, int], scheme: Scheme, request: _Request) -> np.ndarray:
    if scheme.rounding == "nearest" or request.rng is None:
        return encode(blocks, E2M1)
    rows, columns = shape
    logical_shape = (columns, rows) if request.columnwise else (rows, columns)
    draws = rounding_bytes(logical_shape, request.columnwise, request.rng)
    draws = draws.T if request.columnwise else draws
    return encode_e2m1_stochastic(blocks, to_blocks(draws, scheme.block_sizes))


_BY_FAMILY = {
    "tensor": _per_tensor,
    "row": _per_row,
    "block": _per_block,
    "mx": _mx,
    "mxfp4": _mx,
    "nvfp4": _nvfp4,
}
