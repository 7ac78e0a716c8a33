"""Zeros behind the rows and columns of tensors, up to the multiples that GEMMs of a GPU take."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.parts import Part, part_shapes, round_up


def rounded(shape: Iterable[int], multiples: Sequence[int]) -> tuple[int, ...]:
    """A shape whose sizes are multiples."""
    return tuple(round_up(size, multiple) for size, multiple in zip(shape, multiples, strict=True))


def padded(part: torch.Tensor, shape: Iterable[Any]) -> torch.Tensor:
    """A tensor with zeros behind it, so that it has this shape."""
    missing = [wanted - size for size, wanted in zip(part.shape, shape, strict=True)]
    if not any(missing):
        return part
    return torch.nn.functional.pad(part, [side for size in reversed(missing) for side in (0, size)])


def padded_copy(copy: QuantizedCopy, multiples: Sequence[int]) -> QuantizedCopy:
    """A copy of a matrix whose rows and columns are padded to multiples."""
    rows, columns = rounded(copy.shape, multiples)
    shapes = part_shapes(copy.scheme, (rows, columns), copy.columnwise)

    def pad(name: Part, part: torch.Tensor) -> torch.Tensor:
        return padded(part, shapes[name][0])

    amax = None if copy.amax is None else pad("amax", copy.amax)
    codes, scales = pad("codes", copy.codes), pad("scales", copy.scales)
    return QuantizedCopy(codes, scales, amax, copy.scheme, (rows, columns), copy.columnwise)
