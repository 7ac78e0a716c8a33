"""Static scales: what values are decoded by is given, for FP8 as a factor, for the second level of NVFP4 as a factor or
a divisor."""

import math
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import assert_same_copy, matrices, nvfp4, same_values

from steelyard import reference
from steelyard.errors import ConstraintError
from steelyard.formats.scheme_bits import scheme_bits
from steelyard.formats.schemes import Scheme
from steelyard.runtime import _cpu, cpu

E4M3, E5M2 = (Scheme(element, "tensor", "f32", source="static") for element in ("f8E4M3FN", "f8E5M2"))
BLOCKS, WIDE, TILES = (nvfp4(block, source="static") for block in ("1x16", "1x32", "16x16"))
DIVIDED, DIVIDED_WIDE, DIVIDED_TILES = (nvfp4(block, source="divisor") for block in ("1x16", "1x32", "16x16"))
MULTIPLIED = (E4M3, E5M2, BLOCKS, WIDE, TILES)
DIVISORS = (DIVIDED, DIVIDED_WIDE, DIVIDED_TILES)
SCHEMES = (*MULTIPLIED, *DIVISORS)
UNUSUAL = (0.0, 1e-45, 2.0**-149 * 7, 3.4e38, math.inf, math.nan)


def fp8_codes(x: np.ndarray, multiplier: float, dtype, largest: float) -> np.ndarray:
    """By ml_dtypes: one product in float32, clamped, rounded to nearest; NaN is 0x7f."""
    scaled = x * (np.float32(1) / np.float32(multiplier))
    codes = np.clip(scaled, -largest, largest).astype(dtype).view(np.uint8)
    return np.where(np.isnan(scaled), 0x7F, codes)


@pytest.mark.parametrize(
    ("scheme", "dtype", "largest"), [(E4M3, ml_dtypes.float8_e4m3fn, 448), (E5M2, ml_dtypes.float8_e5m2, 57344)]
)
@pytest.mark.parametrize("multiplier", [0.0123, 1.0, 3.7e-5])
def test_fp8_codes_are_those_of_ml_dtypes_and_the_scale_is_kept(scheme, dtype, largest, multiplier):
    x = torch.randn(40, 50, generator=torch.Generator().manual_seed(0))
    x[0, :4] = torch.tensor([math.inf, -math.inf, math.nan, -0.0])
    row, col = cpu.quantize(x, scheme, scheme, scale=torch.tensor(multiplier))
    expected = fp8_codes(x.numpy(), multiplier, dtype, largest)
    np.testing.assert_array_equal(row.codes.numpy(), expected)
    np.testing.assert_array_equal(col.codes.numpy(), expected.T)
    assert row.scales.item() == col.scales.item() == np.float32(multiplier)
    decoded = expected.view(dtype).astype(np.float32) * np.float32(multiplier)
    assert same_values(cpu.dequantize(row), torch.from_numpy(decoded))
    # As compressed-tensors and ModelOpt divide by input_scale: their codes are these, or neighbours of these.
    divided = np.clip(x.numpy().astype(np.float64) / np.float32(multiplier), -largest, largest).astype(dtype)
    ordered = [codes.view(np.uint8)[1:].astype(int) for codes in (divided, expected.view(dtype))]
    assert np.abs(ordered[0] - ordered[1]).max() <= 1
    assert (ordered[0] != ordered[1]).mean() < 0.01


@pytest.mark.parametrize(("scheme", "block"), [(BLOCKS, 16), (WIDE, 32)])
@pytest.mark.parametrize("multiplier", [0.00031, 0.0017, 1e-7])
def test_nvfp4_follows_the_rule_with_a_given_second_level(scheme, block, multiplier):
    """By ml_dtypes, from the rule as vLLM and ModelOpt write it; the smallest multiplier saturates block scales."""
    x = torch.randn(24, 64, generator=torch.Generator().manual_seed(1))
    m = np.float32(multiplier)
    blocks = x.numpy().reshape(24, -1, block)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    scaled = largest * (np.float32(1) / m * np.float32(1 / 6))
    scales = np.minimum(scaled, 448).astype(ml_dtypes.float8_e4m3fn)
    values = scales.astype(np.float32)
    codes = np.clip(blocks * (np.float32(1) / (values * m)), -6, 6).astype(ml_dtypes.float4_e2m1fn)
    row, col = cpu.quantize(x, scheme, scheme, scale=torch.tensor(m))
    np.testing.assert_array_equal(row.scales.numpy(), scales.view(np.uint8)[..., 0])
    nibbles = codes.view(np.uint8).reshape(24, 64)
    np.testing.assert_array_equal(row.codes.numpy(), nibbles[:, ::2] | nibbles[:, 1::2] << 4)
    assert row.amax.item() == col.amax.item() == m
    # The scales of both levels are rounded together before codes are multiplied by them.
    decoded = codes.astype(np.float32) * (values * m)
    np.testing.assert_array_equal(cpu.dequantize(row).numpy(), decoded.reshape(24, 64))
    # A columnwise copy is the rowwise one of the transpose.
    other, _ = cpu.quantize(x.t().contiguous(), scheme, None, scale=torch.tensor(m))
    np.testing.assert_array_equal(col.codes.numpy(), other.codes.numpy())


@pytest.mark.parametrize(("scheme", "block"), [(DIVIDED, 16), (DIVIDED_WIDE, 32)])
@pytest.mark.parametrize("divisor", [3226.0, 588.7, 1e7])
def test_nvfp4_follows_the_rule_with_a_given_divisor(scheme, block, divisor):
    """By ml_dtypes, from the rule of vLLM's kernel; values are decoded by the rule of compressed-tensors."""
    x = torch.randn(24, 64, generator=torch.Generator().manual_seed(1))
    g = np.float32(divisor)
    blocks = x.numpy().reshape(24, -1, block)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    scales = np.minimum(largest * (g * np.float32(1 / 6)), 448).astype(ml_dtypes.float8_e4m3fn)
    values = scales.astype(np.float32)
    factors = np.float32(1) / (values * (np.float32(1) / g))
    codes = np.clip(blocks * factors, -6, 6).astype(ml_dtypes.float4_e2m1fn)
    row, col = cpu.quantize(x, scheme, scheme, scale=torch.tensor(g))
    np.testing.assert_array_equal(row.scales.numpy(), scales.view(np.uint8)[..., 0])
    nibbles = codes.view(np.uint8).reshape(24, 64)
    np.testing.assert_array_equal(row.codes.numpy(), nibbles[:, ::2] | nibbles[:, 1::2] << 4)
    assert row.amax.item() == col.amax.item() == g
    decoded = codes.astype(np.float32) * (values / g)
    np.testing.assert_array_equal(cpu.dequantize(row).numpy(), decoded.reshape(24, 64))


@pytest.mark.parametrize("source", ["static", "divisor"])
@pytest.mark.parametrize("level", [0.7, -0.7, 3.3e-39, 1e-45, 3.4e38, 0.0, math.inf, math.nan])
def test_every_code_and_scale_under_a_given_level(isa, source, level):
    """Both levels together are rounded to float32 before a code is multiplied by them; any bits of scales."""
    copy, _ = cpu.quantize(torch.zeros(256, 33), nvfp4(source=source), None, scale=torch.tensor(level))
    copy.scales.copy_(torch.arange(256)[:, None])
    copy.codes[:, :8] = torch.arange(8) * 2 | (torch.arange(8) * 2 + 1) << 4
    copy.codes[:, 8:16], copy.codes[:, 16] = copy.codes[:, :8], copy.codes[:, 0]
    scales = copy.scales[:, :1].numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    codes = np.resize(np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32), 33)
    with np.errstate(all="ignore"):
        both = scales * np.float32(level) if source == "static" else scales / np.float32(level)
        expected = torch.from_numpy(codes * both)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert same_values(cpu.dequantize(copy, dtype), expected.to(dtype))


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: f"{s.element}-{s.block}-{s.source}")
@given(x=matrices(max_side=70), multiplier=st.sampled_from((0.01, 1.0, 0.37, *UNUSUAL)))
def test_kernels_equal_the_reference(scheme, x, multiplier):
    scale = torch.tensor(multiplier, dtype=torch.float32)
    for found, expected in zip(
        cpu.quantize(x, scheme, scheme, scale=scale), reference.quantize(x, scheme, scheme, scale=scale), strict=True
    ):
        assert_same_copy(found, expected)
        assert same_values(cpu.dequantize(found), reference.dequantize(expected))


def test_a_static_copy_beside_one_that_is_measured():
    x = torch.randn(48, 80, generator=torch.Generator().manual_seed(2))
    scale = torch.tensor(0.0004)
    row, col = cpu.quantize(x, BLOCKS, nvfp4(rht=True), scale=scale)
    assert_same_copy(row, reference.quantize(x, BLOCKS, None, scale=scale)[0])
    assert_same_copy(col, reference.quantize(x, None, nvfp4(rht=True))[1])


@pytest.mark.parametrize("left", SCHEMES, ids=lambda s: f"{s.element}-{s.block}-{s.source}")
@pytest.mark.parametrize(
    "right",
    [Scheme("f8E4M3FN", "tensor", "f32"), nvfp4(), BLOCKS, DIVIDED],
    ids=["fp8", "nvfp4", "static", "divisor"],
)
def test_products_are_those_of_the_decoded_operands(left, right):
    generator = torch.Generator().manual_seed(3)
    scales = (1 / 0.003 if left in DIVISORS else 0.003), (1 / 0.0007 if right in DIVISORS else 0.0007)
    a, _ = cpu.quantize(torch.randn(9, 96, generator=generator), left, None, scale=torch.tensor(scales[0]))
    b, _ = cpu.quantize(torch.randn(17, 96, generator=generator), right, None, scale=torch.tensor(scales[1]))
    decoded = [reference.dequantize(copy).double() for copy in (a, b)]
    bound = (96 + 8) * 2.0**-24 * (decoded[0].abs() @ decoded[1].abs().T)
    assert ((cpu.qgemm(a, b).double() - decoded[0] @ decoded[1].T).abs() <= bound).all()
    if right.family == "nvfp4":
        packed = cpu.qgemm(a, cpu.pack(b))
        assert ((packed.double() - decoded[0] @ decoded[1].T).abs() <= bound).all()


def test_unusual_multipliers_give_zeros_or_show():
    """0 makes zeros of everything, as the checkpoint says; infinity and NaN show in the values."""
    x = torch.tensor([[1.0, -2.0, 0.0, 3.0] * 8])
    for scheme in SCHEMES:
        levels = (math.inf, 0.0, math.nan) if scheme in DIVISORS else (0.0, math.inf, math.nan)
        zero, infinite, undefined = (
            cpu.dequantize(cpu.quantize(x, scheme, None, scale=torch.tensor(level))[0]) for level in levels
        )
        assert torch.equal(zero, torch.zeros_like(x))
        assert infinite.isnan().all()
        assert undefined.isnan().all()


@pytest.mark.parametrize(("scheme", "largest"), [(E4M3, 448.0), (E5M2, 57344.0), (BLOCKS, 2688.0), (WIDE, 2688.0)])
def test_values_beyond_the_largest_are_counted(scheme, largest):
    multiplier = 0.25
    edge = torch.tensor(largest * multiplier)
    above = torch.nextafter(edge, torch.tensor(math.inf))
    x = torch.tensor([[edge, -edge, above, -above, math.inf, -math.inf, math.nan, 0.0]])
    assert cpu.count_saturated(x, torch.tensor(multiplier), scheme) == 4
    assert cpu.count_saturated(x[:, :2], torch.tensor(multiplier), scheme) == 0
    assert cpu.count_saturated(x[:, 6:], torch.tensor(multiplier), scheme) == 0
    assert cpu.count_saturated(torch.empty(0, 8), torch.tensor(multiplier), scheme) == 0
    assert cpu.count_saturated(torch.ones(3, 5), torch.tensor(0.0), scheme) == 15
    if scheme.family == "nvfp4":
        divided = replace(scheme, source="divisor")
        assert cpu.count_saturated(x, torch.tensor(1 / multiplier), divided) == 4
        assert cpu.count_saturated(torch.ones(3, 5), torch.tensor(math.inf), divided) == 15


def test_a_static_scheme_needs_its_scale_and_has_a_bit():
    for scheme in SCHEMES:
        for quantize in (cpu.quantize, reference.quantize):
            with pytest.raises(ConstraintError, match=f"a {scheme.source} scheme needs its scale, got None"):
                quantize(torch.ones(2, 16), scheme, None)
        described = _cpu.describe_scheme(scheme_bits(scheme))
        assert (described["is_static"], described["is_divisor"]) == (True, scheme in DIVISORS)
    with pytest.raises(ConstraintError, match="must have a static scale"):
        cpu.count_saturated(torch.ones(2), torch.tensor(1.0), nvfp4())
    with pytest.raises(ConstraintError, match="scale must be one value, got 2"):
        cpu.count_saturated(torch.ones(2), torch.ones(2), E4M3)
