"""Training with the flax layer converges like float32."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

jax = pytest.importorskip("jax")
linen = pytest.importorskip("flax.linen")
import jax.numpy as jnp  # noqa: E402
from flax.training.train_state import OVERWRITE_WITH_GRADIENT  # noqa: E402

from steelyard.jax import QuantizerSet, dense  # noqa: E402
from steelyard.jax.flax import Dense  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_jax.py"
STEPS = 80


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("train_jax", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_recipes_converge_like_float32(example):
    plain = example.train(None, STEPS)
    assert np.mean(plain[-8:]) < 0.1 * plain[0]
    for recipe, most in (("fp8-delayed", 1.1), ("nvfp4", 1.4)):
        losses = example.train(recipe, STEPS)
        assert np.mean(losses[-8:]) < most * np.mean(plain[-8:]), recipe


def test_the_layer_has_the_parameters_of_flax_and_the_product_of_dense():
    x = jax.random.normal(jax.random.key(0), (4, 8, 64))
    layer, plain = Dense(32, recipe="mxfp8"), linen.Dense(32)
    variables = layer.init(jax.random.key(1), x)
    expected = plain.init(jax.random.key(1), x)
    assert jax.tree.structure(variables) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(variables), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
    kernel, bias = variables["params"]["kernel"], variables["params"]["bias"]
    y = dense(x, kernel, bias, QuantizerSet.from_recipe("mxfp8"))
    np.testing.assert_array_equal(np.asarray(layer.apply(variables, x)), np.asarray(y))
    assert Dense(32, use_bias=False, dtype=jnp.bfloat16).init_with_output(jax.random.key(1), x)[0].dtype == jnp.bfloat16


def test_state_is_where_flax_overwrites_it(example):
    layer = Dense(32, recipe="fp8-delayed")
    x = jnp.full((4, 16), 3.0)
    variables = layer.init(jax.random.key(1), x)
    gradients = jax.jit(jax.grad(lambda v: layer.apply(v, x).sum()))(variables)
    state = gradients[OVERWRITE_WITH_GRADIENT]["quantizers"]
    # The newest amax is the last of the history, and the scale of the next step is 448 / 3.
    assert float(state.x.amax_history[-1]) == 3.0
    assert float(state.x.scale) == np.float32(448) / np.float32(3)
