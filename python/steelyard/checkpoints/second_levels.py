"""Quantized weights in the scheme of a format: NVFP4's second level may have to be a float of another kind there."""

from dataclasses import replace
from typing import NamedTuple

import torch

from steelyard import reference
from steelyard.checkpoints.tensors import Parts, parts_of
from steelyard.errors import CheckpointError
from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.schemes import Scheme
from steelyard.reference.scales import nvfp4_multiplier
from steelyard.tensor.quantized_tensor import QuantizedTensor

_NEAR = range(-3, 4)
"""How far from the quotient levels are tried, in units of the last place."""


class Converted(NamedTuple):
    """A weight in another scheme."""

    parts: Parts
    difference: float
    """The largest relative difference between what the parts and the weight decode to, in the dtype of the weight."""


def convert(scheme: Scheme, weight: QuantizedTensor, layer: str) -> Converted:
    """The parts of a quantized matrix in a scheme, with its own codes and block scales."""
    parts, own = parts_of(weight), weight._quantizer.row_scheme
    is_alike = own.family == scheme.family and own.element == scheme.element
    if not is_alike or (own.has_blocks and own.block_sizes[1] != scheme.block_sizes[1]):
        found = f"{own.element} in {own.block}"
        raise CheckpointError(f"{layer} must be {scheme.element} in {scheme.block} to be written, got {found}")
    if parts.second_level is None or own.source == scheme.source:
        return Converted(parts, 0.0)
    if parts.second_level.numel() > 1:
        raise CheckpointError(
            f"{layer} has a second scale per row, which no format holds; quantize it by another recipe"
        )
    if not parts.second_level > 0:
        return Converted(parts._replace(second_level=torch.ones(())), 0.0)  # all is zero
    multiplier = float(nvfp4_multiplier(parts.second_level.double().numpy(), own))
    quotient = torch.tensor(1 / multiplier if scheme.source == "divisor" else multiplier, dtype=torch.float32)
    return _best(scheme, parts, _decoded(own, parts, parts.second_level), quotient, weight.dtype)


def _best(scheme: Scheme, parts: Parts, exact: torch.Tensor, quotient: torch.Tensor, dtype: torch.dtype) -> Converted:
    """The parts with the level near a quotient by which they decode to what is most like the exact values."""
    found: dict[tuple[float, float], torch.Tensor] = {}
    for units in _NEAR:
        level = (quotient.view(torch.int32) + units).view(torch.float32)
        values = _decoded(scheme, parts, level)
        found.setdefault((_difference(values.to(dtype), exact.to(dtype)), _difference(values, exact)), level)
    best = min(found)
    return Converted(parts._replace(second_level=found[best]), best[0])


def _decoded(scheme: Scheme, parts: Parts, level: torch.Tensor) -> torch.Tensor:
    """What all codes decode to by each of the block scales that a matrix has."""
    scales = parts.scales.unique()
    columns = scheme.block_sizes[1]
    pairs = torch.arange(columns // 2, dtype=torch.uint8) % 8
    codes = (2 * pairs | (2 * pairs + 1) << 4).repeat(len(scales), 1)
    blocks = replace(scheme, block=f"1x{columns}")
    copy = QuantizedCopy(codes, scales.reshape(-1, 1), level, blocks, (len(scales), columns), columnwise=False)
    return reference.dequantize(copy)


def _difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    error = (found.double() - expected.double()).abs() / expected.double().abs().clamp_min(
        torch.finfo(torch.float64).tiny
    )
    return float(error.max())
