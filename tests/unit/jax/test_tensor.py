"""Quantized tensors: dtypes, shapes, pytrees, the factory, and what is refused."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax_cases import assert_same_values, matrix, raw, to_torch

import steelyard.jax as sj
from steelyard import reference
from steelyard.errors import RecipeError
from steelyard.jax import ScaledTensorFactory, ScalingMode
from steelyard.tensor import Float8CurrentScalingQuantizer, MXFP8Quantizer, NVFP4Quantizer

MODES = [mode for mode in ScalingMode if mode is not ScalingMode.NO_SCALING]
X = jnp.asarray(matrix(70, 96, special=False, spread=2.0))


def quantized(mode: ScalingMode, x=X, **options):
    scale = jnp.float32(0.5) if mode is ScalingMode.DELAYED_TENSOR_SCALING else None
    return sj.quantize(x, mode, scale=scale, **options)


# Mode -> dtype of data, dtype of scales, shapes of rowwise and columnwise scales of a 70x96 matrix, by hand.
EXPECTED = {
    ScalingMode.DELAYED_TENSOR_SCALING: (jnp.float8_e4m3fn, jnp.float32, (), ()),
    ScalingMode.CURRENT_TENSOR_SCALING: (jnp.float8_e4m3fn, jnp.float32, (), ()),
    ScalingMode.BLOCK_1X128_SCALING: (jnp.float8_e4m3fn, jnp.float32, (70, 1), (96, 1)),
    ScalingMode.BLOCK_128X128_SCALING: (jnp.float8_e4m3fn, jnp.float32, (1, 1), (1, 1)),
    ScalingMode.MXFP8_1D_SCALING: (jnp.float8_e4m3fn, jnp.float8_e8m0fnu, (70, 3), (3, 96)),
    ScalingMode.MXFP8_2D_SCALING: (jnp.float8_e4m3fn, jnp.float8_e8m0fnu, (70, 3), (3, 96)),
    ScalingMode.NVFP4_1D_SCALING: (jnp.float4_e2m1fn, jnp.float8_e4m3fn, (70, 6), (96, 5)),
    ScalingMode.NVFP4_2D_SCALING: (jnp.float4_e2m1fn, jnp.float8_e4m3fn, (70, 6), (96, 5)),
}


@pytest.mark.parametrize("mode", MODES)
def test_dtypes_shapes_and_layouts(mode):
    data, scale, *shapes = EXPECTED[mode]
    tensor = quantized(mode, colwise=True)
    assert isinstance(tensor, sj.ScaledTensor2x)
    for copy, shape, colwise in zip((tensor.rowwise_tensor, tensor.colwise_tensor), shapes, (False, True), strict=True):
        transposed = colwise and mode not in (ScalingMode.MXFP8_1D_SCALING, ScalingMode.MXFP8_2D_SCALING)
        assert (copy.data.dtype, copy.data.shape) == (data, (96, 70) if transposed else (70, 96))
        assert (copy.scale_inv.dtype, copy.scale_inv.shape) == (scale, shape)
        assert (copy.data_layout, copy.is_colwise) == ("T" if transposed else "N", colwise)
        assert mode.get_scale_shape((70, 96), is_colwise=colwise) == shape
        assert mode.get_scale_dtype() == scale
    assert mode.get_scale_shape_2x((70, 96)) == tuple(shapes)


def test_padded_scale_shapes():
    padded = {mode: mode.get_scale_shape_2x((70, 96), is_padded=True) for mode in MODES}
    assert padded[ScalingMode.MXFP8_1D_SCALING] == ((128, 4), (4, 128))
    assert padded[ScalingMode.NVFP4_1D_SCALING] == ((128, 8), (128, 8))
    assert padded[ScalingMode.BLOCK_1X128_SCALING] == ((72, 1), (96, 1))
    assert padded[ScalingMode.BLOCK_128X128_SCALING] == ((1, 4), (1, 4))
    assert padded[ScalingMode.CURRENT_TENSOR_SCALING] == ((), ())


def test_leading_dims_stay_apart():
    x = X.reshape(7, 10, 96)
    row = sj.quantize(x, ScalingMode.MXFP8_1D_SCALING)
    assert (row.data.shape, row.scale_inv.shape, row.shape) == ((7, 10, 96), (7, 10, 3), (7, 10, 96))
    packed = sj.quantize(x, ScalingMode.NVFP4_1D_SCALING, colwise=True)
    assert packed.colwise_tensor.data.shape == (96, 7, 10)
    for tensor, flat in (
        (row, sj.quantize(X, ScalingMode.MXFP8_1D_SCALING)),
        (packed, quantized(packed.get_tensor().scaling_mode)),
    ):
        np.testing.assert_array_equal(raw(tensor.get_tensor().codes), raw(flat.codes))
        assert_same_values(tensor.dequantize(), np.asarray(flat.dequantize()).reshape(x.shape))
    split = sj.quantize(x, ScalingMode.MXFP8_1D_SCALING, flatten_axis=1)
    assert split.scale_inv.shape == (7, 30)


def test_fp4_data_shows_the_values_of_the_codes():
    x = jnp.asarray(matrix(5, 33, special=False, spread=1.0))
    tensor = sj.quantize(x, ScalingMode.NVFP4_1D_SCALING)
    expected, _ = reference.quantize(to_torch(x), tensor.scheme, None)
    codes = expected.codes.numpy()
    nibbles = np.stack((codes & 15, codes >> 4), axis=-1).reshape(5, -1)[:, :33]
    np.testing.assert_array_equal(
        np.asarray(tensor.data).astype(np.float32), nibbles.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    )


def torch_quantizer(mode: ScalingMode):
    import torch

    if mode.is_nvfp4:
        return NVFP4Quantizer(with_2d_quantization=mode is ScalingMode.NVFP4_2D_SCALING)
    return MXFP8Quantizer(torch.float8_e4m3fn) if mode.is_mxfp8 else Float8CurrentScalingQuantizer(torch.float8_e4m3fn)


@pytest.mark.parametrize(
    "mode",
    [
        ScalingMode.CURRENT_TENSOR_SCALING,
        ScalingMode.MXFP8_1D_SCALING,
        ScalingMode.NVFP4_1D_SCALING,
        ScalingMode.NVFP4_2D_SCALING,
    ],
)
def test_values_equal_those_of_the_torch_tensors(mode):
    theirs = torch_quantizer(mode)(to_torch(X)).dequantize()
    assert_same_values(quantized(mode).dequantize(), theirs.numpy())


@pytest.mark.parametrize("mode", MODES)
def test_trees_round_trip(mode):
    tensor = quantized(mode, colwise=True)
    leaves, tree = jax.tree.flatten(tensor)
    again = jax.tree.unflatten(tree, leaves)
    assert jax.tree.structure(again) == tree
    assert_same_values(again.dequantize(), tensor.dequantize())
    abstract = jax.eval_shape(lambda x: quantized(mode, x, colwise=True), X)
    assert jax.tree.structure(abstract) == tree
    assert [(a.shape, a.dtype) for a in jax.tree.leaves(abstract)] == [(a.shape, a.dtype) for a in leaves]
    jitted = jax.jit(lambda t: t.dequantize())(tensor)
    assert_same_values(jitted, tensor.dequantize())


@pytest.mark.parametrize("mode", MODES)
def test_factory_makes_the_same_tensors(mode):
    tensor = quantized(mode, colwise=True)
    row, col = tensor.rowwise_tensor, tensor.colwise_tensor
    both = ScaledTensorFactory.create(
        data=row.data,
        scale_inv=row.scale_inv,
        amax=row.amax,
        colwise_data=col.data,
        colwise_scale_inv=col.scale_inv,
        scaling_mode=mode,
    )
    assert isinstance(both, sj.ScaledTensor2x)
    for made, copy in ((both.rowwise_tensor, row), (both.colwise_tensor, col)):
        np.testing.assert_array_equal(raw(made.codes), raw(copy.codes))
        assert_same_values(made.dequantize(), copy.dequantize())
    only = ScaledTensorFactory.create(
        colwise_data=col.data, colwise_scale_inv=col.scale_inv, colwise_amax=col.amax, scaling_mode=mode
    )
    assert only.is_colwise


def test_factory_makes_unscaled_tensors():
    tensor = ScaledTensorFactory.create(data=X, scaling_mode=ScalingMode.NO_SCALING)
    assert isinstance(tensor, sj.NoScaleTensor)
    assert tensor.dequantize() is X
    assert sj.quantize(X, ScalingMode.NO_SCALING, amax=3.0).amax == 3.0
    assert sj.NoScaleTensor(X, jnp.float32(2)).get_tensor().amax == 2


def test_a_dequantizer_of_ones_own_is_called():
    row = sj.quantize(X, ScalingMode.CURRENT_TENSOR_SCALING)

    def negative(tensor):
        return -tensor.data.astype(tensor.dq_dtype) * tensor.scale_inv

    tensor = ScaledTensorFactory.create(
        data=row.data, scale_inv=row.scale_inv, scaling_mode=ScalingMode.CURRENT_TENSOR_SCALING, dequantizer=negative
    )
    np.testing.assert_array_equal(np.asarray(tensor.dequantize()), -np.asarray(sj.tensor_scale_dequantizer(row)))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_dequantize_rounds_to_the_dtype(dtype):
    wide = sj.quantize(X, ScalingMode.NVFP4_1D_SCALING).dequantize()
    found = sj.quantize(X, ScalingMode.NVFP4_1D_SCALING, dq_dtype=dtype).dequantize()
    assert_same_values(found, np.asarray(wide).astype(dtype))
    assert sj.quantize(X.astype(dtype), ScalingMode.MXFP8_1D_SCALING).dequantize().dtype == dtype


def test_without_rules_a_sharding_constraint_changes_nothing():
    tensor = sj.quantize(X, ScalingMode.MXFP8_1D_SCALING)
    assert tensor.apply_sharding_constraint_by_logical_axes(("batch", "hidden")) is tensor


REFUSED = {
    "mode": (lambda: sj.quantize(X, "mxfp8"), "scaling_mode must be a ScalingMode, got 'mxfp8'"),
    "q_dtype": (
        lambda: sj.quantize(X, ScalingMode.MXFP8_1D_SCALING, q_dtype=jnp.float4_e2m1fn),
        "q_dtype must be one of float8",
    ),
    "int": (lambda: sj.quantize(jnp.ones((4, 4), jnp.int32)), "x must be float32, bfloat16 or float16"),
    "vector": (lambda: sj.quantize(jnp.ones(4)), "x must be .* with at least two dims"),
    "neither": (lambda: sj.quantize(X, rowwise=False), "rowwise or colwise must be True"),
    "delayed": (lambda: sj.quantize(X, ScalingMode.DELAYED_TENSOR_SCALING), "scale must be given"),
    "no key": (lambda: sj.quantize(X, ScalingMode.NVFP4_1D_SCALING, rounding="stochastic"), "key must be given"),
    "wrong key": (
        lambda: sj.quantize(X, ScalingMode.NVFP4_1D_SCALING, rounding="stochastic", key=jnp.ones(3)),
        "key must be one key of jax.random.key, got float32",
    ),
    "many keys": (
        lambda: sj.quantize(X, ScalingMode.NVFP4_1D_SCALING, key=jax.random.split(jax.random.key(0), 2)),
        "key must be one key",
    ),
    "axis": (lambda: sj.quantize(X, flatten_axis=2), "flatten_axis must split the 2 dims"),
    "amax": (lambda: sj.quantize(X, amax=jnp.ones(2)), r"amax must have shape \(\)"),
    "data": (
        lambda: ScaledTensorFactory.create(
            data=X, scale_inv=jnp.float32(1), scaling_mode=ScalingMode.CURRENT_TENSOR_SCALING
        ),
        "data must be one of float8_e4m3fn, float8_e5m2 .* got float32",
    ),
    "scale_inv": (
        lambda: sj.ScaledTensor1x(
            X.astype(jnp.float8_e4m3fn), jnp.ones((70, 4)), scaling_mode=ScalingMode.MXFP8_1D_SCALING
        ),
        r"scale_inv must be float8_e8m0fnu of shape \(70, 3\)",
    ),
    "no amax": (
        lambda: sj.ScaledTensor1x(
            jnp.ones((4, 8), jnp.uint8), jnp.ones((4, 1), jnp.float8_e4m3fn), scaling_mode=ScalingMode.NVFP4_1D_SCALING
        ),
        "amax must be given",
    ),
    "layout": (
        lambda: sj.ScaledTensor1x(X.astype(jnp.float8_e4m3fn), jnp.float32(1), data_layout="T"),
        "data_layout must be 'N' for rowwise data",
    ),
    "usage": (lambda: sj.quantize(X).get_tensor(is_colwise=True), "must have columnwise data, got only rowwise"),
    "axes": (
        lambda: sj.quantize(X).apply_sharding_constraint_by_logical_axes(("a",)),
        "axes must name each of the 2 dims",
    ),
    "dequantizer": (
        lambda: sj.mxfp8_dequantizer(sj.quantize(X)),
        "mxfp8_dequantizer needs .* got CURRENT_TENSOR_SCALING",
    ),
    "torch": (lambda: sj.quantize(to_torch(np.ones((4, 4), np.float32))), "x must be float32, .* got Tensor"),
    "flag": (lambda: sj.quantize(X, rowwise=1), "rowwise must be True or False, got 1"),
    "dtype": (lambda: sj.quantize(X, q_dtype=3), "q_dtype must be a dtype of JAX, got 3"),
    "dq_dtype": (lambda: sj.quantize(X, dq_dtype="int8"), "dq_dtype must be float32, bfloat16 or float16, got int8"),
    "text scale": (
        lambda: sj.quantize(X, ScalingMode.DELAYED_TENSOR_SCALING, scale="1"),
        "scale must be a number or an array of JAX, got str",
    ),
    "operand": (lambda: sj.dot(X, sj.quantize(X)), "lhs must be a tensor of steelyard.jax, got .*; quantize it first"),
    "bias": (lambda: sj.dot(sj.quantize(X), sj.quantize(X), bias=3), "bias must be an array of JAX, got int"),
    "short amax": (
        lambda: sj.ScaledTensor1x(
            jnp.ones((4, 8), jnp.uint8),
            jnp.ones((4, 1), jnp.float8_e4m3fn),
            jnp.ones(3),
            scaling_mode=ScalingMode.NVFP4_1D_SCALING,
        ),
        r"amax must be float32 of shape \(\), got float32 of shape \(3,\)",
    ),
    "amax of another dtype": (
        lambda: sj.ScaledTensor1x(
            jnp.ones((4, 8), jnp.uint8),
            jnp.ones((4, 1), jnp.float8_e4m3fn),
            jnp.ones((), jnp.bfloat16),
            scaling_mode=ScalingMode.NVFP4_1D_SCALING,
        ),
        r"amax must be float32 of shape \(\), got bfloat16",
    ),
    "no tensor": (lambda: sj.nvfp4_dequantizer(X), "takes one copy, a tensor of steelyard.jax, got"),
    "history": (
        lambda: sj.update_scale(jnp.float32(1), jnp.ones((2, 2)), sj.quantize(X).scheme),
        r"amax_history must be a vector of float32, got float32 of shape \(2, 2\)",
    ),
    "backward": (lambda: sj.QuantizerSet(backward="none"), "backward must be one of normal, .* got 'none'"),
    "swapped": (
        lambda: sj.ScaledTensor2x(sj.quantize(X, colwise=True).colwise_tensor, sj.quantize(X)),
        "rowwise_tensor must be rowwise",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_arguments_are_named(name):
    call, message = REFUSED[name]
    with pytest.raises(RecipeError, match=message):
        call()
    with pytest.raises(RecipeError, match=message):
        jax.jit(call)()
