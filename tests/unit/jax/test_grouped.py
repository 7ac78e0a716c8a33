"""Groups of rows: each is quantized and multiplied as if it were alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_cases import assert_same_parts, assert_same_values, matrix, raw, to_torch
from kernel_cases import nvfp4

import steelyard.jax as sj
from steelyard import recipes, reference
from steelyard.errors import RecipeError
from steelyard.formats.schemes import Scheme
from steelyard.jax import grouped_layout, grouped_primitives, primitives, random
from steelyard.jax.copies import CopySpec, Parts
from steelyard.jax.quantizers import RECIPES
from steelyard.recipes import DelayedScaling

ROWS, COLUMNS = 100, 53
SIZES = np.array([33, 0, 5, 50], np.int32)
STARTS = np.cumsum(SIZES) - SIZES
PAIRS = {
    "tensor": (Scheme("f8E4M3FN", "tensor", "f32"),) * 2,
    "block": (Scheme("f8E4M3FN", "1x128", "f32", power_of_two=True),) * 2,
    "tile": (Scheme("f8E4M3FN", "128x128", "f32", power_of_two=True),) * 2,
    "mx": tuple(Scheme("f8E5M2", block, "f8E8M0FNU") for block in ("1x32", "32x1")),
    "mx-tile": (Scheme("f8E4M3FN", "32x32", "f8E8M0FNU"),) * 2,
    "nvfp4": (nvfp4(), nvfp4(rht=True)),
    "nvfp4-tile": (nvfp4("16x16"),) * 2,
    "nvfp4-row": (nvfp4(second_level="row"),) * 2,
    "nvfp4-stochastic": (nvfp4(rounding="stochastic"), nvfp4(rht=True, rounding="stochastic")),
}
RNG = jnp.asarray([11, 22, 3, 0], jnp.uint32)


def group_rows(x, group: int):
    return x[STARTS[group] : STARTS[group] + SIZES[group]]


@pytest.mark.every(12)
@pytest.mark.parametrize("name", PAIRS)
def test_each_group_has_the_bytes_of_the_reference(name):
    x = matrix(ROWS, COLUMNS, special=False)
    copies = grouped_primitives.quantize(jnp.asarray(x), jnp.asarray(SIZES), *PAIRS[name], rng=RNG)
    for index, (parts, scheme) in enumerate(zip(copies, PAIRS[name], strict=True)):
        spec = CopySpec(scheme, bool(index), x.shape)
        values = grouped_primitives.dequantize(parts, jnp.asarray(SIZES), spec, jnp.float32)
        assert not np.asarray(values)[SIZES.sum() :].any()
        groups = grouped_layout.spread(parts, spec, jnp.asarray(SIZES))
        for group in range(len(SIZES)):
            rng = 11 | 22 << 32, 3 | group << 32
            expected = reference.quantize(to_torch(group_rows(x, group)), *PAIRS[name], rng=rng)[index]
            stored = (expected.codes, expected.scales, expected.amax)
            own = [
                None if part is None else np.asarray(part[group])[tuple(slice(0, size) for size in like.shape)]
                for part, like in zip(groups, stored, strict=True)
            ]
            assert_same_parts(own, expected)
            assert_same_values(group_rows(values, group), reference.dequantize(expected).numpy())


@pytest.mark.parametrize("name", ["mx", pytest.param("tile", marks=pytest.mark.slow)])
def test_jnp_leaves_the_native_bytes(name):
    x = jnp.asarray(matrix(ROWS, COLUMNS, special=False, seed=4))
    native = grouped_primitives.quantize(x, jnp.asarray(SIZES), *PAIRS[name], rng=RNG)
    with sj.use_path("reference"):
        plain = grouped_primitives.quantize(x, jnp.asarray(SIZES), *PAIRS[name], rng=RNG)
    for found, expected in zip(jax.tree.leaves(plain), jax.tree.leaves(native), strict=True):
        np.testing.assert_array_equal(raw(found), raw(expected))


X = jnp.asarray(matrix(ROWS, 96, special=False, spread=1.0, seed=1))
KERNEL = jnp.asarray(np.stack([matrix(96, 40, special=False, spread=1.0, seed=s) for s in range(4)]))
BIAS = jnp.asarray(np.arange(160, dtype=np.float32).reshape(4, 40))
DY = jnp.asarray(matrix(ROWS, 40, special=False, spread=1.0, seed=8))


@jax.jit
def pulled(x, kernel, sizes, bias, quantizers, dy):
    y, pull = jax.vjp(
        lambda *arguments: sj.grouped_dense(*arguments[:2], sizes, *arguments[2:]), x, kernel, bias, quantizers
    )
    return y, *pull(dy)


def check_near(found, a, b, reduced: int, addend=0.0) -> None:
    bound = (reduced + 8) * 2.0**-24 * (np.abs(a) @ np.abs(b) + np.abs(addend))
    assert (np.abs(np.asarray(found, np.float64) - (a @ b + addend)) <= bound).all()


@pytest.mark.every(3)
@pytest.mark.parametrize("name", RECIPES)
def test_grouped_dense_is_a_dense_layer_a_group(name):
    recipe = recipes.get(name)
    quantizers = sj.QuantizerSet.from_recipe(recipe)
    y, dx, dkernel, dbias, _ = pulled(X, KERNEL, jnp.asarray(SIZES), BIAS, quantizers, DY)
    assert not np.asarray(y)[SIZES.sum() :].any()
    assert not np.asarray(dx)[SIZES.sum() :].any()
    given = {"scale": np.float32(1)} if isinstance(recipe, DelayedScaling) else {}
    words = (
        [0] * 4 if quantizers.random_state is None else [int(w) for w in random.state_words(quantizers.random_state)]
    )
    for group in range(len(SIZES)):
        x, dy = (to_torch(group_rows(np.asarray(each), group)) for each in (X, DY))
        rng = words[0] | words[1] << 32, words[2] | group << 32
        x_row, x_col = reference.quantize(x, *recipe.schemes("input"), **given)
        w_row, w_col = reference.quantize(to_torch(KERNEL[group]).T.contiguous(), *recipe.schemes("weight"), **given)
        dy_row, dy_col = reference.quantize(dy, *recipe.schemes("grad_output"), **given, rng=rng)
        operand = reference.gemm.operand
        check_near(group_rows(y, group), operand(x_row), operand(w_row).T, 96, np.asarray(BIAS[group], np.float64))
        check_near(group_rows(dx, group), operand(dy_row), operand(w_col).T, 40)
        check_near(dkernel[group], operand(x_col), operand(dy_col).T, SIZES[group])
        np.testing.assert_allclose(np.asarray(dbias[group]), dy.double().numpy().sum(0), rtol=1e-4, atol=1e-3)


def test_unquantized_groups_are_ragged_products():
    y = sj.grouped_dense(X, KERNEL, SIZES, BIAS)
    for group in range(len(SIZES)):
        check_near(
            group_rows(y, group),
            *(np.asarray(each, np.float64) for each in (group_rows(X, group), KERNEL[group])),
            96,
            np.asarray(BIAS[group]),
        )


def test_jnp_products_are_near_the_native_ones():
    scheme = PAIRS["tensor"][0]
    sizes = jnp.asarray(SIZES)
    rows, columns = grouped_primitives.quantize(X, sizes, scheme, scheme)
    _, gradients = grouped_primitives.quantize(DY, sizes, None, scheme)
    kernels = jax.vmap(lambda kernel: primitives.quantize(kernel, None, scheme)[1])(KERNEL)
    x, dy, kernel = ((scheme, c, shape) for c, shape in ((False, X.shape), (True, DY.shape), (True, (96, 40))))
    products = [
        (rows, CopySpec(*x), kernels, CopySpec(*kernel), BIAS, False),
        (columns, CopySpec(scheme, True, X.shape), gradients, CopySpec(*dy), None, True),
    ]
    for a, a_spec, b, b_spec, bias, both in products:
        found = []
        for path in ("native", "reference"):
            with sj.use_path(path):
                found.append(
                    grouped_primitives.gemm(a, a_spec, b, b_spec, sizes, both=both, bias=bias, out_dtype=jnp.float32)
                )
        np.testing.assert_allclose(*map(np.asarray, found), rtol=1e-5, atol=1e-4)


def test_grouped_tensors_are_trees_and_come_from_the_factory():
    tensor = sj.quantize(X, sj.ScalingMode.NVFP4_1D_SCALING, colwise=True, group_sizes=SIZES)
    row, col = tensor.rowwise_tensor, tensor.colwise_tensor
    assert isinstance(row, sj.GroupedScaledTensor1x)
    assert (row.data.dtype, row.data.shape, row.amax.shape) == (jnp.float4_e2m1fn, (ROWS, 96), (4,))
    # Blocks of 16 rows: there are 100 // 16 + 4 of them for any sizes.
    assert (col.data.shape, col.scale_inv.shape) == ((96, 160), (96, 10))
    again = jax.tree.unflatten(jax.tree.structure(row), jax.tree.leaves(row))
    made = sj.ScaledTensorFactory.create(
        data=row.codes,
        scale_inv=row.scale_inv,
        amax=row.amax,
        scaling_mode=sj.ScalingMode.NVFP4_1D_SCALING,
        group_sizes=jnp.asarray(SIZES),
        original_shape=(ROWS, 96),
    )
    for each in (again, made, jax.jit(lambda t: t)(row)):
        assert_same_values(each.dequantize(), row.dequantize())
    assert isinstance(row.parts, Parts)


def test_sizes_beyond_the_rows_are_an_error_when_the_program_runs():
    with pytest.raises(Exception, match="group_sizes must not be negative and must sum to at most the rows"):
        jax.block_until_ready(sj.quantize(X, group_sizes=jnp.array([60, 60])).codes)


REFUSED = {
    "kernel": (lambda: sj.grouped_dense(X, KERNEL[:3], SIZES), r"kernel must be \[4, 96, N\]: a matrix per group"),
    "sizes": (lambda: sj.grouped_dense(X, KERNEL, np.ones(4)), "group_sizes must be a vector of integers, got float"),
    "bias": (lambda: sj.grouped_dense(X, KERNEL, SIZES, BIAS[0]), r"bias must have shape \(4, 40\)"),
    "matrix": (lambda: sj.quantize(X[None], group_sizes=SIZES), "x must be a matrix with group_sizes"),
    "amax": (lambda: sj.quantize(X, group_sizes=SIZES, amax=1.0), "amax must be None with group_sizes"),
    "delayed": (
        lambda: sj.quantize(X, sj.ScalingMode.DELAYED_TENSOR_SCALING, group_sizes=SIZES),
        "scale must be given",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_arguments_are_named(name):
    call, message = REFUSED[name]
    with pytest.raises(RecipeError, match=message):
        call()
