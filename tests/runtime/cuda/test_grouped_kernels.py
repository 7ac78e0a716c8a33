"""The PTX of kernels on tensors in groups, executed by the interpreter, against the reference: byte for byte."""

import grouped_calls as calls
import pytest
import torch
from gemm_cases import assert_within_bound
from grouped_launches import plan_calls
from kernel_cases import DTYPES, nvfp4, pair_name, scheme_pairs

from steelyard import reference
from steelyard.formats.schemes import Scheme
from steelyard.reference.grouped import groups_of
from steelyard.targets.architectures import TARGETS

ENDS = torch.tensor([7, 7, 8, 41, 41, 110], dtype=torch.int32)
"""Groups of an odd number of rows, of none, of one, of more than a block, of more than a tile, and two rows of none."""
ROWS, GROUPS = 112, 6
PAIRS = scheme_pairs()
FAST = [*PAIRS[::4], *(pair for pair in PAIRS if pair[0].source == "delayed")]
MX = Scheme("f8E4M3FN", "1x32", "f8E8M0FNU"), Scheme("f8E4M3FN", "32x1", "f8E8M0FNU")
TENSOR = (Scheme("f8E4M3FN", "tensor", "f32"),) * 2
DELAYED = (Scheme("f8E4M3FN", "tensor", "f32", source="delayed"),) * 2
PER_ROW = (Scheme("f8E4M3FN", "row", "f32"),) * 2
BLOCK = (Scheme("f8E4M3FN", "1x128", "f32"),) * 2
NVFP4 = nvfp4(), nvfp4(rht=True)


def given_for(groups, *schemes):
    made = [scheme for scheme in schemes if scheme is not None]
    is_stochastic = any(scheme.rounding == "stochastic" for scheme in made)
    return {"scale": calls.scales_for(groups, *made), "rng": (5, 9) if is_stochastic else None}


def check_quantize(x, ends, row, col, groups):
    given = given_for(groups, row, col)
    found = calls.quantize(x, ends, row, col, groups=groups, **given)
    copies = reference.grouped_quantize(x, ends, row, col, **given)
    for prefix, scheme, own in zip(("row", "col"), (row, col), copies, strict=True):
        if scheme is not None:
            calls.assert_parts(found, prefix, own)


def values(rows, columns):
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(1))
    x[20:30] *= 100
    return x


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "pair", [pytest.param(pair, marks=[] if pair in FAST else pytest.mark.slow) for pair in PAIRS], ids=pair_name
)
def test_each_group_is_quantized_as_a_matrix(monkeypatch, pair):
    index = PAIRS.index(pair)
    plan_calls(monkeypatch, ("sm_90a", "sm_100a")[index % 2])
    # Rows of whole vectors, and rows that are not.
    check_quantize(values(ROWS, (80, 50)[index // 2 % 2]), ENDS, *pair, GROUPS)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("pair", PAIRS, ids=pair_name)
def test_sweep(monkeypatch, target, pair):
    plan_calls(monkeypatch, target)
    for dtype in DTYPES:
        check_quantize(values(ROWS, 144).to(dtype), ENDS, *pair, GROUPS)
        check_quantize(values(3 * 40, 50).to(dtype).view(3, 40, 50), None, *pair, 3)


@pytest.mark.every(3)
@pytest.mark.parametrize("pair", [TENSOR, DELAYED, PER_ROW, (nvfp4("16x16"),) * 2, MX], ids=pair_name)
@pytest.mark.parametrize("shape", [(40, 50), (80, 64)], ids=str)
def test_each_matrix_of_a_stack_is_quantized_by_itself(monkeypatch, pair, shape):
    plan_calls(monkeypatch, "sm_100a")
    stack = torch.randn(3, *shape) * torch.tensor([1.0, 30.0, 0.01])[:, None, None]
    check_quantize(stack.bfloat16(), None, *pair, 3)


def test_more_groups_than_a_warp_has_lanes(monkeypatch):
    plan_calls(monkeypatch, "sm_100a")
    counts = torch.randint(0, 3, (70,), generator=torch.Generator().manual_seed(0))
    ends = counts.cumsum(0).int()
    check_quantize(values(int(ends[-1]) + 5, 48), ends, nvfp4(), nvfp4(rht=True), 70)


def test_rows_of_blocks_need_no_groups(monkeypatch):
    """Rows are independent: one launch of the kernel for matrices makes the same bytes."""
    launcher = plan_calls(monkeypatch, "sm_100a")
    check_quantize(values(ROWS, 80), ENDS, MX[0], None, GROUPS)
    assert [launch.kernel.name for launch, _ in launcher.launches] == ["quantize_f32_row_e4m3_1x32"]


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("schemes", "dtype"),
    [(TENSOR, "bf16"), (PER_ROW, "f32"), (BLOCK, "bf16"), (MX, "bf16"), (MX, "f32"), (NVFP4, "f32")],
    ids=lambda value: value if isinstance(value, str) else value[0].family,
)
def test_products_are_those_of_each_group(monkeypatch, schemes, dtype):
    """Emulated ones, one by one; those in bf16 of MX by torch's own product of groups, on the CPU."""
    plan_calls(monkeypatch, "sm_100a")
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
    row, col = schemes
    tiles = {"nvfp4": nvfp4("16x16"), "block": Scheme("f8E4M3FN", "128x128", "f32")}.get(row.family, row)
    tiles_col = col if tiles is row else tiles
    generator = torch.Generator().manual_seed(2)
    x, dy = (torch.randn(ROWS, width, generator=generator) for width in (56, 40))
    weights = torch.randn(GROUPS, 40, 56, generator=generator)
    sources = (x, ENDS, row, col), (dy, ENDS, row, col), (weights, None, tiles, tiles_col)
    x_parts, dy_parts, w_parts = (calls.quantize(source, ends, r, c, groups=GROUPS) for source, ends, r, c in sources)
    x_copies, dy_copies, w_copies = (reference.grouped_quantize(*source) for source in sources)

    y = calls.gemm("fprop", (row, (ROWS, 56), x_parts), (tiles, (GROUPS, 40, 56), w_parts), ENDS, out=dy.to(dtype))
    assert_products(groups_of(y, ENDS), x_copies[0], w_copies[0])
    assert not y[110:].any()
    dx = calls.gemm("dgrad", (row, (ROWS, 40), dy_parts), (tiles_col, (GROUPS, 40, 56), w_parts), ENDS, out=x.to(dtype))
    assert_products(groups_of(dx, ENDS), dy_copies[0], w_copies[1])
    assert not dx[110:].any()
    out = weights.to(dtype)
    dw = calls.gemm("wgrad", (col, (ROWS, 40), dy_parts), (col, (ROWS, 56), x_parts), ENDS, out=out)
    assert_products(dw, dy_copies[1], x_copies[1])
    assert not dw[1].any()


def assert_products(products, left, right):
    for product, a, b in zip(products, left, right, strict=True):
        assert_within_bound(product, a, b)
