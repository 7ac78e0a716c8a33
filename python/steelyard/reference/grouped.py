"""Tensors in groups: each group is a matrix of its own, and a part holds those of all groups one after the other."""

from collections.abc import Sequence

import torch

from steelyard.formats.copies import QuantizedCopy
from steelyard.formats.schemes import Scheme
from steelyard.reference.gemm import qgemm
from steelyard.reference.quantize import quantize

Copies = Sequence[QuantizedCopy]
"""The copies of all groups."""


def groups_of(x: torch.Tensor, ends: torch.Tensor | None) -> list[torch.Tensor]:
    """The rows of each group of a matrix, or the matrices of a stack, which has no ends."""
    if ends is None:
        return list(x)
    starts = [0, *ends.tolist()[:-1]]
    return [x[start:end] for start, end in zip(starts, ends.tolist(), strict=True)]


def grouped_quantize(
    x: torch.Tensor,
    ends: torch.Tensor | None,
    row: Scheme | None,
    col: Scheme | None,
    *,
    scale: torch.Tensor | None = None,
    rng: tuple[int, int] | None = None,
) -> tuple[list[QuantizedCopy | None], list[QuantizedCopy | None]]:
    """The rowwise and the columnwise copy of each group, by a scale for each or one for all. Group g draws random bits
    from g * 2^32 on."""
    groups = groups_of(x, ends)
    scales = [None] * len(groups) if scale is None else scale.expand(len(groups))
    made = [
        quantize(group, row, col, scale=own, rng=None if rng is None else (rng[0], rng[1] + (number << 32)))
        for number, (group, own) in enumerate(zip(groups, scales, strict=True))
    ]
    return [rowwise for rowwise, _ in made], [columnwise for _, columnwise in made]


def stored_parts(copies: Copies) -> dict[str, torch.Tensor]:
    """The parts of all groups, one after the other, flat."""
    parts = {"codes": [copy.codes for copy in copies], "scales": [copy.scales for copy in copies]}
    if copies[0].amax is not None:
        parts["amax"] = [copy.amax for copy in copies if copy.amax is not None]
    return {name: torch.cat([part.flatten() for part in found]) for name, found in parts.items()}


def grouped_qgemm(
    a: Copies, b: Copies, *, rows: int | None = None, out_dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """The product of each group's copies: fprop and dgrad of so many rows, those of no group zero, or without `rows` a
    wgrad, one matrix for each group."""
    products = [qgemm(left, right, out_dtype=out_dtype) for left, right in zip(a, b, strict=True)]
    if rows is None:
        return torch.stack(products)
    whole = torch.cat(products)
    return torch.cat([whole, whole.new_zeros(rows - whole.shape[0], whole.shape[1])])
