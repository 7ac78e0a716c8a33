"""Arithmetic on bits equals NumPy's float32, subnormals included."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from steelyard.jax import softfloat

OPERATIONS = {
    "multiply": (softfloat.multiply, np.multiply),
    "divide": (softfloat.divide, np.divide),
    "add": (softfloat.add, np.add),
    "subtract": (softfloat.subtract, np.subtract),
}
EDGES = np.array(
    [0, 1, 2, 0x400000, 0x7FFFFF, 0x800000, 0x800001, 0x3F800000, 0x3F800001, 0x7F7FFFFF, 0x7F800000, 0x7FC00000],
    np.uint32,
)


def random_bits(rng, size: int) -> np.ndarray:
    """Any bits, many of them subnormal or at an edge."""
    bits = rng.integers(0, 2**32, size, dtype=np.uint32)
    bits[: size // 4] &= np.uint32(0x80FFFFFF)
    bits[size // 4 : size // 2] = rng.choice(EDGES, size // 4) | (bits[size // 4 : size // 2] & np.uint32(0x80000000))
    return rng.permutation(bits)


@pytest.mark.parametrize("name", OPERATIONS)
def test_arithmetic_equals_ieee(name):
    ours, numpys = OPERATIONS[name]
    rng = np.random.default_rng(1)
    a, b = random_bits(rng, 40000), random_bits(rng, 40000)
    # Operands of similar magnitude cancel; those whose biased exponents sum to 127 have subnormal products.
    b[:10000] = (a[:10000] & np.uint32(0xFF800000)) ^ rng.integers(0, 2**25, 10000, dtype=np.uint32)
    b[10000:20000] = (np.uint32(0x3F800000) - (a[10000:20000] & np.uint32(0x7FFFFFFF))) & np.uint32(0x7FFFFFFF)
    with np.errstate(all="ignore"):
        expected = numpys(a.view(np.float32), b.view(np.float32))
    expected = np.where(np.isnan(expected), np.uint32(0x7FC00000), expected.view(np.uint32))
    np.testing.assert_array_equal(np.asarray(jax.jit(ours)(a, b)), expected)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_halves_are_widened_and_rounded_exactly(dtype):
    halves = np.arange(2**16, dtype=np.uint16).view(dtype)
    wide = halves.astype(np.float32)
    number = ~np.isnan(wide)
    bits = jax.jit(softfloat.bits_of)(jnp.asarray(halves))
    np.testing.assert_array_equal(np.asarray(bits)[number], wide.view(np.uint32)[number])
    rng = np.random.default_rng(2)
    values = random_bits(rng, 40000).view(np.float32)
    with np.errstate(all="ignore"):
        expected = values.astype(dtype)
    rounded = jax.jit(lambda bits: softfloat.rounded_to(bits, dtype))(values.view(np.uint32))
    number = ~np.isnan(values)
    np.testing.assert_array_equal(np.asarray(rounded).view(np.uint16)[number], expected.view(np.uint16)[number])
    assert np.isnan(np.asarray(rounded)[~number].astype(np.float32)).all()
