"""Two devices write the bytes of one, and keep data and scales together."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from jax_cases import matrix, raw

import steelyard.jax as sj
from steelyard import recipes
from steelyard.errors import ConstraintError
from steelyard.formats.schemes import Scheme
from steelyard.jax import ScalingMode, primitives, random
from steelyard.recipes import DelayedScaling

MODES = [mode for mode in ScalingMode if mode not in (ScalingMode.NO_SCALING, ScalingMode.DELAYED_TENSOR_SCALING)]
ROWS, COLUMNS = P("devices", None), P(None, "devices")
X = matrix(256, 512, special=False, spread=2.0)


@pytest.fixture(scope="module")
def mesh():
    assert jax.device_count() == 4, "these tests need four host devices; run them in a process of their own"
    return jax.make_mesh((2,), ("devices",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])


def place(array, mesh, spec) -> jax.Array:
    return jax.device_put(jnp.asarray(array), NamedSharding(mesh, spec))


def axes(array: jax.Array) -> tuple:
    spec = tuple(array.sharding.spec)
    return spec + (None,) * (array.ndim - len(spec))


def assert_same_leaves(found, expected) -> None:
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(raw(ours), raw(theirs))


@pytest.mark.every(3)
@pytest.mark.parametrize("spec", [ROWS, COLUMNS], ids=["batch", "hidden"])
@pytest.mark.parametrize("mode", MODES)
def test_shards_are_quantized_where_they_are(mode, spec, mesh):
    step = jax.jit(lambda x: sj.quantize(x, mode, colwise=True))
    sharded = place(X, mesh, spec)
    tensor = step(sharded)
    assert_same_leaves(tensor, step(jnp.asarray(X)))
    for copy in (tensor.rowwise_tensor, tensor.colwise_tensor):
        expected = tuple(spec)[::-1] if copy.data_layout == "T" else tuple(spec)
        assert axes(copy.codes) == expected
        assert axes(copy.scale_inv) == (() if mode.is_tensor_scaling else expected)
    program = step.lower(sharded).compile().as_text()
    assert "all-gather" not in program
    assert ("all-reduce" in program) == (mode.is_tensor_scaling or mode.is_nvfp4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e-45])
def test_amaxes_of_all_shards_count(bad, mesh):
    x = np.zeros((64, 64), np.float32)
    x[0, 0], x[63, 63] = 1e-44, bad
    step = jax.jit(lambda x: sj.quantize(x, ScalingMode.NVFP4_1D_SCALING, colwise=True, rht=True))
    assert_same_leaves(step(place(x, mesh, ROWS)), step(jnp.asarray(x)))


def test_blocks_that_span_shards_are_gathered(mesh):
    x = matrix(24, 512, special=False)
    step = jax.jit(lambda x: sj.quantize(x, ScalingMode.MXFP8_1D_SCALING, colwise=True))
    assert_same_leaves(step(place(x, mesh, ROWS)), step(jnp.asarray(x)))


LAYOUTS = {"batch": (ROWS, P()), "reduced": (COLUMNS, ROWS), "features": (P(), COLUMNS)}


@pytest.mark.every(3)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["fp8-delayed", "mxfp8", "nvfp4"])
def test_a_sharded_dense_layer_is_the_whole_one(name, layout, mesh):
    recipe = DelayedScaling(amax_history_len=2) if name == "fp8-delayed" else recipes.get(name)
    kernel = jnp.asarray(matrix(512, 256, special=False, spread=1.0, seed=2)) / 512
    quantizers = sj.QuantizerSet.from_recipe(recipe)
    step = jax.jit(jax.value_and_grad(lambda x, w, q: jnp.sum(jnp.tanh(sj.dense(x, w, None, q))), argnums=(0, 1, 2)))
    value, gradients = step(jnp.asarray(X), kernel, quantizers)
    x_spec, kernel_spec = LAYOUTS[layout]
    operands = (
        place(X, mesh, x_spec),
        place(kernel, mesh, kernel_spec),
        jax.device_put(quantizers, NamedSharding(mesh, P())),
    )
    found, found_gradients = step(*operands)
    np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-2)
    assert_same_leaves(found_gradients[2].x, gradients[2].x)
    assert_same_leaves(found_gradients[2].kernel, gradients[2].kernel)
    # Sums over devices have another order, which changes an activation by an ulp and, rarely, a gradient by a code.
    for ours, theirs in zip(found_gradients[:2], gradients[:2], strict=True):
        scale = float(jnp.abs(theirs).max())
        np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), atol=2e-3 * scale)
    if layout == "batch":
        assert axes(found_gradients[0]) == tuple(ROWS)


def test_logical_axes_place_data_and_scales_together(mesh):
    tensor = sj.quantize(jnp.asarray(X), ScalingMode.MXFP8_1D_SCALING, colwise=True)
    with sj.logical_axis_rules([("batch", "devices"), ("hidden", None)], mesh):
        placed = jax.jit(lambda t: t.apply_sharding_constraint_by_logical_axes(("batch", "hidden")))(tensor)
    for copy in (placed.rowwise_tensor, placed.colwise_tensor):
        assert axes(copy.codes) == axes(copy.scale_inv) == tuple(ROWS)
    assert_same_leaves(placed, tensor)
    with sj.logical_axis_rules([("hidden", "devices"), ("batch", None)], mesh):
        turned = sj.quantize(jnp.asarray(X), ScalingMode.NVFP4_1D_SCALING, rowwise=False, colwise=True)
        turned = jax.jit(lambda t: t.apply_sharding_constraint_by_logical_axes(("batch", "hidden")))(turned)
    assert axes(turned.codes) == axes(turned.scale_inv) == tuple(ROWS)


def test_wrong_axes_are_named(mesh):
    tensor = sj.quantize(jnp.ones((31, 64)), ScalingMode.MXFP8_1D_SCALING)
    with sj.logical_axis_rules([("batch", "devices"), ("hidden", None)], mesh):
        with pytest.raises(ConstraintError, match="axes must be named by the rules"):
            tensor.apply_sharding_constraint_by_logical_axes(("tokens", "hidden"))
        with pytest.raises(ConstraintError, match="data: a dim of size 31 must divide over 2 devices"):
            tensor.apply_sharding_constraint_by_logical_axes(("batch", "hidden"))
    with (
        sj.logical_axis_rules([("batch", "devices"), ("hidden", None)]),
        pytest.raises(ConstraintError, match="needs a mesh"),
    ):
        tensor.apply_sharding_constraint_by_logical_axes(("batch", "hidden"))
    with pytest.raises(ConstraintError, match="rules must be pairs"), sj.logical_axis_rules(["batch"]):
        pass


def test_shards_of_a_shard_map_are_tensors_of_their_own(mesh):
    def body(x):
        return sj.quantize(x, ScalingMode.MXFP8_1D_SCALING).dequantize()

    mapped = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=ROWS, out_specs=ROWS))
    expected = sj.quantize(jnp.asarray(X), ScalingMode.MXFP8_1D_SCALING).dequantize()
    assert_same_leaves(mapped(jnp.asarray(X)), expected)


@pytest.mark.every(2)
@pytest.mark.parametrize("name", ["fp8-delayed", "mxfp8"])
def test_a_replicated_kernel_has_the_gradients_of_all_shards(name, mesh):
    recipe = DelayedScaling(amax_history_len=2) if name == "fp8-delayed" else recipes.get(name)
    quantizers = sj.QuantizerSet.from_recipe(recipe)
    kernel, bias, x = (jnp.asarray(matrix(*size, special=False, spread=0.5)) for size in ((64, 32), (1, 32), (64, 64)))

    def total(x, kernel, bias, quantizers):
        return jnp.sum(sj.dense(x, kernel, bias[0], quantizers) ** 2)

    def sharded(*arguments):
        local = jax.shard_map(
            lambda *a: jax.lax.psum(total(*a), "devices"), mesh=mesh, in_specs=(ROWS, P(), P(), P()), out_specs=P()
        )
        return local(*arguments)

    dkernel, dbias, moved = jax.jit(jax.grad(sharded, argnums=(1, 2, 3)))(x, kernel, bias, quantizers)
    alone = [jax.grad(total, argnums=(1, 2, 3))(half, kernel, bias, quantizers) for half in jnp.split(x, 2)]
    np.testing.assert_allclose(dkernel, alone[0][0] + alone[1][0], rtol=1e-6)
    np.testing.assert_allclose(dbias, alone[0][1] + alone[1][1], rtol=1e-5)
    if name == "fp8-delayed":
        assert float(moved.x.amax_history[-1]) == max(float(each[2].x.amax_history[-1]) for each in alone)
        assert float(moved.dgrad.amax_history[-1]) == max(float(each[2].dgrad.amax_history[-1]) for each in alone)


_BLOCKS = Scheme("f4E2M1FN", "1x16", "f8E4M3FN", rounding="stochastic", second_level="tensor")
_TRANSFORMED = replace(_BLOCKS, rht=True)
RANDOM = {
    "rowwise": (_BLOCKS, None),
    "columnwise": (None, _TRANSFORMED),
    "transformed rows": (_TRANSFORMED, None),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("copy", RANDOM)
@pytest.mark.parametrize("spec", [ROWS, COLUMNS], ids=["rows", "columns"])
@pytest.mark.parametrize("count", [2, 4])
def test_random_bytes_are_those_of_the_place_in_the_whole(count, spec, copy):
    devices = jax.make_mesh((count,), ("devices",), axis_types=(AxisType.Auto,), devices=jax.devices()[:count])
    # Where rows are not split they have no whole number of groups of random bytes.
    x = matrix(64, 16 * count if spec == COLUMNS else 24, special=False, spread=2.0)
    words = random.random_words(jax.random.key(3))
    step = jax.jit(lambda x: primitives.quantize(x, *RANDOM[copy], rng=words))
    sharded = place(x, devices, spec)
    assert_same_leaves(step(sharded), step(jnp.asarray(x)))
    assert "all-gather" not in step.lower(sharded).compile().as_text()
