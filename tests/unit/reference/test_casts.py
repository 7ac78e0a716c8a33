import ml_dtypes
import numpy as np
import pytest

from steelyard.reference.casts import E2M1, E4M3, E5M2, decode, decode_e8m0, encode, encode_e2m1_stochastic

ORACLES = [(E4M3, ml_dtypes.float8_e4m3fn), (E5M2, ml_dtypes.float8_e5m2), (E2M1, ml_dtypes.float4_e2m1fn)]
formats = pytest.mark.parametrize(("fmt", "oracle"), ORACLES, ids=[fmt.name for fmt, _ in ORACLES])


def expected_codes(x, fmt, oracle):
    """The oracle saturates neither finite values nor infinities, so clamp first."""
    clamped = np.clip(np.where(np.isnan(x), 0, x), -fmt.max, fmt.max)
    return np.where(np.isnan(x), fmt.nan_code, clamped.astype(oracle).view(np.uint8) & (2 * fmt.sign_bit - 1))


def neighbours(values, distance=3):
    bits = values.astype(np.float32).view(np.int32)[:, None] + np.arange(-distance, distance + 1, dtype=np.int32)
    positive = bits[bits >= 0].view(np.float32)
    return np.concatenate((positive, -positive))


@formats
def test_every_bfloat16_value_is_cast_as_the_oracle_casts_it(fmt, oracle):
    x = (np.arange(2**16, dtype=np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(encode(x, fmt), expected_codes(x, fmt, oracle))


@formats
def test_float32_values_around_every_boundary_are_cast_as_the_oracle_casts_them(fmt, oracle):
    codes = np.arange(fmt.sign_bit, dtype=np.uint8)
    values = codes.view(oracle).astype(np.float64)
    values = np.append(values[np.isfinite(values)], 2.0 * float(fmt.max))
    boundaries = np.concatenate((values, (values[1:] + values[:-1]) / 2, values * 1.01))
    x = neighbours(boundaries)
    np.testing.assert_array_equal(encode(x, fmt), expected_codes(x, fmt, oracle))


@formats
def test_dense_random_bits_are_cast_as_the_oracle_casts_them(fmt, oracle):
    x = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    near = np.random.default_rng(1).standard_normal(200_000).astype(np.float32) * fmt.max / 4
    for values in (x, near):
        np.testing.assert_array_equal(encode(values, fmt), expected_codes(values, fmt, oracle))


@formats
def test_special_values(fmt, oracle):
    largest = {E4M3: 0x7E, E5M2: 0x7B, E2M1: 0x7}[fmt]
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, -1e-45, 1e-45], np.float32)
    nan = {E4M3: 0x7F, E5M2: 0x7F, E2M1: 0x7}[fmt]
    sign = fmt.sign_bit
    assert encode(x, fmt).tolist() == [largest, largest | sign, nan, 0, sign, sign, 0]
    assert encode(np.array([-np.nan], np.float32), fmt).tolist() == [nan]


@formats
def test_every_code_decodes_as_the_oracle_decodes_it(fmt, oracle):
    codes = np.arange(2 * fmt.sign_bit, dtype=np.uint8)
    expected = codes.view(oracle).astype(np.float32)
    np.testing.assert_array_equal(decode(codes, fmt), expected)
    np.testing.assert_array_equal(np.signbit(decode(codes, fmt)), codes >= fmt.sign_bit)


def test_e8m0_decodes_to_powers_of_two():
    codes = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(decode_e8m0(codes), codes.view(ml_dtypes.float8_e8m0fnu).astype(np.float32))


def test_stochastic_rounding_draws_adjacent_codes_with_the_probability_of_the_distance():
    grid = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    x = np.random.default_rng(2).uniform(-6, 6, 2000).astype(np.float32)
    draws = np.stack([decode(encode_e2m1_stochastic(x, np.full(x.shape, byte)), E2M1) for byte in range(256)])
    magnitude = np.abs(x).astype(np.float64)
    below = grid[np.searchsorted(grid, magnitude, side="right") - 1]
    above = grid[np.minimum(np.searchsorted(grid, magnitude, side="left"), 7)]
    drawn = np.abs(draws).astype(np.float64)
    assert ((drawn == below) | (drawn == above)).all()
    np.testing.assert_array_equal(np.signbit(draws), np.broadcast_to(np.signbit(x), draws.shape))
    error = np.abs(drawn.mean(axis=0) - magnitude)
    assert (error <= (above - below) / 256).all()
    nearest = np.minimum(magnitude - below, above - magnitude)
    assert error.mean() < nearest.mean() / 20


def test_stochastic_rounding_keeps_representable_and_special_values():
    x = np.array([0, -0.0, 0.5, -1, 1.5, 2, -3, 4, 6, 7, -1e30, np.inf, np.nan, -np.nan], np.float32)
    expected = [0, 8, 1, 10, 3, 4, 13, 6, 7, 7, 15, 7, 7, 7]
    for byte in (0, 128, 255):
        assert encode_e2m1_stochastic(x, np.full(x.shape, byte)).tolist() == expected


def test_stochastic_rounding_of_a_quarter_turns_at_the_middle_byte():
    quarter = np.full(256, 0.25, np.float32)
    assert encode_e2m1_stochastic(quarter, np.arange(256)).tolist() == [0] * 128 + [1] * 128
