"""Quantized tensors from the tensors of a checkpoint, and back, with the same bytes."""

from typing import NamedTuple

import torch

from steelyard.checkpoints.catalog import DTYPES, Entry
from steelyard.checkpoints.plan import SWIZZLED, TRANSPOSED, StoredWeight
from steelyard.driver.stored_weights import assemble
from steelyard.errors import CheckpointError
from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.parts import scales_shape
from steelyard.tensor import kernels
from steelyard.tensor.from_scheme import make_quantizer
from steelyard.tensor.quantized_tensor import QuantizedTensor
from steelyard.tensor.swizzles import unswizzle


class Parts(NamedTuple):
    """What a weight, or a stack of them, consists of, in the shapes and dtypes of quantized tensors."""

    codes: torch.Tensor
    """uint8, [..., N, K], or half of K."""
    scales: torch.Tensor
    """float32, or bytes."""
    second_level: torch.Tensor | None
    """float32, one per matrix."""


def read_parts(weight: StoredWeight) -> Parts:
    """Read a weight, and refuse scales that no quantizer makes."""
    *stack, rows, _ = weight.shape
    scales, second_level = read_scales(weight)
    codes = weight.codes.read().view(torch.uint8)
    if weight.arrangement == TRANSPOSED:
        codes = _transposed(codes)
    return Parts(codes.reshape((*stack, rows, -1)), scales, second_level)


def read_scales(weight: StoredWeight) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The scales of a weight, and its second level; refuses those that no quantizer makes."""
    *stack, rows, columns = weight.shape
    scales = weight.scales.read()
    if weight.arrangement == TRANSPOSED:
        scales = _transposed(scales)
    if weight.arrangement == SWIZZLED:
        scales = _unswizzled(weight, scales)
    scales, shape = _as_kept(weight, scales), (*stack, *scales_shape(weight.scheme, (rows, columns), False))
    # One for all matrices of a stack, or one or more for each.
    scales = scales.expand(shape).contiguous() if scales.dim() == 0 else scales.reshape(shape)
    _check_scales(weight.scales, scales)
    if weight.second_level is None:
        has_second_level = weight.scheme.second_level != "none"
        return scales, torch.ones(stack) if has_second_level else None
    second = weight.second_level.read()
    _check_scales(weight.second_level, second)
    return scales, second.reshape(-1).expand(stack).contiguous() if stack else second.reshape(())


def stored_parts(weight: StoredWeight, parts: Parts) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint that hold these parts, by name: what `read_parts` read, byte for byte."""
    codes, scales = parts.codes, parts.scales
    if weight.arrangement == TRANSPOSED:
        codes, scales = _transposed(codes), _transposed(scales)
    if weight.arrangement == SWIZZLED:
        scales = kernels.swizzle(_copy(weight, parts))
    if weight.scheme.scale != "f32":
        scales = scales.contiguous().view(DTYPES[weight.scales.dtype])
    found = {
        weight.codes.name: codes.contiguous().view(DTYPES[weight.codes.dtype]).reshape(weight.codes.shape),
        weight.scales.name: _as_in_file(scales.to(DTYPES[weight.scales.dtype]), weight.scales),
    }
    if weight.second_level is not None:
        assert parts.second_level is not None
        found[weight.second_level.name] = _as_in_file(parts.second_level, weight.second_level)
    return found


def _transposed(stack: torch.Tensor) -> torch.Tensor:
    """The transposes of matrices; one scale per matrix, or for all of them, is as it is."""
    return stack.mT.contiguous() if stack.dim() > 2 else stack


def _as_in_file(scales: torch.Tensor, entry: Entry) -> torch.Tensor:
    """Scales in the shape that a file has them in; it may have one for all matrices of a stack."""
    return scales.reshape(-1)[: torch.Size(entry.shape).numel()].reshape(entry.shape).contiguous()


def make_tensor(weight: StoredWeight, parts: Parts, dtype: torch.dtype) -> QuantizedTensor:
    """The quantized tensor of a matrix that presents a dtype."""
    quantizer = make_quantizer(weight.scheme, parts.second_level)
    if quantizer is None:
        raise CheckpointError(f"{weight.codes.place} must be in a format of quantized tensors; take another checkpoint")
    given = [part for part in parts if part is not None]
    return assemble(given, quantizer, weight.shape, dtype, is_transposed=False)


def parts_of(tensor: QuantizedTensor) -> Parts:
    """The parts of the one rowwise copy of a matrix."""
    copy = tensor._copy(columnwise=False)
    if copy is None:
        raise CheckpointError(
            "a quantized weight must have a rowwise copy to be saved, and has none; quantize it again"
        )
    return Parts(copy.codes, copy.scales, copy.amax if copy.scheme.family == "nvfp4" else None)


def _as_kept(weight: StoredWeight, scales: torch.Tensor) -> torch.Tensor:
    """Scales in the dtype of quantized tensors: float32 holds all that files have in bf16, f16 and powers of two."""
    return scales.float() if weight.scheme.scale == "f32" else scales.view(torch.uint8)


def _unswizzled(weight: StoredWeight, scales: torch.Tensor) -> torch.Tensor:
    """Compact scales from those in the order that GPU GEMMs read; zeros fill up their tiles."""
    lines, groups = scales.shape
    placed = scales.view(torch.uint8).reshape(lines * 4, groups // 4)
    no_codes = torch.empty(0, dtype=torch.uint8)
    return unswizzle(_copy(weight, Parts(no_codes, placed, None))).contiguous()


def _copy(weight: StoredWeight, parts: Parts) -> QuantizedCopy:
    rows, columns = weight.shape
    return QuantizedCopy(parts.codes, parts.scales, parts.second_level, weight.scheme, (rows, columns), False)


def _check_scales(entry: Entry, scales: torch.Tensor) -> None:
    """Refuse scales that are not positive and finite: E4M3 may also be zero, for a block of zeros."""
    if scales.dtype == torch.float32:
        is_wrong = ~((scales > 0) & torch.isfinite(scales))
        wanted = "positive and finite"
    else:
        is_e4m3 = entry.dtype == "F8_E4M3"
        first, wanted = (0x7F, "finite and not negative") if is_e4m3 else (0xFF, "numbers, which byte 255 is not")
        # Far faster than comparing each byte, and there are many.
        if scales.numel() == 0 or int(scales.amax()) < first:
            return
        is_wrong = scales >= first
    if is_wrong.any():
        place = [int(index) for index in is_wrong.nonzero()[0]]
        found = scales.view(DTYPES[entry.dtype])[tuple(place)] if scales.dtype == torch.uint8 else scales[tuple(place)]
        raise CheckpointError(
            f"scales of {entry.place} must be {wanted}, got {float(found)} at {place} and {int(is_wrong.sum())} such "
            "in all; fetch the file again"
        )
