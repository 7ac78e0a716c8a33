"""Weights packed once for the GEMMs of the CPU."""

from dataclasses import dataclass

import torch

from steelyard.errors import ConstraintError
from steelyard.formats.checks import check_described, check_is_copy
from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.parts import can_pack
from steelyard.formats.scheme_bits import scheme_bits
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
    """Flat uint8: the units of packed_weight.h, their scales, and the amaxes or ranges of scales."""
    scheme: Scheme
    shape: tuple[int, int]
    """Logical (M, N) of the copy."""
    columnwise: bool


def pack(copy: QuantizedCopy) -> PackedWeight:
    """An FP4 copy, packed."""
    check_is_copy(copy, "copy")
    require(
        can_pack(copy.scheme),
        "pack_scheme",
        f"only FP4 copies have a packed form, got {copy.scheme.element} with block {copy.scheme.block}; "
        "GEMMs read other copies as they are",
    )
    check_copy(copy, "copy")
    columns, k = copy.stored_shape
    data = torch.empty(_cpu.packed_size(scheme_bits(copy.scheme), columns, k), dtype=torch.uint8)
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
        can_pack(weight.scheme),
        "pack_scheme",
        f"{what} must have an FP4 scheme, got {weight.scheme.element} with block {weight.scheme.block}",
    )
    copy = describe(weight)
    size = _cpu.packed_size(scheme_bits(weight.scheme), *copy.stored_shape)
    check_part(weight.data, f"{what}.data", torch.uint8, (size,))


def describe(weight: PackedWeight) -> QuantizedCopy:
    """A copy of the same scheme and shape, for checks that read no codes."""
    return QuantizedCopy(weight.data, weight.data, None, weight.scheme, weight.shape, weight.columnwise)


def _weight(copy: QuantizedCopy) -> tuple:
    amax = 0 if copy.amax is None else copy.amax.data_ptr()
    return scheme_bits(copy.scheme), copy.codes.data_ptr(), copy.scales.data_ptr(), amax, *copy.stored_shape
