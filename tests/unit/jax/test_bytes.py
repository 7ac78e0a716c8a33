"""Both implementations write the bytes of the reference, for every scheme."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from jax_cases import assert_same_parts, assert_same_values, matrix, raw, rng_words, spec_of, to_torch
from kernel_cases import nvfp4, operands, pair_name, scheme_pairs

import steelyard.jax as sj
from steelyard import reference
from steelyard.formats.schemes import Scheme
from steelyard.jax import primitives
from steelyard.jax.quantizers import has_kernels

PAIRS = [pair for pair in scheme_pairs() if all(map(has_kernels, pair))]
MX = tuple(Scheme("f8E4M3FN", block, "f8E8M0FNU") for block in ("1x32", "32x1"))
# One of each kind, because each takes seconds to compile in jnp.
REFERENCE_PAIRS = {
    "tensor": (Scheme("f8E5M2", "tensor", "f32", power_of_two=True, epsilon=0.5),) * 2,
    "delayed": (Scheme("f8E4M3FN", "tensor", "f32", source="delayed"), None),
    "block": (Scheme("f8E4M3FN", "1x128", "f32"), Scheme("f8E4M3FN", "128x128", "f32", power_of_two=True)),
    "mx": MX,
    "mx-even-tile": (None, Scheme("f8E5M2", "32x32", "f8E8M0FNU", rule="even")),
    "nvfp4": (nvfp4(), None),
    "nvfp4-tile": (None, nvfp4("16x16")),
    "nvfp4-rht": (None, nvfp4(rht=True, rounding="stochastic")),
    "nvfp4-4over6": (nvfp4(four_over_six="mse"), None),
}


def quantize_both(x: np.ndarray, pair):
    """Copies of the array by JAX and by the reference."""
    given = operands(*(scheme for scheme in pair if scheme is not None))
    expected = reference.quantize(to_torch(x), *pair, **given)
    scale = None if given["scale"] is None else jnp.float32(given["scale"].item())
    found = primitives.quantize(jnp.asarray(x), *pair, scale=scale, rng=rng_words(given["rng"]))
    return found, expected


def check_pair(x: np.ndarray, pair) -> None:
    for found, expected in zip(*quantize_both(x, pair), strict=True):
        if expected is None:
            assert found is None
            continue
        assert_same_parts(found, expected)
        values = primitives.dequantize(found, spec_of(expected), jnp.float32)
        assert_same_values(values, reference.dequantize(expected).numpy())


@pytest.mark.every(3)
@pytest.mark.parametrize("pair", PAIRS, ids=pair_name)
def test_native_bytes_equal_the_reference(pair):
    check_pair(matrix(), pair)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_native_bytes_of_halves(dtype):
    with np.errstate(over="ignore"):
        x = matrix(seed=3).astype(dtype)
    for pair in (MX, (nvfp4(), nvfp4("16x16")), REFERENCE_PAIRS["block"]):
        check_pair(x, pair)


SLOW = ("mx-even-tile", "nvfp4-tile", "nvfp4-rht", "nvfp4-4over6")


@pytest.mark.every(8)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in REFERENCE_PAIRS]
)
def test_jnp_bytes_equal_the_reference(name):
    with sj.use_path("reference"):
        check_pair(matrix(seed=5), REFERENCE_PAIRS[name])


@pytest.mark.parametrize("path", ["native", "reference"])
def test_mx_bytes_by_hand(path):
    # A block's largest value 448 * 2^k has the scale byte 127 + k and the code of 448; zeros have byte 0 and code 0.
    x = np.zeros((4, 32), np.float32)
    x[1, 7], x[2, 3], x[3, 5] = 448.0, -448.0 * 2.0**-100, 1e-45
    with sj.use_path(path):
        tensor = sj.quantize(jnp.asarray(x), sj.ScalingMode.MXFP8_1D_SCALING)
    np.testing.assert_array_equal(raw(tensor.scale_inv), [0, 127, 27, 0])
    codes = raw(tensor.data).reshape(4, 32)
    assert (codes[0] == 0).all()
    assert (codes[1, 7], codes[2, 3]) == (0x7E, 0xFE)
    # 2^-149 over the smallest scale, 2^-127, is 2^-22, below half of the smallest code.
    assert codes[3, 5] == 0


@pytest.mark.parametrize("path", ["native", "reference"])
def test_nvfp4_scales_reach_448_and_the_subnormals(path):
    # Blocks of amaxes 6, 3, 6 * 2^-15 and 0 under a tensor amax of 6: scales 448, 224, 448 * 2^-15 = 7 * 2^-9 and 0.
    x = np.zeros((4, 16), np.float32)
    x[0, 0], x[1, 1], x[2, 2] = 6.0, 3.0, 6.0 * 2.0**-15
    with sj.use_path(path):
        tensor = sj.quantize(jnp.asarray(x), sj.ScalingMode.NVFP4_1D_SCALING)
    scales = np.asarray(tensor.scale_inv).astype(np.float32).ravel()
    np.testing.assert_array_equal(scales, [448, 224, 7 * 2.0**-9, 0])
    np.testing.assert_array_equal(np.asarray(tensor.data).astype(np.float32)[[0, 1, 2], [0, 1, 2]], [6, 6, 6])
    assert raw(tensor.codes)[0] == 7


@pytest.mark.parametrize("shape", [(1, 1), (3, 130), (129, 17), (33, 31)])
def test_ragged_shapes(shape):
    for pair in (MX, (nvfp4(), nvfp4(rht=True)), REFERENCE_PAIRS["block"], REFERENCE_PAIRS["tensor"]):
        check_pair(matrix(*shape, special=False), pair)


def test_empty_arrays_have_empty_copies():
    row, col = primitives.quantize(jnp.zeros((0, 32)), *MX)
    assert (row.codes.shape, row.scales.shape, col.codes.shape, col.scales.shape) == ((0, 32), (0, 1), (0, 32), (0, 32))


def test_a_given_amax_is_used_and_kept():
    x = matrix(special=False, spread=1.0)
    given = torch.tensor(1000.0)
    expected, _ = reference.quantize(to_torch(x), nvfp4(), None, amax=given)
    tensor = sj.quantize(jnp.asarray(x), sj.ScalingMode.NVFP4_1D_SCALING, amax=1000.0)
    assert_same_parts(tensor.parts, expected)


@pytest.mark.parametrize(("path", "scheme"), [("native", nvfp4()), ("reference", MX[0])])
def test_batches_are_quantized_one_by_one(path, scheme):
    stack = np.stack([matrix(special=False, seed=seed) for seed in range(3)])
    with sj.use_path(path):
        rows, _ = jax.jit(jax.vmap(lambda x: primitives.quantize(x, scheme, None)))(jnp.asarray(stack))
    for index in range(3):
        expected, _ = reference.quantize(to_torch(stack[index]), scheme, None)
        assert_same_parts([None if part is None else part[index] for part in rows], expected)
