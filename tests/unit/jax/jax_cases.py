"""Arrays that both frameworks read, and comparisons of their bytes."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch

from steelyard.jax.copies import CopySpec

SPECIAL_VALUES = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-40, 3.4028234e38, 6e-8, 448.0, -6.0)


def matrix(rows=70, columns=53, seed=0, spread=15.0, special=True) -> np.ndarray:
    """A wide range of magnitudes, blocks of zeros, subnormal numbers, and some special values."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((rows, columns)) * np.exp2(rng.standard_normal((rows, columns)) * spread)
    values = values.astype(np.float32)
    values[: min(rows, 32), : min(columns, 32)] = 0
    if special:
        rows_of, columns_of = rng.integers(0, rows, 11), rng.integers(0, columns, 11)
        values[rows_of, columns_of] = SPECIAL_VALUES
    return values


def to_torch(array) -> torch.Tensor:
    """The torch tensor of a numpy or JAX array."""
    array = np.asarray(array)
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def raw(array) -> np.ndarray:
    """The bytes of an array of either framework."""
    return np.frombuffer(np.ascontiguousarray(np.asarray(array)).tobytes(), np.uint8)


def assert_same_parts(parts, copy) -> None:
    """The JAX parts hold the bytes of a torch copy, in arrays of the same shape."""
    for name, found, expected in zip(
        ("codes", "scales", "amax"), parts, (copy.codes, copy.scales, copy.amax), strict=True
    ):
        if expected is None:
            assert found is None
            continue
        assert tuple(found.shape) == tuple(expected.shape), name
        np.testing.assert_array_equal(raw(found), raw(expected.numpy()), err_msg=f"{name} of {copy.scheme}")


def spec_of(copy) -> CopySpec:
    return CopySpec(copy.scheme, copy.columnwise, tuple(copy.shape))


def rng_words(rng: tuple[int, int]):
    seed, offset = rng
    return jnp.asarray([seed & 0xFFFFFFFF, seed >> 32, offset & 0xFFFFFFFF, offset >> 32], jnp.uint32)


def assert_same_values(found, expected) -> None:
    """Equal bit by bit; all NaNs count as equal."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype
    nan = np.isnan(expected.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(found.astype(np.float32)), nan)
    np.testing.assert_array_equal(raw(np.where(nan, 0, found)), raw(np.where(nan, 0, expected)))
