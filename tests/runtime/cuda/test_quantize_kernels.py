"""The PTX of every quantizer, executed by the interpreter, against the reference: byte for byte."""

import itertools

import pytest
import torch
from kernel_cases import (
    DTYPES,
    SPECIAL_VALUES,
    assert_same_copy,
    mxfp4,
    nvfp4,
    operands,
    pair_name,
    same_bytes,
    same_values,
    scheme_pairs,
    with_layout,
)
from simulation import simulated

from steelyard import reference
from steelyard.errors import ConstraintError
from steelyard.formats.schemes import Scheme
from steelyard.targets.architectures import TARGETS

PAIRS = scheme_pairs()
MX = Scheme("f8E4M3FN", "1x32", "f8E8M0FNU"), Scheme("f8E4M3FN", "32x1", "f8E8M0FNU")
ROW = (Scheme("f8E4M3FN", "row", "f32"),) * 2


def wide_values(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, columns, generator=generator)
    return values * torch.exp2(torch.randn(rows, columns, generator=generator) * 6)


def with_special_values(rows: int, columns: int) -> torch.Tensor:
    """Ordinary blocks, blocks with each special value, and blocks of zeros and of subnormals."""
    values = wide_values(rows, columns)
    for index, value in enumerate(SPECIAL_VALUES[3:]):
        values[(7 * index) % rows, (37 * index) % columns] = value
    values[rows - 20 : rows - 3, 10:70] = 0.0
    values[:8, columns - 40 :] = 1e-41
    return values


def assert_same_copies(target, x, row, col, **given):
    found = simulated(target).quantize(x, row, col, **given)
    expected = reference.quantize(x, row, col, **given)
    for copy, expected_copy in zip(found, expected, strict=True):
        if expected_copy is None:
            assert copy is None
        else:
            assert_same_copy(copy, expected_copy)


@pytest.mark.every(7)
@pytest.mark.parametrize("index", range(len(PAIRS)), ids=[pair_name(pair) for pair in PAIRS])
def test_both_copies_of_a_ragged_matrix(index):
    # Targets with and without conversions for block formats alternate; the slow sweep runs all on all.
    target = ("sm_90a", "sm_100a")[index % 2]
    pair = PAIRS[index]
    assert_same_copies(target, with_special_values(37, 133), *pair, **operands(*pair))


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("pair", PAIRS, ids=pair_name)
def test_sweep(target, pair):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert_same_copies(target, with_special_values(70, 150).to(dtype), *pair, **operands(*pair))
        assert_same_copies(target, wide_values(64, 192).to(dtype), *pair, **operands(*pair))


@pytest.mark.every(3)
@pytest.mark.parametrize("target", ["sm_89", "sm_120a"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
@pytest.mark.parametrize(
    "pair",
    [MX, (nvfp4(), nvfp4(rht=True)), (Scheme("f8E4M3FN", "128x128", "f32"),) * 2, (ROW[0], mxfp4()), (mxfp4(), ROW[1])],
    ids=pair_name,
)
def test_vectors_of_narrow_inputs(target, dtype, pair):
    assert_same_copies(target, wide_values(144, 80).to(dtype), *pair, **operands(*pair))


@pytest.mark.parametrize("columnwise", [False, True], ids=["row", "col"])
@pytest.mark.parametrize("pair", [MX, (nvfp4("16x16"),) * 2, PAIRS[0], ROW, (mxfp4(),) * 2], ids=pair_name)
def test_one_copy(columnwise, pair):
    row, col = (None, pair[1]) if columnwise else (pair[0], None)
    assert_same_copies("sm_100a", wide_values(50, 70), row, col, **operands(*pair))


@pytest.mark.parametrize("layout", ["columns", "padded", "stepped", "expanded_rows", "expanded_columns"])
def test_strides(layout):
    x = with_layout(wide_values(40, 48).bfloat16(), layout)
    assert_same_copies("sm_90a", x, *MX)


@pytest.mark.every(3)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")], ids=str)
@pytest.mark.parametrize(
    "pair", [MX, (nvfp4(), nvfp4(rht=True)), PAIRS[0], ROW, (mxfp4(),) * 2, (nvfp4("1x32"),) * 2], ids=pair_name
)
def test_values_that_are_not_finite(value, pair):
    x = wide_values(33, 40)
    x[5, 17] = x[32, 39] = value
    assert_same_copies("sm_100a", x, *pair)


def test_amaxes_that_are_given():
    amaxes = torch.tensor(9.5), torch.tensor(11.0)
    assert_same_copies("sm_90a", wide_values(20, 40), nvfp4(), nvfp4(rht=True), amax=amaxes)
    # A copy with a scale per row measures its own.
    assert_same_copies("sm_90a", wide_values(20, 40), PAIRS[0][0], ROW[1], amax=amaxes)
    rows = torch.linspace(1, 5, 20)
    assert_same_copies("sm_90a", wide_values(20, 40), nvfp4(second_level="row"), None, amax=rows)


STATIC = (
    *(Scheme(element, "tensor", "f32", source="static") for element in ("f8E4M3FN", "f8E5M2")),
    *(nvfp4(block, source="static") for block in ("1x16", "1x32", "16x16")),
)


@pytest.mark.every(4)
@pytest.mark.parametrize("index", range(len(STATIC)), ids=[pair_name((scheme,)) for scheme in STATIC])
def test_static_scales(index):
    """Usual ones, and those whose inverse is no number."""
    scheme, target = STATIC[index], ("sm_90a", "sm_100a")[index % 2]
    for scale in (0.0004, 0.37, 0.0, 1e-45, float("inf"), float("nan")):
        x = with_special_values(21, 70)
        given = {"scale": torch.tensor(scale), "amax": torch.tensor(2.0)}
        assert_same_copies(target, x, scheme, scheme, **given)
        row, col = reference.quantize(x, scheme, scheme, **given)
        for copy in (row, col):
            assert same_values(simulated(target).dequantize(copy), reference.dequantize(copy))
    assert_same_copies(target, torch.zeros(0, 40), scheme, scheme, scale=torch.tensor(0.37))
    # A copy beside it measures its own amax.
    assert_same_copies(target, wide_values(20, 40), scheme, nvfp4(rht=True), scale=torch.tensor(0.37))


def test_random_bits_follow_seed_offset_and_copy():
    scheme = nvfp4(rounding="stochastic")
    x = wide_values(21, 37)  # rows begin in the middle of a group of 16
    for rng in ((0, 0), (2**64 - 1, 2**40 + 5)):
        assert_same_copies("sm_100a", x, scheme, scheme, rng=rng)


def test_empty_matrices():
    for shape in ((0, 40), (40, 0)):
        for pair in (MX, PAIRS[0], (nvfp4(),) * 2, ROW, (Scheme("f8E5M2", "row", "f32", epsilon=0.5),) * 2):
            assert_same_copies("sm_90a", torch.zeros(shape), *pair)


def test_leading_dims_are_flattened():
    assert_same_copies("sm_100a", wide_values(6, 40).reshape(2, 3, 40), *MX)


@pytest.mark.parametrize(
    ("schemes", "given", "constraint"),
    [
        ((MX[1], None), {}, "quantize_block"),
        ((None, MX[0]), {}, "quantize_block"),
        ((Scheme("f8E4M3FN", "tensor", "f32", source="delayed"), None), {}, "quantize_scale"),
        ((nvfp4(rounding="stochastic"), None), {}, "quantize_rng"),
        ((Scheme("f8E4M3FN", "1x32", "f8E8M0FNU", layout="gemm"), None), {}, "quantize_scheme"),
    ],
)
def test_refuses(schemes, given, constraint):
    with pytest.raises(ConstraintError) as caught:
        simulated("sm_90a").quantize(torch.zeros(4, 4), *schemes, **given)
    assert caught.value.constraint == constraint


AMAXES = {"tensor": {}, "rht": {"rht": True}, "per_row": {"per_row": True}}
AMAX_SHAPES = (70, 150), (64, 128)


@pytest.mark.parametrize("kind", AMAXES)
@pytest.mark.parametrize("shape", AMAX_SHAPES, ids=str)
def test_amax(kind, shape):
    check_amax("sm_90a", kind, shape, torch.bfloat16)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_amaxes_on_every_target(target):
    for kind, shape, dtype in itertools.product(AMAXES, AMAX_SHAPES, DTYPES):
        check_amax(target, kind, shape, dtype)


def check_amax(target, kind, shape, dtype):
    x, options = wide_values(*shape).to(dtype), AMAXES[kind]
    kernels = simulated(target)
    assert same_bytes(kernels.amax(x, **options), reference.amax(x, **options))
    x[shape[0] - 1, shape[1] - 1] = float("nan")
    assert same_bytes(kernels.amax(x, **options), reference.amax(x, **options))
