"""Weights packed once for the GEMMs of the CPU."""

from dataclasses import dataclass

import torch

from steelyard.errors import ConstraintError
from steelyard.formats.checks import check_described, check_is_copy
from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.parts import has_packed_form
from steelyard.formats.schemes import Scheme
from steelyard.runtime import _cpu
from steelyard.runtime.cpu.arguments import check_copy, check_part, require
from steelyard.runtime.cpu.quantization import empty_copy


@dataclass
class PackedWeight:
    """A quantized copy in the layout that GEMMs read fastest, for any number of rows; `qgemm` takes it as `b`.

    It holds all of the copy, which need not be kept: `unpack` gives it back.
    """

    data: torch.Tensor
    """Flat uint8: the units of packed_weight.h, their scales and the amaxes."""
    scheme: Scheme
    shape: tuple[int, int]
    """Logical (M, N) of the copy."""
    columnwise: bool


def pack(copy: QuantizedCopy) -> PackedWeight:
    """An NVFP4 copy in blocks of 16, packed."""
    check_is_copy(copy, "copy")
    require(
        has_packed_form(copy.scheme),
        "pack_scheme",
        f"only NVFP4 copies in blocks of 16 have a packed form, got {copy.scheme.element} with block "
        f"{copy.scheme.block}; GEMMs read other copies as they are",
    )
    check_copy(copy, "copy")
    columns, k = copy.stored_shape
    data = torch.empty(_cpu.packed_size(columns, k, _is_row_scaled(copy)), dtype=torch.uint8)
    _cpu.pack_weight(_weight(copy), data.data_ptr())
    return PackedWeight(data, copy.scheme, copy.shape, copy.columnwise)


def unpack(weight: PackedWeight) -> QuantizedCopy:
    """The copy that was packed."""
    check_packed(weight, "weight")
    copy = empty_copy(weight.scheme, weight.shape, columnwise=weight.columnwise)
    _cpu.unpack_weight(weight.data.data_ptr(), _weight(copy))
    return copy


def check_packed(weight: PackedWeight, what: str) -> None:
    """Refuse a weight whose memory does not fit its scheme and shape."""
    if not isinstance(weight, PackedWeight):
        raise ConstraintError(
            "packed_kind", f"{what} must be a PackedWeight, got {type(weight).__name__}; pack it first"
        )
    check_described(weight, what)
    require(
        has_packed_form(weight.scheme),
        "pack_scheme",
        f"{what} must have an NVFP4 scheme with blocks of 16, got {weight.scheme.element} with block "
        f"{weight.scheme.block}",
    )
    copy = describe(weight)
    size = _cpu.packed_size(*copy.stored_shape, _is_row_scaled(copy))
    check_part(weight.data, f"{what}.data", torch.uint8, (size,))


def describe(weight: PackedWeight) -> QuantizedCopy:
    """A copy of the same scheme and shape, for checks that read no codes."""
    return QuantizedCopy(weight.data, weight.data, None, weight.scheme, weight.shape, weight.columnwise)


def _is_row_scaled(copy: QuantizedCopy) -> bool:
    return copy.scheme.second_level == "row"


def _weight(copy: QuantizedCopy) -> tuple:
    assert copy.amax is not None
    pointers = copy.codes.data_ptr(), copy.scales.data_ptr(), copy.amax.data_ptr()
    return *pointers, *copy.stored_shape, _is_row_scaled(copy)
