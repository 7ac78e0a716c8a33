"""Views of quantized tensors whose codes stay codes.

A view is identified by the sizes and strides it would have on a contiguous tensor, not by the operation that made it:
it is a box of rows and columns of the matrix, or its transpose. Reshaped rows are still rows of the matrix.
"""

from dataclasses import replace
from functools import cache
from typing import NamedTuple

import torch

from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.schemes import Scheme

_SWAPPED_BLOCKS = {"1x32": "32x1", "32x1": "1x32"}


class Box(NamedTuple):
    """Half-open ranges of rows and columns of a matrix, possibly transposed."""

    rows: tuple[int, int]
    columns: tuple[int, int]
    transposed: bool


def read_box(view: torch.Tensor, matrix: tuple[int, int]) -> Box | None:
    """The box of a contiguous (M, N) matrix that a view shows; None if it shows something else."""
    if view.dim() == 0:
        return Box((0, 1), (0, 1), False) if matrix == (1, 1) else None
    box = _read_full_box(view, matrix[1]) if view.numel() else _empty_box(view)
    inside = box is not None and box.rows[1] <= matrix[0] and box.columns[1] <= matrix[1]
    return box if inside else None


def _read_full_box(view: torch.Tensor, columns: int) -> Box | None:
    row, column = divmod(int(view.storage_offset()), columns)
    sizes, strides = view.shape, view.stride()
    if _is_dense_rows(sizes, strides, columns) and column + sizes[-1] <= columns:
        return Box((row, row + sizes[:-1].numel()), (column, column + sizes[-1]), False)
    if _is_transpose(sizes, strides, columns) and column + sizes[0] <= columns:
        return Box((row, row + sizes[1]), (column, column + sizes[0]), True)
    if view.is_contiguous() and column == 0 and view.numel() % columns == 0:
        return Box((row, row + view.numel() // columns), (0, columns), False)
    return None


def _empty_box(view: torch.Tensor) -> Box:
    return Box((0, view.shape[:-1].numel()), (0, view.shape[-1]), False)


def _is_dense_rows(sizes, strides, columns: int) -> bool:
    """Whether the last dim runs along a row, and the others together run over consecutive rows."""
    if sizes[-1] > 1 and strides[-1] != 1:
        return False
    step = columns
    for size, stride in zip(reversed(sizes[:-1]), reversed(strides[:-1]), strict=True):
        if size > 1 and stride != step:
            return False
        step *= size
    return True


def _is_transpose(sizes, strides, columns: int) -> bool:
    return len(sizes) == 2 and (sizes[0] == 1 or strides[0] == 1) and (sizes[1] == 1 or strides[1] == columns)


def view_copy(copy: QuantizedCopy, box: Box) -> QuantizedCopy | None:
    """The copy of a box, sharing this copy's memory; None if the box cuts through a block."""
    narrowed = _narrow(copy, box)
    return swap_usage(narrowed) if narrowed is not None and box.transposed else narrowed


def _narrow(copy: QuantizedCopy, box: Box) -> QuantizedCopy | None:
    rows, columns = (box.columns, box.rows) if copy.is_stored_transposed else (box.rows, box.columns)
    shape = box.rows[1] - box.rows[0], box.columns[1] - box.columns[0]
    if (rows, columns) == tuple((0, size) for size in copy.stored_shape):
        return copy
    block = copy.scheme.block_shape or (1, 1)
    stored = copy.shape[::-1] if copy.is_stored_transposed else copy.shape
    if not all(map(_is_whole_blocks, (rows, columns), block, stored)):
        return None
    if copy.scheme.rht:
        columns = columns[0], -(-columns[1] // 16) * 16
    packed = 2 if copy.scheme.element == "f4E2M1FN" else 1
    codes = copy.codes[_slice(rows), _slice(columns, packed)]
    scales, amax = copy.scales, copy.amax
    if copy.scheme.family != "tensor":
        per_row, per_column = _scale_extent(copy)
        scales = scales[_slice(rows, per_row)]
        if copy.scheme.family != "row":
            scales = scales[:, _slice(columns, per_column)]
    if amax is not None and copy.scheme.second_level == "row":
        amax = amax[_slice(rows)]
    return replace(copy, codes=codes, scales=scales, amax=amax, shape=shape)


def _is_whole_blocks(span: tuple[int, int], block: int, size: int) -> bool:
    start, stop = span
    return start % block == 0 and (stop % block == 0 or stop == size)


def _slice(span: tuple[int, int], step: int = 1) -> slice:
    return slice(span[0] // step, -(-span[1] // step))


def _scale_extent(copy: QuantizedCopy) -> tuple[int, int]:
    """Rows and columns that one stored scale covers: MX and NVFP4 tiles repeat their scales along one dim."""
    rows, columns = copy.scheme.block_shape or (1, 1)
    if copy.scheme.block == "32x32":
        return (32, 1) if copy.columnwise else (1, 32)
    return (1, columns) if copy.scheme.block == "16x16" else (rows, columns)


def swap_usage(copy: QuantizedCopy) -> QuantizedCopy:
    """The same bytes, read as the copy of the other usage of the transposed matrix."""
    swapped = replace(copy, shape=copy.shape[::-1], columnwise=not copy.columnwise)
    if copy.scheme.family != "mx":
        return swapped
    return replace(swapped, codes=copy.codes.T, scales=copy.scales.T, scheme=swapped_scheme(copy.scheme))


@cache
def swapped_scheme(scheme: Scheme) -> Scheme:
    """The scheme of an FP8 copy in blocks of 32 that is read as one of the other usage."""
    return replace(scheme, block=_SWAPPED_BLOCKS.get(scheme.block, scheme.block))
