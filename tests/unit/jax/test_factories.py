"""Tensors and quantizers for JAX from their parts: shapes that are taken, the bytes, and what is refused."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax_cases import assert_same_values, matrix, raw

import steelyard.jax as sj
import steelyard.jax.tensor as tensors
from steelyard.errors import RecipeError
from steelyard.jax import QuantizeLayout, QuantizerFactory, QuantizerSet, ScaledTensorFactory, ScalingMode

MODES = [mode for mode in ScalingMode if mode is not ScalingMode.NO_SCALING]
E4M3, E5M2 = jnp.float8_e4m3fn, jnp.float8_e5m2
X = jnp.asarray(matrix(70, 96, special=False, spread=2.0))
CURRENT = ScalingMode.CURRENT_TENSOR_SCALING


def quantized(mode: ScalingMode, x=X):
    scale = jnp.float32(0.5) if mode is ScalingMode.DELAYED_TENSOR_SCALING else None
    return sj.quantize(x, mode, scale=scale, colwise=True)


def test_the_module_of_tensors_has_them_all():
    assert tensors.ScaledTensorFactory is sj.ScaledTensorFactory
    for name in tensors.__all__:
        assert getattr(tensors, name) is getattr(sj, name)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("create", [ScaledTensorFactory.create, ScaledTensorFactory.create_1x])
def test_a_scale_of_one_value(shape, create):
    values = np.array([[1.5, -2.0]], ml_dtypes.float8_e4m3fn)
    tensor = create(jnp.asarray(values), jnp.full(shape, 0.5, jnp.float32), scaling_mode=CURRENT)
    assert tensor.scale_inv.shape == ()
    np.testing.assert_array_equal(tensor.dequantize(), values.astype(np.float32) * 0.5)
    # Codes 6 and -1 with block scale 448 and amax 12: 6 * 448 * 12 / (6 * 448).
    fp4 = create(
        jnp.asarray([[0xA7]], jnp.uint8),
        jnp.full(shape, 448, E4M3),
        amax=jnp.full(shape, 12.0, jnp.float32),
        scaling_mode=ScalingMode.NVFP4_1D_SCALING,
    )
    np.testing.assert_array_equal(fp4.dequantize(), [[12.0, -2.0]])
    assert jax.jit(lambda t: t.dequantize())(fp4).tolist() == [[12.0, -2.0]]
    mx = create(
        jnp.asarray(values), jnp.full(shape, 2.0, jnp.float8_e8m0fnu), scaling_mode=ScalingMode.MXFP8_1D_SCALING
    )
    np.testing.assert_array_equal(mx.dequantize(), [[3.0, -4.0]])


@pytest.mark.every(3)
@pytest.mark.parametrize("mode", MODES)
def test_one_copy_and_two_copies(mode):
    both = quantized(mode)
    row, col = both.rowwise_tensor, both.colwise_tensor
    made = ScaledTensorFactory.create_2x(
        row.data, row.scale_inv, col.data, col.scale_inv, row.amax, col.amax, mode, jnp.bfloat16, mode.get_data_layout()
    )
    assert isinstance(made, sj.ScaledTensor2x)
    for copy, again in ((row, made.rowwise_tensor), (col, made.colwise_tensor)):
        alone = ScaledTensorFactory.create_1x(
            copy.data, copy.scale_inv, copy.amax, mode, jnp.bfloat16, copy.is_colwise, copy.data_layout
        )
        for each in (again, alone):
            assert type(each) is sj.ScaledTensor1x
            assert (each.is_colwise, each.dq_dtype) == (copy.is_colwise, jnp.bfloat16)
            np.testing.assert_array_equal(raw(each.codes), raw(copy.codes))
            assert_same_values(each.dequantize(), copy.dequantize().astype(jnp.bfloat16))


def test_each_copy_has_its_amax():
    codes, scale = jnp.full((2, 1), 0xA7, jnp.uint8), jnp.full((2, 1), 448, E4M3)
    parts, mode = (codes, scale, codes, scale), ScalingMode.NVFP4_1D_SCALING
    amaxes = [jnp.full((1,), amax, jnp.float32) for amax in (12.0, 6.0)]
    shared = ScaledTensorFactory.create_2x(*parts, amaxes[0], scaling_mode=mode)
    assert shared.dequantize().tolist() == [[12.0, -2.0]] * 2
    assert shared.colwise_tensor.dequantize().T.tolist() == [[12.0, -2.0]] * 2
    own = ScaledTensorFactory.create_2x(*parts, *amaxes, scaling_mode=mode)
    assert own.dequantize().tolist() == [[12.0, -2.0]] * 2
    assert own.colwise_tensor.dequantize().T.tolist() == [[6.0, -1.0]] * 2


@pytest.mark.every(3)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(70, 96), (7, 10, 96)])
def test_padded_scales_are_taken(mode, shape):
    both = quantized(mode, X.reshape(shape))
    for copy in (both.rowwise_tensor, both.colwise_tensor):
        padded = np.full(
            mode.get_scale_shape(shape, is_colwise=copy.is_colwise, is_padded=True),
            1.0,
            np.asarray(copy.scale_inv).dtype,
        )
        scales = np.asarray(copy.scale_inv)
        if padded.ndim:
            columnwise_mx = copy.is_colwise and mode.is_mxfp8
            scales = scales.reshape(scales.shape[0], -1) if columnwise_mx else scales.reshape(-1, scales.shape[-1])
            padded[: scales.shape[0], : scales.shape[1]] = scales
        else:
            padded = scales
        made = ScaledTensorFactory.create_1x(
            copy.data, jnp.asarray(padded), copy.amax, mode, is_colwise=copy.is_colwise, data_layout=copy.data_layout
        )
        assert made.scale_inv.shape == copy.scale_inv.shape
        assert_same_values(made.dequantize(), copy.dequantize())


def test_groups_from_their_parts():
    made = sj.quantize(X, ScalingMode.CURRENT_TENSOR_SCALING, group_sizes=jnp.array([70], jnp.int32))
    again = ScaledTensorFactory.create_1x(
        made.codes,
        made.scale_inv.reshape(()),
        made.amax.reshape(()),
        CURRENT,
        group_sizes=made.group_sizes,
        original_shape=(70, 96),
    )
    assert type(again) is sj.GroupedScaledTensor1x
    assert_same_values(again.dequantize(), made.dequantize())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("layout", QuantizeLayout)
def test_quantizers_of_a_mode(mode, layout):
    quantizer = QuantizerFactory.create(scaling_mode=mode, q_layout=layout)
    row, col = quantizer.quantize(X)
    plain = quantized(mode) if mode is not ScalingMode.DELAYED_TENSOR_SCALING else None
    for copy, exists, colwise in ((row, layout.has_rowwise, False), (col, layout.has_colwise, True)):
        assert isinstance(copy, sj.ScaledTensor1x if exists else sj.NoScaleTensor)
        if exists and plain is not None:
            np.testing.assert_array_equal(raw(copy.codes), raw(plain.get_tensor(colwise).codes))
    assert isinstance(quantizer, sj.DelayedQuantizer) == (mode is ScalingMode.DELAYED_TENSOR_SCALING)


def test_several_quantizers_and_their_options():
    pair = QuantizerFactory.create(2, CURRENT, E5M2, n_groups=4)
    assert isinstance(pair, tuple)
    assert [each.row.element for each in pair] == ["f8E5M2"] * 2
    delayed = QuantizerFactory.create(scaling_mode=ScalingMode.DELAYED_TENSOR_SCALING, history_len=7)
    assert delayed.amax_history.shape == (7,)
    stochastic = QuantizerFactory.create(scaling_mode=ScalingMode.NVFP4_1D_SCALING, rounding="stochastic")
    assert stochastic.is_stochastic
    assert QuantizerFactory.create().quantize(X)[0].data is X


@pytest.mark.parametrize("mode", [CURRENT, ScalingMode.MXFP8_1D_SCALING, ScalingMode.NVFP4_1D_SCALING])
def test_a_set_of_a_mode_runs_a_dense_layer(mode):
    dtypes = {} if mode.is_nvfp4 else {"fwd_dtype": E4M3, "bwd_dtype": E5M2}
    made = QuantizerFactory.create_set(scaling_mode=mode, is_2x2x=True, **dtypes)
    kernel = jnp.asarray(matrix(96, 32, special=False, spread=1.0))
    left = quantized(mode).dequantize()
    right = quantized(mode, kernel).colwise_tensor.dequantize()
    expected = np.asarray(left, np.float64) @ np.asarray(right, np.float64)
    np.testing.assert_allclose(sj.dense(X, kernel, quantizer_set=made), expected, rtol=1e-5, atol=1e-5)
    if not mode.is_nvfp4:
        assert (made.x.row.element, made.dgrad.row.element) == ("f8E4M3FN", "f8E5M2")


def test_sets_of_a_recipe_and_of_nothing():
    sets = QuantizerFactory.create_set(2, fp8_recipe="mxfp8")
    assert isinstance(sets, tuple)
    for each in sets:
        assert jax.tree.structure(each) == jax.tree.structure(QuantizerSet.from_recipe("mxfp8"))
    kernel = jnp.ones((96, 4))
    np.testing.assert_array_equal(sj.dense(X, kernel, quantizer_set=QuantizerFactory.create_set()), X @ kernel)


REFUSED = {
    "mode": (lambda: QuantizerFactory.create(scaling_mode="fp8"), "scaling_mode must be a ScalingMode, got 'fp8'"),
    "layout": (lambda: QuantizerFactory.create(q_layout="both"), "q_layout must be a QuantizeLayout, got 'both'"),
    "count": (lambda: QuantizerFactory.create(0), "n_quantizers must be a positive integer, got 0"),
    "groups": (lambda: QuantizerFactory.create(n_groups=-1), "n_groups must be a positive integer, got -1"),
    "dtype": (lambda: QuantizerFactory.create(1, CURRENT, jnp.float32), "q_dtype must be one of float8_e4m3fn"),
    "once": (lambda: QuantizerFactory.create_set(is_2x2x=False), "is_2x2x must be True or left out"),
    "beside": (lambda: QuantizerFactory.create_set(1, CURRENT, fp8_recipe="mxfp8"), "fp8_recipe decides modes"),
    "unscaled": (
        lambda: ScaledTensorFactory.create_1x(X, jnp.ones(()), scaling_mode=ScalingMode.NO_SCALING),
        "must be a ScalingMode that scales",
    ),
    "no scale": (lambda: ScaledTensorFactory.create_1x(X.astype(E4M3), None), "scale_inv must be given"),
    "letters": (
        lambda: ScaledTensorFactory.create_2x(X, X, X, X, data_layout="NNT"),
        "data_layout must have a letter for each of the two copies, got 'NNT'",
    ),
    "two scales": (lambda: ScaledTensorFactory.create_1x(X.astype(E4M3), jnp.ones(2)), r"scale_inv must be .* \(2,\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_arguments_are_named(name):
    call, message = REFUSED[name]
    with pytest.raises(RecipeError, match=message):
        call()
