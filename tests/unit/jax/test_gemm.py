"""Products are within the bound of the float64 product of their decoded operands."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_cases import matrix, to_torch
from kernel_cases import nvfp4

import steelyard.jax as sj
from steelyard import reference
from steelyard.formats.schemes import Scheme
from steelyard.jax import primitives
from steelyard.jax.copies import CopySpec, Parts

MX_ROW, MX_COL = (Scheme("f8E4M3FN", block, "f8E8M0FNU") for block in ("1x32", "32x1"))
TENSOR = Scheme("f8E4M3FN", "tensor", "f32")
BLOCK, TILE = (Scheme("f8E4M3FN", block, "f32", power_of_two=True) for block in ("1x128", "128x128"))
# (scheme, columnwise) of both operands: fprop, dgrad and wgrad of a JAX kernel.
CASES = {
    "tensor": ((TENSOR, False), (TENSOR, True)),
    "block": ((BLOCK, False), (TILE, True)),
    "mx-fprop": ((MX_ROW, False), (MX_COL, True)),
    "mx-wgrad": ((MX_COL, True), (MX_COL, True)),
    "nvfp4": ((nvfp4(), False), (nvfp4("16x16"), True)),
    "nvfp4-row": ((nvfp4(second_level="row"), False), (nvfp4(), False)),
    "nvfp4-rht": ((nvfp4(rht=True), True), (nvfp4(rht=True), True)),
}
OUTER, REDUCED = (37, 41), 150


def operand(case, outer: int, seed: int):
    scheme, columnwise = case
    shape = (REDUCED, outer) if columnwise else (outer, REDUCED)
    x = matrix(*shape, seed=seed, spread=3.0, special=False)
    pair = (None, scheme) if columnwise else (scheme, None)
    copy = reference.quantize(to_torch(x), *pair)[int(columnwise)]
    parts = primitives.quantize(jnp.asarray(x), *pair)[int(columnwise)]
    return parts, CopySpec(scheme, columnwise, shape), copy


@pytest.mark.every(3)
@pytest.mark.parametrize("path", ["native", "reference"])
@pytest.mark.parametrize("name", CASES)
def test_product_is_near_the_float64_product(name, path):
    (a, a_spec, a_copy), (b, b_spec, b_copy) = (
        operand(c, n, s) for c, n, s in zip(CASES[name], OUTER, (1, 2), strict=True)
    )
    bias = np.linspace(-1, 1, OUTER[1], dtype=np.float32)
    with sj.use_path(path):
        found = primitives.gemm(a, a_spec, b, b_spec, bias=jnp.asarray(bias), out_dtype=jnp.float32)
    left, right = reference.gemm.operand(a_copy), reference.gemm.operand(b_copy)
    bound = (REDUCED + 8) * 2.0**-24 * (np.abs(left) @ np.abs(right).T + np.abs(bias))
    error = np.abs(np.asarray(found, np.float64) - (left @ right.T + bias))
    assert (error <= bound).all()


def test_batched_operands_broadcast():
    x = jnp.asarray(
        np.stack([matrix(20, 64, seed=s, special=False, spread=1.0) for s in range(6)]).reshape(2, 3, 20, 64)
    )
    w = jnp.asarray(matrix(64, 24, seed=9, special=False, spread=1.0))
    spec, kernel_spec = CopySpec(MX_ROW, False, (20, 64)), CopySpec(MX_COL, True, (64, 24))
    rows, _ = primitives.quantize(x, MX_ROW, None)
    _, kernel = primitives.quantize(w, None, MX_COL)

    def product(codes, scales):
        return primitives.gemm(Parts(codes, scales, None), spec, kernel, kernel_spec, out_dtype=jnp.float32)

    batched = jax.jit(jax.vmap(jax.vmap(product)))(rows.codes, rows.scales)
    for i in range(2):
        for j in range(3):
            alone = product(rows.codes[i, j], rows.scales[i, j])
            np.testing.assert_array_equal(np.asarray(batched[i, j]), np.asarray(alone))


@pytest.mark.parametrize("path", ["native", "reference"])
def test_nothing_to_reduce_gives_the_bias(path):
    a, b = (
        primitives.quantize(jnp.zeros((3, 0)), MX_ROW, None)[0],
        primitives.quantize(jnp.zeros((0, 2)), None, MX_COL)[1],
    )
    specs = CopySpec(MX_ROW, False, (3, 0)), CopySpec(MX_COL, True, (0, 2))
    with sj.use_path(path):
        out = primitives.gemm(a, specs[0], b, specs[1], bias=jnp.array([1.0, -2.0]), out_dtype=jnp.float32)
    np.testing.assert_array_equal(np.asarray(out), [[1, -2]] * 3)


def test_vmapped_bias():
    a, spec, _ = operand(CASES["mx-fprop"][0], 5, 1)
    b, kernel_spec, _ = operand(CASES["mx-fprop"][1], 4, 2)
    biases = jnp.arange(8, dtype=jnp.float32).reshape(2, 4)
    out = jax.vmap(lambda bias: primitives.gemm(a, spec, b, kernel_spec, bias=bias, out_dtype=jnp.float32))(biases)
    plain = primitives.gemm(a, spec, b, kernel_spec, out_dtype=jnp.float32)
    np.testing.assert_allclose(
        np.asarray(out - biases[:, None]), np.broadcast_to(plain, out.shape), rtol=1e-5, atol=1e-4
    )
