import ml_dtypes
import numpy as np
import pytest

from steelyard.reference.casts import E4M3, E5M2
from steelyard.reference.scales import (
    e8m0_encode_factor,
    e8m0_from_amax,
    nvfp4_block_scale,
    nvfp4_encode_factor,
    nvfp4_tensor_scale,
    scale_from_amax,
)

FLT_MAX = np.finfo(np.float32).max


@pytest.mark.parametrize(
    ("amax", "options", "expected"),
    [
        (448, {}, 1),
        (7, {}, 64),
        (3, {}, np.float32(448) / np.float32(3)),
        (3, {"power_of_two": True}, 128),
        (3.5, {"power_of_two": True}, 128),
        (np.nextafter(np.float32(3.5), np.float32(4)), {"power_of_two": True}, 64),
        (0, {}, 1),
        (np.inf, {}, 1),
        (np.nan, {}, 1),
        (np.nan, {"epsilon": 1.0, "power_of_two": True}, 1),
        (0, {"epsilon": 7.0}, 64),
        (1, {"epsilon": 7.0}, 64),
        (14, {"epsilon": 7.0}, 32),
        (1e-45, {}, FLT_MAX),
        (1e-45, {"power_of_two": True}, 2.0**127),
        (1e-45, {"limit": 65504.0}, 65504.0),
        (1e-45, {"limit": 65504.0, "power_of_two": True}, 32768.0),
        (0, {"fallback": 5.0}, 5),
    ],
)
def test_scale_from_amax(amax, options, expected):
    found = scale_from_amax(amax, 448.0, **options)
    assert found.dtype == np.float32
    assert found == np.float32(expected)


def e8m0(amax, fmt=E4M3, rule="rceil"):
    return int(e8m0_from_amax(np.array([amax], np.float32), fmt, rule)[0])


@pytest.mark.parametrize("fmt", [E4M3, E5M2], ids=lambda fmt: fmt.name)
def test_rceil_maps_the_largest_value_times_a_power_of_two_to_that_power(fmt):
    for exponent in range(-118, 112):
        amax = np.ldexp(fmt.max, exponent)
        assert e8m0(amax, fmt) == 127 + exponent
        # The product with fl(1/max) decides; two steps up are always above the power of two.
        above = np.nextafter(np.nextafter(amax, np.float32(np.inf)), np.float32(np.inf))
        assert e8m0(above, fmt) == 128 + exponent


@pytest.mark.parametrize("rule", ["rceil", "floor", "ceil", "even"])
@pytest.mark.parametrize("fmt", [E4M3, E5M2], ids=lambda fmt: fmt.name)
def test_special_amaxes(fmt, rule):
    assert e8m0(np.nan, fmt, rule) == 255
    assert e8m0(np.inf, fmt, rule) == 254
    assert e8m0(0.0, fmt, rule) == 0
    assert e8m0(1e-45, fmt, rule) == 0


def test_rceil_at_the_smallest_scale():
    smallest = np.float32(448 * 2.0**-127)
    assert e8m0(smallest) == 0
    assert e8m0(smallest * np.float32(1.0625)) == 1
    assert e8m0(np.float32(448 * 2.0**-126)) == 1


@pytest.mark.parametrize(
    ("amax", "fmt", "floor", "ceil", "even"),
    [
        (1.0, E4M3, 119, 119, 119),
        (1.5, E4M3, 119, 120, 119),
        (1.875, E4M3, 119, 120, 119),
        (1.9374999, E4M3, 119, 120, 119),
        (1.9375, E4M3, 119, 120, 120),
        (448.0, E4M3, 127, 128, 127),
        (512.0, E4M3, 128, 128, 128),
        (1.0, E5M2, 112, 112, 112),
        (1.8749999, E5M2, 112, 113, 112),
        (1.875, E5M2, 112, 113, 113),
        (57344.0, E5M2, 127, 128, 127),
        (2.0**-119, E4M3, 0, 0, 0),
        (2.0**-118, E4M3, 1, 1, 1),
        (FLT_MAX, E4M3, 246, 247, 247),
    ],
)
def test_other_rules_by_hand(amax, fmt, floor, ceil, even):
    assert [e8m0(amax, fmt, rule) for rule in ("floor", "ceil", "even")] == [floor, ceil, even]


def test_encode_factors_are_powers_of_two():
    codes = np.arange(256, dtype=np.uint8)
    factor = e8m0_encode_factor(codes)
    np.testing.assert_array_equal(factor[:255], np.ldexp(1.0, 127 - np.arange(255)))
    assert np.isnan(factor[255])


def test_nvfp4_scales_by_hand():
    encode_scale, decode_scale = nvfp4_tensor_scale(np.float32(2688), 2688.0)
    assert (encode_scale, decode_scale) == (1, 1)
    blocks = np.array([6, 12, 2688, 0, 3, 1e-9, np.nan, np.inf], np.float32)
    found = nvfp4_block_scale(blocks, encode_scale)
    assert found.tolist() == [0x38, 0x40, 0x7E, 0, 0x30, 0, 0x7F, 0x7E]
    factor = nvfp4_encode_factor(found, decode_scale)
    np.testing.assert_array_equal(factor, np.array([1, 0.5, 1 / 448, FLT_MAX, 2, FLT_MAX, np.nan, 1 / 448], np.float32))


@pytest.mark.parametrize("amax", [0, np.inf, np.nan])
def test_nvfp4_tensor_scale_is_one_where_the_amax_says_nothing(amax):
    assert nvfp4_tensor_scale(np.float32(amax), 2688.0) == (1, 1)


def test_nvfp4_block_scale_multiplies_in_the_order_that_decides_bytes():
    # bfloat16 amaxes fall on ties of E4M3 often enough to tell the orders apart.
    amaxes = np.random.default_rng(0).uniform(1, 2, (300, 1)).astype(ml_dtypes.bfloat16).astype(np.float32)
    blocks = np.arange(0.25, 1, 2.0**-8, dtype=np.float32)
    encode_scale = np.float32(2688) / amaxes
    ours = (blocks * (encode_scale * np.float32(1 / 6))).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    other = (blocks / np.float32(6) * encode_scale).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    assert (ours != other).any()
    np.testing.assert_array_equal(nvfp4_block_scale(blocks, encode_scale), ours)
