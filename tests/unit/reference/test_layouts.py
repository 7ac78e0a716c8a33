import numpy as np
import pytest
import torch

from steelyard import reference
from steelyard.errors import ConstraintError
from steelyard.recipes import Float8BlockScaling, Float8CurrentScaling, MXFP8BlockScaling, NVFP4BlockScaling

SHAPES = [(1, 1), (16, 32), (33, 47), (130, 40), (257, 300), (0, 5), (5, 0)]


def random(shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def same(a, b):
    parts = [(a.codes, b.codes), (a.scales, b.scales)]
    return all(torch.equal(x, y) for x, y in parts) and (a.shape, a.columnwise, a.amax) == (
        b.shape,
        b.columnwise,
        b.amax,
    )


@pytest.mark.parametrize(
    "scheme",
    [
        Float8CurrentScaling().schemes("input")[0],
        Float8BlockScaling().schemes("weight")[0],
        MXFP8BlockScaling(weight_tiles=True).schemes("weight")[0],
        NVFP4BlockScaling().schemes("weight")[0],
    ],
    ids=lambda scheme: scheme.block,
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_transpose_gives_the_other_usage_with_the_same_values(scheme, shape):
    x = random(shape)
    row, _ = reference.quantize(x, scheme, None)
    col = reference.transpose(row)
    assert col.columnwise
    assert torch.equal(reference.dequantize(col), reference.dequantize(row))
    assert same(reference.transpose(col), row)
    if scheme.family != "mx":
        alone, _ = reference.quantize(x.T, scheme, None)
        assert torch.equal(alone.codes, col.codes)
        assert torch.equal(alone.scales, col.scales)


def test_transpose_refuses_what_must_be_quantized_again():
    row, _ = reference.quantize(torch.ones(2, 2), MXFP8BlockScaling().schemes("input")[0], None)
    with pytest.raises(ConstraintError, match="got block 1x32; quantize it from the source"):
        reference.transpose(row)


def naive_swizzle(scales):
    rows, columns = scales.shape
    tiles = -(-columns // 4)
    flat = np.zeros(-(-rows // 128) * tiles * 512, np.uint8)
    for i in range(rows):
        for j in range(columns):
            flat[(i // 128 * tiles + j // 4) * 512 + i % 32 * 16 + i % 128 // 32 * 4 + j % 4] = scales[i, j]
    return flat


@pytest.mark.parametrize("shape", SHAPES[:5], ids=str)
@pytest.mark.parametrize("recipe", [MXFP8BlockScaling(), NVFP4BlockScaling(rht=False)], ids=lambda recipe: recipe.name)
def test_swizzle_equals_the_formula(recipe, shape):
    for copy in reference.quantize(random(shape), *recipe.schemes("input")):
        scales = copy.scales.numpy()
        found = reference.swizzle(copy)
        expected = naive_swizzle(scales.T if copy.columnwise and recipe.name == "mxfp8" else scales)
        np.testing.assert_array_equal(found.numpy().ravel(), expected)
        assert found.shape[0] % 128 == found.shape[1] % 4 == 0


def test_swizzle_of_float32_block_scales():
    x = random((257, 300))
    row, _ = reference.quantize(x, Float8BlockScaling().schemes("input")[0], None)
    found = reference.swizzle(row)
    assert found.shape == (3, 260)
    assert torch.equal(found[:, :257], row.scales.T)
    assert not found[:, 257:].any()
    tiles, _ = reference.quantize(x, Float8BlockScaling().schemes("weight")[0], None)
    found = reference.swizzle(tiles)
    assert found.shape == (3, 4)
    assert torch.equal(found[:, :3], tiles.scales)
    assert not found[:, 3:].any()


def test_swizzle_refuses_a_scale_for_the_whole_tensor():
    row, _ = reference.quantize(torch.ones(2, 2), Float8CurrentScaling().schemes("input")[0], None)
    with pytest.raises(ConstraintError, match="needs block scales"):
        reference.swizzle(row)


def test_nibbles_pack_low_first_and_pad_with_zero():
    x = torch.tensor([[6.0, -0.5, 3.0]]) * 448
    row, _ = reference.quantize(x, NVFP4BlockScaling().schemes("weight")[0], None)
    assert row.codes.tolist() == [[0x97, 0x05]]
