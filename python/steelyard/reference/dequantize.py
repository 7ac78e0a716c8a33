"""Decode the copies of every scheme."""

import numpy as np
import torch

from steelyard.formats.copies import QuantizedCopy, other_usage
from steelyard.formats.schemes import Scheme
from steelyard.reference import hadamard
from steelyard.reference.casts import E4M3, FORMATS, decode, decode_e8m0
from steelyard.reference.layouts import unpack_nibbles
from steelyard.reference.scales import nvfp4_range


def dequantize(copy: QuantizedCopy, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The values of a copy as a logical (M, N) matrix; the random Hadamard transform is undone."""
    if copy.borrowed:
        copy = other_usage(copy)
    stored = decode_stored(copy)
    if copy.scheme.rht:
        stored = hadamard.inverse(stored)
    matrix = stored.T if copy.is_stored_transposed else stored
    return torch.from_numpy(np.array(matrix[: copy.shape[0], : copy.shape[1]], order="C")).to(dtype)


def decode_stored(copy: QuantizedCopy) -> np.ndarray:
    """The float32 values of the stored array; a random Hadamard transform is not undone."""
    scheme = copy.scheme
    values, scales = element_values(copy), spread_scales(copy)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        if scheme.family != "nvfp4":
            return values * scales
        assert copy.amax is not None
        amax = copy.amax.numpy()
        if scheme.is_static:
            return values * (scales / amax if scheme.source == "divisor" else scales * amax)
        amax = amax[:, None] if scheme.second_level == "row" else amax
        return values * scales * amax * np.float32(1 / nvfp4_range(scheme))


def element_values(copy: QuantizedCopy) -> np.ndarray:
    """The float32 values of the codes alone."""
    codes = copy.codes.numpy()
    if copy.scheme.element == "f4E2M1FN":
        codes = unpack_nibbles(codes, copy.stored_shape[1])
    return decode(codes, FORMATS[copy.scheme.element])


def spread_scales(copy: QuantizedCopy) -> np.ndarray:
    """The scales as float32, repeated for each element of the stored array where they are those of blocks."""
    scheme = copy.scheme
    scales = copy.scales.numpy()
    if scheme.family in ("tensor", "row"):
        return scales
    decoders = {"f32": lambda s: s, "f8E8M0FNU": decode_e8m0, "f8E4M3FN": lambda s: decode(s, E4M3)}
    values = decoders[scheme.scale](scales)
    rows, columns = copy.stored_shape
    block_rows, block_columns = _scale_extent(scheme, copy.columnwise)
    return np.repeat(np.repeat(values, block_rows, axis=0)[:rows], block_columns, axis=1)[:, :columns]


def _scale_extent(scheme: Scheme, columnwise: bool) -> tuple[int, int]:
    """Rows and columns that one compact scale covers; MX and NVFP4 tiles repeat their scales along one dim."""
    rows, columns = scheme.block_sizes
    if scheme.block == "32x32":
        return (32, 1) if columnwise else (1, 32)
    return (1, columns) if scheme.block == "16x16" else (rows, columns)
