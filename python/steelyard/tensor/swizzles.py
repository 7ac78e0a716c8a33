"""Undo the order of scales that GPU GEMMs read."""

import torch

from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.parts import gemm_scales_shape, scales_shape


def swizzled_shape(copy: QuantizedCopy, compact: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of the swizzled scales of a copy, from the compact shape."""
    return gemm_scales_shape(copy.scheme, compact, copy.columnwise)


def unswizzle(copy: QuantizedCopy) -> torch.Tensor:
    """The compact scales of a copy whose scales are swizzled."""
    rows, columns = scales_shape(copy.scheme, copy.stored_shape, copy.columnwise) or (0, 0)
    if not copy.scheme.has_blocks:
        return copy.scales
    if copy.scheme.block == "1x128":
        return copy.scales[:, :rows].T
    if copy.scheme.block == "128x128":
        return copy.scales[:, :columns]
    padded_rows, padded_columns = copy.scales.shape
    tiles = copy.scales.reshape(padded_rows // 128, padded_columns // 4, 32, 4, 4)
    scales = tiles.permute(0, 3, 2, 1, 4).reshape(padded_rows, padded_columns)
    if copy.scheme.family == "mx" and copy.columnwise:
        return scales[:columns, :rows].T
    return scales[:rows, :columns]
