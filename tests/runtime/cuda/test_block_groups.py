"""Scales of groups in the tiles that torch's products of groups read."""

import pytest
import torch

from steelyard.runtime.cuda import block_groups


def swizzled(scales: torch.Tensor) -> torch.Tensor:
    """Scale (i, j) of a matrix is byte j % 4 of word i % 128 // 32 of line i % 32 of its tile of 512 bytes."""
    lines, blocks = scales.shape
    down, across = -(-lines // 128), -(-blocks // 4)
    out = torch.zeros(down * across * 512, dtype=torch.uint8)
    for i in range(lines):
        for j in range(blocks):
            tile = (i // 128 * across + j // 4) * 512
            out[tile + i % 32 * 16 + i % 128 // 32 * 4 + j % 4] = scales[i, j]
    return out.view(down * 128, across * 4)


@pytest.mark.parametrize("blocks", [3, 8])
def test_each_group_begins_a_tile(blocks):
    ends = torch.tensor([5, 5, 135, 264, 265], dtype=torch.int32)
    scales = torch.randint(1, 255, (270, blocks), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    found = block_groups.rows_in_tiles(scales, ends)
    groups = [scales[start:end] for start, end in zip([0, *ends.tolist()], ends.tolist(), strict=False)]
    expected = torch.cat([swizzled(group) for group in groups])
    assert len(expected) == 128 * (1 + 0 + 2 + 2 + 1)
    assert torch.equal(found[: len(expected)], expected)
    assert not found[len(expected) :].any()


def test_matrices_of_a_stack_have_tiles_of_their_own():
    scales = torch.randint(1, 255, (3, 130, 5), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    found = block_groups.in_tiles(scales)
    assert all(torch.equal(*pair) for pair in zip(found, map(swizzled, scales), strict=True))
