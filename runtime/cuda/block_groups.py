"""Products of tensors in groups in MXFP8, MXFP4 and NVFP4, by torch's own kernels.

These read the scales of each group as a matrix of its own, in tiles of 128x4: a group of rows begins a tile, wherever
the last one ended. Where that is, only the GPU knows, so that rows are put there by index.
"""

import torch
from torch.nn.functional import ScalingType, SwizzleType, scaled_grouped_mm  # pyright: ignore

from steelyard.formats.parts import ceil_div, round_up
from steelyard.runtime.cuda import gemm
from steelyard.runtime.cuda.groups import filled_ends, groups_of_rows, keep_groups

_LINES, _BLOCKS = 128, 4
"""Of a tile of scales."""


def multiply(
    left: gemm.GemmOperand,
    right: gemm.GemmOperand,
    ends: torch.Tensor,
    sizes: tuple[int, int],
    *,
    is_turned: bool,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """The product of each group of rows and its weight; `sizes` are those of the reduction and of a result's row.

    `is_turned`: the weights are columnwise MX copies, which are stored across the reduction.
    """
    (reduction, columns), count = sizes, ends.shape[0]
    blocks = ceil_div(reduction, 16 if left.scheme.family == "nvfp4" else 32)
    packed = reduction // 2 if left.scheme.element == "f4E2M1FN" else reduction
    codes = left.codes.view(-1, packed)
    out = torch.empty((codes.shape[0], columns), dtype=out_dtype, device=ends.device)
    if out.numel() == 0:
        return out
    if is_turned:
        weights = right.codes.view(count, reduction, columns).mT.contiguous()
        scales = right.scales.view(count, blocks, columns).mT
    else:
        weights, scales = right.codes.view(count, columns, packed), right.scales.view(count, columns, blocks)
    element = gemm.ELEMENTS[left.scheme.element]
    of_rows = rows_in_tiles(left.scales.view(-1, blocks)[: codes.shape[0]], ends)
    levels_a, levels_b = (_levels(*pair) for pair in ((left, of_rows), (right, in_tiles(scales).flatten(1))))
    product = scaled_grouped_mm(
        codes.view(element),
        weights.view(element).mT,
        levels_a.scales,
        levels_a.types,
        levels_b.scales,
        levels_b.types,
        swizzle_a=levels_a.swizzles,
        swizzle_b=levels_b.swizzles,
        offs=ends,
        output_dtype=out_dtype,
    )
    keep_groups(product, ends, out)
    return out


def _levels(operand: gemm.GemmOperand, scales: torch.Tensor) -> gemm.Scaling:
    """The scales of blocks and, of NVFP4, those of each group above them."""
    swizzles = [SwizzleType.SWIZZLE_32_4_4]
    if operand.scheme.family != "nvfp4":
        return gemm.Scaling([scales.view(torch.float8_e8m0fnu)], [ScalingType.BlockWise1x32], swizzles)
    first = gemm.Scaling([scales.view(torch.float8_e4m3fn)], [ScalingType.BlockWise1x16], swizzles)
    return gemm.with_second(first, gemm.second_level(operand))


def rows_in_tiles(scales: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """The scales of rows in groups, each group in tiles of its own; room is for the most tiles that these can need."""
    (rows, blocks), count = scales.shape, ends.shape[0]
    group = groups_of_rows(ends, rows)
    is_kept = group < count
    group = group.clamp_(max=count - 1)
    starts, tiles = (torch.nn.functional.pad(each[:-1], (1, 0)) for each in (ends, filled_ends(ends, _LINES)))
    places = torch.arange(rows, device=ends.device) - starts[group] + tiles[group]
    lines = (rows // _LINES + count) * _LINES
    # Rows of no group go behind all others.
    places = torch.where(is_kept, places, lines)
    spread = scales.new_zeros(lines + 1, round_up(blocks, _BLOCKS))
    spread[:, :blocks].index_copy_(0, places, scales)
    return in_tiles(spread[:lines])


def in_tiles(scales: torch.Tensor) -> torch.Tensor:
    """Scales, or those of each matrix of a stack, in the order that GEMMs read, with zeros up to whole tiles."""
    *lead, lines, blocks = scales.shape
    wide, long = round_up(blocks, _BLOCKS), round_up(lines, _LINES)
    padded = torch.nn.functional.pad(scales, (0, wide - blocks, 0, long - lines))
    tiles = padded.reshape(*lead, long // _LINES, 4, 32, wide // _BLOCKS, _BLOCKS)
    return tiles.transpose(-4, -2).reshape(*lead, long, wide)
