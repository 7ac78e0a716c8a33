import grouped_calls as calls
import pytest
import torch
from gemm_cases import assert_within_bound
from kernel_cases import DTYPES, nvfp4, scheme_pairs

from steelyard import reference
from steelyard.errors import ConstraintError
from steelyard.formats.schemes import Scheme
from steelyard.reference.grouped import groups_of

ENDS = torch.tensor([7, 7, 8, 41, 41, 75], dtype=torch.int32)
"""Groups of an odd number of rows, of none, of one, of more than a block, and two rows of no group."""
ROWS, GROUPS = 77, 6
MX = Scheme("f8E4M3FN", "1x32", "f8E8M0FNU"), Scheme("f8E4M3FN", "32x1", "f8E8M0FNU")
TENSOR = (Scheme("f8E4M3FN", "tensor", "f32"),) * 2
DELAYED = (Scheme("f8E4M3FN", "tensor", "f32", source="delayed"),) * 2
PER_ROW = (Scheme("f8E4M3FN", "row", "f32"),) * 2
BLOCK = (Scheme("f8E4M3FN", "1x128", "f32"),) * 2
NVFP4 = nvfp4(), nvfp4(rht=True)


@pytest.mark.parametrize("pair", scheme_pairs(), ids=str)
def test_each_group_is_quantized_as_a_matrix(pair):
    row, col = pair
    x = torch.randn(ROWS, 50, generator=torch.Generator().manual_seed(1))
    x[20:30] *= 100
    scale = calls.scales_for(GROUPS, row, col)
    rng = (5, 9) if "stochastic" in (row.rounding, col.rounding) else None
    found = calls.quantize(x, ENDS, row, col, groups=GROUPS, scale=scale, rng=rng)
    rowwise, columnwise = reference.grouped_quantize(x, ENDS, row, col, scale=scale, rng=rng)
    calls.assert_parts(found, "row", rowwise)
    calls.assert_parts(found, "col", columnwise)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_transposed", [False, True])
def test_each_matrix_of_a_stack_is_quantized_by_itself(dtype, is_transposed):
    stack = (torch.randn(3, 40, 50) * torch.tensor([1.0, 30.0, 0.01])[:, None, None]).to(dtype)
    if is_transposed:
        stack = stack.transpose(1, 2)
    for row, col in (TENSOR, DELAYED, MX, (nvfp4("16x16"), nvfp4("16x16"))):
        scale = calls.scales_for(3, row, col)
        found = calls.quantize(stack, None, row, col, groups=3, scale=scale)
        rowwise, columnwise = reference.grouped_quantize(stack, None, row, col, scale=scale)
        calls.assert_parts(found, "row", rowwise)
        calls.assert_parts(found, "col", columnwise)


@pytest.mark.parametrize("schemes", [TENSOR, PER_ROW, BLOCK, MX, NVFP4], ids=lambda pair: pair[0].family)
def test_products_are_those_of_each_group(isa, schemes):
    row, col = schemes
    tiles = nvfp4("16x16") if row.family == "nvfp4" else row
    generator = torch.Generator().manual_seed(2)
    x, dy = (torch.randn(ROWS, width, generator=generator) for width in (50, 36))
    weights = torch.randn(GROUPS, 36, 50, generator=generator)
    quantized = [
        (source, calls.quantize(source, ends, r, c, groups=GROUPS), reference.grouped_quantize(source, ends, r, c))
        for source, ends, r, c in (
            (x, ENDS, row, col),
            (dy, ENDS, row, col),
            (weights, None, tiles, tiles if row.family == "nvfp4" else col),
        )
    ]
    (_, x_parts, x_copies), (_, dy_parts, dy_copies), (_, w_parts, w_copies) = quantized
    y = calls.gemm("fprop", (row, (ROWS, 50), x_parts), (tiles, (GROUPS, 36, 50), w_parts), ENDS, out=dy)
    for made, a, b in zip(groups_of(y, ENDS), x_copies[0], w_copies[0], strict=True):
        assert_within_bound(made, a, b)
    assert torch.equal(y[75:], torch.zeros(2, 36))
    w_col = w_copies[1][0].scheme
    dx = calls.gemm("dgrad", (row, (ROWS, 36), dy_parts), (w_col, (GROUPS, 36, 50), w_parts), ENDS, out=x)
    for made, a, b in zip(groups_of(dx, ENDS), dy_copies[0], w_copies[1], strict=True):
        assert_within_bound(made, a, b)
    dw = calls.gemm("wgrad", (col, (ROWS, 36), dy_parts), (col, (ROWS, 50), x_parts), ENDS, out=weights)
    for made, a, b in zip(dw, dy_copies[1], x_copies[1], strict=True):
        assert_within_bound(made, a, b)
    assert torch.equal(dw[1], torch.zeros(36, 50))


@pytest.mark.parametrize("rows", [1, 40])
def test_packed_weights_give_the_same_products(isa, rows):
    row = nvfp4("16x16")
    ends = torch.tensor([rows, rows, 2 * rows], dtype=torch.int32)
    x, weights = torch.randn(2 * rows, 48), torch.randn(3, 20, 48)
    x_parts = calls.quantize(x, ends, nvfp4(), None, groups=3)
    parts = calls.quantize(weights, None, row, None, groups=3)
    packed, packed_parts = calls.pack(parts, row, (3, 20, 48))
    out = torch.empty(2 * rows, 20)
    plain, fast = (
        calls.gemm("fprop", (nvfp4(), (2 * rows, 48), x_parts), (scheme, (3, 20, 48), own), ends, out=out)
        for scheme, own in ((row, parts), (packed, packed_parts))
    )
    assert torch.equal(plain, fast)


@pytest.mark.parametrize("ends", [[4, 3, 8], [4, 5, 9], [-1, 2, 3]])
def test_groups_must_fit(ends):
    with pytest.raises(ConstraintError, match="must not decrease, and must be from 0 to the number of rows"):
        calls.quantize(torch.randn(8, 32), torch.tensor(ends, dtype=torch.int32), MX[0], None, groups=3)
