import ml_dtypes
import numpy as np

from steelyard.reference.hadamard import inverse, round_to_bf16, transform

SIGN = [1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1]


def matrix():
    """diag(sign) H16 / 4 in float64, H16 by Sylvester's construction."""
    hadamard = np.ones((1, 1))
    for _ in range(4):
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    return np.diag(SIGN) @ hadamard / 4


def test_round_to_bf16_equals_the_oracle():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2**32, 100_000, dtype=np.uint32).view(np.float32)
    x = np.append(x, (np.arange(0x3F80_0000, 0x3F84_0000, 0x4000, dtype=np.uint32)).view(np.float32))
    with np.errstate(invalid="ignore"):
        expected = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(round_to_bf16(x), expected)


def test_transform_is_the_matrix_product():
    # Small integers stay exact in float32, so that only the last rounding remains.
    x = np.random.default_rng(1).integers(-128, 128, (9, 48)).astype(np.float32)
    exact = (x.reshape(9, 3, 16).astype(np.float64) @ matrix()).reshape(9, 48)
    np.testing.assert_array_equal(transform(x), exact.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_transform_rounds_its_input_to_bf16_first():
    x = np.random.default_rng(2).standard_normal((4, 32)).astype(np.float32)
    rounded = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(transform(x), transform(rounded))
    exact = (rounded.reshape(4, 2, 16).astype(np.float64) @ matrix()).reshape(4, 32)
    np.testing.assert_allclose(transform(x), exact, rtol=2**-8, atol=1e-6)


def test_ragged_groups_are_padded_with_zeros():
    x = np.random.default_rng(3).integers(-8, 8, (3, 21)).astype(np.float32)
    assert transform(x).shape == (3, 32)
    np.testing.assert_array_equal(transform(x), transform(np.pad(x, ((0, 0), (0, 11)))))


def test_inverse_undoes_the_transform():
    x = np.random.default_rng(4).integers(-8, 8, (5, 32)).astype(np.float32)
    np.testing.assert_array_equal(inverse(transform(x)), x)


def test_products_survive_the_transform():
    a, b = np.random.default_rng(5).integers(-4, 5, (2, 3, 64)).astype(np.float32)
    np.testing.assert_array_equal(transform(a) @ transform(b).T, a @ b.T)
